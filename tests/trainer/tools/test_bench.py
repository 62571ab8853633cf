"""The bench measures real steps, changes one thing at a time, and writes what a plan takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stages.contract.problem import RunError
from tests.trainer.tiny import alone, planned
from tests.trainer.tools.sick import corpus, sets
from trainer.loader import Loader
from trainer.tools.bench import Setting, Speed, fastest, measured, sweep

SETS = sets(12)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"), documents=150)


def speeds(manifest, table, most=None):
    plan = planned(manifest, *SETS)[0]
    return list(sweep(plan, lambda s: Speed(s, *table(s)) if table(s) else Speed(s, failed="out of memory"), most, True))


def test_the_micro_batch_is_doubled_then_other_things_are_changed_one_by_one(manifest):
    found = speeds(manifest, lambda s: (100.0 * s.micro, 1.0, 1, None))
    assert [one.setting.micro for one in found[:4]] == [1, 2, 4, 8]
    assert [(one.setting.checkpointing, one.setting.compiled) for one in found[4:]] == [("selective", False), ("full", False), ("none", True)]
    assert fastest(found).setting.micro == 8


def test_memory_that_is_full_ends_the_doubling(manifest):
    found = speeds(manifest, lambda s: None if s.micro > 2 else (100.0 * s.micro, 1.0, 1, None))
    assert [one.setting.micro for one in found] == [1, 2, 4, 2, 2, 2]
    assert found[2].failed == "out of memory"


def test_nothing_fits(manifest):
    with pytest.raises(RunError, match="does not fit"):
        fastest(speeds(manifest, lambda s: None))


def test_a_real_measurement(manifest):
    plan, manifests = planned(manifest, *SETS)
    with Loader([manifest.parent], plan, manifests) as loader:
        one = measured(plan, loader, alone(), Setting(2, "full", False), 1)
    assert not one.failed
    assert one.tokens_per_second > 0
    assert one.memory > 1 << 20


def test_the_command_writes_what_a_plan_takes(manifest, tmp_path, monkeypatch):
    from trainer.cli import cli
    from trainer.config import read_plan
    from trainer.loop import parallel

    monkeypatch.setattr(parallel, "join", lambda device: alone())
    monkeypatch.setattr(parallel, "leave", lambda: None)
    pairs = [part for text in SETS for part in ("--set", text)]
    done = CliRunner().invoke(cli, ["bench", "--manifest", str(manifest), *pairs, "--steps", "1", "--most", "2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "hardware.tokens_per_second=" in done.output
    record = json.loads((tmp_path / "bench.json").read_bytes())
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"extends: [{tmp_path / 'bench.yaml'}]\n")
    loaded = read_plan(plan, ()).value
    assert loaded.hardware.tokens_per_second == pytest.approx(record["best"]["tokens_per_second"], rel=0.01)
    assert loaded.batch.micro_batch_size == record["best"]["setting"]["micro"]
