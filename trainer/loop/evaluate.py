"""Loss on the holdout, per source: forward passes over the same windows in the same order, whatever the ranks.

Bits per byte = loss in nats x label tokens / (ln 2 x bytes of the label tokens as text): the measure that does not
depend on the tokenizer. The first token of a document is nobody's label, so its bytes are not counted either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.loader import Loader
from trainer.loop.metrics import finite_or_none
from trainer.loop.parallel import World, after_look
from trainer.loop.pipeline import looked
from trainer.model import Llama
from trainer.model.attention import Segments
from trainer.model.loss import IGNORE
from trainer.planning.show import table


@dataclass(frozen=True)
class Held:
    """What a model says about some text: the sum of its losses in nats, label tokens, their bytes (0: not known)."""

    lost: float = 0.0
    targets: int = 0
    bytes: int = 0

    @property
    def loss(self) -> float:
        """Mean loss of a label token, nats."""
        return self.lost / self.targets

    @property
    def bits_per_byte(self) -> float | None:
        """None where bytes are not known."""
        return self.lost / math.log(2) / self.bytes if self.bytes else None

    def __add__(self, other: Held) -> Held:
        return Held(self.lost + other.lost, self.targets + other.targets, self.bytes + other.bytes)


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


def byte_lengths(tokenizer_json: Path, vocab: int) -> np.ndarray | None:
    """Bytes of text of each token id, int64 (vocab,), special tokens 0; None when the file is no byte-level BPE."""
    from stages.tokenizer.tokenizer_json import token_bytes

    spec = json.loads(tokenizer_json.read_bytes())
    known = spec.get("model", {}).get("vocab")
    if spec.get("model", {}).get("type") != "BPE" or not isinstance(known, dict):
        return None
    lengths = np.zeros(vocab, np.int64)
    for token, number in known.items():
        lengths[number] = len(token_bytes(token))
    for added in spec.get("added_tokens", ()):
        lengths[added["id"]] = 0 if added.get("special") else len(added["content"].encode())
    return lengths


@torch.no_grad()
def holdout_loss(
    model: Llama, batches: Iterable[Mapping[str, Any]], world: World, lengths: np.ndarray | None = None
) -> Held:
    """What the model says about these micro-batches, over all ranks.

    The batches are dealt to the readers in turn. One without any in the last round repeats one with no labels:
    every rank must take part in every forward pass of a sharded model.
    """
    model.eval()
    lost = torch.zeros((), dtype=torch.float64, device=world.device)
    count = size = 0
    batch = list(batches)
    for first in range(0, len(batch), world.readers):
        mine = first + world.reader
        micro = batch[min(mine, len(batch) - 1)]
        tokens, positions, segments, labels = to_device(micro, world.device)
        if mine >= len(batch):
            labels = torch.full_like(labels, IGNORE)
        elif world.speaks:
            real = micro["labels"][micro["labels"] != IGNORE]
            count += len(real)
            size += 0 if lengths is None else int(lengths[real].sum())
        losses = looked((tokens, positions, segments, labels), model)
        if world.speaks:
            lost += losses.double().sum()
    after_look(model)
    model.train()
    (total,) = world.total([float(lost)])
    targets, size = world.total_int([count, size])
    return Held(total, targets, size)


def evaluate(
    model: Llama, loader: Loader, world: World, seq_len: int, rows: int, limit: int | None = None
) -> dict[str, Held]:
    """The holdout of each source that has one, `rows` windows of `seq_len` at a time, at most `limit` of them."""
    manifest, folder = loader.manifests[0], loader.folders[0]
    lengths = byte_lengths(folder / manifest.tokenizer.path, manifest.tokenizer.vocab_size)
    found = {}
    for source in loader.plan.sources:
        held = holdout_loss(model, loader.holdout(source.name, seq_len, rows, limit), world, lengths)
        if held.targets:
            found[source.name] = held
    return found


def eval_record(found: Mapping[str, Held], whole: Held, step: int) -> dict[str, Any]:
    """The metrics line of an evaluation after `step` steps: `whole` is the sum of what was found for each source."""
    record: dict[str, Any] = {"kind": "eval", "step": step, "loss": finite_or_none(whole.loss)}
    record["losses"] = {name: finite_or_none(held.loss) for name, held in found.items()}
    if whole.bits_per_byte is not None:
        record["bits_per_byte"] = finite_or_none(whole.bits_per_byte)
        record["bits_per_byte_of"] = {
            name: held.bits_per_byte and finite_or_none(held.bits_per_byte) for name, held in found.items()
        }
    return record


def held_text(found: Mapping[str, Held], step: int) -> str:
    """What was measured, as a table; the last line is all of it."""
    head = ["holdout", "loss", "bits per byte", "label tokens", "bytes"]
    whole = sum(found.values(), Held())
    rows = [
        [
            name, f"{one.loss:.4f}", "-" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}",
            f"{one.targets:,}", f"{one.bytes:,}",
        ]
        for name, one in [*found.items(), ("all", whole)]
        if one.targets
    ]  # fmt: skip
    return "\n".join([f"checkpoint of step {step:,}", "", *table([head, *rows])])
