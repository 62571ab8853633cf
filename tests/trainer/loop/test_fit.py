from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch

from stages.contract.names import canonical_json
from stages.contract.problem import RunError, SpecError
from tests.trainer.corpora import document_ids, make_corpus, random_documents
from tests.trainer.tiny import corpus, fit, lines, overrides, planned, taken, weights
from trainer import checkpoint
from trainer.launch import PREEMPTED
from trainer.loop import curves, metrics
from trainer.loop.schedule import rate_at
from trainer.model.attention import Segments


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float) -> bool:
    return all(torch.allclose(a[name], b[name], atol=atol, rtol=0) for name in a)


def test_one_step_does_not_depend_on_how_the_batch_is_cut_into_micro_batches(manifest, tmp_path):
    norms, states = [], []
    for micro in (8, 4, 1, 3):
        with fit(manifest, tmp_path / str(micro), *overrides(4, f"batch.micro_batch_size={micro}")) as run:
            assert len(run.loader.batch(0, 0, 1, micro).micros) == math.ceil(8 / micro)
            norms.append(taken(run, 0).norm)
            states.append({k: v for k, v in run.updater.state_tensors().items() if "exp_avg" in k})
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-6)
    for other in states[1:]:  # after one step the first moment is the clipped gradient times 1 - beta1
        for name, moment in states[0].items():
            scale = float(moment.to_local().abs().max())
            assert float((moment.to_local() - other[name].to_local()).abs().max()) <= 2e-6 * scale, name


def test_labels_are_shifted_once(tmp_path):
    cycle = [[1 + (i + k) % 15 for k in range(31)] for i in range(15)] * 8
    path = make_corpus(tmp_path / "corpus", {"count": cycle}, vocab=16)
    with fit(path, tmp_path / "run", *overrides(100, "data.repeat_limit=20")) as run:
        assert run.run().code == 0
        losses = [record["loss"] for record in lines(tmp_path / "run")]
        tokens = torch.tensor([1 + (3 + k) % 15 for k in range(30)])
        with torch.no_grad():
            guess = run.model(tokens, torch.arange(30), Segments.of([0, 30], "cpu")).argmax(-1)
    assert len(losses) == 100
    assert losses[0] > 2.0
    # 31 of 32 labels of a document follow from the one before; only where it starts again is there no way to know.
    assert losses[-1] < 0.1
    assert torch.equal(guess[:-1], tokens[1:])  # exactly one further: neither a copy nor two steps on


def test_phases_hold_their_mix_and_their_name_to_the_step(tmp_path):
    sources = {name: [[token] * 31] * 60 for name, token in (("a", 1), ("b", 2), ("c", 3))}
    path = make_corpus(tmp_path / "corpus", sources, vocab=64)
    mixes = {"x": "{a: 1, b: 0, c: 0}", "y": "{a: 0, b: 1, c: 0}", "z": "{a: 0, b: 0, c: 1}"}
    phases = [f"{{name: {n}, tokens: {256 * 5}, mix: {mix}}}" for n, mix in mixes.items()]
    sets = [s for s in overrides(15) if not s.startswith("data.total_tokens")]
    with fit(path, tmp_path / "run", *sets, f"data.phases=[{', '.join(phases)}]") as run:
        run.run()
    found = lines(tmp_path / "run")
    assert [record["phase"] for record in found] == ["x"] * 5 + ["y"] * 5 + ["z"] * 5
    assert [list(record["losses"]) for record in found] == [["a"]] * 5 + [["b"]] * 5 + [["c"]] * 5


def test_a_run_reads_on_when_an_epoch_is_over(tmp_path):
    path = make_corpus(tmp_path / "corpus", {"web": random_documents(30, 40, 64)}, vocab=64)
    plan, _ = planned(path, *overrides(8))
    assert plan.sources[0].epochs > 2.5
    with fit(path, tmp_path / "run", *overrides(8)) as run:
        assert run.run().code == 0
    assert lines(tmp_path / "run")[-1]["step"] == 8


