"""`--what-if`: the same plan with other values, beside the plan as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages.contract.problem import Problem
from trainer.planning.plan import Study


@dataclass(frozen=True)
class Column:
    """One alternative: its changes, and what came of them."""

    title: str
    study: Study


def columns(changes: Sequence[str], work_out: Callable[[Sequence[str]], Study]) -> list[Column]:
    """The plan as it is, each change by itself, and where there are several, all of them together."""
    found = [Column("now", work_out(()))]
    found += [Column(change, work_out((change,))) for change in changes]
    if len(changes) > 1:
        found.append(Column("all of these", work_out(changes)))
    return found


def differences(found: Sequence[Column]) -> list[list[str]]:
    """Values that differ in some column: name, then the value in each; `-` where there is none."""
    tables = [{note.key: note.value for note in column.study.notes} for column in found]
    names = list(dict.fromkeys(note.key for column in found for note in column.study.notes))
    rows = [[name, *(table.get(name, "-") for table in tables)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def new_problems(found: Sequence[Column]) -> list[tuple[str, Problem]]:
    """What goes wrong with a change and not without it, by the title of the column."""
    before = {problem.message for problem in found[0].study.problems}
    return [
        (column.title, problem)
        for column in found[1:]
        for problem in column.study.problems
        if problem.message not in before
    ]


def solved_problems(found: Sequence[Column]) -> list[tuple[str, Problem]]:
    """What a change puts right."""
    return [
        (column.title, problem)
        for column in found[1:]
        for problem in found[0].study.problems
        if problem.message not in {one.message for one in column.study.problems}
    ]
