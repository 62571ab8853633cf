"""A run that changes its layout on the way: what one layout saved any other goes on with, and it stays the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.contract.problem import SpecError
from tests.trainer.chain import POISONED, poison
from tests.trainer.test_cli import command, parameters, start, wait_for_step
from tests.trainer.tiny import corpus, fit, lines, overrides, planned
from trainer import checkpoint
from trainer.config import read_plan
from trainer.launch import PREEMPTED
from trainer.planning.ranks import check_groups, check_passes

ROOT = Path(__file__).parents[3]

SETS = overrides(
    7, "model.tie_embeddings=true", "model.layers=4", "batch.micro_batch_size=2", "lr_schedule.peak_lr=1e-3", "monitoring.eval_every_steps=3",
    "checkpoint.keep_last=9", "checkpoint.keep_best=false", "monitoring.on_nonfinite=skip",
    "data.phases=[{name: short, share: 0.15, seq_len: 16}, {name: long, share: 0.85}]",
)  # fmt: skip

#: Steps done at the end of a piece, its layout.
PIECES = {
    2: "parallel.tensor_parallel=2;parallel.pipeline_parallel=2;checkpoint.verify_resume=true",
    3: "parallel.shard=full",
    4: "parallel.tensor_parallel=2;parallel.shard=gradients;checkpoint.async_save=true",
    5: "parallel.pipeline_parallel=2;parallel.shard=full",
    6: "parallel.pipeline_parallel=4;batch.micro_batch_size=1",
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def straight(manifest, tmp_path_factory) -> Path:
    """The run on one process, never stopped."""
    out = tmp_path_factory.mktemp("straight")
    with fit(manifest, out, *SETS) as run:
        poison(run, 0)
        run.run()
    return out


@pytest.fixture(scope="module")
def chained(manifest, tmp_path_factory) -> Path:
    """The run in pieces on four ranks, the last one on this process."""
    folder = tmp_path_factory.mktemp("chained")
    texts = [";".join([*SETS, layout, f"stop.after_steps={until}"]) for until, layout in PIECES.items()]
    words = [sys.executable, str(ROOT / "tests/trainer/chain.py"), str(manifest), str(folder / "run"), str(folder / "meet"), *texts]
    running = []
    for rank in range(4):
        names = {"RANK": str(rank), "WORLD_SIZE": "4", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        running.append(subprocess.Popen(words, env=os.environ | names, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    with fit(manifest, folder / "run", *SETS) as run:
        assert run.state.step == max(PIECES)
        run.run()
    return folder / "run"


def test_every_layout_goes_on_with_what_another_saved_and_it_is_the_run_of_one_process(straight, chained):
    for kind in ("step", "eval"):
        one, many = lines(straight, kind), lines(chained, kind)
        assert [r["step"] for r in one] == [r["step"] for r in many]
        assert [r.get("digest") for r in one] == [r.get("digest") for r in many]
        for a, b in zip(one, many, strict=True):
            if a["loss"] is not None:
                assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
                assert b["losses"] == pytest.approx(a["losses"], rel=1e-5)
                assert b.get("grad_norm", 0) == pytest.approx(a.get("grad_norm", 0), rel=1e-4)
    ends = [checkpoint.newest(out / "checkpoints")[0] for out in (straight, chained)]
    assert ends[0].record.tensors.keys() == ends[1].record.tensors.keys()  # names do not know of stages
    two = [parameters(end.path) for end in ends]
    for name, value in two[0].items():
        assert torch.allclose(two[1][name], value, atol=2e-5, rtol=0), name


def test_a_checkpoint_holds_every_number_once_whatever_the_layout(chained):
    for until in PIECES:
        found = checkpoint.read(chained / "checkpoints" / checkpoint.folder_name(until))
        assert found.record.world == 4
        for name, whole in found.record.tensors.items():
            sizes = [torch.Size(piece.size).numel() for piece in whole.pieces]
            assert sum(sizes) == torch.Size(whole.shape).numel(), name


def test_nan_on_one_rank_of_a_layout_is_skipped_by_all(straight, chained):
    for out in (straight, chained):
        assert [r["step"] for r in lines(out) if r["skipped"]] == [POISONED + 1]
        incident = json.loads((out / f"incident-{POISONED + 1:08d}.json").read_text())
        assert len(incident["rows"]) == 8
    one, many = (json.loads((out / f"incident-{POISONED + 1:08d}.json").read_text())["documents"] for out in (straight, chained))
    assert {d["id"] for d in one} == {d["id"] for d in many}
    assert sorted(d["row"] for d in one) == sorted(d["row"] for d in many)


KILLED = overrides(16, "batch.micro_batch_size=4", "checkpoint.save_every_steps=3", "checkpoint.keep_last=9", "lr_schedule.peak_lr=1e-3")


def same_as_one_process(manifest: Path, out: Path, folder: Path) -> None:
    """The run in `out`, ended by this process alone, is that of one process."""
    for run_folder in (out, folder):
        with fit(manifest, run_folder, *KILLED) as run:
            run.run()
    one, many = lines(folder), lines(out)
    assert [r["digest"] for r in one] == [r["digest"] for r in many]
    assert [r["loss"] for r in many] == pytest.approx([r["loss"] for r in one], rel=1e-4)


def test_a_run_that_is_killed_goes_on_under_another_layout_and_ends_as_one_process_does(manifest, tmp_path):
    killed = start(command(manifest, tmp_path / "run", 2, (*KILLED, "parallel.pipeline_parallel=2")))
    wait_for_step(killed, tmp_path / "run", 5)
    killed.kill()
    killed.communicate()
    assert checkpoint.newest(tmp_path / "run" / "checkpoints")[0].step >= 3
    same_as_one_process(manifest, tmp_path / "run", tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("layout", ["parallel.tensor_parallel=2", "parallel.pipeline_parallel=2", "parallel.tensor_parallel=2;parallel.pipeline_parallel=2"])
def test_a_signal_saves_the_step_in_every_layout(manifest, tmp_path, layout):
    out, axes = tmp_path / "run", layout.split(";")
    stopped = start(command(manifest, out, 2 ** len(axes), (*KILLED, *axes, "batch.micro_batch_size=2"), "--check-data"))
    wait_for_step(stopped, out, 4)
    stopped.send_signal(signal.SIGTERM)
    assert "next: trainer fit" in stopped.communicate(timeout=120)[1]
    assert stopped.returncode == PREEMPTED
    assert checkpoint.newest(out / "checkpoints")[0].step == len(lines(out))  # saved where the signal found it
    same_as_one_process(manifest, out, tmp_path / "whole")


def test_numbers_of_ranks_that_cannot_run_a_plan_are_refused(manifest):
    plan, _ = planned(manifest, *overrides(4), "parallel.tensor_parallel=2", "parallel.pipeline_parallel=2", "batch.micro_batch_size=2", world=4)
    loaded = read_plan(None, ["parallel.tensor_parallel=2", "parallel.pipeline_parallel=2"])
    check_groups(loaded, 8)
    check_passes(plan, 8)
    with pytest.raises(SpecError, match=r"6 ranks cannot be cut into groups of 4[\s\S]*start 4 or 8 ranks"):
        check_groups(loaded, 6)
    with pytest.raises(SpecError, match=r"1 ranks cannot be cut into groups of 4[\s\S]*start 4 ranks"):
        check_groups(loaded, 1)
    with pytest.raises(SpecError, match=r"phase train: a step has 1 passes for 2 pipeline stages[\s\S]*micro_batch_size: 1"):
        check_passes(plan, 16)
