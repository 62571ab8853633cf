"""Memory of large runs, measured from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from pipeline.engine.cluster import OnRay
from tests.pipeline.corpora import document, run_build, write_config, write_jsonl

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


def own_bytes(process: psutil.Process) -> int:
    """Memory that a process has for itself: pages of mapped files are taken back when they are needed elsewhere."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


class Watch(threading.Thread):
    """Notes the most that any worker of an embedded Ray has had for itself."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        self.peak = max(self.peak, own_bytes(process))
                except (psutil.Error, OSError):
                    continue  # it has just ended


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_worker_stays_below_500_megabytes(tmp_path: Path) -> None:
    """In every pass and round of a build of a file that is plain and one that cannot be split, 20 MB each."""
    texts = [document(i, 800) for i in range(4_000)]
    write_jsonl(tmp_path / "in" / "web" / "a.jsonl", texts)
    subprocess.run(["gzip", "-1", str(tmp_path / "in" / "web" / "a.jsonl")], check=True)
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [text[::-1] for text in texts])
    text = write_config(tmp_path, tmp_path / "in", "  - normalize\n  - rules: {mark: true}\n  - exact-dedup\n  - minhash-dedup\n  - pii\n")
    text.write_text(text.read_text().replace("web/*.jsonl", "web/*.jsonl.gz"))
    watch = Watch()
    watch.start()
    run_build(text, ("output.shard_tokens=4M",), executor=OnRay(workers=1))
    watch.over.set()
    watch.join()
    assert 100e6 < watch.peak < 500e6
