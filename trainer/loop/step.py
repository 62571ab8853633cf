"""One step of training on one rank, enqueued on the device without waiting for it.

Loss = sum over all label tokens of the step / their number, over all micro-batches and ranks: one division, in one
place, by a number that all ranks have added up. What the step measured comes back as two vectors on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.loader import Batch
from trainer.loop import guard
from trainer.loop.evaluate import to_device
from trainer.loop.guard import Judge, Scaler, Verdict
from trainer.loop.metrics import digest_parts
from trainer.loop.optim import Updater, gradient_norm
from trainer.loop.parallel import World, before_pass, seed_of
from trainer.loop.pipeline import Inputs
from trainer.loop.schedule import rate_at
from trainer.model import Llama
from trainer.model.attention import carried
from trainer.planned import Plan


@dataclass(frozen=True)
class Measured:
    """A step as the device knows it. `numbers` float64, in the order of `Numbers.read`; `whole` int64: label tokens
    of the step, then the four parts of its digest."""

    step: int
    numbers: Tensor
    whole: Tensor
    context: float  # mean length of the documents that the tokens of this rank stand in


@dataclass(frozen=True)
class Numbers:
    """A step as the host knows it; the same on every rank.

    losses   over the label tokens of each source;  loss  over all
    norm     of the gradient, before clipping
    seen     what the guard's window holds of it;  z  how far they are from that window
    bad_ranks  whose own loss was not finite
    first    squared norm of the gradient of the first pass alone, and its label tokens; None where it was not measured
    """

    loss: float
    losses: dict[str, float]
    norm: float
    seen: list[float]
    z: list[float]
    verdict: Verdict
    scale: float
    scale_good: int
    bad_ranks: tuple[int, ...]
    targets: int
    digest: str
    first: tuple[float, float] | None

    @property
    def skipped(self) -> bool:
        """Whether there was no update."""
        return self.verdict >= Verdict.OVERFLOW

    @classmethod
    def read(cls, numbers: Sequence[float], whole: Sequence[int], sources: Sequence[str], ranks: int) -> Numbers:
        """From the vectors of `Measured` on the host."""
        n = len(sources)
        lost, counted, bad, rest = (
            numbers[:n], numbers[n : 2 * n], numbers[2 * n : 2 * n + ranks], numbers[2 * n + ranks :],
        )  # fmt: skip
        loss, norm, seen_loss, seen_norm, z_loss, z_norm, verdict, scale, good, first, first_tokens = rest
        targets, *parts = whole
        return cls(
            loss=loss,
            losses={name: lost[i] / counted[i] for i, name in enumerate(sources) if counted[i]},
            norm=norm,
            seen=[seen_loss, seen_norm],
            z=[z_loss, z_norm],
            verdict=Verdict(int(verdict)),
            scale=scale,
            scale_good=int(good),
            bad_ranks=tuple(rank for rank, flag in enumerate(bad) if flag),
            targets=targets,
            digest=b"".join((part % (1 << 32)).to_bytes(4, "little") for part in parts).hex(),
            first=(first, first_tokens) if first_tokens else None,
        )


class Stepper:
    """Model, optimizer, guard and scale of the loss of one rank."""

    def __init__(self, plan: Plan, model: Llama, updater: Updater, world: World) -> None:
        self.plan, self.model, self.updater, self.world = plan, model, updater, world
        self.judge = Judge(plan.monitoring, world.device)
        self.scaler = Scaler(plan.compute == "fp16", world.device)
        self.phase: str | None = None

    def __call__(self, batch: Batch, step: int) -> Measured:
        """One update, or none, from this rank's part of the batch of `step`."""
        world, plan = self.world, self.plan
        phase = plan.phase_at(step)
        if phase.name != self.phase:
            if self.phase is not None:
                self.judge.load([])
            self.phase = phase.name
        torch.manual_seed(seed_of("step", plan.seed, step, world.rank))
        first_slot = world.reader * phase.batch // world.readers
        whole = [batch.targets, *digest_parts(batch, first_slot)] if world.speaks else [0] * 5
        whole_5 = world.summed(carried(whole, torch.int64, world.device))
        targets = whole_5[0].clamp_min(1).float()
        if (sophia := self.updater.sophia) is not None and step % plan.optimizer.curvature_every == 0:
            self._look_at_curvature(batch, step, first_slot, targets)
            sophia.observe(targets)
            self.updater.zero()
        sums, first = self._passes(batch, step, targets)
        size = len(plan.sources)
        own_bad = torch.zeros(world.size, dtype=torch.float64, device=world.device)
        own_bad[world.rank] = (~sums.isfinite().all()).double()
        totals = world.summed(torch.cat([sums.flatten(), own_bad]))
        loss = totals[:size].sum() / targets.double()
        norm = self.updater.norm() / self.scaler.scale
        verdict, z = self.judge(loss, norm, self.scaler.may_fall)
        verdict = world.worst(verdict)
        keep = verdict < int(Verdict.OVERFLOW)
        clip = plan.optimizer.grad_clip
        scale = (clip / (norm + 1e-6)).clamp_max(1.0) if clip else torch.ones_like(norm)
        scale = torch.where(keep, scale / self.scaler.scale, 1.0)
        self.updater.step(rate_at(plan, step), scale.float(), keep.float())
        self.updater.zero()
        seen = guard.seen_of(loss, norm)
        self.judge.take(seen, keep)
        used = self.scaler.scale
        self.scaler.follow(verdict)
        # With the scale that follows, and the gradient of the first pass without the scale it had.
        tail = [loss, norm, *seen, *z, verdict, self.scaler.scale, self.scaler.good, first[0] / used**2, first[1]]
        numbers = torch.cat([totals, torch.stack([one.double() for one in tail])])
        return Measured(step, numbers, whole_5, _context(batch))

    def _passes(self, batch: Batch, step: int, targets: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """All forward and backward passes: `(sums, first)`.

        sums   float64 (2, sources): loss of this rank, and its label tokens
        first  squared norm of the gradient behind the first pass as a mean over its tokens, and these tokens; 0, 0
               where the ranks do not share gradients in between, and on steps that are not logged
        """
        world, mode = self.world, self.plan.shard
        device, size = world.device, len(self.plan.sources)
        sums = torch.zeros(2, size, dtype=torch.float64, device=device)
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        first = (nothing, nothing)
        logged = (step + 1) % self.plan.monitoring.log_every_steps == 0
        between = world.stages == 1 and mode in ("full", "gradients", "hybrid")
        passes = zip(batch.micros, self._backward(batch, self.scaler.scale / targets), strict=True)
        for i, (micro, (labels, losses)) in enumerate(passes):
            if world.speaks:
                source_B = carried(micro["source"].tolist(), torch.int64, device)
                rows = (len(source_B), -1)
                sums[0].index_add_(0, source_B, losses.double().view(rows).sum(1))
                sums[1].index_add_(0, source_B, (labels >= 0).double().view(rows).sum(1))
            if i == 0 and len(batch.micros) > 1 and logged and between:
                tokens_so_far = world.summed(sums[1].sum().clone())
                share = targets.double() / tokens_so_far.clamp_min(1)
                first = ((gradient_norm(self.model) * share).square(), tokens_so_far)
        return sums, first

    def _backward(
        self, batch: Batch, factor: Tensor, chances: Sequence[Tensor] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`(labels_T, losses_T)` of each pass, its gradient (of the sum x `factor`) added to `.grad` by then."""
        device = self.world.device
        ready: Iterator[Inputs] = (
            (*to_device(micro, device), *([] if chances is None else [chances[i].to(device)])) for i, micro in enumerate(batch.micros)
        )
        if self.model.pipeline is not None:
            inputs = list(ready)
            yield from zip((one[3] for one in inputs), self.model.pipeline.train(inputs, factor), strict=True)
            return
        for i, one in enumerate(ready):
            before_pass(self.model, self.plan.shard, i == len(batch.micros) - 1)
            losses = self.model(*one)
            (losses.sum() * factor).backward()
            yield one[3], losses.detach()

    def _look_at_curvature(self, batch: Batch, step: int, first_slot: int, targets: Tensor) -> None:
        """Leave in `.grad` the mean gradient of labels that the model draws, and in the gate whether it is finite.

        The chance of a position is a function of (seed, step, place of its row), so it does not depend on the ranks
        or on how the batch is cut.
        """
        slots: Iterator[int] = iter(range(first_slot, first_slot + (1 << 40)))
        chances = [self._chances(micro, step, slots) for micro in batch.micros]
        for _ in self._backward(batch, 1.0 / targets, chances):
            pass
        sophia = self.updater.sophia
        assert sophia is not None
        sophia.gate = self.updater.norm().isfinite().float()

    def _chances(self, micro: dict[str, Any], step: int, slots: Iterator[int]) -> Tensor:
        length = micro["input_ids"].shape[1]
        rows = []
        for weight in micro["weight"]:
            if not weight:  # a filler row: its labels predict nothing
                rows.append(torch.zeros(length))
                continue
            generator = torch.Generator().manual_seed(seed_of("curvature", self.plan.seed, step, next(slots)))
            rows.append(torch.rand(length, generator=generator))
        return torch.cat(rows)


def _context(batch: Batch) -> float:
    """Mean over tokens of the length of the document they stand in."""
    lengths = np.array([b - a for micro in batch.micros for a, b in pairwise(micro["cu_seqlens"].tolist())])
    return float((lengths**2).sum() / max(1, lengths.sum()))
