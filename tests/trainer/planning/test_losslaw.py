"""The loss law: planted laws come back, and what they mean is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stages.contract.problem import SpecError
from trainer.planning.losslaw import KNEE, fit, knee, meaning, read_run
from trainer.planning.suggest import CHINCHILLA_LAW, LossLaw

LAW = LossLaw(1.7, 400.0, 0.34, 2000.0, 0.37)


def make_run(folder: Path, law: LossLaw, parameters: int, tokens: int, steps: int = 400, evals: bool = True, **extra) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"model": {"parameters": parameters}, "steps": steps}))
    lines = []
    for step in range(1, steps + 1):
        consumed = tokens * step // steps
        loss = law.loss(parameters, consumed)
        lines.append({"kind": "step", "step": step, "tokens": consumed, "loss": loss, **extra})
        if evals and step % 20 == 0:
            lines.append({"kind": "eval", "step": step, "loss": loss})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_planted_law_comes_back(tmp_path):
    runs = [
        read_run(make_run(tmp_path / str(size), LAW, size, 40 * size)) for size in (10**7, 4 * 10**7, 16 * 10**7)
    ]
    fitted = fit(runs)
    assert fitted.of_size
    assert fitted.error < 0.002
    for parameters, tokens in ((10**9, 20 * 10**9), (3 * 10**8, 10**10)):
        assert fitted.law.loss(parameters, tokens) == pytest.approx(LAW.loss(parameters, tokens), rel=0.01)
    assert fit(runs) == fitted


def test_runs_of_one_size_give_the_part_of_the_tokens(tmp_path):
    run = read_run(make_run(tmp_path / "one", LAW, 10**7, 10**9))
    fitted = fit([run])
    assert not fitted.of_size
    assert fitted.law.beta == pytest.approx(LAW.beta, abs=0.03)
    assert fitted.law.loss(1, 2e9) == pytest.approx(LAW.loss(10**7, 2e9), rel=0.005)
    assert "balance" not in {name for name, _, _ in meaning(fitted, 1e7, 1e9)}


def test_training_loss_stands_in_where_nothing_is_held_out(tmp_path):
    run = read_run(make_run(tmp_path / "one", LAW, 10**7, 10**9, evals=False, noise_scale=250_000.0))
    assert run.kind == "training"
    assert run.noise_scale == 250_000
    assert fit([run]).law.loss(1, 1e9) == pytest.approx(LAW.loss(10**7, 1e9), rel=0.01)


def test_the_knee_is_where_doubling_stops_to_pay():
    turn = knee(LAW, 10**8)
    assert turn is not None
    assert 1 - LAW.loss(10**8, 2 * turn) / LAW.loss(10**8, turn) == pytest.approx(KNEE, rel=1e-3)
    assert knee(LossLaw(0.0, 0.0, 0.0, 10.0, 0.1), 1e8) is None
    assert LAW.gain(1e9) == pytest.approx((LAW.loss(1e8, 1e9) - LAW.loss(1e8, 1e9 + 1e3)) / 1e3, rel=1e-3)


def test_the_published_law_is_about_what_its_paper_says():
    assert CHINCHILLA_LAW.loss(70e9, 1.4e12) == pytest.approx(1.94, abs=0.05)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"it has no plan\.json"):
        read_run(tmp_path)
    short = make_run(tmp_path / "short", LAW, 10**7, 10**6, steps=3)
    with pytest.raises(SpecError, match="usable points"):
        read_run(short)


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    folder = make_run(tmp_path / "one", LAW, 10**7, 10**9)
    whole = read_run(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "ste')
    assert np.array_equal(read_run(folder).losses, whole.losses)