def test_the_rate_of_every_line_is_the_plans(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(10, "lr_schedule.warmup_steps=3")) as run:
        run.run()
        expected = [rate_at(run.plan, step) for step in range(10)]
    assert [record["lr"] for record in lines(tmp_path)] == expected
    assert expected[2] == pytest.approx(1e-2)
    assert expected[-1] == pytest.approx(1e-3)


def stopped_after(step: int, run) -> None:
    """Let a signal arrive during this step."""
    plain = run.train_step

    def train_step(batch, now):
        if now == step - 1:
            run.stop.code = PREEMPTED
        return plain(batch, now)

    run.train_step = train_step


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(manifest, tmp_path, step):
    sets = overrides(
        12, "checkpoint.save_every_steps=5", "monitoring.eval_every_steps=3", "lr_schedule.warmup_steps=4"
    )
    with fit(manifest, tmp_path / "a", *sets) as run:
        run.run()
    with fit(manifest, tmp_path / "b", *sets) as run:
        stopped_after(step, run)
        end = run.run()
        assert end.code == PREEMPTED
        assert run.state.step == step
    with fit(manifest, tmp_path / "b", *sets) as run:
        assert run.state.step == step
        assert run.run().code == 0
    for kind in ("step", "eval"):
        assert lines(tmp_path / "a", kind) == lines(tmp_path / "b", kind)
    a, b = (checkpoint.newest(tmp_path / name / "checkpoints")[0] for name in "ab")
    assert a.record.files == b.record.files
    assert (a.path / "complete.json").read_bytes() == (b.path / "complete.json").read_bytes()


def test_lines_beyond_the_checkpoint_are_cut_on_resume(manifest, tmp_path):
    sets = overrides(10, "checkpoint.save_every_steps=4", "checkpoint.keep_best=false")
    with fit(manifest, tmp_path, *sets) as run:
        run.run()
    for step in (10, 8):
        checkpoint.remove(tmp_path / "checkpoints" / checkpoint.folder_name(step))
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 11, "kind": "st')  # a kill in the middle of a line
    before = lines(tmp_path)
    with fit(manifest, tmp_path, *sets) as run:
        assert [record["step"] for record in lines(tmp_path)] == [1, 2, 3, 4]
        run.run()
    assert lines(tmp_path) == before


def test_a_done_run_does_nothing_again(manifest, tmp_path):
    for _ in range(2):
        with fit(manifest, tmp_path, *overrides(3)) as run:
            assert run.run().code == 0
    assert [record["step"] for record in lines(tmp_path)] == [1, 2, 3]


def test_another_corpus_or_model_is_refused_and_an_edited_schedule_is_not(manifest, tmp_path):
    with fit(manifest, tmp_path / "run", *overrides(3)) as run:
        run.run()
    other = corpus(tmp_path / "other", documents=151)
    with (
        pytest.raises(SpecError, match="written by another run"),
        fit(other, tmp_path / "run", *overrides(3)),
    ):
        pass
    wider = [s.replace("ffn=64", "ffn=128") for s in overrides(3)]
    with pytest.raises(SpecError, match=r"model\.ffn"), fit(manifest, tmp_path / "run", *wider):
        pass
    with fit(manifest, tmp_path / "run", *overrides(3, "lr_schedule.min_lr_ratio=0")) as run:
        assert run.state.step == 3


def test_steps_still_to_come_may_be_skipped_and_past_ones_may_not(manifest, tmp_path):
    with fit(manifest, tmp_path / "whole", *overrides(10)) as run:
        run.run()
    with fit(manifest, tmp_path / "run", *overrides(10)) as run:
        stopped_after(4, run)
        run.run()
    with (
        pytest.raises(SpecError, match="values differ"),
        fit(manifest, tmp_path / "run", *overrides(10, "data.skip=[[1, 2]]")),
    ):
        pass
    with fit(manifest, tmp_path / "run", *overrides(10, "data.skip=[[6, 8]]")) as run:
        run.run()
    whole, skipped = ([record["digest"] for record in lines(tmp_path / name)] for name in ("whole", "run"))
    assert skipped == whole[:6] + whole[8:]


