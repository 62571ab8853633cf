from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.contract.problem import RunError
from tests.trainer.tiny import corpus, fit, overrides, planned
from trainer.loop.oom import activation_bytes, ways_out
from trainer.shape import ModelShape

WIDE = ModelShape(32_000, 2048, 16, 16, 8, 5632, 2048, False, 1e4, 1e-5)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def test_activation_bytes_are_those_that_were_traced():
    # Traced with torch 2.13 for this shape: 98,370 with eager norms, which keep 24 D more than fused ones.
    assert activation_bytes(WIDE, "none", "bf16") == 73_800
    assert activation_bytes(WIDE, "selective", "bf16") == 47_168
    assert activation_bytes(WIDE, "full", "bf16") == 4_096
    assert activation_bytes(WIDE, "full", "fp32") == 8_192


def test_ways_out_come_in_order_with_what_each_frees(manifest):
    plan, _ = planned(manifest, *overrides(4))
    plan = replace(plan, model=WIDE, compute="bf16", shard="none")
    ways = ways_out(plan, 0, 8, 4)
    heads = ["batch.micro_batch_size: 4", "parallel.shard: full", "parallel.activation_checkpointing: selective",
             "parallel.activation_checkpointing: full", "optimizer.type: Lion", "optimizer.type: AdamW8bit", "more devices"]  # fmt: skip
    assert [way.startswith(head) for way, head in zip(ways, heads, strict=True)] == [True] * len(heads)
    assert "the result stays the same" in ways[0]
    tokens = 8 * plan.phases[0].seq_len
    assert f"{16 * tokens * 73_800 / 2 / 2**20:.1f} MiB" in ways[0]
    done = ways_out(replace(plan, shard="full", activation_checkpointing="full"), 0, 1, 4)
    assert [way.split(":")[0] for way in done] == ["optimizer.type", "optimizer.type", "more devices"]


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
