"""The run folder: one lock, one journal, files named by their content. Resume is reading the journal.

Invariants, at any moment and after a kill at any line:
1. A journal record is written after the files it names are complete (fsync, rename), so a record is the proof.
2. Only the holder of the newest lock epoch writes the journal; each epoch has a journal file of its own, so a
   driver that lost its lock cannot harm a newer one. It notices within a heartbeat and stops.
3. What no record names is rubbish and is swept when a build ends well.

```
work/lock-000007            host, pid, start of the owner; its mtime is the heartbeat
work/journal/000007.jsonl   {"key": …, "part": n, "kind": …, "record": {…}}
work/data/<digest>.<kind>   sealed files
work/tmp/                   files being written
```

On a store the journal is written in pieces, `000007-00001.jsonl`, a second's records or some hundred each: a file there
cannot grow. What a kill takes with it is done again and comes out as the same files. Of a record only its place in the
journal is kept in memory, about 200 bytes each, so a build may have millions of tasks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
from pydantic import ValidationError

from pipeline.engine.lock import Lock
from pipeline.engine.records import FileRef, Record
from pipeline.engine.work import data_of
from stages.contract.files import atomic_file, on_disk
from stages.contract.problem import Problem, RunError
from stages.storage.address import Address

#: On a store, what is written together: so many records, or those of so many seconds.
PIECE_RECORDS = 256
PIECE_SECONDS = 1.0
#: On a disk, records are forced to it at least this often; a kill loses none, a power cut those since.
SYNC_SECONDS = 0.2

#: The first 60 bits of each sealed name in a line of the journal. Quotes inside of strings are escaped there.
NAMED = re.compile(rb'"name":"([0-9a-f]{15})[0-9a-f]{17}\.')

#: Marks the place of a record that this build has asked for or written.
USED = 1 << 62

R = TypeVar("R", bound=Record)


class Journal:
    """What the builds in one output folder (path or address) have written down so far, to be read; takes no lock."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.work = out / "work"
        self.data = data_of(self.work)
        self.tmp = self.work / "tmp"
        self.remote = isinstance(out, Address)
        self._files: list[BinaryIO] = []
        self._places: dict[bytes, int] = {}  # of each record: file << 48 | byte where its line begins, and USED
        self._load()
        self._sizes = {a.name: n for a, n in self.data.sizes().items()} if self.remote else None

    def get(self, key: str, kind: type[R], part: int = 0) -> R | None:
        """The record under this key if its files are still there, else None."""
        place = self._places.get(_short(key, part))
        if place is None:
            return None
        raw = orjson.loads(self._line(place))
        if raw["kind"] != kind.__name__:
            return None
        try:
            record = kind.model_validate(raw["record"])
        except ValidationError:  # written by a version whose records have another shape: to be done again
            return None
        if not all(self._there(file) for file in record.files()):  # type: ignore[attr-defined]
            return None
        self._places[_short(key, part)] = place | USED
        return record

    def path(self, file: FileRef) -> Any:
        """Where a sealed file lies."""
        return self.data / file.name

    def _there(self, file: FileRef) -> bool:
        if self._sizes is not None:
            return self._sizes.get(file.name) == file.bytes
        try:
            return os.stat(f"{self.data}/{file.name}").st_size == file.bytes
        except FileNotFoundError:
            return False

    def _load(self) -> None:
        for path in sorted((self.work / "journal").glob("*.jsonl")):
            self._index(path)

    def _index(self, path: Any, used: int = 0) -> None:
        """Notes where each line of a journal file stands. What a kill cut short has no newline."""
        file = open(on_disk(path), "rb")
        number, at = len(self._files), 0
        self._files.append(file)
        for line in file:
            if not line.endswith(b"\n"):
                break
            if line.strip(b"\0\n"):  # a power cut may leave zeros
                try:
                    row = orjson.loads(line)
                    self._places[_short(row["key"], row["part"])] = number << 48 | at | used
                except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                    raise RunError(
                        Problem("R008", f"{path} holds a line that is not a record", repairs=("build with --fresh",))
                    ) from None
            at += len(line)

    def _line(self, place: int) -> bytes:
        place &= USED - 1
        file = self._files[place >> 48]
        file.seek(place & ((1 << 48) - 1))
        return file.readline()

    def rows(self) -> Iterator[dict]:
        """All records, by key and part, as they stand in the journal."""
        for short in sorted(self._places):
            yield orjson.loads(self._line(self._places[short]))


