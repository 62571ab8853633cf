"""Causes in how the loss moves: a source read too often, recurring spikes, a run that is stuck. And the word that it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.tools.causes.case import LIKELY, SHOWN, Case, Finding

#: Epochs from which on repetition costs more than it gives (Muennighoff et al. 2023).
WORTH = 4.0

#: Steps that a slope is read from at least.
LEAST = 60


def overfitting(case: Case) -> Iterator[Finding]:
    """Validation that rises while training falls, worst source first."""
    evals = case.run.evals
    found = []
    for source in case.plan.sources:
        held = [(e["step"], e["losses"][source.name]) for e in evals if e.get("losses", {}).get(source.name) is not None]
        if len(held) < 4:
            continue
        at = min(range(len(held)), key=lambda i: held[i][1])
        rise = held[-1][1] - held[at][1]
        steps = np.diff([loss for _, loss in held])
        jitter = float(np.median(np.abs(steps - np.median(steps)))) if len(steps) > 2 else 0.0
        before, after = _training(case, source.name, held[at][0])
        if at < len(held) - 2 and rise > max(0.02 * held[at][1], 3 * jitter) and after < before:
            epochs = source.epochs * len(case.run.steps) / case.plan.steps
            found.append((rise, source, held[at], held[-1], before, after, epochs))
    if not found:
        return
    found.sort(key=lambda one: (one[6] <= WORTH, -one[0]))
    rise, source, low, last, before, after, epochs = found[0]
    evidence = [
        f"holdout loss of {source.name}: {low[1]:.3f} at step {low[0]:,}, {last[1]:.3f} at step {last[0]:,} ({rise:+.3f})",
        f"its training loss went from {before:.3f} to {after:.3f} meanwhile",
        f"it has been read {epochs:.1f} times; beyond {WORTH:g} times repetition hardly helps",
    ]
    evidence += [f"also {one[1].name}: {one[0]:+.3f}, read {one[6]:.1f} times" for one in found[1:4]]
    repeated = epochs > WORTH
    title = f"{source.name} is read too often" if repeated else f"{source.name}: the holdout gets worse while training gets better"
    change = (
        f"write data.repeat_limits: {{{source.name}: {WORTH:g}}} and a lower weight for it",
        f"or stop early: the best checkpoint is near step {low[0]:,} (stop.patience_evals)",
    )
    yield Finding("over-repeated" if repeated else "overfitting", title, SHOWN if repeated else LIKELY, tuple(evidence), change)


def _training(case: Case, source: str, since: int) -> tuple[float, float]:
    """Median training loss of a source around a step, and at the end."""
    losses = [(r["step"], r["losses"].get(source)) for r in case.run.steps]
    some = [(step, loss) for step, loss in losses if loss is not None]
    width = max(3, len(some) // 20)
    near = sorted(some, key=lambda one: abs(one[0] - since))[:width]
    return float(np.median([loss for _, loss in near])), float(np.median([loss for _, loss in some[-width:]]))


def spikes(case: Case) -> Iterator[Finding]:
    """Spikes that come again: what their steps have in common."""
    up = np.flatnonzero(case.loss - case.smooth > max(8 * case.noise, 0.05 * float(np.nanmedian(case.loss)) if len(case.loss) else 0))
    up = up[up > max(case.warm, 10)]
    if len(up) < 3:
        return
    steps = [int(case.step[i]) for i in up]
    evidence = [f"{len(up)} steps lie far above those before: {', '.join(f'{s:,}' for s in steps[:8])}{' …' if len(steps) > 8 else ''}"]
    documents = Counter(d["id"] for i in case.run.incidents for d in {d["id"]: d for d in i["documents"][:5]}.values())
    common = documents.most_common(1)
    if common and common[0][1] >= 3:
        evidence.append(f"document {common[0][0]} is among the suspects of {common[0][1]} incidents")
        yield Finding("spikes", "the same odd document comes again", SHOWN, tuple(evidence), (f"trainer spikes {case.run.folder} --step {steps[0]}",))
        return
    excess = Counter[str]()
    for i in up.tolist():
        usual = {name: _usual(case, name, i) for name in case.run.steps[i]["losses"]}
        over = {n: v - u for n, v in case.run.steps[i]["losses"].items() if (u := usual[n]) is not None and v is not None}
        if over:
            excess[max(over, key=lambda n: over[n])] += 1
    if excess:
        name, many = excess.most_common(1)[0]
        evidence.append(f"in {many} of them {name} is furthest above its usual loss")
    yield Finding("spikes", "the loss spikes again and again", LIKELY, tuple(evidence), (
        f"trainer spikes {case.run.folder} --step {steps[0]} names the documents",
        "monitoring.on_spike: skip passes over such steps; a lower optimizer.beta2 or longer warm-up makes them smaller",
    ))  # fmt: skip


def _usual(case: Case, source: str, at: int) -> float | None:
    some = [r["losses"][source] for r in case.run.steps[max(0, at - 50) : at] if r["losses"].get(source) is not None]
    return float(np.median(some)) if some else None


@dataclass(frozen=True)
class Slope:
    """The loss against the logarithm of the step over the last half: nats for each doubling of the steps.

    error  of it;  expected  what the power law through the half before says
    """

    doubling: float
    error: float
    expected: float
    first: int
    last: int

    @property
    def falls(self) -> bool:
        """Whether the loss still falls, beyond doubt."""
        return self.doubling < -3 * self.error

    @property
    def stopped(self) -> bool:
        """Whether it falls by less than half of what was expected, beyond doubt."""
        return not self.falls and self.doubling - 2 * self.error > 0.5 * min(self.expected, 0.0)


def slope(case: Case) -> Slope | None:
    """None for a run that is too short to say. Warm-up and the end of the rate's decay are in it as they are."""
    good = np.isfinite(case.loss)
    step, loss = case.step[good], case.loss[good]
    if len(step) < LEAST:
        return None
    late = step > step[-1] / 2
    early = (step > step[-1] / 8) & ~late
    if late.sum() < LEAST // 3 or early.sum() < 10:
        return None
    doubling, error = _fit(np.log2(step[late]), loss[late])
    power, _ = _fit(np.log2(step[early]), np.log2(np.maximum(loss[early], 1e-9)))
    expected = float(np.median(loss[late])) * (2.0**power - 1)
    return Slope(doubling, error, expected, int(step[late][0]), int(step[-1]))


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """`(slope, its standard error)` of a least-squares line; errors of neighbours are correlated, so it is doubled."""
    x = x - x.mean()
    size = float((x**2).sum())
    value = float((x * (y - y.mean())).sum()) / size
    rest = y - y.mean() - value * x
    return value, 2 * float(np.sqrt((rest**2).sum() / max(1, len(y) - 2) / size))


