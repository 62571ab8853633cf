"""One build at a time in an output folder: `lock-<epoch>`, created only if absent, kept fresh by a thread.

The heartbeat is the time of the file. A lock whose process has died on this machine, or that has been silent for 60 s,
may be passed by anyone with a lock of the next epoch; a driver that finds a newer one stops. On a store the clock is the
store's own (the time it gives to a file written now), so clocks of machines need not agree.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

import orjson

from stages.contract.files import fsync_folder
from stages.contract.problem import GristmillError, Problem, RunError
from stages.storage.address import Address

HEARTBEAT_SECONDS = 20.0
SILENCE_SECONDS = 60.0
LOOK_SECONDS = 5.0  # between looks for a newer lock on a store, where each look is a request


class Lock:
    """The lock of a work folder (path or address). Raises RunError, naming the owner, when a living process holds it."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._remote = isinstance(work, Address)
        self._lost = False
        self._looked = 0.0  # the time of the folder, or of the clock, at the last look
        self._stop = threading.Event()
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": _birth(os.getpid()),
            "started": time.time(),
            "token": secrets.token_hex(8),
        }
        held = sorted(work.glob("lock-*"))
        for path in held:
            if _alive(path):
                raise _locked(path)
        journals = [int(p.name[:6]) for p in (work / "journal").glob("*.jsonl") if p.name[:6].isdigit()]
        self.epoch = 1 + max([0, *journals, *(int(p.name[5:]) for p in held)])
        self.path = work / f"lock-{self.epoch:06d}"
        if not self._create():
            raise _locked(self.path)
        for path in held:
            path.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)
        self._thread.start()

    def _create(self) -> bool:
        content = orjson.dumps(self._owner)
        if self._remote:
            return bool(self.path.create(content))
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(self._work)
        return True

    def check(self) -> None:
        """Raises RunError if another driver has taken over. On a disk the folder's time tells whether to look."""
        now = time.monotonic() // LOOK_SECONDS if self._remote else os.stat(self._work).st_mtime_ns
        if now != self._looked:
            self._looked = now
            self._lost = self._lost or self._newer()
        if self._lost:
            raise RunError(
                Problem(
                    "R004",
                    f"another build took over {self._work.parent} (this one was silent for {SILENCE_SECONDS:g} s); stopping",
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
                if self._newer():
                    self._lost = True
                elif self._remote:
                    self.path.write_bytes(orjson.dumps(self._owner))
                else:
                    os.utime(self.path)
            except (FileNotFoundError, GristmillError):
                self._lost = True


def read_owner(path: Any) -> dict:
    """Who holds a lock file: host, pid, started (seconds since 1970); empty while it is being written."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def owner_of(work: Any) -> dict:
    """Who is building in this work folder right now; empty if nobody is."""
    return next((read_owner(path) for path in sorted(work.glob("lock-*"), reverse=True) if _alive(path)), {})


def _alive(path: Any) -> bool:
    owner = read_owner(path)
    try:
        beat = path.stat().st_mtime
    except FileNotFoundError:
        return False
    if owner.get("host") == socket.gethostname():
        return _birth(owner["pid"]) == owner.get("born") is not None
    return _now(path) - beat < SILENCE_SECONDS


def _now(path: Any) -> float:
    """The time by the clock that stamps this lock: that of the machine, or of the store."""
    if not isinstance(path, Address):
        return time.time()
    probe = path.parent / f"clock-{secrets.token_hex(8)}"
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime
    except PermissionError:  # one who may only look
        return time.time()
    finally:
        probe.unlink(missing_ok=True)


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


def _locked(path: Any) -> RunError:
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
