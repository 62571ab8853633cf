"""Typed events: one record per happening, one JSON line each.

The terminal, the log, `--json`, the run folder and the tests all read these; nothing else is printed while a
build runs. An event says what happened, in numbers; how it looks is `show.py`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import orjson

from stages.storage.address import Address

#: A log on a store is written down this often.
PIECE_SECONDS = 10.0


@dataclass(frozen=True)
class Event:
    """Base of all events; `kind` is the word in the JSON line."""

    kind: ClassVar[str] = "event"

    def record(self) -> dict[str, object]:
        """The event as a flat JSON object, without its time."""
        return {"event": self.kind, **vars(self)}


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

    def __init__(self, path: Any = None, listeners: tuple[Listener, ...] = ()) -> None:
        self._listeners = listeners
        self._file: Any = None
        if path is not None:
            self._file = _Pieces(path) if isinstance(path, Address) else open(path, "ab")

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


class _Pieces:
    """A log on a store: `events/<time>.jsonl`, every few seconds one, since a file there cannot grow."""

    def __init__(self, path: Address) -> None:
        self._folder = path.parent / path.stem
        self._lines: list[bytes] = []
        self._since = time.monotonic()

    def write(self, line: bytes) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        if time.monotonic() - self._since > PIECE_SECONDS:
            self._put()

    def _put(self) -> None:
        if self._lines:
            (self._folder / f"{time.time_ns():020d}.jsonl").write_bytes(b"".join(self._lines))
        self._lines, self._since = [], time.monotonic()

    def close(self) -> None:
        self._put()


def event_lines(out: Any) -> Iterator[bytes]:
    """All lines of the log in an output folder (path or address), oldest first; what a kill cut short is left out."""
    log = out / "events.jsonl"
    if isinstance(log, Address):
        for piece in (log.parent / log.stem).iterdir():
            yield from piece.read_bytes().splitlines(keepends=True)
    elif log.exists():
        with open(log, "rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


#: Every event kind with its fields, for the documentation test.
KINDS: dict[str, tuple[str, ...]] = {
    cls.kind: tuple(f.name for f in fields(cls)) for cls in Event.__subclasses__()
}


def event_of(row: dict[str, object]) -> Event | None:
    """The event that a JSON line came from; None for a kind that this version does not know."""
    found = next((cls for cls in Event.__subclasses__() if cls.kind == row.get("event")), None)
    if found is None:
        return None
    return found(**{field.name: row[field.name] for field in fields(found) if field.name in row})
