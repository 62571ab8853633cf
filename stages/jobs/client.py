"""Ray's Jobs API over HTTP: packages, submitting, state, logs, stopping. Needs no Ray where it is called.

Every request has a limit of time and is tried again when the head is not reachable for a moment. A head that asks for
a token gets that of the user's own Ray settings (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token).
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contract.problem import Problem, RunError, SpecError
from stages.jobs.bundle import Package

#: Seconds: for one request, between looks at a job, and how long a head may be away before that is an error.
REQUEST = 60.0
POLL = 1.0
AWAY = 120.0

RUNNING = ("PENDING", "RUNNING")


@dataclass(frozen=True)
class Job:
    """What the cluster says of a job. `code` is the exit code of the program, if it has ended by itself."""

    id: str
    status: str
    message: str
    code: int | None
    started: float | None  # seconds since 1970
    ended: float | None
    metadata: Mapping[str, str]

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self.status not in RUNNING


def job_address(address: str | None) -> str:
    """The address of a head's Jobs API, `http://head:8265`; left out: RAY_API_SERVER_ADDRESS. SpecError without one."""
    found = address or os.environ.get("RAY_API_SERVER_ADDRESS", "")
    if not found.startswith(("http://", "https://")):
        text = f"`{found}` is no address of a Ray dashboard" if found else "which cluster? no address was given"
        repairs = ("give --address http://HEAD:8265, or set RAY_API_SERVER_ADDRESS",)
        raise SpecError(Problem("R006", text, repairs=repairs))
    return found.rstrip("/")


class Client:
    """One head's Jobs API."""

    def __init__(self, address: str) -> None:
        self.address = address
        token = _token()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._met = False  # a head that has answered once may be away for a while

    def has(self, package: Package) -> bool:
        """Whether the cluster holds this package already."""
        return self._ask("GET", f"/api/packages/gcs/{package.name}", missing=True) is not None

    def send(self, package: Package) -> None:
        """Puts a package on the cluster."""
        self._ask("PUT", f"/api/packages/gcs/{package.name}", package.content)

    def submit(self, job: str, entrypoint: str, environment: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
        """Starts a job under the id `job` and returns that id."""
        request = {
            "entrypoint": entrypoint,
            "submission_id": job,
            "runtime_env": environment,
            "metadata": metadata,
            "entrypoint_num_cpus": 0,
        }
        self._ask("POST", "/api/jobs/", json.dumps(request).encode())
        return job

    def job(self, job: str) -> Job:
        """The state of a job. SpecError when there is none of this id."""
        found = self._ask("GET", f"/api/jobs/{job}", missing=True)
        if found is None:
            raise SpecError(Problem("R010", f"the cluster at {self.address} knows no job {job}",
                                    repairs=(f"pipeline jobs status --address {self.address} lists those it knows",)))  # fmt: skip
        return _job(json.loads(found))

    def jobs(self) -> list[Job]:
        """All jobs that were submitted, oldest first."""
        listed = json.loads(self._ask("GET", "/api/jobs/") or b"[]")
        found = [_job(one) for one in listed if one.get("submission_id")]
        return sorted(found, key=lambda job: job.started or 0.0)

    def stop(self, job: str) -> None:
        """Asks a job to stop; it gets SIGTERM, and SIGKILL when that does not help."""
        self._ask("POST", f"/api/jobs/{job}/stop")

    def logs(self, job: str) -> str:
        """All that a job has written."""
        return str(json.loads(self._ask("GET", f"/api/jobs/{job}/logs") or b"{}").get("logs") or "")

    def follow(self, job: str) -> Iterator[str]:
        """The lines that a job writes, from its first to its last, as they come.

        When the line to the head breaks they go on where they were. RunError when the head is away for too long.
        """
        seen, broken = 0, None
        while True:
            skip = seen
            try:
                for line in self._tail(job):
                    broken = None
                    if skip:
                        skip -= 1
                        continue
                    seen += 1
                    yield line
            except OSError as error:
                broken = broken or time.monotonic()
                if time.monotonic() - broken > AWAY:
                    raise self._unreachable(error) from error
            if self.job(job).over:
                break
            time.sleep(POLL)
        yield from self.logs(job).splitlines()[seen:]

    def _tail(self, job: str) -> Iterator[str]:
        """The lines of a job from the first on, until it ends or the connection does."""
        import asyncio

        import aiohttp

        url = self.address.replace("http", "ws", 1) + f"/api/jobs/{job}/logs/tail"
        loop = asyncio.new_event_loop()
        rest = ""
        try:
            session = loop.run_until_complete(_session(self._headers))
            try:
                socket = loop.run_until_complete(session.ws_connect(url, max_msg_size=0, heartbeat=20.0))
                while True:
                    message = loop.run_until_complete(socket.receive())
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        break
                    *whole, rest = (rest + message.data).split("\n")
                    yield from whole
            except aiohttp.ClientError as error:
                raise ConnectionError(str(error)) from error
            finally:
                loop.run_until_complete(session.close())
        finally:
            loop.close()
        if rest:
            yield rest

    def _ask(self, method: str, path: str, body: bytes | None = None, missing: bool = False) -> bytes | None:
        """The body of the answer; None for 404 if that is asked for. Tries again while the head is away."""
        headers = self._headers | ({"Content-Type": "application/json"} if method == "POST" else {})
        request = urllib.request.Request(self.address + path, body, headers, method=method)
        began, pause = time.monotonic(), 0.25
        while True:
            try:
                with urllib.request.urlopen(request, timeout=REQUEST) as answer:
                    found: bytes = answer.read()
                    self._met = True
                    return found
            except urllib.error.HTTPError as error:
                said = error.read().decode("utf-8", "replace")
                if error.code == 404 and missing:
                    return None
                if error.code < 500 or time.monotonic() - began > AWAY or "Traceback" in said:
                    raise self._refused(method, path, error.code, said) from error
            except OSError as error:
                if method == "POST" or time.monotonic() - began > AWAY or (_refuses(error) and not self._met):
                    raise self._unreachable(error) from error
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _refused(self, method: str, path: str, code: int, said: str) -> RunError:
        line = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
        repairs: tuple[str, ...] = ()
        if code in (401, 403):
            repairs = ("set RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the token of this cluster",)
        return RunError(Problem("R006", f"{self.address} answered {code} to {method} {path}: {line}", repairs=repairs))

    def _unreachable(self, error: Exception) -> RunError:
        reason = getattr(error, "reason", None) or error
        repairs = ("check that the head is up, and the port (the dashboard's, 8265 by default)",)
        return RunError(Problem("R006", f"no answer from {self.address}: {reason}", repairs=repairs))


async def _session(headers: Mapping[str, str]) -> Any:
    import aiohttp

    return aiohttp.ClientSession(headers=dict(headers), timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST))


def _refuses(error: OSError) -> bool:
    """Whether nothing listens there, as opposed to a head that is busy or away for a moment."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, ConnectionRefusedError | ValueError) or "Name or service" in str(reason)


def _token() -> str:
    """The token of the user's own Ray settings, or nothing."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        return ""
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given.strip()
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _job(row: Mapping[str, Any]) -> Job:
    def seconds(name: str) -> float | None:
        return None if row.get(name) is None else row[name] / 1000

    return Job(
        id=row["submission_id"],
        status=row["status"],
        message=row.get("message") or "",
        code=row.get("driver_exit_code"),
        started=seconds("start_time"),
        ended=seconds("end_time"),
        metadata=row.get("metadata") or {},
    )
