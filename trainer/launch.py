"""Starting ranks, watching them, stopping them: the run from outside.

`trainer fit --ranks N` starts N processes of its own on this machine and is their watchman: a rank that dies
takes the others with it in a second, with a sentence that says which; a signal to the watchman reaches every rank.
A process that finds `RANK` set (torchrun, a scheduler) is a rank and starts nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from stages.contract.problem import Problem, RunError

INTERRUPTED = 130
PREEMPTED = 75

#: How long ranks may take to end by themselves after one of them ended badly, in seconds.
GRACE = 3.0

#: Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def cores() -> int:
    """CPU cores that this process may use (a container's or a scheduler's share, not the machine's)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed: a step of training frees tensors and asks for the same again, and
    pages that went back to the system in between cost it one CPU second in fifteen. Does nothing where it is not glibc.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_TRIM_THRESHOLD, 2**31 - 1)
        tune(_M_MMAP_THRESHOLD, 1 << 30)


class Stop:
    """The wish to stop at the next step boundary: 0, `PREEMPTED` after SIGTERM, `INTERRUPTED` after SIGINT.

    A second signal ends the process at once; the last complete checkpoint stays.
    """

    def __init__(self) -> None:
        self.code = 0

    def listen(self) -> Stop:
        """Take over SIGTERM and SIGINT (main thread only)."""
        signal.signal(signal.SIGTERM, self._heard)
        signal.signal(signal.SIGINT, self._heard)
        return self

    def _heard(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self.code:
            os._exit(INTERRUPTED)
        self.code = INTERRUPTED if number == signal.SIGINT else PREEMPTED


def lock(folder: Path, patience: float = 5.0) -> int:
    """Hold the run folder until this process and the children that inherit the descriptor have ended.

    Waits `patience` seconds for ranks of a killed run to end. RunError names the holder if it is still held then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip() or "another process"
                message = f"{folder} is in use by {holder}"
                raise RunError(
                    Problem("R004", message, repairs=("wait for it, or give another --out",))
                ) from None
            time.sleep(0.1)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def watch_parent() -> None:
    """End this rank when its watchman is gone (killed, say): it would train on with nobody to stop it."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=look, daemon=True, name="watch-parent").start()


def run_ranks(command: Sequence[str], ranks: int, held: int) -> int:
    """Run the command once per rank, `RANK` and `--rendezvous FILE` added, and come back with one exit code.

    held  descriptor of the lock that the ranks keep alive
    0, 75, 130 when every rank ended so, another code when a rank said itself what is wrong; RunError naming the
    rank that was ended from outside.
    """
    watch = _Watch()
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        try:
            for rank in range(ranks):
                names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                environment = os.environ | {name: str(value) for name, value in names.items()}
                if (
                    sys.platform == "linux"
                ):  # ranks of one machine talk over the loopback device and nowhere else
                    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
                full = [*command, "--rendezvous", rendezvous]
                # Their own session: Ctrl-C in a terminal reaches the watchman alone, once.
                child = subprocess.Popen(full, env=environment, pass_fds=(held,), start_new_session=True)
                watch.children.append(child)
            return watch.wait()
        finally:
            for child in watch.children:
                if child.poll() is None:
                    child.kill()
                child.wait()


class _Watch:
    """Waits for the ranks, hands SIGTERM and SIGINT on to them, ends all when one is lost."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.handed_on = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        self.handed_on = number
        for child in self.children:
            if child.poll() is None:
                child.send_signal(number)

    def wait(self) -> int:
        """The exit code of all; after a bad end of one, the others have `GRACE` seconds."""
        first: tuple[int, int] | None = None
        deadline = float("inf")
        while any(child.poll() is None for child in self.children) and time.monotonic() < deadline:
            if first is None and (first := self._first_bad()):
                deadline = time.monotonic() + GRACE
            time.sleep(0.05)
        first = first or self._first_bad()
        if first is None:
            return max(child.returncode for child in self.children)
        rank, code = first
        if code > 0:  # that rank has said why
            return code
        if -code == self.handed_on:  # it was still starting and had nothing to save
            return INTERRUPTED if -code == signal.SIGINT else PREEMPTED
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        message = f"rank {rank} of {len(self.children)} was ended by {signal.Signals(-code).name}{hint}; all were stopped"
        repair = "run the command again: it goes on from the last checkpoint"
        raise RunError(Problem("T004", message, repairs=(repair,)))

    def _first_bad(self) -> tuple[int, int] | None:
        """`(rank, code)` of a rank that ended badly; one ended by a signal first: an exit code may be its echo."""
        ends = [(rank, child.poll()) for rank, child in enumerate(self.children)]
        bad = [(rank, code) for rank, code in ends if code not in (None, 0, PREEMPTED, INTERRUPTED)]
        return min(
            ((rank, code) for rank, code in bad if code is not None), key=lambda end: end[1], default=None
        )
