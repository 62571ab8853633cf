"""Layers in stages: all of them, in order, and no other cut has a faster slowest stage."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.shape import ModelShape, stages_of


def shape(layers: int, vocab: int = 64) -> ModelShape:
    return ModelShape(vocab, 64, layers, 4, 2, 128, 32, False, 1e4, 1e-5)


def slowest(model: ModelShape, stages: tuple[range, ...]) -> float:
    """Parameters of matrix products of the stage that has most."""
    head = model.vocab_size * model.width
    layer = (model.matmul_parameters - head) / model.layers
    return max(len(stage) * layer + (head if stage.stop == model.layers else 0) for stage in stages)


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from([64, 640, 3200]))
def test_no_other_cut_has_a_faster_slowest_stage(layers, count, vocab):
    model, count = shape(layers, vocab), min(layers, count)
    found = stages_of(model, count)
    assert [layer for stage in found for layer in stage] == list(range(layers))
    assert all(found)
    cuts = (
        tuple(range(a, b) for a, b in zip((0, *ends), (*ends, layers), strict=True)) for ends in combinations(range(1, layers), count - 1)
    )
    assert slowest(model, found) == pytest.approx(min(slowest(model, cut) for cut in cuts))


def test_the_head_counts_as_the_layers_that_it_is_worth():
    assert [len(stage) for stage in stages_of(shape(12), 2)] == [6, 6]
    assert [len(stage) for stage in stages_of(shape(12, 64 * 40), 2)] == [8, 4]
    assert [len(stage) for stage in stages_of(shape(9), 4)] == [2, 2, 3, 2]


def test_what_ranks_cannot_share_is_named():
    assert shape(2).uneven(2) == []
    assert shape(2).uneven(4) == ["2 key heads"]
    assert shape(2, 65).uneven(3) == ["4 heads", "2 key heads", "128 ffn", "65 ids"]
