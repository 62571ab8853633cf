"""Bad steps: found, told from good ones, traced to their document, and left behind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.problem import RunError
from tests.trainer.corpora import document_ids, make_corpus, random_documents
from tests.trainer.tiny import corpus, fit, lines, overrides
from trainer import checkpoint
from trainer.checkpoint.records import State
from trainer.loop import guard
from trainer.loop.guard import Judge, Scaler, Verdict, ruling
from trainer.planning.plan import MonitoringPlan

PLAN = MonitoringPlan(10, None, ("jsonl",), "roll-back", spike_window=16, on_spike="skip")
CPU = torch.device("cpu")
NO = torch.tensor(False)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def judged(judge: Judge, loss: float, norm: float, overflow: torch.Tensor = NO) -> tuple[Verdict, list[float]]:
    verdict, z = judge(number(loss), number(norm), overflow)
    keep = verdict < int(Verdict.OVERFLOW)
    judge.take(guard.seen_of(number(loss), number(norm)), keep)
    return Verdict(int(verdict)), z.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 9.0), st.floats(1e-3, 1e3)), min_size=0, max_size=40),
    st.floats(0.5, 50.0), st.floats(1e-3, 1e6),
)  # fmt: skip
def test_z_is_the_distance_from_the_median_in_robust_deviations(past, loss, norm):
    judge = Judge(replace(PLAN, on_spike="warn"), CPU)
    for one in past:
        judged(judge, *one)
    _, z = judged(judge, loss, norm)
    kept = past[-16:]
    if len(kept) < guard.LEAST:
        assert z == [0.0, 0.0]
        return
    for column, (x, calm) in enumerate(((loss, guard.CALM_LOSS), (math.log(norm), guard.CALM_NORM))):
        values = sorted(one[0] if column == 0 else math.log(one[1]) for one in kept)
        middle = values[(len(values) - 1) // 2]
        spread = 1.4826 * sorted(abs(v - middle) for v in values)[(len(values) - 1) // 2]
        least = calm * abs(middle) if column == 0 else calm
        assert z[column] == pytest.approx((x - middle) / max(spread, least), rel=1e-6, abs=1e-6)


def test_a_window_that_is_loaded_judges_as_the_one_that_was_saved():
    rng = np.random.default_rng(0)
    state, judge = State(), Judge(PLAN, CPU)
    for step in range(40):
        loss, norm = 3 + float(rng.normal()) * 0.1, math.exp(float(rng.normal()))
        verdict, _ = judged(judge, loss, norm)
        state = guard.after(state, verdict, guard.seen_of(number(loss), number(norm)).tolist(), "a", 16)
        other = Judge(PLAN, CPU)
        other.load(state.window)
        for probe in ((3.0, 1.0), (3.5, 1.0), (3.0, 200.0)):
            expected = judge(number(probe[0]), number(probe[1]), NO)
            found = other(number(probe[0]), number(probe[1]), NO)
            assert int(expected[0]) == int(found[0])
            assert torch.equal(expected[1], found[1]), step


def test_spikes_are_high_never_low_and_do_not_enter_the_window():
    judge = Judge(PLAN, CPU)
    for i in range(20):
        assert judged(judge, 3 + 0.01 * (i % 3), 1.0)[0] == Verdict.FINE
    assert judged(judge, 0.5, 0.01)[0] == Verdict.FINE
    assert judged(judge, 5.0, 1.0)[0] == Verdict.SKIPPED
    assert judged(judge, 3.0, 1e4)[0] == Verdict.SKIPPED
    assert judged(judge, 3.0, 1.0)[0] == Verdict.FINE
    assert judged(judge, math.nan, 1.0)[0] == Verdict.NONFINITE
    assert judged(judge, 3.0, math.inf)[0] == Verdict.NONFINITE
    assert judged(judge, 3.0, math.inf, torch.tensor(True))[0] == Verdict.OVERFLOW
    assert judged(judge, math.nan, math.inf, torch.tensor(True))[0] == Verdict.NONFINITE
    assert bool(judge.ring.isfinite().all())


@pytest.mark.parametrize(
    ("policy", "in_a_row", "rollbacks", "act"),
    [
        ("stop", 1, 0, "stop"), ("skip", 9, 0, "go on"), ("skip", 10, 0, "stop"), ("roll-back", 9, 0, "go on"),
        ("roll-back", 10, 0, "roll back"), ("roll-back", 10, 2, "roll back"), ("roll-back", 10, 3, "stop"),
    ],
)  # fmt: skip
def test_what_is_done_about_a_bad_step(policy, in_a_row, rollbacks, act):
    state = State(skipped_in_a_row=in_a_row, rollbacks=rollbacks)
    for verdict, plan in (
        (Verdict.NONFINITE, replace(PLAN, on_nonfinite=policy)),
        (Verdict.SKIPPED, replace(PLAN, on_spike=policy)),
    ):
        if policy != "stop" or verdict == Verdict.NONFINITE:
            assert ruling(plan, verdict, state).act == act
    assert ruling(PLAN, Verdict.SPIKE, state).act == "go on"
    assert not ruling(PLAN, Verdict.OVERFLOW, state).bad


def test_the_scale_halves_on_overflow_and_doubles_after_patience(monkeypatch):
    monkeypatch.setattr(Scaler, "PATIENCE", 3)
    scaler = Scaler(True, CPU)
    seen = []
    for verdict in (2, 2, 0, 0, 0, 0, 2):
        scaler.follow(torch.tensor(verdict))
        seen.append(float(scaler.scale))
    first = Scaler.FIRST
    assert seen == [first / 2, first / 4, first / 4, first / 4, first / 2, first / 2, first / 4]
    scaler.load(1.0, 0)
    assert not bool(scaler.may_fall)  # at the floor an overflow is a bad step
    scaler.follow(torch.tensor(2))
    assert float(scaler.scale) == 1.0
    off = Scaler(False, CPU)
    off.follow(torch.tensor(2))
    assert float(off.scale) == 1.0


# ---- planted faults --------------------------------------------------------------------------------------------

EASY = [[5, 6, 7, 8] * 7] * 200
POISON = 63


def planted(folder: Path, document: list[int], at: int = 100) -> tuple[Path, str]:
    """A corpus that is easy but for one document, and the id of that one."""
    documents = [*EASY[:at], document, *EASY[at:]]
    path = make_corpus(folder, {"web": documents, "书": EASY[:100]}, vocab=64, mixture={"web": 0.7, "书": 0.3})
    return path, document_ids("web", len(documents))[at].tobytes().hex()


def step_of(run, document: str) -> int:
    """The first step (0-based) that reads a document."""
    return min(int(one["step"]) for _, found in run.loader.readings(bytes.fromhex(document)) for one in found)


def poisoned(run) -> None:
    """A model that cannot stand one token: its loss, and all behind it in the document, is NaN."""
    plain = run.model.forward

    def forward(tokens, positions, segments, labels=None, chance=None):
        losses = plain(tokens, positions, segments, labels, chance)
        bad = torch.zeros(len(tokens), dtype=torch.bool)
        for a, b in zip(segments.starts, segments.starts[1:], strict=False):
            bad[a:b] = bool((tokens[a:b] == POISON).any())
        return losses * torch.where(bad & (labels >= 0), math.nan, 1.0)

    run.model.forward = forward


def incidents(out: Path) -> list[dict]:
    return [json.loads(path.read_bytes()) for path in sorted(out.glob("incident-*.json"))]


def test_a_planted_nan_is_skipped_and_traced_to_its_document(tmp_path):
    path, document = planted(tmp_path / "corpus", [5, POISON, 7, 8] * 7)
    sets = overrides(40, "data.repeat_limit=20", "checkpoint.save_every_steps=4", "checkpoint.keep_last=99")
    with fit(path, tmp_path / "run", *sets) as run:
        poisoned(run)
        bad = step_of(run, document)
        assert run.run().code == 0
        assert run.state.skipped >= 1
    first = incidents(tmp_path / "run")[0]
    assert (first["step"], first["verdict"], first["decision"], first["ranks"]) == (bad + 1, "nonfinite", "skipped", [0])
    assert [one["id"] for one in first["documents"] if one["loss"] is None] == [document]
    assert first["documents"][0]["source"] == "web"
    assert any(document in row["documents"] for row in first["rows"])
    losses = [record["loss"] for record in lines(tmp_path / "run")]
    assert losses[bad] is None
    assert losses[-1] < 0.3 * losses[0]
    for folder in checkpoint.folders(tmp_path / "run" / "checkpoints").values():
        assert isinstance(checkpoint.read(folder), checkpoint.Checkpoint)  # of finite numbers: no save takes others


@pytest.mark.parametrize("policy", ["warn", "skip"])
def test_a_planted_garbage_document_is_a_spike_and_traced(tmp_path, policy):
    garbage = random_documents(1, 29, 62, seed=3)[0] * 29
    path, document = planted(tmp_path / "corpus", garbage[:28])
    sets = overrides(45, "data.repeat_limit=20", f"monitoring.on_spike={policy}", "monitoring.spike_window=16")
    with fit(path, tmp_path / "run", *sets) as run:
        bad = [int(one["step"]) for _, found in run.loader.readings(bytes.fromhex(document)) for one in found]
        assert run.run().code == 0
    caught = {one["step"] - 1: one for one in incidents(tmp_path / "run") if one["documents"][0]["id"] == document}
    assert set(caught) & set(bad)
    assert all(step in bad for step in caught)
    one = next(iter(caught.values()))
    assert one["verdict"] == ("spike" if policy == "warn" else "skipped")
    assert one["decision"] == ("taken" if policy == "warn" else "skipped")
    usual = median(d["loss"] for d in one["documents"])
    assert one["documents"][0]["loss"] > 2 * usual
    assert [r["skipped"] for r in lines(tmp_path / "run")].count(True) == (0 if policy == "warn" else len(incidents(tmp_path / "run")))
    assert lines(tmp_path / "run")[-1]["loss"] < 1.0


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def nan_for(run, data_steps: range) -> None:
    """Make the loss NaN while the data of these steps are read, whatever number the step has."""
    plain, train_step, now = run.model.forward, run.train_step, [0]

    def forward(*args):
        bad = run.plan.order.data_step(now[0]) in data_steps and torch.is_grad_enabled()
        return plain(*args) * (math.nan if bad else 1.0)

    def counted(batch, step):
        now[0] = step
        return train_step(batch, step)

    run.model.forward, run.train_step = forward, counted


BACK = overrides(24, "monitoring.skips=3", "checkpoint.save_every_steps=4", "checkpoint.keep_last=99",
                 "checkpoint.keep_best=false", "monitoring.eval_every_steps=50")  # fmt: skip


def test_after_too_many_bad_steps_the_run_goes_back_and_passes_over_the_data(manifest, tmp_path):
    with fit(manifest, tmp_path / "plain", *BACK) as run:
        run.run()
        plain = run.plan
    with fit(manifest, tmp_path / "run", *BACK) as run:
        nan_for(run, range(14, 17))
        assert run.run().code == 0
        assert run.state.rollbacks == 1
        assert run.state.jumped == [[14, 17]]
        assert run.plan.steps == plain.steps - 3
        assert run.state.step == run.plan.steps
    found, straight = lines(tmp_path / "run"), lines(tmp_path / "plain")
    assert [r["digest"] for r in found] == [r["digest"] for r in straight[:14] + straight[17:]]
    assert found[:12] == straight[:12]
    assert not any(record["skipped"] for record in found)
    assert [r["lr"] for r in found] == [r["lr"] for r in straight[:14] + straight[17:]]  # by planned tokens
    decisions = [one["decision"] for one in incidents(tmp_path / "run")]
    assert decisions == ["skipped", "skipped", "roll back"]


@pytest.mark.parametrize("until", [12, 15, 18])
def test_a_run_that_goes_back_resumes_byte_equal(manifest, tmp_path, until):
    for name, stops in (("a", ()), ("b", (until,))):
        for stop in (*stops, None):
            with fit(manifest, tmp_path / name, *BACK, *([f"stop.after_steps={stop}"] if stop else [])) as run:
                nan_for(run, range(14, 17))
                run.run()
    a, b = (checkpoint.newest(tmp_path / name / "checkpoints")[0] for name in "ab")
    assert a.record.files == b.record.files
    assert a.record.state == b.record.state
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_without_a_healthy_checkpoint_it_begins_again_and_in_the_end_it_stops(manifest, tmp_path):
    with fit(manifest, tmp_path / "a", *BACK) as run:
        nan_for(run, range(1, 4))
        assert run.run().code == 0
        assert (run.state.rollbacks, run.state.jumped) == (1, [[1, 4]])
    with fit(manifest, tmp_path / "b", *BACK, "monitoring.rollbacks=2") as run:
        nan_for(run, range(6, 99))
        with pytest.raises(RunError, match=r"3 steps in a row had no finite loss[\s\S]*after going back 2 times"):
            run.run()


def test_half_precision_skips_overflows_without_an_incident(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(Scaler, "FIRST", 2.0**40)
    sets = overrides(30, "precision.compute=fp16", "monitoring.eval_every_steps=50")
    with fit(manifest, tmp_path, *sets) as run:
        assert run.run().code == 0
        assert 1.0 < run.state.scale < 2.0**40
    found = lines(tmp_path)
    over = [record for record in found if record["skipped"]]
    assert over
    assert found[0]["loss_scale"] == 2.0**39
    assert not incidents(tmp_path)
    assert not any(record["skipped"] for record in found[len(over) :])
    assert found[-1]["loss"] == pytest.approx(found[0]["loss"], abs=0.05)  # of random ids


def test_a_scale_at_its_floor_is_an_alarm(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(Scaler, "FIRST", 2.0)
    with fit(manifest, tmp_path, *overrides(9, "precision.compute=fp16", "monitoring.skips=2", "monitoring.on_nonfinite=skip")) as run:
        said = []
        run.say = said.append
        plain = run.updater.norm
        run.updater.norm = lambda: plain() * math.inf
        with pytest.raises(RunError, match="2 steps in a row"):
            run.run()
    assert any("the loss scale is at its floor of 1" in text for text in said)
