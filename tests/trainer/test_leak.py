"""Rows of the loader through the model: no document sees another one, none sees its future, and the loss is theirs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.trainer import tiny
from tests.trainer.corpora import make_corpus, random_documents
from trainer.loader import Loader
from trainer.loop.evaluate import to_device


@pytest.fixture(params=["concat", "best-fit"])
def micro(request, tmp_path):
    """A micro-batch of eight rows of 32 with several documents each, and the model."""
    sources = {"web": random_documents(150, 20, 64), "书": random_documents(60, 40, 64, seed=1)}
    manifest = make_corpus(tmp_path, sources, vocab=64, pack=(32,))
    plan, manifests = tiny.planned(manifest, *tiny.overrides(4, f"data.packing={request.param}"))
    with Loader([tmp_path], plan, manifests) as loader:
        return loader.batch(0, micro=8).micros[0]


def losses(model, micro, ids=None):
    """Loss of each position, float32 of the shape of the rows; 0 where nothing is predicted."""
    made = dict(micro) if ids is None else {**micro, "input_ids": ids}
    tokens, positions, segments, labels = to_device(made, torch.device("cpu"))
    with torch.no_grad():
        return model(tokens, positions, segments, labels).view(micro["input_ids"].shape)


def test_a_change_in_one_document_changes_no_loss_of_another(micro):
    model = tiny.model()
    before = losses(model, micro)
    borders = micro["cu_seqlens"].astype(int)
    spans = [(a, b) for a, b in pairwise(borders) if b - a > 3][:6]
    assert len(spans) == 6
    for a, b in spans:
        ids = micro["input_ids"].copy()
        ids.reshape(-1)[a:b] = 1 + (ids.reshape(-1)[a:b] + 7) % 60
        after = losses(model, micro, ids)
        same = np.ones(ids.size, bool)
        same[a:b] = False
        assert torch.equal(before.view(-1)[same], after.view(-1)[same])
        assert not torch.equal(before.view(-1)[a : b - 1], after.view(-1)[a : b - 1])


def test_a_change_in_the_future_changes_no_loss_of_the_past(micro):
    model = tiny.model()
    before = losses(model, micro)
    ids = micro["input_ids"].copy()
    ids[:, 20:] = 1 + (ids[:, 20:] + 7) % 60
    after = losses(model, micro, ids)
    assert torch.equal(before[:, :20], after[:, :20])


def test_the_loss_of_a_row_is_that_of_its_documents_alone(micro):
    model = tiny.model()
    together = losses(model, micro).view(-1)
    borders = micro["cu_seqlens"].astype(int)
    for a, b in list(pairwise(borders))[:8]:
        alone = {
            "input_ids": micro["input_ids"].reshape(1, -1)[:, a:b], "labels": micro["labels"].reshape(1, -1)[:, a:b],
            "position_ids": np.arange(b - a)[None], "cu_seqlens": np.array([0, b - a], np.int32),
        }  # fmt: skip
        assert torch.allclose(losses(model, alone).view(-1), together[a:b], atol=1e-5)
