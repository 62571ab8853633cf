from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.contract.problem import RunError
from tests.trainer.tiny import corpus, fit, overrides, planned
from trainer.loop.oom import advice, setting_at
from trainer.planning.figures import size
from trainer.planning.memory import ledger, ways_out, with_rows
from trainer.shape import ModelShape

WIDE = ModelShape(32_000, 2048, 16, 16, 8, 5632, 2048, False, 1e4, 1e-5)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def test_ways_out_come_in_order_with_what_the_ledger_says_each_frees(manifest):
    plan, _ = planned(manifest, *overrides(4))
    plan = replace(plan, model=WIDE, compute="bf16", shard="none")
    setting = setting_at(plan, 0, 8, 4, on_cpu=False)
    assert (setting.rows, setting.devices, setting.seq_len) == (8, 4, plan.phases[0].seq_len)
    setting = replace(setting, seq_len=2048)
    lines = advice(setting, 80 << 30)
    heads = ["batch.micro_batch_size: 4", "parallel.activation_checkpointing: selective",
             "parallel.activation_checkpointing: full", "model.seq_len: 1024", "parallel.shard: full", "parallel.tensor_parallel: 2",
             "optimizer.type: AdamW8bit", "a step of this plan"]  # fmt: skip
    assert [line.startswith(head) for line, head in zip(lines, heads, strict=True)] == [True] * len(heads)
    assert "the result stays the same" in lines[0]
    freed = ledger(setting).total - ledger(with_rows(setting, 4)).total
    assert f"frees about {size(freed)}" in lines[0]
    assert "of the 80 GiB of a device" in lines[-1]
    assert advice(setting, 20 << 30)[0].startswith("batch.micro_batch_size: 1 ")  # the most that the ledger lets in
    done = setting_at(replace(plan, shard="full", activation_checkpointing="full"), 0, 1, 4, on_cpu=False)
    assert [line.split(":")[0] for line in advice(done, 80 << 30)[:-1]] == ["batch.data_parallel", "parallel.tensor_parallel", "optimizer.type"]


def test_no_layout_is_advised_that_fit_refuses(manifest):
    plan, _ = planned(manifest, *overrides(4))
    setting = setting_at(replace(plan, model=replace(WIDE, kv_heads=1)), 0, 8, 4, on_cpu=False)
    assert not any(way.key == "parallel.tensor_parallel" for way in ways_out(setting, 80 << 30))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_a_run_that_has_no_memory_says_what_to_change(manifest, tmp_path, error):
    def full(batch, step):
        raise error

    with fit(manifest, tmp_path, *overrides(3)) as run:
        run.train_step = full
        with pytest.raises(RunError, match=r"T005[\s\S]*ran out of memory on cpu at step 1\n[\s\S]*micro_batch_size: 4 frees"):
            run.run()


def test_other_errors_stay_what_they_are(manifest, tmp_path):
    def broken(batch, step):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with fit(manifest, tmp_path, *overrides(3)) as run:
        run.train_step = broken
        with pytest.raises(RuntimeError, match="mat1"):
            run.run()
