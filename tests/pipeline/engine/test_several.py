"""Small tasks that travel as one: each has its result once, whatever becomes of those beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.driver import Driver
from pipeline.engine.executor import Failed, Finished, Yielded
from pipeline.engine.several import MOST, Several, together
from pipeline.engine.store import Store
from pipeline.events import Event, Events, TaskDone, WorkerDied
from stages.contract.problem import RunError


@dataclass(frozen=True)
class Square:
    """Squares its number; -1 raises."""

    key: str
    name: str
    number: int
    common: str | None

    def run(self) -> Iterator[tuple[int, str | None]]:
        if self.number == 13:
            raise ValueError("unlucky")
        yield self.number**2, self.common


class Here:
    """Runs what is sent at once, four at a time; what holds `deadly` dies, so often, behind some of its results."""

    slots = 4
    workers = "here"

    def __init__(self, deadly: int = -1, times: int = 1, lost: bool = False) -> None:
        self.deadly, self.times, self.lost = deadly, times, lost
        self.sent: list[Any] = []
        self._waiting: deque[tuple[Any, Iterator[Any]]] = deque()

    def submit(self, task: Any) -> None:
        self.sent.append(task)
        self._waiting.append((task, task.run()))

    def running(self) -> int:
        return len(self._waiting)

    def next(self, timeout: float) -> Any:
        task, results = self._waiting.popleft()
        numbers = [one.number for one in task.tasks] if isinstance(task, Several) else [task.number]
        if self.deadly in numbers and self.times:
            self.times -= 1
            return Failed(task, None, "killed", lost=self.lost)
        try:
            result = next(results)
        except StopIteration:
            return Finished(task, 0.0)
        except Exception as error:
            return Failed(task, error, str(error))
        self._waiting.append((task, results))
        return Yielded(task, result, 1.0)

    def close(self) -> None:
        """Nothing to close."""


def drive(folder: Path, executor: Here, numbers: list[int]) -> tuple[dict[int, Any], list[Event]]:
    found: dict[int, Any] = {}
    heard: list[Event] = []

    def book(task: Square, result: Any) -> None:
        assert task.number not in found
        assert task.common == "shared"
        found[task.number] = result

    tasks = [Square(f"k{n}", f"square {n}", n, "shared") for n in numbers]
    with Store(folder) as store:
        driver = Driver(store, executor, Events(None, (heard.append,)))  # type: ignore[arg-type]
        driver.run("squares", tasks, 0, book, minor=True)
    return found, heard


def test_each_result_comes_to_its_task(tmp_path: Path) -> None:
    executor = Here()
    found, heard = drive(tmp_path, executor, list(range(20, 67)))
    assert found == {n: (n**2, "shared") for n in range(20, 67)}
    assert [len(one.tasks) for one in executor.sent] == [11, 11, 11, 11, 3]
    assert sum(isinstance(event, TaskDone) for event in heard) == 47


def test_what_came_before_one_that_raises_is_kept(tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    tasks = [Square(f"k{n}", f"square {n}", n, None) for n in range(10, 50)]
    with Store(tmp_path) as store:
        driver = Driver(store, Here(), Events())  # type: ignore[arg-type]
        with pytest.raises(RunError, match="square 13: unlucky"):
            driver.run("squares", tasks, 0, lambda task, result: found.setdefault(task.number, result), minor=True)
    assert {10, 11, 12} <= found.keys()
    assert 13 not in found


@pytest.mark.parametrize("lost", [False, True])
def test_after_a_death_the_rest_is_sent_one_by_one(tmp_path: Path, lost: bool) -> None:
    executor = Here(deadly=30, times=2, lost=lost)
    found, heard = drive(tmp_path, executor, list(range(20, 60)))
    assert found == {n: (n**2, "shared") for n in range(20, 60)}
    alone = [task.number for task in executor.sent if isinstance(task, Square)]
    assert sorted(set(alone)) == list(range(30, 40))
    assert sum(isinstance(event, WorkerDied) for event in heard) == 2


def test_how_many_travel_together() -> None:
    tasks = [Square(str(n), str(n), n, None) for n in range(100)]
    assert list(together(tasks, 100, 1)) == tasks
    assert list(together(tasks, 100, 60)) == tasks
    assert [len(one.tasks) for one in together(tasks, 100, 50)] == [2] * 50
    assert max(len(one.tasks) for one in together(tasks, 100, 2)) == MOST
