"""Batches made by a thread, a few ahead of the one who trains, and how long that one waited.

To wake the thread costs the one who trains more than to take a batch does, so it is woken for several at a time: when half
of what it made is taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
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
        self._size = max(1, size)
        self._made: deque[T | BaseException] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        held: list[T] = []  # empty while the other works: its memory goes when the other lets go, not within a wait
        for _ in self._steps:
            began = time.perf_counter()
            with self._changed:
                self._changed.wait_for(lambda: self._made or self._closed)
                if self._closed:
                    return
                made = self._made.popleft()
                if len(self._made) <= self._size // 2:
                    self._changed.notify()
            self._waits.waiting += time.perf_counter() - began
            if isinstance(made, BaseException):
                raise made
            held.append(made)
            del made
            yield held.pop()

    def close(self) -> None:
        """Ends the thread and waits for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        for step in self._steps:
            try:
                made: T | BaseException = self._make(step)
            except BaseException as error:  # the one who waits has to hear of it, whatever it is
                made = error
            with self._changed:
                self._changed.wait_for(lambda: len(self._made) < self._size or self._closed)
                if self._closed:
                    return
                self._made.append(made)
                self._changed.notify()
            if isinstance(made, BaseException):
                return
