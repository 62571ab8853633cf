"""One batch, learned by heart: the fastest test that labels, mask, first weights, gradients and rate are right.

Everything is the trainer's own (loader, model, optimizer); only the batch is cut down and the rate is held at the peak.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from trainer.loader import Loader, Micro
from trainer.loop.optim import Updater
from trainer.loop.parallel import World, after_look, before_pass
from trainer.model import Llama, build
from trainer.model.attention import Segments
from trainer.model.loss import IGNORE
from trainer.planned import Plan
from trainer.tools.batches import SHIFTS, label_fault, label_shares
from trainer.tools.causes.learning import FIRST_LOSS

#: Tokens of the batch, steps that it is trained on at most, steps of warm-up.
TOKENS, STEPS, WARMUP = 512, 200, 10

#: Learned: so far above what identical beginnings allow, in nats, or a share of the first loss.
LEARNED = 0.15

#: Deviation of first weights against what it should be.
INIT_RATIO = 1.3


@dataclass(frozen=True)
class Gate:
    """A test with what it saw. `cause` is a word for programs where it failed; `change` what to do then."""

    name: str
    passed: bool
    evidence: str
    cause: str = ""
    change: str = ""


@dataclass(frozen=True)
class Taught:
    """How the batch was learned: loss of each step, and the names of parameters that got no gradient."""

    losses: list[float]
    still: list[str]

    @property
    def last(self) -> float:
        """NaN where the loss was lost."""
        return self.losses[-1]


@dataclass
class Batch:
    """A few rows of the first step, on the device."""

    tokens: Tensor
    positions: Tensor
    segments: Segments
    labels: Tensor
    micro: Micro

    @property
    def floor(self) -> float:
        """The least mean loss there can be: beginnings of documents that are the same and go on differently."""
        nexts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        ids, labels = self.tokens.tolist(), self.labels.tolist()
        for a, b in pairwise(self.segments.starts):
            for t in range(a, b):
                if labels[t] != IGNORE:
                    nexts[tuple(ids[a : t + 1])][labels[t]] += 1
        lost = sum(-n * math.log(n / sum(c.values())) for c in nexts.values() for n in c.values())
        return lost / max(1, sum(sum(c.values()) for c in nexts.values()))


def first_batch(loader: Loader, world: World) -> Batch:
    """Rows of step 0 up to `TOKENS` tokens, one at least."""
    from trainer.loop.evaluate import to_device

    rows = max(1, TOKENS // loader.plan.phases[0].seq_len)
    micro = loader.batch(0, micro=rows).micros[0]
    return Batch(*to_device(micro, world.device), micro)


def gates(plan: Plan, loader: Loader, world: World) -> Iterator[Gate]:
    """Every test in turn, the data first; later ones mean little where an earlier one failed."""
    batch = first_batch(loader, world)
    yield _labels(batch)
    model = build(plan, world)
    yield _weights(model)
    yield _first_loss(plan, model, batch)
    yield _mask(plan, model, batch)
    taught = teach(plan, model, batch, plan.schedule.peak_lr)
    yield _gradients(taught)
    yield _learned(plan, batch, taught, world)
    yield _answers(model, batch, taught)


def _labels(batch: Batch) -> Gate:
    shares = label_shares([batch.micro])
    fault = label_fault(shares)
    change = "labels[t] must be input_ids[t + 1], shifted once, by the loader"
    return Gate("labels", fault is None, fault or f"{shares[1]:.1%} of labels are the next token of their document", "labels", change)


def _weights(model: Llama) -> Gate:
    """Deviation of first weights by kind."""
    off = []
    for name, parameter in model.named_parameters():
        if parameter.ndim != 2:
            continue
        deep = name.endswith(("o_proj.weight", "down_proj.weight"))
        wanted = 0.02 / math.sqrt(2 * model.shape.layers) if deep else 0.02
        real = float(_whole(parameter).std())
        if not wanted / INIT_RATIO < real < wanted * INIT_RATIO:
            off.append(f"{name} {real:.3g} instead of {wanted:.3g}")
    said = "; ".join(off[:3]) or "deviations are 0.02, into the residual stream 0.02 / sqrt(2 layers)"
    return Gate("first weights", not off, said, "initialisation", "initialise as `model.fill` does")


def _whole(parameter: Tensor) -> Tensor:
    found = parameter.detach()
    return found.full_tensor() if hasattr(found, "full_tensor") else found


@torch.no_grad()
def _first_loss(plan: Plan, model: Llama, batch: Batch) -> Gate:
    losses = model(batch.tokens, batch.positions, batch.segments, batch.labels)
    after_look(model)
    first, fair = float(losses.sum()) / max(1, int((batch.labels != IGNORE).sum())), math.log(plan.model.vocab_size)
    evidence = f"{first:.3f}, ln({plan.model.vocab_size:,}) = {fair:.3f}"
    change = "too low: the answer leaks into the input; too high: the first weights are too large"
    return Gate("first loss", abs(first - fair) <= FIRST_LOSS, evidence, "initialisation" if first > fair else "leak", change)


@torch.no_grad()
def _mask(plan: Plan, model: Llama, batch: Batch) -> Gate:
    """A token is changed, and who notices is looked at: later tokens of its document, and nobody else."""
    borders = list(pairwise(batch.segments.starts))
    a, b = max(borders, key=lambda one: one[1] - one[0])
    at = (a + b) // 2
    before = model(batch.tokens, batch.positions, batch.segments)
    changed = batch.tokens.clone()
    changed[at] = (changed[at] + 1) % plan.model.vocab_size
    moved = (model(changed, batch.positions, batch.segments) - before).abs().amax(-1)
    after_look(model)
    own = float(moved[at])
    earlier, later = float(moved[a:at].max()) if at > a else 0.0, float(moved[at + 1 : b].max()) if at + 1 < b else own
    others = float(torch.cat([moved[:a], moved[b:]]).max()) if b - a < len(moved) else 0.0
    small = 1e-4 * max(own, 1e-12)
    change = "attention must be causal, and stay inside of documents (`cu_seqlens`)"
    if earlier > small:
        return Gate("mask", False, f"token {at} was changed, and predictions before it moved by {earlier:.2g}: the future leaks", "leak", change)
    if others > small and plan.mask_documents:
        return Gate("mask", False, f"token {at} was changed, and another document moved by {others:.2g}: documents see each other", "leak", change)
    if later <= 0:
        return Gate("mask", False, f"token {at} was changed, and nothing behind it moved: attention sees too little", "mask", change)
    return Gate("mask", True, f"a changed token moves what is behind it (by {later:.2g}), and nothing before it or in other documents")


def teach(plan: Plan, model: Llama, batch: Batch, rate: float) -> Taught:
    """Train on the batch alone until it is known, at most `STEPS` steps."""
    updater = Updater(model, plan.optimizer)
    targets = max(1, int((batch.labels != IGNORE).sum()))
    enough = batch.floor + LEARNED / 3
    losses: list[float] = []
    seen = dict.fromkeys((name for name, _ in model.named_parameters()), False)
    on = torch.ones((), device=batch.tokens.device)
    for step in range(STEPS):
        before_pass(model, plan.shard, True)
        loss = model(batch.tokens, batch.positions, batch.segments, batch.labels).sum() / targets
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]) or losses[-1] < enough:
            break
        loss.backward()
        if step < 3:
            for name, parameter in model.named_parameters():
                seen[name] |= parameter.grad is not None and bool((_whole(parameter.grad) != 0).any())
        norm = updater.norm()
        clip = plan.optimizer.grad_clip
        scale = (clip / (norm + 1e-6)).clamp_max(1.0) if clip else torch.ones_like(norm)
        updater.step(rate * min(1.0, (step + 1) / WARMUP), scale.float(), on)
        updater.zero()
    return Taught(losses, [name for name, any_of_it in seen.items() if not any_of_it])


def _gradients(taught: Taught) -> Gate:
    some = ", ".join(taught.still[:4]) + (" …" if len(taught.still) > 4 else "")
    evidence = f"no gradient reaches {some}" if taught.still else "every parameter gets one"
    return Gate("gradients", not taught.still, evidence, "frozen", "look for requires_grad = False, a detach(), or a module that forward() leaves out")


def _learned(plan: Plan, batch: Batch, taught: Taught, world: World) -> Gate:
    """Whether the batch is known by heart; if not, whether another rate would have done it."""
    floor, first = batch.floor, taught.losses[0]
    peak = plan.schedule.peak_lr

    def known(one: Taught) -> bool:
        return math.isfinite(one.last) and one.last < floor + max(LEARNED, 0.05 * first)

    evidence = f"loss {first:.3f} to {taught.last:.3f} in {len(taught.losses)} steps at {peak:.2g} (least possible {floor:.3f})"
    if known(taught):
        return Gate("one batch by heart", True, evidence)
    for factor, word in ((0.1, "high"), (0.01, "high"), (10.0, "low")):
        other = teach(plan, build(plan, world), batch, peak * factor)
        if known(other):
            change = f"write lr_schedule.peak_lr: {peak * factor:.2g}"
            return Gate("one batch by heart", False, f"{evidence}; at {peak * factor:.2g} to {other.last:.3f} in {len(other.losses)}: the rate is too {word}", f"learning-rate{'-low' if word == 'low' else ''}", change)
    change = "no rate learns it: look at the gates above; else the model is too small, or weight decay and dropout too strong"
    return Gate("one batch by heart", False, f"{evidence}; nor at a tenth, a hundredth, or ten times the rate", "cannot-learn", change)


@torch.no_grad()
def _answers(model: Llama, batch: Batch, taught: Taught) -> Gate:
    """Which place the predictions of the taught model are about: the next token, or another."""
    if not math.isfinite(taught.last):
        return Gate("what it predicts", False, "the loss is not finite", "learning-rate", "lower lr_schedule.peak_lr")
    guess = model(batch.tokens, batch.positions, batch.segments).argmax(-1).cpu().numpy()
    after_look(model)
    shares = _agreement(guess, batch)
    best = max(shares, key=lambda shift: (shares[shift], shift == 1))
    evidence = f"{shares[1]:.1%} of its predictions are the next token" + (f", {shares[best]:.1%} the one {best:+d} places away" if best != 1 else "")
    return Gate("what it predicts", best == 1, evidence, "labels", "the model or the loss shifts labels that the loader has shifted already")


def _agreement(guess_T: np.ndarray, batch: Batch) -> dict[int, float]:
    ids, labels = batch.tokens.cpu().numpy(), batch.labels.cpu().numpy()
    span_T = np.searchsorted(np.array(batch.segments.starts), np.arange(len(ids)), side="right")
    found = {}
    for shift in SHIFTS:
        at = np.arange(max(0, -shift), len(ids) - max(0, shift))
        at = at[(labels[at] != IGNORE) & (span_T[at] == span_T[at + shift])]
        found[shift] = float((guess_T[at] == ids[at + shift]).mean()) if len(at) else 0.0
    return found


def failed(found: Sequence[Gate]) -> list[Gate]:
    """Those that did not pass, in their order."""
    return [gate for gate in found if not gate.passed]