def poisoned(run, steps) -> None:
    """Make the loss of these steps NaN."""
    plain = run.model.forward
    now = [0]
    train_step = run.train_step

    def forward(*args):
        out = plain(*args)
        return out * float("nan") if now[0] in steps and torch.is_grad_enabled() else out

    def counted(batch, step):
        now[0] = step + 1
        return train_step(batch, step)

    run.model.forward, run.train_step = forward, counted


def test_a_step_without_finite_numbers_changes_nothing_and_is_written_down(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(6, "monitoring.on_nonfinite=skip")) as run:
        poisoned(run, {3})
        seen = {}
        plain = run._record

        def record(numbers, one):
            seen[one.measured.step + 1] = weights(run)
            plain(numbers, one)

        run._record = record
        assert run.run().code == 0
        assert run.state.skipped == 1
        assert run.state.skipped_in_a_row == 0
    assert all(torch.equal(seen[2][name], seen[3][name]) for name in seen[2])
    assert not close(seen[3], seen[4], 0)
    assert [record["skipped"] for record in lines(tmp_path)] == [False, False, True, False, False, False]
    assert lines(tmp_path)[2]["loss"] is None
    incident = json.loads((tmp_path / "incident-00000003.json").read_text())
    assert incident["step"] == 3
    assert incident["ranks"] == [0]
    assert len(incident["rows"]) == 8
    known = {bytes(one).hex() for name in ("web", "书") for one in document_ids(name, 150)}
    documents = [document for row in incident["rows"] for document in row["documents"]]
    assert documents
    assert set(documents) <= known


def test_too_many_bad_steps_in_a_row_or_the_first_if_so_planned_stop_the_run(manifest, tmp_path):
    sets = overrides(9, "monitoring.on_nonfinite=skip", "monitoring.skips=3", "checkpoint.save_every_steps=1")
    with fit(manifest, tmp_path / "a", *sets) as run:
        poisoned(run, {2, 4, 5, 6})
        with pytest.raises(RunError, match="3 steps in a row"):
            run.run()
        assert run.state.step == 6
        assert all(bool(torch.isfinite(w).all()) for w in weights(run).values())
    assert checkpoint.newest(tmp_path / "a" / "checkpoints")[0].step == 5
    with fit(manifest, tmp_path / "b", *overrides(9, "monitoring.on_nonfinite=stop")) as run:
        poisoned(run, {2})
        with pytest.raises(RunError, match="step 2 had no finite loss"):
            run.run()


def test_the_best_checkpoint_is_kept_and_rotation_keeps_the_rest_short(manifest, tmp_path):
    sets = overrides(12, "checkpoint.save_every_steps=2", "checkpoint.keep_last=2", "monitoring.eval_every_steps=3",
                     "lr_schedule.peak_lr=0.3")  # fmt: skip
    with fit(manifest, tmp_path, *sets) as run:
        run.run()
        best = run.state.best_step
    losses = {record["step"]: record["loss"] for record in lines(tmp_path, "eval")}
    assert sorted(losses) == [3, 6, 9, 12]
    assert best == min(losses, key=losses.get)
    assert set(checkpoint.folders(tmp_path / "checkpoints")) == {10, 12, best}


def test_no_better_holdout_loss_for_long_enough_ends_the_run(manifest, tmp_path):
    sets = overrides(30, "monitoring.eval_every_steps=1", "stop.patience_evals=2", "lr_schedule.peak_lr=1.0")
    with fit(manifest, tmp_path, *sets) as run:
        end = run.run()
        assert end.code == 0
        assert "no better holdout loss" in end.why
        assert run.state.step < 30
        assert checkpoint.newest(run.root)[0].step == run.state.step


