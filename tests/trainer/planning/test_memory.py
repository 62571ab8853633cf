"""The memory ledger: against PyTorch's tracer, and what follows from it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from trainer.loop.flops import token_flops
from trainer.planning.memory import (
    BILL,
    Setting,
    fits,
    kept_bytes,
    largest_rows,
    ledger,
    moments,
    state_bytes,
    ways_out,
    with_rows,
)
from trainer.shape import Given, ModelShape, find_shape, stages_of


@pytest.fixture(autouse=True)
def alone():
    """Tracing makes a process group of its own; what another test of this process has left is ended."""
    from trainer.loop import parallel

    parallel.leave()

NEAR = 0.03

#: Parameters, sequences of a pass, their length.
SHAPES = ((124e6, 8, 1024), (350e6, 4, 2048), (1e9, 4, 2048), (1.5e9, 2, 4096), (3e9, 2, 2048), (7e9, 2, 2048))
MODES = ("none", "selective", "full")


def shape_of(parameters: float, seq_len: int) -> ModelShape:
    return find_shape(Given(), int(parameters), 50_257, seq_len, 1e4, 1e-5)


def compare(setting: Setting, near: float = NEAR) -> None:
    from trainer.planning.trace import Case, trace

    case = Case(setting.shape, setting.rows, setting.seq_len, setting.devices, setting.recompute, setting.passes,
                shard=setting.shard, groups=setting.replicas or 1, tensor=setting.tensor)  # fmt: skip
    traced, own = trace(case), ledger(setting)
    assert own.used == pytest.approx(traced.total, rel=near), (own, traced)
    assert own.parts["weights"] == pytest.approx(traced.parts["weights"], rel=0.001)
    assert own.parts["optimizer"] == pytest.approx(traced.parts["optimizer"], rel=0.001)
    others = max(one.used for one in moments(setting) if one.moment != "loss")
    if own.moment == "loss" and others < (1 - NEAR) * own.used:  # else the tracer may stand at another moment
        assert own.parts["activations"] == pytest.approx(traced.parts["activations"], rel=NEAR)


SMALL = ModelShape(512, 512, 3, 8, 2, 1408, 256, False, 1e4, 1e-5)


@pytest.mark.parametrize(("mode", "devices", "passes"), [("none", 8, 1), ("selective", 1, 2), ("full", 8, 2)])
def test_the_ledger_is_what_the_tracer_sees(mode, devices, passes):
    compare(Setting(SMALL, 4, 256, passes, devices, recompute=mode))


@pytest.mark.parametrize(("mode", "tensor"), [("none", 2), ("selective", 4)])
def test_the_ledger_of_shared_layers_is_what_the_tracer_sees(mode, tensor):
    compare(Setting(replace(SMALL, kv_heads=4), 4, 256, 1, 8, recompute=mode, tensor=tensor))


@pytest.mark.long
@pytest.mark.parametrize(("mode", "tensor"), list(itertools.product(MODES, (2, 4))))
def test_the_ledger_of_larger_shared_layers(mode, tensor):
    compare(Setting(ModelShape(32_000, 1024, 6, 16, 8, 2816, 1024, False, 1e4, 1e-5), 4, 1024, 1, 8, recompute=mode, tensor=tensor))


@pytest.mark.parametrize("tied", [False, True])
def test_the_ledger_of_a_stage_holds_what_the_stage_holds(tied):
    from trainer.model import Llama

    shape = replace(SMALL, layers=7, tie_embeddings=tied)
    found = {one.moment: one.parts["weights"] for one in moments(Setting(shape, 4, 256, 8, 1, pipeline=3))}
    for stage, layers in enumerate(stages_of(shape, 3)):
        with torch.device("meta"):
            held = sum(p.numel() for p in Llama(shape, layers=layers).parameters())
        assert found[f"update, stage {stage + 1}"] == pytest.approx(4 * held, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "hybrid"])
def test_the_ledger_of_other_ways_to_shard(shard):
    groups = 2 if shard == "hybrid" else None
    compare(Setting(SMALL, 4, 256, 2, 8, shard, groups, recompute="full"), near=0.12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "mode", "devices"), list(itertools.product(SHAPES, MODES, (1, 8))), ids=lambda one: str(one)
)
def test_the_ledger_of_six_shapes(size, mode, devices):
    parameters, rows, seq_len = size
    compare(Setting(shape_of(parameters, seq_len), rows, seq_len, 1, devices, recompute=mode))


@pytest.mark.parametrize("seq_len", [64, 256])
def test_flops_are_what_torch_counts(seq_len):
    from trainer.planning.trace import flops_per_token as counted

    assert token_flops(SMALL, seq_len) == counted(SMALL, seq_len)


@pytest.mark.long
@pytest.mark.parametrize("size", SHAPES)
def test_flops_of_six_shapes_are_what_torch_counts(size):
    from trainer.planning.trace import flops_per_token as counted

    shape = shape_of(size[0], 1024)
    assert token_flops(shape, 1024) == counted(shape, 1024)


def test_the_bill_is_sixteen_bytes_in_both_layouts():
    usual, ours = zip(*BILL.values(), strict=True)
    assert sum(usual) == sum(ours) == 16
    assert [7 * bytes_ for bytes_ in usual] == [14, 14, 28, 28, 28]


def test_sixteen_bytes_of_each_parameter_are_spread_over_the_devices():
    shape = shape_of(1e9, 2048)
    for devices in (1, 8, 64):
        own = ledger(Setting(shape, 1, 2048, 2, devices))
        held = sum(own.parts[part] for part in ("weights", "gradients", "optimizer"))
        assert held == pytest.approx(16 * shape.parameters / devices, rel=1e-6)


def test_modes_and_parallel_axes_order_as_they_must():
    base = Setting(shape_of(3e9, 4096), 4, 4096, 4, 8)

    def total(**changed: object) -> float:
        return ledger(Setting(**{**vars(base), **changed})).total

    assert total(recompute="full") < total(recompute="selective") < total()
    assert total(shard="full") < total(shard="gradients") < total(shard="optimizer") < total(shard="none")
    assert total(shard="full") < total(shard="hybrid", replicas=2) < total(shard="none")
    assert total(tensor=2) < total()
    assert total(pipeline=2) < total()
    assert total(optimizer="AdamW8bit") < total(optimizer="Lion") < total()
    assert state_bytes("Lion", base.shape) < state_bytes("Muon", base.shape) < state_bytes("AdamW", base.shape)
    assert kept_bytes(base, "none") > kept_bytes(base, "selective") > kept_bytes(base, "full")


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    whole = Setting(shape_of(1e9, 2048), 64, 2048, 1, 8, recompute="selective")
    budget = 40 * 2**30
    rows = largest_rows(whole, budget)
    assert rows is not None
    assert fits(with_rows(whole, rows), budget)
    assert not fits(with_rows(whole, rows + 1), budget)
    assert with_rows(whole, 16).passes == 4
    assert largest_rows(whole, 2**30) is None


def test_ways_out_come_in_order_and_free_something():
    setting = Setting(shape_of(7e9, 4096), 4, 4096, 8, 8, compute="fp32", shard="none")
    ways = ways_out(setting, 68 * 2**30)
    order = ["batch.micro_batch_size", "parallel.activation_checkpointing", "precision.compute", "model.seq_len",
             "parallel.shard", "batch.data_parallel", "parallel.tensor_parallel", "optimizer.type"]  # fmt: skip
    keys = list(dict.fromkeys(way.key for way in ways))
    assert keys == [key for key in order if key in keys]
    assert len(keys) >= 6
    assert all(way.frees > 0 for way in ways)
