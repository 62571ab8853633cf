from __future__ import annotations

import sys
import types

import pytest

from stages.contract.problem import RunError
from tests.trainer.tiny import corpus, fit, overrides
from trainer.loop.sinks import numbers_of


def test_numbers_by_source_become_curves_of_their_own():
    record = {"kind": "step", "step": 3, "loss": 2.0, "losses": {"web": 1.5, "书": None}, "lr": 0.1, "phase": "a", "mfu": None}
    assert numbers_of(record) == {"step/loss": 2.0, "step/lr": 0.1, "step/losses/web": 1.5}


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that writes down what it is told."""
    told: list[tuple] = []
    made = types.ModuleType("wandb")
    run = types.SimpleNamespace(
        log=lambda numbers, step: told.append((step, numbers)), finish=lambda: told.append(("finish",))
    )
    made.init = lambda **options: told.append(("init", options)) or run
    monkeypatch.setitem(sys.modules, "wandb", made)
    return told


def test_weights_and_biases_gets_what_is_due_and_is_one_run_over_all_starts(tmp_path, wandb):
    path = corpus(tmp_path / "corpus")
    sets = overrides(4, "monitoring.sinks=[jsonl, wandb]", "monitoring.log_every_steps=2", "monitoring.eval_every_steps=4")
    for until in (2, None):
        with fit(path, tmp_path / "run", *sets, *([f"stop.after_steps={until}"] if until else [])) as run:
            run.run()
    starts = [one[1] for one in wandb if one[0] == "init"]
    assert len(starts) == 2
    assert starts[0]["id"] == starts[1]["id"]
    assert starts[0]["resume"] == "allow"
    logged = [(step, kind) for step, *rest in wandb if isinstance(step, int) for kind in {name.split("/")[0] for name in rest[0]}]
    assert logged == [(2, "step"), (4, "step"), (4, "eval")]
    assert [one[0] for one in wandb].count("finish") == 2


def test_a_sink_whose_package_is_missing_stops_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    path = corpus(tmp_path / "corpus")
    with (
        pytest.raises(RunError, match=r"R007[\s\S]*names wandb, but wandb is not installed[\s\S]*pip install wandb"),
        fit(path, tmp_path / "run", *overrides(4, "monitoring.sinks=[wandb]")),
    ):
        pass
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