def test_time_limits_save_and_say_run_again(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(3, "stop.max_time=1s")) as run:
        run.began -= 10
        end = run.run()
        assert (end.code, run.state.step) == (PREEMPTED, 1)
    with fit(manifest, tmp_path, *overrides(3, "checkpoint.save_every=1h")) as run:
        run.saved_at -= 4000
        run.run()
    assert 2 in checkpoint.folders(tmp_path / "checkpoints")


def test_the_digest_of_a_step_does_not_depend_on_the_ranks(manifest):
    plan, manifests = planned(manifest, *overrides(4))
    from trainer.loader import Loader

    with Loader([manifest.parent], plan, manifests) as loader:
        for step in range(4):
            whole = metrics.digest_parts(loader.batch(step, 0, 1, 8), 0)
            for world in (2, 3, 8):
                parts = [
                    metrics.digest_parts(loader.batch(step, rank, world, 2), rank * 8 // world)
                    for rank in range(world)
                ]
                assert [sum(column) % 2**32 for column in zip(*parts, strict=True)] == [
                    part % 2**32 for part in whole
                ]


def test_the_loss_curve_is_a_picture_without_script(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(5)) as run:
        run.run()
    picture = (tmp_path / "loss.svg").read_text()
    assert picture.startswith("<svg ")
    assert "<polyline" in picture
    assert "script" not in picture
    assert curves.loss_svg([]).startswith("<svg ")
    some = [{"kind": "step", "step": 1, "loss": 2.0}, {"kind": "step", "step": 2, "loss": None}]
    assert "nan" not in curves.loss_svg(some)
    whole = (tmp_path / "loss.html").read_text()
    assert "<script" not in whole
    assert whole.count("<svg ") >= 4
    assert "<th>书</th>" in whole


def test_a_line_now_and_then_where_nobody_watches(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "HEARTBEAT", 0.0)
    stream = io.StringIO()
    with fit(manifest, tmp_path, *overrides(3)) as run:
        run.ticker = metrics.Ticker(3, stream)
        run.run()
    said = stream.getvalue().splitlines()
    assert len(said) == 3
    assert said[1].startswith("step 2/3  phase train  loss ")
    assert said[1].endswith("s left")
    assert [metrics.duration(s) for s in (7.9, 130, 3900, 183600)] == ["7s", "2m10s", "1h05m", "2d03h"]


def test_tensorboard_gets_the_curves_when_asked(manifest, tmp_path):
    pytest.importorskip("tensorboard")
    with fit(manifest, tmp_path, *overrides(2, "monitoring.sinks=[jsonl, tensorboard]")) as run:
        run.run()
    assert any((tmp_path / "tensorboard").iterdir())


def test_bf16_stays_near_fp32(manifest, tmp_path):
    for compute in ("fp32", "bf16"):
        with fit(manifest, tmp_path / compute, *overrides(3, f"precision.compute={compute}")) as run:
            run.run()
            assert all(w.dtype == torch.float32 for w in weights(run).values())
    losses = [[record["loss"] for record in lines(tmp_path / compute)] for compute in ("fp32", "bf16")]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)
    assert losses[0] != losses[1]


def test_metrics_lines_are_canonical_json(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(2)) as run:
        run.run()
    for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines():
        assert canonical_json(json.loads(line)) == line


def test_sources_keep_their_own_loss(tmp_path):
    easy, hard = [[5] * 31] * 80, random_documents(160, 31, 64)
    path = make_corpus(
        tmp_path / "corpus", {"easy": easy, "hard": hard}, vocab=64, mixture={"easy": 0.5, "hard": 0.5}
    )
    with fit(path, tmp_path / "run", *overrides(30)) as run:
        run.run()
    last = lines(tmp_path / "run")[-1]
    assert last["losses"]["easy"] < 1.0 < last["losses"]["hard"]
    assert last["losses"]["easy"] < last["loss"] < last["losses"]["hard"]
