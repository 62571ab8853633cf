from __future__ import annotations

import torch

from trainer.model.attention import Segments, attend


def dense(q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, starts: list[int]) -> torch.Tensor:
    """Softmax attention with an explicit block-diagonal causal mask, in float64."""
    q, k, v = (x.double() for x in (q_THD, k_TKD, v_TKD))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    document = torch.bucketize(torch.arange(len(q)), torch.tensor(starts[1:]), right=True)
    place = torch.arange(len(q))
    allowed = (document[:, None] == document[None]) & (place[:, None] >= place[None])
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v)


def parts(seed: int, tokens: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    return (
        torch.randn(tokens, 4, 8, generator=make),
        torch.randn(tokens, 2, 8, generator=make),
        torch.randn(tokens, 2, 8, generator=make),
    )


def test_documents_attend_causally_to_themselves_alone():
    starts = [0, 1, 9, 24]
    q, k, v = parts(0)
    out = attend(q, k, v, Segments.of(starts, "cpu"))
    assert out.shape == (24, 4, 8)
    assert torch.allclose(out.double(), dense(q, k, v, starts), atol=1e-6)


def test_gradients_agree_with_a_dense_mask():
    starts = [0, 5, 24]
    grads = []
    for run in (lambda q, k, v: attend(q, k, v, Segments.of(starts, "cpu")), lambda *x: dense(*x, starts)):
        leaves = [x.clone().requires_grad_() for x in parts(1)]
        run(*leaves).sin().sum().backward()
        grads.append([x.grad for x in leaves])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_another_document_never_shows():
    q, k, v = parts(2)
    changed = [x.clone() for x in (q, k, v)]
    for x in changed:
        x[:9] += 3.0
    segments = Segments.of([0, 9, 24], "cpu")
    before, after = attend(q, k, v, segments), attend(*changed, segments)
    assert torch.equal(before[9:], after[9:])
    assert not torch.equal(before[:9], after[:9])
