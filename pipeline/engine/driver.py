"""Runs a set of tasks to the end: bounded in flight, retried when a worker dies, stopped when asked.

What a death costs: a task is sent again; after the second death it runs with care around the batch that it was at
(see `task.Breadcrumb`); when a single document is known to kill, it is quarantined and the build begins again from
the journal, so that the bytes are those of a build that knew of it from the start.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from pipeline.engine.executor import Executor, Failed, Finished, Yielded
from pipeline.engine.records import PassRecord
from pipeline.engine.several import Several, together
from pipeline.engine.store import Store
from pipeline.engine.task import PassTask
from pipeline.events import Events, Interrupted, PassDone, PassStarted, TaskDone, WorkerDied
from stages.contract.problem import GristmillError, Problem, RunError

DEATHS_BEFORE_CARE = 2
DEATHS_AT_MOST = 8
NODES_AT_MOST = 50  # a task may lose so many nodes: spot machines go, and that says nothing about the task
WAIT_SECONDS = 0.5


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """The build was asked to stop and has finished what was running. `exit_code` 130 (Ctrl-C) or 75 (SIGTERM)."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Poisoned(Exception):  # noqa: N818 - handled by the build
    """A document kills its worker every time."""

    def __init__(self, source: str, uri: str, record: int, detail: str) -> None:
        super().__init__(source, uri, record, detail)
        self.source, self.uri, self.record, self.detail = source, uri, record, detail


