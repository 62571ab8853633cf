"""What `trainer plan` does: work the plan out, say what does not fit, and answer questions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import click

from stages.contract.problem import Problem, SpecError, problem_json, render
from trainer import budget
from trainer.explain import explain, find
from trainer.plan import Study, study
from trainer.show import head_text, plan_text, values_text

__all__ = ["exit_code", "explain_all", "fit_memory", "show", "study"]


class Output(Protocol):
    """Where words and results go."""

    as_json: bool
    quiet: bool

    def emit(self, kind: str, record: dict[str, Any]) -> None:
        """One JSON line on stdout."""

    def say(self, text: str) -> None:
        """A line for people, on stderr."""

    def next(self, command: Sequence[str]) -> None:
        """What to do now."""


def exit_code(found: Study, strict: bool) -> int:
    """2 with a contradiction, 3 with warnings where `strict` asks for none, else 0."""
    if found.failed:
        return 2
    return 3 if strict and found.problems else 0


def show(output: Output, found: Study, code: int) -> None:
    """The values, the run if there can be one, and every problem. With `--json` one line, the plan in it."""
    problems = [problem_json(problem) for problem in found.problems]
    if output.as_json:
        if found.plan is not None:
            output.emit("plan", found.plan.to_json())
        notes = [vars(note) for note in found.notes]
        record = {"exit": code, "problems": problems, "skipped": list(found.skipped), "values": notes}
        output.emit("result", record)
        return
    if found.plan is not None:
        click.echo(plan_text(found.plan))
    else:
        name = found.draft.config.name or "plan"
        click.echo("\n".join([head_text(name, None), "", *values_text(found.notes)]))
    if found.skipped:
        click.echo(f"\nskipped without --manifest: {', '.join(found.skipped)}")
    for problem in found.problems:
        click.echo("\n" + render(problem), err=True)


def explain_all(output: Output, found: Study, fields: Sequence[str]) -> None:
    """The story of each of these values. SpecError for a name that there is not."""
    stories = {find(found.notes, name).key: explain(found, name) for name in fields}
    if output.as_json:
        output.emit("result", {"exit": 0, "explained": stories})
    else:
        click.echo("\n\n".join(stories.values()))


def fit_memory(output: Output, found: Study) -> int:
    """The largest micro-batch of a device. SpecError where nothing says what memory it has."""
    memory = found.values.get("hardware.gpu_memory")
    if memory is None:
        message = "nothing says how much memory a device has"
        raise SpecError(Problem("P002", message, repairs=("give --gpu-memory 80GiB, or hardware.gpu",)))
    lines = budget.fit_memory(found.values, memory)
    if output.as_json:
        output.emit("result", {"exit": 0, "lines": lines})
    else:
        click.echo("\n".join(lines))
    return 0
