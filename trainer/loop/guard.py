"""Bad steps: found on the device as they happen, acted on by the host when it looks.

A step is bad when its loss or gradient norm is not finite, or far above those of the steps before. How far is a robust
z: (x - median) / s over a window of the last steps that were taken, s = 1.4826 median(|x - median|), of the loss and of
the logarithm of the norm; s is at least 1 % of the median loss, and 0.05 of the log norm, so that a run that has become
calm is not alarmed by nothing. The window is a part of a checkpoint, and begins anew with each phase.

What then happens (`monitoring.on_nonfinite`, `monitoring.on_spike`):

    stop        end the run, with an incident file
    warn        take the step, and say so
    skip        leave parameters and optimizer as they are; after `skips` in a row, stop
    roll-back   skip; after `skips` in a row go back to the last checkpoint that no bad step is near, and pass over the
                data from the first bad step to the last; after `rollbacks` times, stop

The verdict on a step is computed from numbers that all ranks share, and the worst one over the ranks is everyone's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from trainer.checkpoint.records import State
from trainer.planned import MonitoringPlan

#: Steps that a window must hold before anything is called a spike.
LEAST = 16

#: Smallest deviations that count: of the loss as a share of its median, of the log norm as it is.
CALM_LOSS, CALM_NORM = 0.01, 0.05

#: A checkpoint is healthy when no bad step lies less than so many steps before it.
HEALTHY = 5


class Verdict(IntEnum):
    """What a step was. From SKIPPED on it changed nothing."""

    FINE = 0
    SPIKE = 1  # taken all the same
    OVERFLOW = 2  # of fp16 gradients: the scale of the loss is halved, nothing is wrong
    SKIPPED = 3  # a spike
    NONFINITE = 4


class Judge:
    """The window on the device, and the verdict on a step without asking the host."""

    def __init__(self, plan: MonitoringPlan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.load([])

    def load(self, window: list[list[float]]) -> None:
        """Take over the window of a checkpoint."""
        size = self.plan.spike_window
        self.ring = torch.full((size, 2), math.nan, dtype=torch.float64, device=self.device)
        kept = window[-size:]
        if kept:
            self.ring[: len(kept)] = torch.tensor(kept, dtype=torch.float64, device=self.device)
        self.at = torch.tensor(len(kept) % size, dtype=torch.int64, device=self.device)

    def __call__(self, loss: Tensor, norm: Tensor, overflow: Tensor) -> tuple[Tensor, Tensor]:
        """`(verdict, z)`: int64 scalar, and z of loss and log norm, float64 (2,); 0 while the window is short.

        loss, norm  float64 scalars on the device; overflow  bool: a norm that is not finite is one of fp16
        """
        seen = seen_of(loss, norm)
        finite = loss.isfinite() & norm.isfinite()
        z = self._z(seen).where(finite, 0.0)
        plan = self.plan
        spike = (z > plan.spike_z).any() & (plan.on_spike != "ignore")
        called = Verdict.SPIKE if plan.on_spike == "warn" else Verdict.SKIPPED
        verdict = torch.where(spike, int(called), int(Verdict.FINE))
        bad = torch.where(loss.isfinite() & overflow, int(Verdict.OVERFLOW), int(Verdict.NONFINITE))
        return torch.where(finite, verdict, bad), z

    def take(self, seen: Tensor, keep: Tensor) -> None:
        """Put a step into the window, if it was taken (`keep`, bool)."""
        size = len(self.ring)
        spot = self.at % size
        row = torch.where(keep, seen, self.ring.index_select(0, spot[None])[0])
        self.ring.index_copy_(0, spot[None], row[None])
        self.at += keep

    def _z(self, seen: Tensor) -> Tensor:
        count = self.ring[:, 0].isfinite().sum()
        middle = _median(self.ring, count)
        spread = 1.4826 * _median((self.ring - middle).abs(), count)
        calm = torch.stack([CALM_LOSS * middle[0].abs(), torch.full_like(middle[1], CALM_NORM)])
        return ((seen - middle) / torch.maximum(spread, calm)).where(count >= LEAST, 0.0)


def seen_of(loss: Tensor, norm: Tensor) -> Tensor:
    """What a window holds of a step: loss and log of the gradient norm, float64 (2,)."""
    return torch.stack([loss, norm.clamp_min(1e-30).log()])


def _median(values_WK: Tensor, count: Tensor) -> Tensor:
    """The lower median of each column, NaN (which sorts last) left out."""
    at = ((count - 1) // 2).clamp_min(0).expand(1, values_WK.shape[1])
    return values_WK.sort(dim=0, stable=True).values.gather(0, at)[0]


class Scaler:
    """The scale of the loss with fp16, on the device: halved by an overflow, doubled after many good steps."""

    FIRST, FLOOR, PATIENCE = 65536.0, 1.0, 2000

    def __init__(self, on: bool, device: torch.device) -> None:
        self.on = on
        self.device = device
        self.load(None, 0)

    def load(self, scale: float | None, good: int) -> None:
        """Take over the scale of a checkpoint; None: the first one."""
        first = self.FIRST if self.on else 1.0
        self.scale = torch.tensor(first if scale is None else scale, dtype=torch.float32, device=self.device)
        self.good = torch.tensor(good, dtype=torch.int64, device=self.device)

    @property
    def may_fall(self) -> Tensor:
        """bool on the device: whether an overflow only means that the scale is too high."""
        return (self.scale > self.FLOOR) & self.on

    def follow(self, verdict: Tensor) -> None:
        """After a step: down on overflow, up after `PATIENCE` good ones."""
        if not self.on:
            return
        over = verdict == int(Verdict.OVERFLOW)
        self.good = torch.where(over, 0, self.good + (verdict < int(Verdict.OVERFLOW)))
        grown = self.good >= self.PATIENCE
        factor = torch.where(over, 0.5, torch.where(grown, 2.0, 1.0))
        self.scale = (self.scale * factor).clamp_min(self.FLOOR)
        self.good = torch.where(grown, 0, self.good)


@dataclass(frozen=True)
class Ruling:
    """What the loop does about a step that has been judged.

    bad    whether an incident is written;  act  go on, go back, or stop
    """

    bad: bool
    act: Literal["go on", "roll back", "stop"]


def ruling(plan: MonitoringPlan, verdict: Verdict, state: State) -> Ruling:
    """`state` is that after the step, its count of skips in a row with this one."""
    if verdict in (Verdict.FINE, Verdict.OVERFLOW):
        return Ruling(False, "go on")
    if verdict == Verdict.SPIKE:
        return Ruling(True, "go on")
    policy = plan.on_nonfinite if verdict == Verdict.NONFINITE else plan.on_spike
    if policy == "stop":
        return Ruling(True, "stop")
    if state.skipped_in_a_row < plan.skips:
        return Ruling(True, "go on")
    goes_back = policy == "roll-back" and state.rollbacks < plan.rollbacks
    return Ruling(True, "roll back" if goes_back else "stop")


def after(state: State, verdict: Verdict, seen: list[float], phase: str, size: int) -> State:
    """The state one step later: the host's copy of what the device has done. seen  as `seen_of`"""
    update: dict[str, object] = {"step": state.step + 1}
    window = list(state.window) if state.phase == phase else []
    if verdict >= Verdict.SKIPPED:
        update |= {"skipped": state.skipped + 1, "skipped_in_a_row": state.skipped_in_a_row + 1}
    elif verdict != Verdict.OVERFLOW:
        update |= {"skipped_in_a_row": 0}
        window = [*window, seen][-size:]
    if verdict in (Verdict.SPIKE, Verdict.SKIPPED, Verdict.NONFINITE):
        update["last_bad"] = state.step + 1
    return state.model_copy(update=update | {"window": window, "phase": phase})
