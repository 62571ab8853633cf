"""Typed events: one record per happening, one JSON line each.

The terminal, the log, `--json`, the run folder and the tests all read these; nothing else is printed while a
build runs. An event says what happened, in numbers; how it looks is `show.py`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import orjson


@dataclass(frozen=True)
class Event:
    """Base of all events; `kind` is the word in the JSON line."""

    kind: ClassVar[str] = "event"

    def record(self) -> dict[str, object]:
        """The event as a flat JSON object, without its time."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class RunStarted(Event):
    kind: ClassVar[str] = "run-started"
    name: str
    config: str  # digest of what decides the output bytes
    out: str
    epoch: int
    workers: str


@dataclass(frozen=True)
class PassStarted(Event):
    """A pass over the documents, a superstep of a global stage, or the writing of shards."""

    kind: ClassVar[str] = "pass-started"
    name: str
    tasks: int
    cached: int
    minor: bool = False  # one of many small rounds


@dataclass(frozen=True)
class TaskDone(Event):
    kind: ClassVar[str] = "task-done"
    name: str
    task: str
    seconds: float
    documents: int
    text_bytes: int


@dataclass(frozen=True)
class PassDone(Event):
    kind: ClassVar[str] = "pass-done"
    name: str
    tasks: int
    ran: int
    seconds: float
    minor: bool = False


@dataclass(frozen=True)
class RoundsDone(Event):
    """All rounds of a global stage have run."""

    kind: ClassVar[str] = "rounds-done"
    name: str
    rounds: int
    seconds: float
    counters: dict[str, int]


@dataclass(frozen=True)
class WorkerDied(Event):
    kind: ClassVar[str] = "worker-died"
    name: str
    task: str
    attempt: int
    detail: str


@dataclass(frozen=True)
class Quarantined(Event):
    kind: ClassVar[str] = "quarantined"
    source: str
    uri: str
    record_number: int
    stage: str
    reason: str


@dataclass(frozen=True)
class Damaged(Event):
    kind: ClassVar[str] = "damaged"
    source: str
    uri: str
    detail: str
    policy: str


@dataclass(frozen=True)
class Warned(Event):
    kind: ClassVar[str] = "warning"
    code: str
    message: str


@dataclass(frozen=True)
class Interrupted(Event):
    kind: ClassVar[str] = "interrupted"
    signal: str
    running: int


@dataclass(frozen=True)
class RunDone(Event):
    kind: ClassVar[str] = "run-done"
    manifest: str | None
    documents: int
    tokens: int
    seconds: float


Listener = Callable[[Event], None]


class Events:
    """Where events go: a file in the run folder and any number of listeners."""

    def __init__(self, path: Path | None = None, listeners: tuple[Listener, ...] = ()) -> None:
        self._listeners = listeners
        self._file = open(path, "ab") if path is not None else None

    def __call__(self, event: Event) -> None:
        """Writes the event down, then tells the listeners."""
        if self._file is not None:
            self._file.write(orjson.dumps({"time": round(time.time(), 3), **event.record()}) + b"\n")
            self._file.flush()
        for listener in self._listeners:
            listener(event)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


#: Every event kind with its fields, for the documentation test.
KINDS: dict[str, tuple[str, ...]] = {
    cls.kind: tuple(f.name for f in fields(cls)) for cls in Event.__subclasses__()
}
