"""Memory of a large training run, measured from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PEAK = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"


@pytest.mark.long
@pytest.mark.data
def test_case_training_on_500_megabytes_stays_below_two_gigabytes(shared: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, shared / "cases" / "inputs" / "make_text.py", "500"], cwd=tmp_path, check=True
    )
    config = tmp_path / "corpus.yaml"
    config.write_text("name: big\nsources:\n  text: {path: text.jsonl}\noutput: {path: out}\n")
    command = [sys.executable, "-m", "pipeline.cli", "train-tokenizer", str(config), "--inline", "-q"]
    ran = subprocess.run([sys.executable, "-c", PEAK, *command], capture_output=True, text=True, check=True)
    assert int(ran.stdout.split()[-1]) < 2_000_000  # KiB
    card = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer-card.json").read_bytes())
    assert card["trained_on"]["bytes"] > 480_000_000
    assert card["vocab_size"]["real"] > 17_000
