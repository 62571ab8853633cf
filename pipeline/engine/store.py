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
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import orjson

from pipeline.engine.records import FileRef, Record
from stages.contract.files import fsync_folder, write_atomic
from stages.contract.problem import Problem, RunError

HEARTBEAT_SECONDS = 20.0
SILENCE_SECONDS = 60.0

R = TypeVar("R", bound=Record)


class Journal:
    """What the builds in one output folder have written down so far, to be read; takes no lock."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.work = out / "work"
        self.data = self.work / "data"
        self.tmp = self.work / "tmp"
        self._records: dict[tuple[str, int], dict] = {}
        self._used: set[tuple[str, int]] = set()
        self._load()

    def get(self, key: str, kind: type[R], part: int = 0) -> R | None:
        """The record under this key if its files are still there, else None."""
        raw = self._records.get((key, part))
        if raw is None or raw["kind"] != kind.__name__:
            return None
        record = kind.model_validate(raw["record"])
        for file in record.files():  # type: ignore[attr-defined]
            path = self.data / file.name
            if not path.exists() or path.stat().st_size != file.bytes:
                return None
        self._used.add((key, part))
        return record

    def path(self, file: FileRef) -> Path:
        """Where a sealed file lies."""
        return self.data / file.name

    def _load(self) -> None:
        for path in sorted((self.work / "journal").glob("*.jsonl")):
            content = path.read_bytes()
            for line in content.split(b"\n")[:-1]:  # what a kill cut short has no newline
                try:
                    row = orjson.loads(line)
                    self._records[row["key"], row["part"]] = row
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    raise RunError(
                        Problem(
                            "R008",
                            f"{path} holds a line that is not a record",
                            repairs=("build with --fresh",),
                        )
                    ) from None


class Store(Journal):
    """The work folder of one output folder, locked by this process until `close`."""

    def __init__(self, out: Path) -> None:
        work = out / "work"
        for folder in (work / "data", work / "tmp", work / "journal"):
            folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(work)
        try:
            super().__init__(out)
            self._journal = open(self.work / "journal" / f"{self.lock.epoch:06d}.jsonl", "ab")
        except BaseException:
            self.lock.release()
            raise

    @property
    def epoch(self) -> int:
        """The number of this driver among all that ever worked here."""
        return self.lock.epoch

    def put(self, key: str, record: Record, part: int = 0) -> None:
        """Journals a record; when this returns, it survives a kill.

        Raises RunError when another driver has taken the folder over.
        """
        self.lock.check()
        row = {
            "key": key,
            "part": part,
            "kind": type(record).__name__,
            "record": record.model_dump(mode="json"),
        }
        self._journal.write(orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS) + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._records[key, part] = row
        self._used.add((key, part))

    def sweep(self) -> None:
        """Keeps the records used by this build and their files; deletes all others and compacts the journal."""
        self.lock.check()
        rows = [self._records[k] for k in sorted(self._used)]
        body = b"".join(orjson.dumps(r, option=orjson.OPT_NON_STR_KEYS) + b"\n" for r in rows)
        own = self.work / "journal" / f"{self.epoch:06d}.jsonl"
        self._journal.close()
        write_atomic(own, body)
        self._journal = open(own, "ab")
        for old in (self.work / "journal").iterdir():
            if old.name != own.name:
                old.unlink(missing_ok=True)
        named = set(_file_names(rows))
        for path in self.data.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)
        self.clear_tmp()

    def clear_tmp(self) -> None:
        """Empties the folder of files being written; call it while no task runs."""
        for path in self.tmp.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the journal and gives the lock back."""
        self._journal.close()
        self.lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _file_names(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        if value.keys() == {"name", "bytes", "digest"}:
            yield value["name"]
        for inner in value.values():
            yield from _file_names(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _file_names(inner)


class Lock:
    """`lock-<epoch>`, created only if absent; a thread keeps its mtime fresh.

    Raises RunError, naming the owner, when a living process holds the folder.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._lost = False
        self._stop = threading.Event()
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": _birth(os.getpid()),
            "started": time.time(),
        }
        held = sorted(work.glob("lock-*"))
        for path in held:
            if _alive(path):
                raise _locked(path)
        journals = [int(p.stem) for p in (work / "journal").glob("*.jsonl") if p.stem.isdigit()]
        self.epoch = 1 + max([0, *journals, *(int(p.name[5:]) for p in held)])
        self.path = work / f"lock-{self.epoch:06d}"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise _locked(self.path) from None
        with open(descriptor, "wb") as file:
            file.write(orjson.dumps(owner))
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(work)
        for path in held:
            path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises RunError if another driver has taken over."""
        if self._lost or self._newer():
            raise RunError(
                Problem(
                    "R004",
                    f"another build took over {self._work.parent} (this one was silent for 60 s); stopping",
                )
            )

    def release(self) -> None:
        """Gives the folder back."""
        self._stop.set()
        self._thread.join()
        if not self._newer():
            self.path.unlink(missing_ok=True)

    def _newer(self) -> bool:
        return any(int(p.name[5:]) > self.epoch for p in self._work.glob("lock-*"))

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self.path)
            except FileNotFoundError:
                self._lost = True
            self._lost = self._lost or self._newer()


def read_owner(path: Path) -> dict:
    """Who holds a lock file: host, pid, started (seconds since 1970); empty while it is being written."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def owner_of(work: Path) -> dict:
    """Who is building in this work folder right now; empty if nobody is."""
    return next((read_owner(path) for path in sorted(work.glob("lock-*"), reverse=True) if _alive(path)), {})


def _alive(path: Path) -> bool:
    owner = read_owner(path)
    try:
        silent = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    if owner.get("host") == socket.gethostname():
        return _birth(owner["pid"]) == owner.get("born") is not None
    return silent < SILENCE_SECONDS


def _birth(pid: int) -> str | None:
    """When a process of this machine began (clock ticks since boot, with the boot's id), or None if there is none.

    A process id alone is not an identity: it is used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    else:
        return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
    try:  # no /proc (macOS)
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"


def _locked(path: Path) -> RunError:
    owner = read_owner(path)
    started = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["started"]))
        if "started" in owner
        else "just now"
    )
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}, since {started}"
    return RunError(
        Problem(
            "R004",
            f"{path.parent.parent} is in use by {who}",
            repairs=("wait for it to end", "or give this build another output.path"),
        )
    )
