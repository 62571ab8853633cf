"""Small tasks that travel as one, so that the driver has less to say and to hear for each.

What a task costs the driver is mostly Ray's: sending it, and hearing that it began, that it has a result, that it ended.
The tasks of a round are many and short. Results come back together, those of a second at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

#: At most so many tasks in one; at most so many seconds of results that one holds back.
MOST = 16
SECONDS = 1.0


@dataclass(frozen=True)
class Several:
    """Tasks of one result each, which have `common` in common (their own is None)."""

    key: str
    name: str
    tasks: tuple[Any, ...]
    common: Any = None

    @classmethod
    def of(cls, tasks: Iterable[Any]) -> Several:
        """One for these tasks."""
        mine = tuple(tasks)
        common = getattr(mine[0], "common", None)
        if common is not None:
            mine = tuple(replace(task, common=None) for task in mine)
        return cls(f"several {mine[0].key}", f"{mine[0].name} and {len(mine) - 1} more", mine, common)

    @property
    def bytes(self) -> int:
        """What a measured rate is applied to."""
        return len(self.tasks)

    def single(self, number: int) -> Any:
        """One of the tasks as it was."""
        task = self.tasks[number]
        return task if self.common is None else replace(task, common=self.common)

    def behind(self, number: int) -> list[Any]:
        """The tasks from a number on, as they were."""
        return [self.single(n) for n in range(number, len(self.tasks))]

    def run(self) -> Iterator[list[Any]]:
        """The results of the tasks, in their order; of one that raises, those before it come first."""
        results: list[Any] = []
        since = time.monotonic()
        for number in range(len(self.tasks)):
            try:
                results += self.single(number).run()
            except Exception:
                yield results
                raise
            if time.monotonic() - since > SECONDS:
                yield results
                results, since = [], time.monotonic()
        yield results


def together(tasks: Iterable[Any], count: int, slots: int) -> Iterator[Any]:
    """The tasks, several in one where there are many more than can be held at once; one slot is this very process."""
    size = min(MOST, count // slots)
    if size < 2 or slots == 1:
        yield from tasks
        return
    coming = iter(tasks)
    while group := list(islice(coming, size)):
        yield Several.of(group) if len(group) > 1 else group[0]
