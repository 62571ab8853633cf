"""`trainer submit` on a real head, and what is wrong before anything is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.head import head_folder, ray_head
from tests.trainer.tiny import corpus, lines, overrides

SETS = overrides(8, "batch.micro_batch_size=2", "checkpoint.save_every_steps=4", "monitoring.eval_every_steps=100")


def run(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer.cli", *words, *(part for text in SETS for part in ("--set", text))]
    return subprocess.run([*command, "--address", address], capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": "/tmp"})


def test_ranks_that_do_not_divide_a_step_are_refused_with_a_number_that_does(tmp_path: Path) -> None:
    manifest = corpus(tmp_path / "corpus")
    done = run("http://127.0.0.1:9", "submit", "--manifest", str(manifest), "--ranks", "3", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "3 ranks do not divide the 8 rows of a step evenly" in done.stderr
    assert "take 2 ranks" in done.stderr


@pytest.mark.ray
@pytest.mark.long
def test_a_run_as_a_job_is_the_run(tmp_path: Path) -> None:
    manifest = corpus(tmp_path / "corpus")
    sets = [part for text in SETS for part in ("--set", text)]
    here = subprocess.run(
        [sys.executable, "-m", "trainer.cli", "fit", "--manifest", str(manifest), *sets, "--out", str(tmp_path / "here"), "--ranks", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert here.returncode == 0, here.stderr
    with ray_head(head_folder()) as address:
        done = run(address, "submit", "--manifest", str(manifest), "--ranks", "2", "--out", str(tmp_path / "there"), "--installed")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "follow it from anywhere: pipeline jobs logs train-" in done.stderr
    assert [r["digest"] for r in lines(tmp_path / "there")] == [r["digest"] for r in lines(tmp_path / "here")]