class Store(Journal):
    """The work folder of one output folder, locked by this process until `close`."""

    def __init__(self, out: Any) -> None:
        work = out / "work"
        if not isinstance(out, Address):
            for folder in (work / "data", work / "tmp", work / "journal"):
                folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(work)
        try:
            super().__init__(out)
            self._own = _Pieces(self) if self.remote else _Growing(self)
        except BaseException:
            self.lock.release()
            raise

    @property
    def epoch(self) -> int:
        """The number of this driver among all that ever worked here."""
        return self.lock.epoch

    def put(self, key: str, record: Record, part: int = 0) -> None:
        """Journals a record; when this returns, it survives a kill (on a store: within a second).

        Raises RunError when another driver has taken the folder over.
        """
        self.lock.check()
        head = orjson.dumps({"key": key, "part": part, "kind": type(record).__name__})
        content = record.__pydantic_serializer__.to_json(record)
        number, at = self._own.append(b'%b,"record":%b}\n' % (head[:-1], content))
        self._places[_short(key, part)] = number << 48 | at | USED
        if self._sizes is not None:
            self._sizes |= {file.name: file.bytes for file in record.files()}  # type: ignore[attr-defined]

    def tick(self) -> None:
        """Writes down what has waited long enough; to be called now and then."""
        self._own.tick()

    def sweep(self) -> None:
        """Keeps the records used by this build and their files; deletes all others and compacts the journal."""
        self.lock.check()
        self._own.close()
        self._places = {short: place for short, place in self._places.items() if place & USED}
        own = self.work / "journal" / (f"{self.epoch:06d}-99999.jsonl" if self.remote else f"{self.epoch:06d}.jsonl")
        named: set[int] = set()
        with atomic_file(own) as file:
            for place in sorted(self._places.values()):
                line = self._line(place)
                file.write(line)
                named.update(int(mark, 16) for mark in NAMED.findall(line))
        _remove(path for path in (self.work / "journal").iterdir() if path.name != own.name)
        _remove(path for path in self.data.iterdir() if _mark(path.name) not in named)
        self.clear_tmp()
        self._reopen(own)

    def _reopen(self, own: Any) -> None:
        for opened in self._files:
            opened.close()
        self._files, self._places = [], {}
        self._index(own, USED)
        self._own = _Pieces(self) if self.remote else _Growing(self)

    def clear_tmp(self) -> None:
        """Empties the folder of files being written; call it while no task runs."""
        if self.remote:
            _remove(self.tmp.iterdir())
            return
        for path in self.tmp.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the journal and gives the lock back."""
        try:
            self._own.close()
        finally:
            self.lock.release()
            for file in self._files:
                file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Growing:
    """The journal of this epoch as a file that grows."""

    def __init__(self, store: Store) -> None:
        path = store.work / "journal" / f"{store.epoch:06d}.jsonl"
        self._file = open(path, "ab")
        self._number = len(store._files)
        store._files.append(open(path, "rb"))
        self._synced = time.monotonic()
        self._dirty = False

    def append(self, line: bytes) -> tuple[int, int]:
        """Writes a line: `(number of the file, byte where it begins)`."""
        at = self._file.tell()
        self._file.write(line)
        self._file.flush()
        self._dirty = True
        self.tick()
        return self._number, at

    def tick(self) -> None:
        if self._dirty and time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced, self._dirty = time.monotonic(), False

    def close(self) -> None:
        if not self._file.closed:
            self._sync()
            self._file.close()


class _Pieces:
    """The journal of this epoch as files of a store, and a copy of it on the disk to read from."""

    def __init__(self, store: Store) -> None:
        self._folder = store.work / "journal"
        self._epoch = store.epoch
        self._copy = tempfile.TemporaryFile()
        self._number = len(store._files)
        store._files.append(self._copy)  # type: ignore[arg-type]
        self._lines: list[bytes] = []
        self._since = 0.0
        taken = [int(p.stem[7:]) for p in self._folder.glob(f"{self._epoch:06d}-*.jsonl") if p.stem != f"{self._epoch:06d}-99999"]
        self._next = 1 + max([0, *taken])

    def append(self, line: bytes) -> tuple[int, int]:
        """Keeps a line for the next piece: `(number of the copy, byte where it begins there)`."""
        at = self._copy.seek(0, 2)
        self._copy.write(line)
        self._copy.flush()
        self._since = self._since or time.monotonic()
        self._lines.append(line)
        self.tick()
        return self._number, at

    def tick(self) -> None:
        late = bool(self._lines) and time.monotonic() - self._since > PIECE_SECONDS
        if late or len(self._lines) >= PIECE_RECORDS:
            self._write()

    def _write(self) -> None:
        if self._lines:
            (self._folder / f"{self._epoch:06d}-{self._next:05d}.jsonl").write_bytes(b"".join(self._lines))
            self._next += 1
            self._lines, self._since = [], 0.0

    def close(self) -> None:
        self._write()


def _remove(paths: Iterable[Any]) -> None:
    found = list(paths)
    if found and isinstance(found[0], Address):
        found[0].remove_all(found)
        return
    for path in found:
        path.unlink(missing_ok=True)


def remove_folder(folder: Any) -> None:
    """Removes a folder (path or address) with all that is in it."""
    if isinstance(folder, Address):
        _remove(folder.sizes())
    elif Path(folder).exists():
        shutil.rmtree(folder)


def _short(key: str, part: int) -> bytes:
    """A key and a part in 20 bytes."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest() + part.to_bytes(4, "big")


def _mark(name: str) -> int:
    """A sealed name as a number of 60 bits; two of the same number are not told apart, and then both stay."""
    try:
        return int(name[:15], 16)
    except ValueError:
        return -1