class Driver:
    """Feeds an executor and hears what happens. `patient`: the first signal lets running tasks finish."""

    def __init__(self, store: Store, executor: Executor, events: Events, patient: bool = True) -> None:
        self.patient = patient
        self.store = store
        self.executor = executor
        self.events = events
        self._stop: int | None = None
        self._poison: Poisoned | None = None

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """While inside: the first SIGINT or SIGTERM lets running tasks finish, the second stops now."""

        def ask(number: int, _frame: Any) -> None:
            if self._stop is not None or not self.patient:
                raise KeyboardInterrupt
            self._stop = 130 if number == signal.SIGINT else 75
            self.events(Interrupted(signal.Signals(number).name, self.executor.running()))

        old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def run(
        self,
        name: str,
        tasks: Iterable[Any],
        cached: int,
        on_result: Callable[[Any, Any], None],
        minor: bool = False,
        count: int | None = None,
    ) -> None:
        """Runs all tasks; `on_result(task, result)` is called in this process for each result, as it comes.

        Tasks are taken from the iterable when there is room for them; `count` says how many it has if it has no length.

        Raises RunError if a task fails, Poisoned if a document kills its worker, Stopped if asked to stop;
        each after the running tasks have come to an end, so that nothing done is lost.
        """
        total = len(tasks) if count is None else count  # type: ignore[arg-type]
        coming = together(tasks, total, self.executor.slots) if minor else iter(tasks)
        again_first: deque[Any] = deque()
        ended = total == 0
        started = time.monotonic()
        self.events(PassStarted(name, total + cached, cached, minor))
        deaths: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        results: Counter[str] = Counter()  # of each task in its present attempt
        failures: list[Failed] = []
        self._poison = None
        while not ended or again_first or self.executor.running():
            while self.executor.running() < self.executor.slots and not self._halted(failures):
                task = again_first.popleft() if again_first else next(coming, None)
                if task is None:
                    ended = True
                    break
                if isinstance(task, PassTask) and (deaths[task.key] or not self.store.remote):
                    task = replace(task, attempt=f"crumb-{task.key[:24]}")  # on a store a crumb is a request
                self.executor.submit(task)
            if not self.executor.running():
                break
            happening = self.executor.next(WAIT_SECONDS)
            self.store.tick()
            if isinstance(happening, Yielded):
                for one in _each(happening, results):
                    on_result(one.task, one.result)
                    self._report(name, one)
            elif isinstance(happening, Finished):
                results.pop(happening.task.key, None)
            elif isinstance(happening, Failed):
                if isinstance(happening.task, Several):
                    again_first += self._after_several(name, happening, failures, results)
                    continue
                again = self._after_failure(name, happening, deaths, results)
                if again is not None:
                    again_first.append(again)
                elif self._poison is None:
                    failures.append(happening)
        if failures:
            raise _as_run_error(name, failures)
        if self._poison is not None:
            raise self._poison
        if self._stop is not None:
            raise Stopped(self._stop)
        self.events(PassDone(name, total + cached, total, round(time.monotonic() - started, 3), minor))

    def _halted(self, failures: list[Failed]) -> bool:
        return bool(failures) or self._stop is not None or self._poison is not None

    def _report(self, name: str, happening: Yielded) -> None:
        result = happening.result
        documents, size = 0, 0
        if isinstance(result, tuple) and isinstance(result[0], PassRecord):
            counts = result[0].counts
            documents, size = (counts[0].documents_in, counts[0].bytes_in) if counts else (0, 0)
        self.events(TaskDone(name, happening.task.name, round(happening.seconds, 4), documents, size))

    def _after_failure(
        self, name: str, failed: Failed, deaths: Counter[str], results: Counter[str]
    ) -> Any | None:
        """The task to send again, or None: it failed for good, or a document is known to kill."""
        if failed.error is not None:
            return None
        task = failed.task
        if failed.lost and self._nodes[task.key] < NODES_AT_MOST:
            self._nodes[task.key] += 1
            self.events(WorkerDied(name, task.name, self._nodes[task.key], "its node was lost"))
            return replace(task, committed=task.committed + results.pop(task.key, 0)) if isinstance(task, PassTask) else task
        deaths[task.key] += 1
        n = deaths[task.key]
        self.events(WorkerDied(name, task.name, n, failed.detail))
        if not isinstance(task, PassTask):
            return task if n < DEATHS_BEFORE_CARE + 1 else None
        crumb = self._crumb(task)
        if crumb is not None and crumb["document"] is not None and task.careful is not None:
            place = crumb["document"]
            self._poison = Poisoned(place["source"], place["uri"], place["record"], failed.detail)
            return None
        if n >= DEATHS_AT_MOST or (crumb is None and n > DEATHS_BEFORE_CARE):
            return None
        careful = crumb["batch"] if crumb is not None and n >= DEATHS_BEFORE_CARE else None
        return replace(task, careful=careful, committed=task.committed + results.pop(task.key, 0))

    def _after_several(
        self, name: str, failed: Failed, failures: list[Failed], results: Counter[str]
    ) -> list[Any]:
        """Of small tasks that travelled as one, those to send again, now one by one; notes the one that raised."""
        left = failed.task.behind(results.pop(failed.task.key, 0))
        if failed.error is not None:
            failures.append(replace(failed, task=left[0]))
            return []
        self.events(WorkerDied(name, failed.task.name, 1, failed.detail))
        return left

    def _crumb(self, task: PassTask) -> dict | None:
        if not task.attempt:
            return None
        try:
            return orjson.loads((self.store.tmp / task.attempt).read_bytes())
        except (OSError, ValueError):
            return None


def _each(happening: Yielded, results: Counter[str]) -> Iterator[Yielded]:
    """The results that came, each with its task; counts them by the key of what was sent."""
    sent = happening.task
    if not isinstance(sent, Several):
        results[sent.key] += 1
        yield happening
        return
    for result in happening.result:
        results[sent.key] += 1
        yield Yielded(sent.single(results[sent.key] - 1), result, happening.seconds / len(happening.result))


def _as_run_error(name: str, failures: list[Failed]) -> RunError:
    problems: list[Problem] = []
    for failed in failures:
        if isinstance(failed.error, GristmillError):
            problems += failed.error.problems
        elif isinstance(failed.error, OSError) and failed.error.errno == 28:
            problems.append(
                Problem(
                    "R005",
                    f"{failed.task.name}: no room left on the disk",
                    repairs=("free some space and run again: what is done stays",),
                )
            )
        else:
            died = "its worker died again and again: " if failed.error is None else ""
            problems.append(
                Problem(
                    "R001",
                    f"{name}: {failed.task.name}: {died}{failed.detail}",
                    repairs=("run again to go on: what is done stays",),
                )
            )
    return RunError(*problems)
