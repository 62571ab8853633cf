"""A stopped run ends as one that was not stopped: every optimizer, precision and way to save; edits; other worlds."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.contract.problem import RunError, SpecError
from tests.trainer.corpora import make_corpus, random_documents
from tests.trainer.test_cli import command
from tests.trainer.tiny import corpus, fit, lines, overrides, planned, weights
from trainer import checkpoint
from trainer.checkpoint import extend
from trainer.launch import PREEMPTED
from trainer.loop.schedule import rate_at

EVALS = ("monitoring.eval_every_steps=3", "checkpoint.save_every_steps=5", "lr_schedule.warmup_steps=3")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def train(manifest: Path, out: Path, *sets: str, until: int | None = None):
    """Run to the end, or to step `until` as a preempted run; its plan."""
    with fit(manifest, out, *sets, *([f"stop.after_steps={until}"] if until else [])) as run:
        end = run.run()
        assert end.code == (PREEMPTED if until else 0), end
        return run.plan


def same(a: Path, b: Path) -> None:
    """Both runs wrote the same lines and end in the same checkpoint, to the byte."""
    for kind in ("step", "eval"):
        assert lines(a, kind) == lines(b, kind)
    one, two = (checkpoint.newest(path / "checkpoints")[0] for path in (a, b))
    assert one.record.files == two.record.files
    assert (one.path / checkpoint.COMPLETE).read_bytes() == (two.path / checkpoint.COMPLETE).read_bytes()


KINDS = [
    ("optimizer.type=AdamW", "optimizer.z_loss=1e-3", "model.qk_norm=true"),
    ("optimizer.type=Lion", "lr_schedule.decay=wsd"),
    ("optimizer.type=Sophia", "optimizer.curvature_every=3", "lr_schedule.decay=linear"),
    ("optimizer.type=Muon", "lr_schedule.decay=inverse-sqrt"),
    ("precision.compute=bf16", "parallel.activation_checkpointing=selective"),
    ("precision.compute=fp16", "parallel.shard=gradients", "batch.micro_batch_size=4"),
    ("model.dropout=0.1", "parallel.activation_checkpointing=full"),
    ("checkpoint.async_save=true", "checkpoint.keep_every_steps=5", "parallel.shard=none"),
    ("batch.micro_batch_size=2", "monitoring.log_every_steps=2", "parallel.shard=optimizer"),
]


@pytest.mark.parametrize("sets", KINDS, ids=lambda sets: sets[0])
def test_resume_is_byte_equal(manifest, tmp_path, sets):
    sets = overrides(9, *EVALS, *sets)
    train(manifest, tmp_path / "a", *sets)
    train(manifest, tmp_path / "b", *sets, until=2)  # in the warm-up
    train(manifest, tmp_path / "b", *sets, until=7)
    train(manifest, tmp_path / "b", *sets)
    same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd", "inverse-sqrt"])
def test_the_rate_goes_on_where_it_was(manifest, tmp_path, decay):
    sets = overrides(10, f"lr_schedule.decay={decay}", "lr_schedule.warmup_steps=3")
    plan = train(manifest, tmp_path, *sets, until=2)
    train(manifest, tmp_path, *sets, until=3)  # the last step of the warm-up
    train(manifest, tmp_path, *sets, until=8)  # in the decay
    train(manifest, tmp_path, *sets)
    assert [record["lr"] for record in lines(tmp_path)] == [rate_at(plan, step) for step in range(10)]


def test_two_fresh_runs_of_a_hundred_steps_are_byte_equal(manifest, tmp_path):
    sets = overrides(100, "data.repeat_limit=20", "monitoring.eval_every_steps=50")
    for name in "ab":
        train(manifest, tmp_path / name, *sets)
    same(tmp_path / "a", tmp_path / "b")


# ---- edits of a running plan -----------------------------------------------------------------------------------


def test_a_longer_run_keeps_what_was_read_and_says_how_the_rate_moves(manifest, tmp_path):
    short, long = overrides(6, "data.repeat_limit=9"), overrides(12, "data.repeat_limit=9")
    train(manifest, tmp_path / "run", *short, until=4)
    before = lines(tmp_path / "run")
    with fit(manifest, tmp_path / "run", *long) as run:
        said = extend.moves(run.plan, checkpoint.newest(run.root)[0].record.history, 4)
        assert run.plan.steps == 12
        assert "the run has 3,072 tokens (before: 1,536), 12 steps" in said
        old, new = rate_at(planned(manifest, *short)[0], 4), rate_at(planned(manifest, *long)[0], 4)
        assert f"the learning rate of step 5 moves from {old:.4g} to {new:.4g} ({new / old - 1:+.1%})" in said
        assert run.run().code == 0
    found = lines(tmp_path / "run")
    assert found[:4] == before
    assert [record["step"] for record in found] == list(range(1, 13))
    assert found[5]["lr"] == rate_at(planned(manifest, *long)[0], 5)
    share = {name: sum(1 for r in found for _ in [r["losses"].get(name)] if _ is not None) for name in ("web", "书")}
    assert min(share.values()) == 12  # both sources in every step, on both sides of the edit


def test_an_extended_run_resumes_byte_equal_and_can_be_extended_again(manifest, tmp_path):
    first, second, third = (overrides(n, "data.repeat_limit=9") for n in (6, 12, 15))
    for name in "ab":
        train(manifest, tmp_path / name, *first, until=4)
    train(manifest, tmp_path / "a", *second)
    train(manifest, tmp_path / "b", *second, until=7)
    train(manifest, tmp_path / "b", *second)
    same(tmp_path / "a", tmp_path / "b")
    train(manifest, tmp_path / "a", *third)
    assert [record["step"] for record in lines(tmp_path / "a")] == list(range(1, 16))


def test_a_shorter_run_ends_where_it_is(manifest, tmp_path):
    train(manifest, tmp_path, *overrides(9), until=4)
    with fit(manifest, tmp_path, *overrides(3)) as run:
        assert run.run().why == "the plan is done"
        assert run.state.step == 4


def test_another_mix_from_here_on(manifest, tmp_path):
    sets = overrides(10)
    train(manifest, tmp_path, *sets, until=4)
    train(manifest, tmp_path, *sets, "data.mix={web: 0, 书: 1}")
    assert [sorted(record["losses"]) for record in lines(tmp_path)] == [["web", "书"]] * 4 + [["书"]] * 6


def test_a_done_phase_may_not_change_and_the_one_in_work_may(manifest, tmp_path):
    def phases(*tokens: int) -> str:
        mixes = ("{web: 1, 书: 0}", "{web: 0.5, 书: 0.5}")
        made = [f"{{name: p{i}, tokens: {n * 256}, mix: {mix}}}" for i, (n, mix) in enumerate(zip(tokens, mixes, strict=True))]
        return f"data.phases=[{', '.join(made)}]"

    sets = [text for text in overrides(8) if not text.startswith("data.total")]
    train(manifest, tmp_path, *sets, phases(4, 4), until=6)
    with pytest.raises(SpecError, match=r"data order, link 1"), fit(manifest, tmp_path, *sets, phases(5, 4)):
        pass
    plan = train(manifest, tmp_path, *sets, phases(4, 7))
    assert plan.steps == 11
    assert [record["phase"] for record in lines(tmp_path)] == ["p0"] * 4 + ["p1"] * 7


def test_a_source_that_is_added_and_rows_that_are_packed_later_change_nothing_that_was_read(tmp_path):
    documents = {"web": random_documents(150, 40, 64)}
    path = make_corpus(tmp_path / "one", documents, vocab=64)
    sets = overrides(8, "data.packing=concat", "data.mix={web: 1}")
    train(path, tmp_path / "a", *sets)
    train(path, tmp_path / "b", *sets, until=4)
    more = make_corpus(tmp_path / "two", documents | {"书": random_documents(80, 40, 64, seed=1)}, vocab=64, pack=(32,))
    train(more, tmp_path / "b", *sets[:-1], "data.mix={web: 1, 书: 0}")
    assert [r["digest"] for r in lines(tmp_path / "b")] == [r["digest"] for r in lines(tmp_path / "a")]
    # Left to itself the plan would now read packed rows: the refusal says how to go on.
    rest = [text for text in sets if "packing" not in text and "mix" not in text]
    with pytest.raises(SpecError, match=r"write data.packing: concat"), fit(more, tmp_path / "b", *rest):
        pass
    with fit(more, tmp_path / "b", *rest, "data.packing=concat", "data.total_tokens=4096") as run:  # and mixes it in
        assert run.run().code == 0
    assert sorted(lines(tmp_path / "b")[-1]["losses"]) == ["web", "书"]


def test_the_weights_alone_begin_another_run(manifest, tmp_path):
    train(manifest, tmp_path / "a", *overrides(5))
    last = checkpoint.newest(tmp_path / "a" / "checkpoints")[0]
    with fit(manifest, tmp_path / "a", *overrides(5)) as run:
        trained = weights(run)
    other = overrides(3, "seed=7", "optimizer.type=Lion", f"checkpoint.weights_only={last.path}")
    with fit(manifest, tmp_path / "b", *other) as run:
        assert run.state.step == 0
        assert all(torch.equal(trained[name], value) for name, value in weights(run).items())
        assert run.run().code == 0
    with pytest.raises(SpecError, match=r"checkpoint\.weights_only"), fit(manifest, tmp_path / "a", *overrides(5, "seed=7")):
        pass


# ---- what is saved ---------------------------------------------------------------------------------------------


def test_resume_is_tried_on_the_run_itself_and_changes_nothing(manifest, tmp_path):
    sets = overrides(8, *EVALS)
    train(manifest, tmp_path / "a", *sets)
    with fit(manifest, tmp_path / "b", *sets, "checkpoint.verify_resume=true") as run:
        said = []
        run.say = said.append
        run.run()
    assert [text for text in said if "from the checkpoint the next step has the same bits" in text]
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_a_state_that_is_not_saved_is_found_out(manifest, tmp_path):
    with fit(manifest, tmp_path, *overrides(8, *EVALS, "checkpoint.verify_resume=true")) as run:
        plain, calls = run.train_step, []

        def step_with_a_memory(batch, step):
            calls.append(step)
            run.model.lm_head.weight.data.to_local().mul_(1 + 1e-3 * len(calls))
            return plain(batch, step)

        run.train_step = step_with_a_memory
        with pytest.raises(RunError, match=r"does not bring back[\s\S]*a step later"):
            run.run()


def test_the_record_says_what_is_saved_and_with_what(manifest, tmp_path):
    train(manifest, tmp_path, *overrides(4, "optimizer.type=Muon"))
    record = checkpoint.newest(tmp_path / "checkpoints")[0].record
    inventory = record.inventory()
    assert set(inventory) == {"model", "optimizer step", "optimizer exp_avg", "optimizer exp_avg_sq", "optimizer momentum", "state", "history"}
    assert len(inventory["optimizer momentum"]) == 14
    assert {"window", "jumped", "scale", "best_loss"} <= set(inventory["state"])
    assert record.made_with["torch"] == torch.__version__
    assert len(record.state.window) == 4


def test_a_save_in_the_background_is_done_when_the_run_ends_and_rotates(manifest, tmp_path):
    sets = overrides(9, "checkpoint.async_save=true", "checkpoint.save_every_steps=2", "checkpoint.keep_last=2",
                     "checkpoint.keep_best=false", "checkpoint.keep_every_steps=4")  # fmt: skip
    train(manifest, tmp_path, *sets)
    assert set(checkpoint.folders(tmp_path / "checkpoints")) == {4, 8, 9}
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


def test_a_save_in_the_background_that_fails_is_told_and_leaves_the_last_one(manifest, tmp_path, monkeypatch):
    real = checkpoint.save_file

    def full(content, path, **options):
        if "00000008" in str(path):
            raise OSError(28, "No space left on device")
        real(content, path, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    sets = overrides(9, "checkpoint.async_save=true", "checkpoint.save_every_steps=4", "monitoring.eval_every_steps=50")
    with fit(manifest, tmp_path, *sets) as run, pytest.raises(RunError, match=r"No space left[\s\S]*step-00000004 is whole"):
        run.run()
    assert set(checkpoint.folders(tmp_path / "checkpoints")) == {4}
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))
    monkeypatch.setattr(checkpoint, "save_file", real)
    train(manifest, tmp_path, *sets)


def test_a_disk_that_fills_up_while_saving_stops_the_run_with_a_sentence(manifest, tmp_path):
    """The limit on the size of a file is the kernel's own way to say that there is no more room."""
    sets = overrides(8, "checkpoint.save_every_steps=4", "monitoring.eval_every_steps=50")
    train(manifest, tmp_path, *sets, until=4)
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\nsys.argv[0] = 'trainer'\n"
        "from trainer.cli import main\nmain()"
    )
    words = command(manifest, tmp_path, 1, sets)
    done = subprocess.run([words[0], "-c", program, *words[3:]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "error[T002]: could not save" in done.stderr
    assert "step-00000004 is whole and stays" in done.stderr
    assert set(checkpoint.folders(tmp_path / "checkpoints")) == {4}
    train(manifest, tmp_path, *sets)


# ---- other worlds ----------------------------------------------------------------------------------------------


def test_four_ranks_then_two_then_three_then_one_read_the_same_and_hold_the_same_weights(manifest, tmp_path):
    sets = overrides(8, "batch.micro_batch_size=2", "checkpoint.save_every_steps=2", "monitoring.eval_every_steps=50", "checkpoint.keep_last=9")
    plan = train(manifest, tmp_path / "whole", *sets)
    assert plan.steps == 8
    digests = {}
    for ranks, until in ((4, 2), (2, 4), (3, 6)):
        words = command(manifest, tmp_path / "run", ranks, (*sets, f"stop.after_steps={until}"))
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == PREEMPTED, done.stderr
        found = checkpoint.newest(tmp_path / "run" / "checkpoints")[0]
        assert (found.step, found.record.world) == (until, ranks)
        digests[until] = checkpoint.digests(found)
        # Loaded by one rank and saved again, every component has the same bytes.
        with fit(manifest, tmp_path / "run", *sets) as run:
            again = checkpoint.Stamp(run.state, run.identity(until), found.record.history, run.asked.digest)
            path = checkpoint.save(tmp_path / f"again-{until}", run.tensors(), again, replace(run.world))
        assert checkpoint.digests(checkpoint.read(path)) == digests[until]
    train(manifest, tmp_path / "run", *sets)
    one, many = lines(tmp_path / "whole"), lines(tmp_path / "run")
    assert [r["digest"] for r in one] == [r["digest"] for r in many]
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in many], rel=1e-5)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["starts"][0]["ranks"] == 4
