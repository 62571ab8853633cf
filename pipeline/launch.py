"""From the command line to a running build: lock, executor, display, result."""

from __future__ import annotations

import errno
import json
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.corpus import Corpus, load_corpus
from pipeline.engine.cluster import OnRay
from pipeline.engine.driver import Stopped
from pipeline.engine.executor import Executor, Inline
from pipeline.engine.plan import Plan, make_plan
from pipeline.engine.run import Build
from pipeline.engine.state import BuildResult
from pipeline.engine.store import Store, remove_folder
from pipeline.events import Event, Events
from pipeline.output.finish import RUN_FILE
from pipeline.show import Display, funnel, span, table
from stages.contract.files import write_atomic
from stages.contract.names import canonical_json
from stages.contract.problem import Problem, RunError, SpecError

if TYPE_CHECKING:
    from pipeline.command import Output


def build_corpus(
    out: Output,
    config: Path,
    overrides: tuple[str, ...],
    *,
    until: str | None,
    inline: bool,
    address: str | None,
    fresh: bool,
    log_file: Path | None,
    patient: bool = True,
) -> int:
    """Runs a build for a command and says what came of it. Returns the exit code.

    patient  whether the first signal lets running tasks finish; if not, it ends the build as the second one would
    """
    corpus = load_corpus(config, (*overrides, *([f"run.address={address}"] if address else [])))
    plan = make_plan(corpus)
    _check_until(plan, until)
    if fresh and plan.out.exists():
        with Store(plan.out):
            pass  # refuses while another build holds the folder
        remove_folder(plan.out / "work")
    log = open(log_file, "a", encoding="utf-8") if log_file else None
    displays = [Display(quiet=out.quiet or out.as_json, verbose=out.verbose)]
    if log is not None:
        displays.append(Display(log, live=False, verbose=True))
    executor: Executor = Inline() if inline else _on_ray(corpus)
    plan.out.mkdir(parents=True, exist_ok=True)
    try:
        with Store(plan.out) as store:
            events = Events(plan.out / "events.jsonl", (*displays, *([_echo] if out.as_json else [])))
            try:
                result = Build(plan, store, executor, events, patient).run(until)
            finally:
                executor.close()
                events.close()
            _write_run(plan, store, executor, result)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = f"{plan.out}: no room left on the disk"
        raise RunError(Problem("R005", text, repairs=("free some space and run again: what is done stays",))) from error
    except Stopped as stopped:
        again = f"pipeline build {config}"
        click.echo(f"stopped; what is done stays. next: {again}", err=True)
        return stopped.exit_code
    finally:
        for display in displays:
            display.close()
        if log is not None:
            log.close()
    _tell(out, config, plan, result, until)
    return result.exit_code


def _check_until(plan: Plan, until: str | None) -> None:
    labels = plan.labels()
    if until is None or until in labels:
        return
    if until == "tokenizer":
        path = plan.corpus.tokenizer.path
        raise SpecError(
            Problem(
                "C017",
                f"no tokenizer is trained: tokenizer.path is {path}",
                repairs=("remove tokenizer.path to train one",),
            )
        )
    raise SpecError(
        Problem(
            "C008",
            f"there is no stage called `{until}` to stop after",
            repairs=(f"stages: {', '.join(labels)}",),
        )
    )


def _on_ray(corpus: Corpus) -> OnRay:
    workers = None if corpus.run.workers == "auto" else corpus.run.workers
    return OnRay(corpus.run.address, workers)


def _echo(event: Event) -> None:
    sys.stdout.write(json.dumps({"schema": 1, **event.record()}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _write_run(plan: Plan, store: Store, executor: Executor, result: BuildResult) -> None:
    """run.json: what the manifest must not hold: when, where, how long, with which versions."""
    from importlib.metadata import version

    packages = ("gristmill", "numpy", "pyarrow", "numba", "ray", "tokenizers")
    facts = {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "config_file": str(Path(plan.corpus.file).resolve()),
        "settings": plan.corpus.resolved(),
        "workers": executor.workers,
        "epoch": store.epoch,
        "seconds": result.seconds,
        "tasks_run": result.state.ran,
    }
    write_atomic(plan.out / RUN_FILE, canonical_json(facts) + b"\n")


def _tell(out: Output, config: Path, plan: Plan, result: BuildResult, until: str | None) -> None:
    from stages.contract.manifest import load_manifest

    accounts = result.accounts
    lines = [funnel(accounts), ""]
    data: dict[str, Any] = {
        "documents": result.documents,
        "seconds": result.seconds,
        "tasks_run": result.state.ran,
    }
    if result.manifest is None:
        trained = next((b.facts for b in result.state.boundaries if "tokenizer.json" in b.facts.artifact), None)
        lines.append(
            f"stopped after {until}, as asked: {result.documents:,} documents left, {span(result.seconds)}"
        )
        if trained is not None:
            lines.append(f"tokenizer   {plan.out / 'tokenizer' / 'tokenizer.json'}")
            data["tokenizer"] = str(plan.out / "tokenizer" / "tokenizer.json")
        out.result("\n".join(lines), data)
        out.next(f"pipeline build {config}")
        return
    manifest = load_manifest(result.manifest)
    rows = [
        (
            name,
            f"{s.documents:,}",
            f"{s.tokens:,}",
            f"{s.text_bytes / max(s.tokens, 1):.2f}",
            f"{100 * manifest.mixture.get(name, 0):.1f} %",
            len(s.shards),
            sum(h.documents for h in s.holdout),
        )
        for name, s in manifest.sources.items()
    ]
    lines.append(
        table(("source", "documents", "tokens", "bytes/token", "weight", "shards", "held out"), rows)
    )
    if manifest.damaged or manifest.rejects.total:
        lines.append(
            f"\nnot taken: {manifest.rejects.total:,} records (rejects.jsonl), {len(manifest.damaged)} damaged files"
        )
    lines += [
        "",
        f"manifest    {result.manifest}",
        f"report      {plan.out / 'report.html'}",
        f"dropped     {plan.out / 'dropped'}   (with reasons; `pipeline inspect {plan.out} --dropped`)",
        f"{result.documents:,} documents, {result.tokens:,} tokens in {span(result.seconds)}",
    ]
    out.result("\n".join(lines), {**data, "manifest": str(result.manifest), "tokens": result.tokens})
    out.next(f"trainer fit --manifest {result.manifest}")
