"""`trainer doctor`: what ails a run, from what it wrote; running, finished or dead. It changes nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.contract.problem import GristmillError, printable
from trainer.checkpoint import extend
from trainer.loader import Loader
from trainer.planned import Plan
from trainer.tools.causes import findings, progress, running
from trainer.tools.causes.case import LIKELY, WORDS, Case, Finding
from trainer.tools.runs import Run, corpora, open_run, plan_of

if TYPE_CHECKING:
    from trainer.command import Output


def state_of(run: Run, steps: int) -> str:
    """What the run is doing, in a sentence."""
    done = run.steps[-1]["step"] if run.steps else 0
    path = run.folder / "metrics.jsonl"
    age = max(0, int(time.time() - path.stat().st_mtime)) if path.exists() else None
    ago = "" if age is None else f", last word {age:,} s ago"
    if _held(run.folder / "lock"):
        return f"running: {done:,} of {steps:,} steps{ago}"
    return f"finished: {done:,} steps" if done >= steps else f"stopped or dead: {done:,} of {steps:,} steps{ago}"


def _held(path: Path) -> bool:
    """Whether a process holds the run folder. A lock that is free is not kept."""
    if not path.exists():
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def case_of(run: Run, given: Sequence[Path] = ()) -> Iterator[tuple[Case, str]]:
    """`(case, why its data are not looked at)`; "" where they are."""
    missing = ""
    try:
        manifests, folders = corpora(run, given)
        plan = followed(run, plan_of(run, manifests))
        loader = Loader(folders, plan, manifests)
    except GristmillError as error:
        if given:
            raise
        missing, plan = printable(error.problems[0].message), plan_of(run)
        yield Case(run, plan), missing
        return
    with loader:
        yield Case(run, plan, loader), missing


def followed(run: Run, plan: Plan) -> Plan:
    """The plan with the data steps that the guard passed over since it was written down."""
    from trainer.checkpoint import COMPLETE, folders
    from trainer.checkpoint.records import Complete

    present = folders(run.folder / "checkpoints")
    if not present:
        return plan
    state = Complete.model_validate_json((present[max(present)] / COMPLETE).read_bytes()).state
    return extend.jumping(plan, state.jumped) if state.jumped else plan


def report(found: Sequence[Finding], state: str, words: Sequence[str]) -> str:
    """What was found, as text: the most certain first."""
    lines = [f"  {state}", *(f"  {word}" for word in words), ""]
    for number, one in enumerate(found, 1):
        lines.append(f"  {number}. {printable(one.title)} ({WORDS[one.certainty]})")
        lines += [f"       {printable(text)}" for text in one.evidence]
        lines += [f"     = {printable(text)}" for text in one.change]
    return "\n".join(lines + ([] if found else ["  nothing found that is wrong"]))


def command(output: Output, folder: Path, manifests: Sequence[Path]) -> int:
    """`trainer doctor`: 3 when something is likely wrong, else 0."""
    run = open_run(folder)
    with case_of(run, manifests) as (case, missing):
        found = findings(case)
        words = [f"progress: {progress.word(case)}", f"speed: {running.word(case)}"]
        state = state_of(run, case.plan.steps)
    if missing:
        words.append(f"the data were not looked at: {missing}")
    code = 3 if any(one.certainty >= LIKELY for one in found) else 0
    if output.as_json:
        output.emit("result", {"exit": code, "state": state, "words": words, "findings": [one.to_json() for one in found]})
    else:
        click.echo(report(found, state, words))
    return code