def stuck(case: Case) -> Iterator[Finding]:
    """A loss that has stopped, where the power law so far would have it go on."""
    found = slope(case)
    if found is None or not found.stopped:
        return
    floor = max(3 * found.error, 0.004 * float(np.nanmedian(case.loss)))
    if found.doubling < -floor or found.doubling > 0.5:
        return
    lr, peak = case.run.steps[-1]["lr"], case.plan.schedule.peak_lr
    evidence = [
        f"steps {found.first:,} to {found.last:,}: {found.doubling:+.4f} ± {found.error:.4f} nats for each doubling of the steps",
        f"the part before would have it at {found.expected:+.4f}",
        f"learning rate now {lr:.3g}, {lr / peak:.0%} of its peak",
    ]
    change = ["raise the learning rate, if it has decayed: lr_schedule.min_lr_ratio, or more total_tokens"] if lr < 0.2 * peak else ["lower lr_schedule.peak_lr by 3: a plateau at a high rate is noise of the update"]
    change.append("a larger model or other data, if the holdout has stopped as well")
    yield Finding("stuck", "the loss has stopped falling", LIKELY, tuple(evidence), tuple(change))


def word(case: Case) -> str:
    """How progress is, in a sentence."""
    found = slope(case)
    if found is None:
        return f"{len(case.loss):,} steps are too few to judge progress"
    text = f"{found.doubling:+.4f} ± {found.error:.4f} nats for each doubling of the steps (before that {found.expected:+.4f})"
    if found.falls:
        return f"slow but normal: {text}; late progress is even on a logarithmic axis only"
    return f"{'no progress to be seen' if found.stopped else 'too noisy to tell yet'}: {text}"
