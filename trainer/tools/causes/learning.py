"""Causes in how the model learns: parts that do not, first weights, learning rate, batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainer.planning.rules import ladder_rate
from trainer.tools.causes.case import LIKELY, POSSIBLE, SHOWN, Case, Finding

#: Peak rate against the rule by size: above this something must be said, above the second it is hard to believe.
HIGH, VERY_HIGH, VERY_LOW = 5.0, 30.0, 0.03

#: How far a first loss may be from ln(vocabulary), nats.
FIRST_LOSS = 0.7


def frozen(case: Case) -> Iterator[Finding]:
    """Weights that did not move between the first and the last checkpoint there is."""
    from trainer import checkpoint

    present = list(checkpoint.folders(case.run.folder / "checkpoints").values())
    read = [checkpoint.read(path) for path in (present[0], present[-1])] if len(present) > 1 else []
    if len(read) < 2 or any(isinstance(one, str) for one in read):
        return
    still, all_of_them = unmoved(read[0], read[1])  # type: ignore[arg-type]
    if not still or len(still) == all_of_them:
        return
    evidence = (
        f"between {present[0].name} and {present[-1].name} {len(still)} of {all_of_them} tensors were not updated:",
        ", ".join(still[:6]) + (" …" if len(still) > 6 else ""),
    )
    yield Finding("frozen", "a part of the model is not trained", SHOWN, evidence, (
        "look for requires_grad = False, a detach(), or a parameter that no optimizer group holds",
    ))  # fmt: skip


def unmoved(a: object, b: object) -> tuple[list[str], int]:
    """`(names, how many there are)` of tensors that are those of `a` up to one factor, which is weight decay."""
    from trainer.tools.export import parameters

    still, count = [], 0
    for (name, old), (_, new) in zip(parameters(a), parameters(b), strict=True):  # type: ignore[arg-type]
        count += 1
        old, new = old.double().flatten(), new.double().flatten()
        size = float(old.norm())
        factor = float(old @ new) / size**2 if size else 0.0
        if float((new - factor * old).norm()) <= 1e-6 * max(size, 1e-12):
            still.append(name)
    return still, count


def initialisation(case: Case) -> Iterator[Finding]:
    """A first loss that no fresh model has."""
    if not case.run.steps or case.run.steps[0]["step"] != 1 or case.plan.checkpoint.weights_only:
        return
    first, fair = case.loss[0], math.log(case.plan.model.vocab_size)
    if np.isfinite(first) and abs(first - fair) > FIRST_LOSS:
        if first < fair:
            title, change = "the model knows the answers before it has learned", ("labels or mask show it what it must predict: `trainer smoke` tests both",)
        else:
            title, change = "the first weights are too large", ("initialise with deviation 0.02, and projections into the residual stream with 0.02 / sqrt(2 layers)",)
        yield Finding("initialisation", title, LIKELY, (f"the loss of step 1 is {first:.3f}; without knowledge it is ln({case.plan.model.vocab_size:,}) = {fair:.3f}",), change)


def rate_too_high(case: Case) -> Iterator[Finding]:
    """A loss that was lower while the rate was: it rose again, or never fell below knowing nothing."""
    peak, rule = case.plan.schedule.peak_lr, ladder_rate(case.plan.model.parameters)
    ratio = peak / rule
    evidence = [f"peak learning rate {peak:.3g}; the rule by size says {rule:.2g} for {case.plan.model.parameters:,} parameters ({ratio:.3g} times)"]
    usable = np.isfinite(case.smooth)
    hurt = False
    if usable.sum() >= 8:
        smooth = np.where(usable, case.smooth, np.inf)
        low = int(smooth.argmin())
        last = float(np.nanmedian(case.loss[-max(3, len(case.loss) // 10) :]))
        reached = max(case.run.steps[i]["lr"] for i in range(low, len(smooth)))
        if low < 0.7 * len(smooth) and last - smooth[low] > max(6 * case.noise, 0.05 * smooth[low]):
            hurt = True
            evidence.append(f"the loss was lowest at step {int(case.step[low]):,} ({smooth[low]:.3f}) and is {last:.3f} now; the rate went up to {reached:.3g}")
        fair = math.log(case.plan.model.vocab_size)
        if len(smooth) >= 20 and last > fair + 0.05:
            hurt = True
            evidence.append(f"loss {last:.3f} is above ln({case.plan.model.vocab_size:,}) = {fair:.3f}: worse than guessing")
        norms = case.norm[np.isfinite(case.norm)]
        if len(norms) >= 8 and (clipped := float((norms > case.plan.optimizer.grad_clip).mean())) > 0.9:
            evidence.append(f"{clipped:.0%} of steps were clipped (norm {np.median(norms):.3g}, clip {case.plan.optimizer.grad_clip:g})")
    if not hurt and ratio <= HIGH:
        return
    certainty = SHOWN if hurt and ratio > HIGH else LIKELY if hurt or ratio > VERY_HIGH else POSSIBLE
    better = min(peak / 10, rule) if ratio > HIGH else peak / 3
    yield Finding("learning-rate", "the learning rate is too high", certainty, tuple(evidence), (
        f"write lr_schedule.peak_lr: {better:.2g}", f"warm up longer than {case.plan.schedule.warmup_tokens:,} tokens",
    ))  # fmt: skip


def rate_too_low(case: Case) -> Iterator[Finding]:
    """A rate far below the rule, with a loss that hardly moves."""
    peak, rule = case.plan.schedule.peak_lr, ladder_rate(case.plan.model.parameters)
    if peak < VERY_LOW * rule and len(case.loss) >= 8:
        change = case.smooth[len(case.smooth) // 4] - case.smooth[-1]
        evidence = (
            f"peak learning rate {peak:.3g}; the rule by size says {rule:.2g}",
            f"the loss fell by {change:.3f} over the last three quarters of the steps",
        )
        yield Finding("learning-rate-low", "the learning rate is very low", LIKELY, evidence, (f"write lr_schedule.peak_lr: {rule:.2g}",))
    warmup, total = case.plan.schedule.warmup_tokens, case.plan.schedule.total_tokens
    if warmup > 0.2 * total and total:
        said = f"the warm-up is {warmup / total:.0%} of the run"
        yield Finding("warmup", "the warm-up is long", POSSIBLE, (said,), ("write lr_schedule.warmup_share: 1%",))


def batch(case: Case) -> Iterator[Finding]:
    """A batch far from the gradient-noise scale."""
    scale = case.column("noise_scale")
    scale = scale[np.isfinite(scale)]
    if len(scale) < 5:
        return
    noise = float(np.median(scale[-20:]))
    tokens = case.plan.phase_at(min(len(case.run.steps), case.plan.steps) - 1).tokens_per_step
    if tokens > 10 * noise or tokens < noise / 30:
        size, more = ("larger than it can use", "lower") if tokens > 10 * noise else ("small for its noise", "raise")
        evidence = (f"a step has {tokens:,} tokens, the gradient-noise scale is {noise:,.0f}",)
        yield Finding("batch", f"the batch is {size}", POSSIBLE, evidence, (f"{more} batch.global_tokens towards {noise:,.0f}",))
