"""What the causes look at: a run in arrays, its plan, and its data where they are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainer.loader import Loader
from trainer.planned import Plan
from trainer.tools.runs import Run

#: How sure a finding is: shown by a test of its own, fits all that is known, worth a look.
SHOWN, LIKELY, POSSIBLE = 3, 2, 1

WORDS = {SHOWN: "shown", LIKELY: "likely", POSSIBLE: "possible"}


@dataclass(frozen=True)
class Finding:
    """A cause with what speaks for it, and what to change."""

    cause: str  # a word for programs, such as `learning-rate`
    title: str
    certainty: int
    evidence: tuple[str, ...]
    change: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "cause": self.cause, "title": self.title, "certainty": WORDS[self.certainty],
            "evidence": list(self.evidence), "change": list(self.change),
        }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run to judge. `loader` is None where the corpus is not at hand."""

    run: Run
    plan: Plan
    loader: Loader | None = None

    def column(self, name: str) -> np.ndarray:
        """A field of every step, float64; NaN where it is missing or was not finite."""
        values = [record.get(name) for record in self.run.steps]
        return np.array([np.nan if value is None else float(value) for value in values])

    @cached_property
    def step(self) -> np.ndarray:
        """Numbers of the steps, counted from 1."""
        return self.column("step")

    @cached_property
    def loss(self) -> np.ndarray:
        """Training loss of each step."""
        return self.column("loss")

    @cached_property
    def norm(self) -> np.ndarray:
        """Gradient norm of each step, before clipping."""
        return self.column("grad_norm")

    @cached_property
    def smooth(self) -> np.ndarray:
        """The loss as a running median of about a twentieth of the run."""
        return running_median(self.loss, max(3, min(501, len(self.loss) // 20)))

    @property
    def warm(self) -> int:
        """Steps of the warm-up."""
        return sum(1 for i in range(len(self.step)) if self.plan.tokens_at(min(i + 1, self.plan.steps)) < self.plan.schedule.warmup_tokens)

    @cached_property
    def noise(self) -> float:
        """Usual distance of the loss of a step from its running median."""
        rest = np.abs(self.loss - self.smooth)
        return max(float(1.4826 * np.nanmedian(rest)), 1e-6) if len(rest) and np.isfinite(rest).any() else 1e-6


def running_median(values: np.ndarray, width: int) -> np.ndarray:
    """Median over the last `width` values at each place; NaN left out."""
    made = np.full(len(values), np.nan)
    for i in range(len(values)):
        some = values[max(0, i - width + 1) : i + 1]
        some = some[np.isfinite(some)]
        if len(some):
            made[i] = np.median(some)
    return made


def span(steps: Sequence[float] | np.ndarray) -> str:
    """`step 7`, or `steps 7 to 12`."""
    return f"step {int(steps[0]):,}" if len(steps) == 1 else f"steps {int(steps[0]):,} to {int(steps[-1]):,}"
