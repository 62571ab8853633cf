"""How tasks run: here, one after the other, or on Ray (`cluster.py`). The driver sees the same happenings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from stages.storage.cache import release


class Task(Protocol):
    """A value that any process can run; it yields results that the driver writes down one by one."""

    key: str
    name: str

    def run(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Yielded:
    """A task came to a result; more may follow."""

    task: Any
    result: Any


@dataclass(frozen=True)
class Finished:
    """A task has no more results."""

    task: Any
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A task ended badly: it raised `error`, or its worker died (`error` is None); `lost`: the whole node did."""

    task: Any
    error: BaseException | None
    detail: str
    lost: bool = False


@dataclass(frozen=True)
class Needs:
    """What a task asks of the node that runs it. `memory` in bytes."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 512 << 20


Happening = Yielded | Finished | Failed


class Executor(Protocol):
    """Runs what is submitted, in any order."""

    slots: int  # how many tasks it likes to hold at once
    workers: str  # for people

    def submit(self, task: Any) -> None: ...

    def next(self, timeout: float) -> Happening | None:
        """The next happening, or None if there is none within `timeout` seconds."""

    def running(self) -> int: ...

    def close(self) -> None: ...


def return_memory() -> None:
    """Has Arrow give freed memory back to the system, in this process.

    Batches of many sizes come and go in a worker; the default pool keeps what it once had. Over 20,000 documents
    through `minhash-dedup` the peak of the process was 295 MB with jemalloc, 340 MB with the default (mimalloc).
    """
    import pyarrow as pa

    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


class Inline:
    """One task at a time in this process, without Ray: for debugging, tests and small corpora."""

    slots = 1
    workers = "inline"

    def __init__(self) -> None:
        return_memory()
        self._queue: deque[Any] = deque()
        self._current: tuple[Any, Iterator[Any], float] | None = None

    def submit(self, task: Any) -> None:
        """Puts a task in line."""
        self._queue.append(task)

    def running(self) -> int:
        """Tasks not finished."""
        return len(self._queue) + (self._current is not None)

    def next(self, timeout: float) -> Happening | None:  # noqa: ARG002
        """Works until something happens; `timeout` does not interrupt a task."""
        if self._current is None:
            if not self._queue:
                return None
            task = self._queue.popleft()
            self._current = task, task.run(), time.monotonic()
        task, results, started = self._current
        try:
            return Yielded(task, next(results))
        except StopIteration:
            self._current = None
            release()
            return Finished(task, time.monotonic() - started)
        except Exception as error:
            self._current = None
            return Failed(task, error, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Drops what has not run."""
        self._queue.clear()
        if self._current is not None:
            self._current[1].close()  # type: ignore[attr-defined]
            self._current = None
