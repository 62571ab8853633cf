"""The head of a cluster that dies, drivers that are lost: the same command goes on, from anywhere, with the same bytes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from pipeline.engine import head
from pipeline.engine.head import Head
from pipeline.engine.lock import SILENCE_SECONDS
from stages.contract.problem import RunError
from tests.pipeline.corpora import make_inputs, run_build, snapshot, write_config
from tests.pipeline.head import ROOT, head_folder, kill_all_of, ray_address, ray_head
from tests.pipeline.test_kill import journal_lines

#: Within which a driver has to say that its head is gone; Ray's own limit is 60 s.
SAYS_SO_WITHIN = 50.0


def build(config: Path, *more: str, **where: object) -> subprocess.Popen[str]:
    """A build in a process of its own."""
    command = [sys.executable, "-m", "pipeline.cli", "build", str(config), *more]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment, **where)


def wait_for(process: subprocess.Popen[str], out: Path, lines: int) -> None:
    """Until so much is written down, and the process still at work."""
    while journal_lines(out) < lines:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("reference")
    make_inputs(folder / "in", files=8)
    run_build(write_config(folder, folder / "in"))
    return folder / "in", snapshot(folder / "out")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_head_that_dies_is_named_and_another_goes_on(
    reference: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    inputs, expected = reference
    config = write_config(tmp_path, inputs)
    first, second = head_folder(), head_folder()
    with ray_head(first):
        driver = build(config, "--address", ray_address(first))
        wait_for(driver, tmp_path / "out", 4)
        kill_all_of(first)
        _, said = driver.communicate(timeout=SAYS_SO_WITHIN)
    assert driver.returncode == 1, said
    assert "error[R006]: the head of the Ray cluster at" in said
    assert "run the same command: what is done stays" in said
    assert not (tmp_path / "out" / "manifest.json").exists()
    with ray_head(second):
        again = build(config, "--address", ray_address(second), cwd=second)
        _, said = again.communicate()
    assert again.returncode == 0, said
    assert "done before" in said or "read →" not in said  # a pass that is done altogether is not spoken of
    assert snapshot(tmp_path / "out") == expected


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_job_lost_with_its_head_goes_on_with_the_next(
    reference: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """The driver dies with the head here, since the job runs there; who watched it is told."""
    inputs, expected = reference
    config = write_config(tmp_path, inputs)

    def submit(address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pipeline.cli", "submit", str(config), "--installed", "--address", address]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    first, second = head_folder(), head_folder()
    with ray_head(first) as address:
        client = submit(address)
        wait_for(client, tmp_path / "out", 4)
        kill_all_of(first)
        _, said = client.communicate(timeout=240)
    assert client.returncode == 1, said
    assert "error[R0" in said
    with ray_head(second) as address:
        client = submit(address)
        _, said = client.communicate()
    assert client.returncode == 0, said
    assert snapshot(tmp_path / "out") == expected


def test_a_lost_driver_is_followed_from_another_machine(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """Another machine cannot see the process: it waits out the silence, then goes on by another path and folder."""
    inputs, expected = reference
    driver = build(write_config(tmp_path, inputs), "--inline")
    wait_for(driver, tmp_path / "out", 4)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    lock = next((tmp_path / "out" / "work").glob("lock-*"))
    owner = orjson.loads(lock.read_bytes())
    lock.write_bytes(orjson.dumps(owner | {"host": "a-machine-that-is-gone"}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    early = build(Path("..") / "corpus.yaml", "--inline", cwd=elsewhere)
    _, said = early.communicate()
    assert early.returncode == 1
    assert f"process {owner['pid']} on a-machine-that-is-gone" in said
    silent = time.time() - SILENCE_SECONDS - 1
    os.utime(lock, (silent, silent))
    late = build(Path("..") / "corpus.yaml", "--inline", cwd=elsewhere)
    _, said = late.communicate()
    assert late.returncode == 0, said
    assert snapshot(tmp_path / "out") == expected


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Head:
    """A head that has just been joined, of the cluster `one`."""
    monkeypatch.setattr(head, "cluster_at", lambda _address: "one")
    return Head("10.0.0.1:6379", "/nowhere", spoken_for=False)


@pytest.mark.parametrize(
    ("found", "after", "message"),
    [("", head.AWAY + 1, r"has not answered for 31 s"), ("another", 0.0, "was started anew")],
)
def test_what_is_said_of_a_head(joined: Head, found: str, after: float, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "cluster_at", lambda _address: found)
    now = joined._heard
    monkeypatch.setattr(head.time, "monotonic", lambda: now + after)
    with pytest.raises(RunError, match=rf"10\.0\.0\.1:6379 {message}"):
        joined.answers()
    assert joined.gone


def test_a_head_may_be_away_for_a_moment(joined: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined.answers()
    monkeypatch.setattr(head, "cluster_at", lambda _address: "")
    assert not joined.answers()
    monkeypatch.setattr(head, "cluster_at", lambda _address: "one")
    assert joined.answers()
    assert not joined.gone


def test_a_line_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "cluster_at", lambda _address: "one")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "raylet"))
        server.listen()
        mine = Head("10.0.0.1:6379", str(tmp_path / "raylet"), spoken_for=False)
        other, _ = server.accept()
        mine.check_line()
        other.close()
        with pytest.raises(RunError, match="the Ray of this machine has ended"):
            mine.check_line()
    assert mine.gone


def test_nobody_at_an_address() -> None:
    assert head.cluster_at("127.0.0.1:9") == ""


def test_what_ray_leaves_unsaid() -> None:
    """A process that ends in the middle of a call is spoken for; one that closes its executor is not."""
    script = (
        "import os, sys\nfrom pipeline.engine.head import mourner\nmourner = mourner('it is gone')\n"
        "mourner.communicate(b'.') if sys.argv[1:] else os._exit(1)"
    )
    lost = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (lost.returncode, lost.stderr) == (1, "it is gone\n")
    well = subprocess.run([sys.executable, "-c", script, "well"], capture_output=True, text=True, check=False)
    assert (well.returncode, well.stderr) == (0, "")
