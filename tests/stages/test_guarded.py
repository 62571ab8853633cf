"""No kernel reads outside of the buffers that it is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def over_guarded_texts(seed: int, rounds: int) -> None:
    command = [sys.executable, "-m", "tests.stages.guarded", str(seed), str(rounds)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, f"signal or error {ran.returncode}: {ran.stderr[-2000:]}"
    assert int(ran.stdout) >= 14  # stages


def test_a_read_behind_the_memory_is_noticed():
    touch = "import ctypes\nfrom tests.stages.guarded import Arena\nb = Arena(1).hold(b'x' * 8, True)\nctypes.string_at(b.address + 1, 8)"
    assert subprocess.run([sys.executable, "-c", touch], cwd=ROOT, capture_output=True).returncode < 0


def test_no_stage_reads_outside_of_its_texts():
    over_guarded_texts(1, 10)


@pytest.mark.long
def test_no_stage_reads_outside_of_many_texts():
    for seed in range(2, 6):
        over_guarded_texts(seed, 300)
