"""A real Ray head with its dashboard, in a process group of its own, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTS_WITHIN = 90.0


def free_port() -> int:
    """A port outside of the range that Ray gives to workers."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port > 20_000:
            return port


def head_folder() -> Path:
    """A folder for a head. The paths of its sockets must be shorter than 108 bytes, so it is not in that of the test."""
    return Path(tempfile.mkdtemp(prefix="head-"))


@contextmanager
def ray_head(folder: Path, **environment: str) -> Iterator[str]:
    """The address of the dashboard of a head of two CPUs that lives, as its folder does, as long as the block."""
    port = free_port()
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--dashboard-host=127.0.0.1",
        f"--dashboard-port={port}", f"--ray-client-server-port={free_port()}", "--num-cpus=2",
        f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}",
        "--object-store-memory=80000000", f"--temp-dir={folder}", "--block",
    ]  # fmt: skip
    own = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    log = open(folder / "head.log", "wb")
    head = subprocess.Popen(command, env=os.environ | own | environment, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + STARTS_WITHIN
        while not _answers(address):
            said = (folder / "head.log").read_text()
            assert head.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            head.wait(3)
        kill_all_of(folder)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ray_address(folder: Path) -> str:
    """What drivers join the head by that was started in a folder: `host:port`. Its dashboard may answer before it is known."""
    until = time.monotonic() + STARTS_WITHIN
    while not (folder / "ray_current_cluster").exists():
        assert time.monotonic() < until, (folder / "head.log").read_text()
        time.sleep(0.05)
    return (folder / "ray_current_cluster").read_text().strip()


def kill_all_of(folder: Path) -> None:
    """Ends what there is of a head: every process whose command line names its folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                named = str(folder).encode() in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if named:
                with suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
