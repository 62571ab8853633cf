"""`pipeline plan --nodes`: rates come from a log, and what they make is arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from pipeline.commands.estimate import DRIVER, DRIVER_SMALL, EFFICIENCY, ENOUGH, SLOWEST, estimate, read_rates
from pipeline.corpus import load_corpus
from pipeline.engine.plan import make_plan
from pipeline.events import Event, PassDone, PassStarted, TaskDone
from pipeline.output.dropped import PARTS
from stages.contract.problem import SpecError
from tests.pipeline.corpora import make_inputs, write_config


def log(*events: Event) -> list[bytes]:
    return [orjson.dumps(event.record()) for event in events]


FIRST = (PassStarted("read → normalize", 2, 0), TaskDone("read → normalize", "a", 3.0, 10, 4000), TaskDone("read → normalize", "b", 1.0, 10, 4000))
ROUND = (PassStarted("minhash: bands", 2, 0, True), TaskDone("minhash: bands", "x", 2.0, 0, 0), PassDone("minhash: bands", 2, 2, 9.0, True))


def test_rates_are_of_whole_passes() -> None:
    rates = read_rates(log(*FIRST, PassDone("read → normalize", 2, 2, 5.0), *ROUND))
    assert rates is not None
    assert rates.text_bytes == 8000
    assert rates.seconds == {"read → normalize": 4.0, "minhash: bands": 2.0}
    assert read_rates(log(*FIRST, PassDone("read → normalize", 5, 2, 5.0))) is None  # three of five were done before
    assert read_rates([]) is None


def test_an_estimate_is_work_over_cpus_and_the_driver(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in")
    plan = make_plan(load_corpus(write_config(tmp_path, tmp_path / "in")))
    with pytest.raises(SpecError, match="no rates"):
        estimate(plan, tmp_path / "out", 100, 64, None)
    (tmp_path / "out").mkdir()
    lines = log(*FIRST, PassDone("read → normalize", 2, 2, 5.0), *ROUND)
    (tmp_path / "out" / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    text, data = estimate(plan, tmp_path / "out", 100, 64, 2.0)
    size = sum(path.stat().st_size for path in (tmp_path / "in").rglob("*.jsonl"))
    assert data["text_bytes"] == size
    assert data["cpu_hours"] * 3600 == pytest.approx(size * 6.0 / 8000)
    tasks = 2 * sum(len(inputs.tasks) for inputs in plan.inputs.values())
    assert tasks == 2 * 2  # of a pass and a round, two each
    waits = data["cpu_hours"] * 3600 / 2  # each as long as one of its two tasks; too few for one to be slow
    hours = data["cpu_hours"] / (6400 * EFFICIENCY) + (2 * (DRIVER + DRIVER_SMALL) + waits) / 3600
    alone = max(t.bytes for i in plan.inputs.values() for t in i.tasks) * 4.0 / 8000 / 3600
    assert data["hours"] == pytest.approx(max(hours, alone))
    assert data["cost"] == pytest.approx(data["hours"] * 200)
    assert "on 100 nodes of 64 CPUs" in text


def test_after_a_build_plan_knows_its_own_rates(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in", files=2)
    config = write_config(tmp_path, tmp_path / "in", "  - normalize\n")
    build = [sys.executable, "-m", "pipeline.cli"]
    assert subprocess.run([*build, "build", "-q", "--inline", str(config)], check=False, stdout=subprocess.DEVNULL).returncode == 0
    done = subprocess.run(
        [*build, "plan", str(config), "--nodes", "100", "--node-cpus", "64", "--node-price", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cost      " in done.stdout
    assert "scratch   " in done.stdout


def test_what_grows_and_what_all_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of one task stands for a corpus of many; the tokenizer is trained on as much text, and a table is of many parts."""
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 1000)
    make_inputs(tmp_path / "in", files=60)
    config = write_config(tmp_path, tmp_path / "in")
    config.write_text(config.read_text().replace("vocab_size: 400", "vocab_size: 400, train_on: 4000"))
    plan = make_plan(load_corpus(config))
    read, learn, write = "read → normalize", "tokenizer: learn", "write the tables of dropped documents"
    heard: list[Event] = []
    for name, seconds, size in ((read, 4.0, 8000), (learn, 2.0, 0), (write, 1.0, 0)):
        heard += [PassStarted(name, 1, 0), TaskDone(name, "a", seconds, 10, size), PassDone(name, 1, 1, seconds)]
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in log(*heard)))
    _, data = estimate(plan, tmp_path / "sample", 100, 64, None)
    text = data["text_bytes"]
    parts = sum(len(inputs.tasks) for inputs in plan.inputs.values())
    assert parts >= ENOUGH
    groups = sum(-(-len(inputs.tasks) // PARTS) for inputs in plan.inputs.values())
    work = text / 8000 * (4.0 + 1.0) + 2.0
    assert data["cpu_hours"] * 3600 == pytest.approx(work)
    waits = SLOWEST * (text / 8000 * 4.0 + 2.0) / parts + text / 8000 * 1.0 / groups  # few tables: one takes as long as another
    driver = DRIVER * (parts + groups) + DRIVER_SMALL * parts
    assert data["hours"] * 3600 == pytest.approx(work / (100 * 64 * EFFICIENCY) + waits + driver)
