"""Loss on the holdout, per source: forward passes over the same windows in the same order, whatever the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from trainer.attention import Segments
from trainer.loss import IGNORE
from trainer.model import Llama
from trainer.parallel import World


def to_device(
    micro: Mapping[str, Any], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, Segments, torch.Tensor]:
    """`(tokens_T, positions_T, segments, labels_T)` of a micro-batch of B rows of L: T = B * L, int64."""
    tokens, positions, labels = (
        torch.as_tensor(micro[name]).reshape(-1).to(device, non_blocking=True)
        for name in ("input_ids", "position_ids", "labels")
    )
    starts = [int(start) for start in micro["cu_seqlens"]]
    return tokens, positions, Segments.of(starts, device), labels


@torch.no_grad()
def holdout_loss(model: Llama, batches: Iterable[Mapping[str, Any]], world: World) -> tuple[float, int]:
    """`(mean loss over label tokens, label tokens)` of these micro-batches; (0.0, 0) if there are none.

    The batches are dealt to the ranks in turn. A rank without one in the last round repeats one with no labels:
    every rank must take part in every forward pass of a sharded model.
    """
    total, count = 0.0, 0
    batch = list(batches)
    for first in range(0, len(batch), world.size):
        mine = first + world.rank
        tokens, positions, segments, labels = to_device(batch[min(mine, len(batch) - 1)], world.device)
        if mine >= len(batch):
            labels = torch.full_like(labels, IGNORE)
        total += float(model(tokens, positions, segments, labels).double().sum())
        count += int((labels != IGNORE).sum())
    # Without a backward pass the outermost group stays whole, and its parameters are not those of the optimizer.
    assert isinstance(model, FSDPModule)
    model.reshard()
    total, targets = world.total([total, count])
    return (total / targets if targets else 0.0), int(targets)
