"""The head of a Ray cluster, as a driver sees it: whether it is there, and what is said when it is not.

Ray does not say it. A driver that has lost its head is ended after a minute, one whose own store is gone in the middle of
the next call, and one that asks a head that was started anew by a failed check; no handler runs. So what a driver needs
to know is looked at beside Ray.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from typing import Any

from stages.contract.problem import Problem, RunError, render

#: So long a head may be away, in seconds. At 60 Ray ends this process.
AWAY = 30.0
KNOCK = 2.0  # seconds for a connection to it


class Head:
    """The head at an address (`host:port`), whose cluster this process has just joined through a local socket.

    `gone`: it is lost, and Ray must not be asked anything more. `spoken_for`: if Ray ends this process, say so.
    """

    def __init__(self, address: str, local: str, spoken_for: bool) -> None:
        self.address = address
        self.gone = False
        self._cluster = cluster_at(address)
        self._line = _line_to(local)  # it breaks when the Ray of this machine ends
        self._heard = time.monotonic()
        self._mourner = mourner(render(_problem(address, "is gone, and Ray has ended this process"))) if spoken_for else None

    def check_line(self) -> None:
        """RunError when the Ray of this machine has ended."""
        try:
            broken = self._line is not None and not self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            broken = True
        if broken:
            raise self._lost("cannot be reached: the Ray of this machine has ended")

    def answers(self) -> bool:
        """Whether the head can be reached. RunError when it is another one, or away for too long."""
        now, found = time.monotonic(), cluster_at(self.address)
        if found not in ("", self._cluster):
            raise self._lost("was started anew: it knows nothing of this build")
        if found:
            self._heard = now
        elif now - self._heard > AWAY:
            raise self._lost(f"has not answered for {now - self._heard:.0f} s")
        return bool(found)

    def leave(self) -> None:
        """To be called before Ray is left, whether or not the head is gone."""
        if self._mourner is not None:
            self._mourner.communicate(b"all is well")
        if self._line is not None:
            self._line.close()
        if self.gone:
            import ray

            # At the end of a process Ray says goodbye to the head: without one it waits for a minute, or crashes.
            atexit.unregister(ray._private.worker.shutdown)
            atexit.register(_end)

    def _lost(self, what: str) -> RunError:
        self.gone = True
        return RunError(_problem(self.address, what))


def cluster_at(head: str) -> str:
    """The name of the cluster whose head is at an address, new with each start of it; empty if nobody answers."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
        return str(GcsClient(address=head).cluster_id)
    except (OSError, RuntimeError):
        return ""


def mourner(said: str) -> Any:
    """A process that says something on stderr if this one ends without telling it that all is well."""
    script = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"
    command = [sys.executable, "-I", "-S", "-c", script, said]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _line_to(place: str) -> socket.socket | None:
    """A connection to a local socket; None where there are no such sockets."""
    if not os.path.exists(place):
        return None
    line = socket.socket(socket.AF_UNIX)
    line.connect(place)
    return line


def _problem(head: str, what: str) -> Problem:
    repairs = (
        "start the cluster again, or another, and run the same command: what is done stays",
        "or go on without one: --address local",
    )
    return Problem("R006", f"the head of the Ray cluster at {head} {what}", repairs=repairs)


def _end() -> None:
    """Ends a process whose build failed, before libraries come to their own ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
