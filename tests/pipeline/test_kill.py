"""SIGKILL at random moments, then the same command again: the bytes are those of a build that was never killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.corpora import make_inputs, run_build, snapshot, write_config

BUILD = [sys.executable, "-m", "pipeline.cli", "build", "-q"]


def command(config: Path, *more: str) -> list[str]:
    return [*BUILD, str(config), *more]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("reference")
    make_inputs(folder / "in", files=8)
    run_build(write_config(folder, folder / "in"))
    return folder / "in", snapshot(folder / "out")


def journal_lines(out: Path) -> int:
    """How much the builds in this folder have written down so far."""
    return sum(path.read_bytes().count(b"\n") for path in (out / "work" / "journal").glob("*.jsonl"))


def kill_after(process: subprocess.Popen[bytes], out: Path, lines: int, delay: float) -> bool:
    """Kills the process once its journal has so many lines, and a moment more; whether it was still running."""
    while process.poll() is None:
        if journal_lines(out) >= lines:
            time.sleep(delay)  # not to wait for something, but to hit another line of the program each time
            break
        time.sleep(0.002)
    process.kill()
    return process.wait() == -signal.SIGKILL


def rounds(folder: Path, inputs: Path, seed: int, kills: int, *more: str) -> dict[str, str]:
    """Builds, killed `kills` times on the way, then to the end."""
    chance = random.Random(seed)
    config = write_config(folder, inputs)
    out = folder / "out"
    for number in range(kills):
        process = subprocess.Popen(command(config, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kill_after(process, out, journal_lines(out) + chance.choice([0, 1, 1, 2, 3]) + (number == 0), chance.random() * 0.05)
    finished = subprocess.run(command(config, *more), capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr.decode()
    assert not list((out / "work" / "tmp").iterdir())
    assert not list(out.rglob(".tmp-*"))
    return snapshot(out)


@pytest.mark.parametrize("seed", range(3))
def test_killed_and_run_again_inline(reference: tuple[Path, dict[str, str]], tmp_path: Path, seed: int) -> None:
    inputs, expected = reference
    assert rounds(tmp_path, inputs, seed, 3, "--inline") == expected


@pytest.mark.ray
def test_killed_and_run_again_on_ray(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    inputs, expected = reference
    assert rounds(tmp_path, inputs, 99, 1) == expected


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_kills_inline(reference: tuple[Path, dict[str, str]], tmp_path: Path, seed: int) -> None:
    inputs, expected = reference
    assert rounds(tmp_path, inputs, seed, 4, "--inline") == expected


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("seed", range(200, 205))
def test_many_kills_on_ray(reference: tuple[Path, dict[str, str]], tmp_path: Path, seed: int) -> None:
    inputs, expected = reference
    assert rounds(tmp_path, inputs, seed, 2) == expected


def test_interrupted_finishes_what_runs_and_goes_on(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    inputs, expected = reference
    config = write_config(tmp_path, inputs)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
        process = subprocess.Popen(command(config, "--inline"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        target = journal_lines(tmp_path / "out") + 1
        while process.poll() is None and journal_lines(tmp_path / "out") < target:
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate()
        assert process.returncode == code, errors.decode()
        assert b"next: pipeline build" in errors
        assert not list((tmp_path / "out" / "work").glob("lock-*"))
    assert subprocess.run(command(config, "--inline"), check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert snapshot(tmp_path / "out") == expected


def test_two_builds_at_once_the_second_names_the_first(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    inputs, _ = reference
    config = write_config(tmp_path, inputs)
    first = subprocess.Popen(command(config, "--inline"), stdout=subprocess.DEVNULL)
    while not list((tmp_path / "out" / "work").glob("lock-*")) and first.poll() is None:
        time.sleep(0.002)
    second = subprocess.run(command(config, "--inline"), capture_output=True, text=True, check=False)
    if first.poll() is None or second.returncode:
        assert second.returncode == 1
        assert f"process {first.pid}" in second.stderr
    assert first.wait() == 0
