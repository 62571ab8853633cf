"""Batches made by a thread, a few ahead of the one who trains, and how long that one waited."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Waits:
    """What loading cost so far.

    waiting     seconds that the one who iterates waited for batches
    making      seconds that batches took to make, in whatever thread;  made  how many
    bytes_read  bytes of tokens read;  reads  in how many pieces
    """

    waiting: float = 0.0
    making: float = 0.0
    made: int = 0
    bytes_read: int = 0
    reads: int = 0


class Ahead(Generic[T]):
    """Makes `make(step)` for each step, at most `size` ahead. An error is raised where its value would have come."""

    def __init__(self, make: Callable[[int], T], steps: range, size: int, waits: Waits) -> None:
        self._make = make
        self._steps = steps
        self._waits = waits
        self._queue: queue.Queue[T | BaseException] = queue.Queue(max(1, size))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        for _ in self._steps:
            began = time.perf_counter()
            while not self._stop.is_set():
                try:
                    made = self._queue.get(timeout=0.1)
                    break
                except queue.Empty:
                    continue
            else:
                return
            self._waits.waiting += time.perf_counter() - began
            if isinstance(made, BaseException):
                raise made
            yield made

    def close(self) -> None:
        """Ends the thread and waits for it."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        for step in self._steps:
            try:
                made: T | BaseException = self._make(step)
            except BaseException as error:  # the one who waits has to hear of it, whatever it is
                made = error
            while not self._stop.is_set():
                try:
                    self._queue.put(made, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._stop.is_set() or isinstance(made, BaseException):
                return
