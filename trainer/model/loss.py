"""Next-token loss per token, in chunks, so that the logits of a whole row never exist at once.

Labels arrive shifted (the loader does it, once, for the whole product): labels[t] is the token after t, or
`IGNORE` at document ends and in padding. What is summed and what is divided by is decided by the loop:
the sum over all label tokens of a step, over micro-batches and ranks, divided by their count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from trainer.loop.tensor import among, gathered, summed
from trainer.shape import BLOCK_ELEMENTS, CHUNK_ELEMENTS

IGNORE = -100

#: The vocabulary is a multiple of this; see `shape.padded_vocabulary`.
BLOCK = 64

Head = Callable[[Tensor], Tensor]


def token_losses(
    hidden_TD: Tensor, head: Head, labels_T: Tensor, vocab: int, z_loss: float = 0.0, shared: DeviceMesh | None = None
) -> Tensor:
    """-log p(label) for each token, natural log, float32 (T,); 0 where the label is `IGNORE`.

    `head` turns (N, D) into logits (N, vocab), or this rank's part of them where an axis of ranks is `shared`. A chunk's
    logits are freed after the forward pass and computed again in the backward pass. Chunk borders depend on `vocab` alone, so losses do not depend on memory.
    `z_loss` adds z_loss log(sum(exp(logits)))^2 (Chowdhery et al. 2022, section 5) to the gradient, and nothing to
    the values, which stay comparable.
    """
    rows = max(1, CHUNK_ELEMENTS // vocab)
    if hidden_TD.shape[0] <= rows:
        return _chunk(hidden_TD, labels_T, head, z_loss, shared)
    parts = [
        checkpoint(_chunk, hidden_ND, labels_N, head, z_loss, shared, use_reentrant=False)
        for hidden_ND, labels_N in zip(hidden_TD.split(rows), labels_T.split(rows), strict=True)
    ]
    return torch.cat(parts)


def _chunk(hidden_ND: Tensor, labels_N: Tensor, head: Head, z_loss: float, shared: DeviceMesh | None) -> Tensor:
    losses = _TokenLoss.apply(head(hidden_ND), labels_N, z_loss, shared)
    assert isinstance(losses, Tensor)
    return losses


class _TokenLoss(torch.autograd.Function):
    """Losses from logits, in float32 whatever the logits are, a block of rows at a time.

    The only thing of size N x vocab is the logits: their gradient takes their place. A block fits into the cache of a
    CPU, so that each logit comes from memory once in each direction.
    """

    @staticmethod
    def forward(ctx: Any, own_NV: Tensor, labels_N: Tensor, z_loss: float, shared: DeviceMesh | None) -> Tensor:
        real_N = labels_N != IGNORE
        place_N, here_N = (labels_N.where(real_N, 0), real_N) if shared is None else among(labels_N, own_NV.shape[1], shared)
        chosen_N = own_NV.gather(1, place_N[:, None])[:, 0].float().where(here_N, 0.0)
        # log(sum(exp(logits)))
        whole_N = torch.cat([block_BV.float().logsumexp(-1) for block_BV in _blocks(own_NV)])
        if shared is not None:
            chosen_N = summed(chosen_N, shared)
            whole_N = gathered(whole_N[:, None], shared, 1).logsumexp(-1)
        ctx.save_for_backward(own_NV, real_N, here_N, place_N, whole_N)
        ctx.z_loss = z_loss
        return (whole_N - chosen_N).where(real_N, 0.0)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        """factor * softmax - grad * onehot(label), factor = grad (1 + 2 z_loss log(sum(exp)))."""
        own_NV, real_N, here_N, place_N, whole_N = ctx.saved_tensors
        grad_N = grad_N.where(real_N, 0.0)
        factor_N = grad_N * (1 + 2 * ctx.z_loss * whole_N)
        columns = (whole_N, factor_N, place_N, grad_N.where(here_N, 0.0))
        cut = [_blocks(one_N[:, None], own_NV) for one_N in columns]
        for block_BV, whole_B1, factor_B1, place_B1, grad_B1 in zip(_blocks(own_NV), *cut, strict=True):
            made_BV = block_BV.float().sub_(whole_B1).exp_().mul_(factor_B1)  # in float32 this is the block itself
            made_BV.scatter_(1, place_B1, made_BV.gather(1, place_B1) - grad_B1)
            if block_BV.dtype != torch.float32:
                block_BV.copy_(made_BV)
        return own_NV, None, None, None


def _blocks(x_NM: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Views of `x`, each with the rows of a block of `like` (left out: of `x` itself)."""
    like = x_NM if like is None else like
    elements = BLOCK_ELEMENTS[like.device.type == "cpu"]
    return x_NM.split(max(1, elements // like.shape[1]))


@torch.no_grad()
def drawn_labels(hidden_TD: Tensor, head: Head, labels_T: Tensor, chance_T: Tensor, vocab: int) -> Tensor:
    """`labels` with each real one replaced by a token drawn from the model: the first whose cumulative probability
    is above `chance`, uniform in [0, 1). int64 (T,)."""
    rows = max(1, CHUNK_ELEMENTS // vocab)
    parts = [
        _draw(head(hidden_ND).float().softmax(-1), chance_N)
        for hidden_ND, chance_N in zip(hidden_TD.split(rows), chance_T.split(rows), strict=True)
    ]
    return torch.where(labels_T == IGNORE, labels_T, torch.cat(parts))


def _draw(chances_NV: Tensor, chance_N: Tensor) -> Tensor:
    """The token that each chance falls on, in two steps of sums by matrix product: torch's own cumulative sum has no
    deterministic kernel on a GPU."""
    blocks_NBK = chances_NV.view(len(chances_NV), -1, BLOCK)
    ends_NB = _running(blocks_NBK.sum(-1))
    block_N = (ends_NB <= chance_N[:, None]).sum(-1).clamp_max(ends_NB.shape[1] - 1)
    row_N = torch.arange(len(chances_NV), device=chances_NV.device)
    inside_NK = blocks_NBK[row_N, block_N]
    before_N = torch.where(block_N > 0, ends_NB[row_N, (block_N - 1).clamp_min(0)], 0.0)
    place_N = (before_N[:, None] + _running(inside_NK) <= chance_N[:, None]).sum(-1).clamp_max(BLOCK - 1)
    return block_N * BLOCK + place_N


def _running(x_NM: Tensor) -> Tensor:
    size = x_NM.shape[1]
    return x_NM @ torch.ones(size, size, dtype=x_NM.dtype, device=x_NM.device).triu()
