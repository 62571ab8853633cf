"""Causes in the numbers: losses and gradients that are not finite, a loss scale at its floor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.tools.causes.case import SHOWN, Case, Finding, span

#: The least scale of the loss; see `guard.Scaler`.
FLOOR = 1.0


def scale_at_floor(case: Case) -> Iterator[Finding]:
    """fp16 whose gradients overflow even unscaled."""
    scale = case.column("loss_scale")
    low = np.flatnonzero(scale <= FLOOR)
    if not len(low):
        return
    skipped = sum(1 for record in case.run.steps if record["skipped"])
    evidence = (
        f"the loss scale is {FLOOR:g}, its floor, from step {int(case.step[low[0]]):,} on; it began at {np.nanmax(scale):,.0f}",
        f"{skipped:,} of {len(scale):,} steps were skipped",
    )
    yield Finding("loss-scale", "the loss scale is at its floor", SHOWN, evidence, (
        "write precision.compute: bf16, which needs no scale", "on a device without bf16: fp32, or a lower lr_schedule.peak_lr",
    ))  # fmt: skip


def not_finite(case: Case) -> Iterator[Finding]:
    """A loss or gradient that is no number: what came before it."""
    bad = np.flatnonzero(~np.isfinite(case.loss) | ~np.isfinite(case.norm))
    bad = np.array([i for i in bad.tolist() if not _only_overflow(case, i)], np.int64)
    if not len(bad):
        return
    first = int(bad[0])
    before = case.norm[max(0, first - 50) : first]
    before = before[np.isfinite(before)]
    lr, peak = case.run.steps[first]["lr"], case.plan.schedule.peak_lr
    evidence = [f"{span(case.step[bad[:1]])} is the first of {len(bad):,} whose loss or gradient norm is not finite"]
    named = [i for i in case.run.incidents if i["verdict"] == "nonfinite"]
    lone = [d for i in named for d in i["documents"] if d["loss"] is None]
    change: tuple[str, ...]
    title, cause = "numbers overflow", "precision"
    change = (f"{case.plan.compute} computes the matrices: try precision.compute: fp32 for a few steps around it", "qk_norm and optimizer.z_loss keep logits small")
    if len(before) >= 5 and np.median(before[-3:]) > 5 * np.median(before):
        title, cause = "the gradient grew before it broke", "learning-rate"
        evidence.append(f"gradient norm {np.median(before):.3g} over the steps before, {np.median(before[-3:]):.3g} over the last three; learning rate {lr:.3g} of {peak:.3g}")
        change = (f"lower lr_schedule.peak_lr to {peak / 3:.2g}, or warm up longer", f"lower optimizer.grad_clip below {case.plan.optimizer.grad_clip:g}")
    elif lone and len({d["id"] for i in named[:1] for d in i["documents"]}) > len(lone):
        title, cause = "a document breaks the loss", "sample"
        evidence.append(f"document {lone[0]['id']} of {lone[0]['source']} has no finite loss, others of its step have")
        change = ("write its id into a file and name that as data.tombstones", f"trainer spikes {case.run.folder} --step {named[0]['step']}")
    elif len(before):
        evidence.append(f"gradient norm {before[-1]:.3g} in the step before (median {np.median(before):.3g}): nothing announced it")
    yield Finding(cause, f"NaN: {title}", SHOWN, tuple(evidence), change)


def _only_overflow(case: Case, i: int) -> bool:
    """Whether a step is one that the scale of fp16 answers."""
    return bool(case.run.steps[i].get("loss_scale")) and np.isfinite(case.loss[i])
