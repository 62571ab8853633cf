"""Next-token loss per token, in chunks, so that the logits of a whole row never exist at once.

Labels arrive shifted (the loader does it, once, for the whole product): labels[t] is the token after t, or
`IGNORE` at document ends and in padding. What is summed and what is divided by is decided by the loop:
the sum over all label tokens of a step, over micro-batches and ranks, divided by their count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

IGNORE = -100

#: Logits of one chunk, in elements: 32 Mi are 128 MiB as float32.
CHUNK_ELEMENTS = 1 << 25


def token_losses(hidden_TD: Tensor, head: Callable[[Tensor], Tensor], labels_T: Tensor, vocab: int) -> Tensor:
    """-log p(label) for each token, natural log, float32 (T,); 0 where the label is `IGNORE`.

    `head` turns (N, D) into logits (N, vocab). A chunk's logits are freed after the forward pass and computed
    again in the backward pass. Chunk borders depend on `vocab` alone, so losses do not depend on memory.
    """
    rows = max(1, CHUNK_ELEMENTS // vocab)
    if hidden_TD.shape[0] <= rows:
        return _chunk(hidden_TD, labels_T, head)
    parts = [
        checkpoint(_chunk, hidden_ND, labels_N, head, use_reentrant=False)
        for hidden_ND, labels_N in zip(hidden_TD.split(rows), labels_T.split(rows), strict=True)
    ]
    return torch.cat(parts)


def _chunk(hidden_ND: Tensor, labels_N: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    return functional.cross_entropy(head(hidden_ND).float(), labels_N, ignore_index=IGNORE, reduction="none")
