"""A plan that is edited while its run goes on: what was read stays what it was, what comes follows the edit.

Stretches of the data order that are done are kept, the one that the edit falls into is cut at the step it stands at,
and behind the cut follows what the edited plan asks for from the same number of tokens on. The chain of the order up to
the cut does not change by this, so a checkpoint still proves that it belongs to the run. The same cut lets the guard
pass over steps of the data that a run goes back from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import accumulate

from stages.contract.interleave import Tree
from stages.contract.order import Order, Source, Stretch
from trainer.checkpoint.records import History, State, Stretched
from trainer.loop.schedule import rate, rate_at
from trainer.planned import PhasePlan, Plan, SchedulePlan

Ranges = tuple[tuple[int, int], ...]


def stretched(plan: Plan) -> list[Stretched]:
    """The stretches of a plan with name, mix and rate of their phases."""
    phases = {piece.stretch: phase for piece, phase in zip(plan.order.pieces, plan.phases, strict=True)}
    found = []
    for i, stretch in enumerate(plan.stretches):
        samples = {s.uid: n for s, n in zip(plan.sources, stretch.samples, strict=True) if n}
        phase = phases.get(i)  # none where all its steps are skipped
        mix = dict(phase.mix) if phase else {}
        found.append(
            Stretched(
                name=phase.name if phase else "skipped", steps=stretch.steps, batch=stretch.batch,
                seq_len=stretch.seq_len, samples=samples, used=stretch.used, mix=mix,
                lr_factor=phase.lr_factor if phase else 1.0,
            )
        )  # fmt: skip
    return found


def history(plan: Plan, asked: Sequence[Stretched], step: int) -> History:
    """What a checkpoint of `step` says about the order of `plan`, which plan.yaml `asked` for."""
    return History(
        asked=list(asked),
        followed=stretched(plan),
        skip=[list(one) for one in plan.skip],
        data_step=0 if step == 0 else plan.order.data_step(step - 1) + 1,
        schedule=asdict(plan.schedule),
    )


def merged(*ranges: Iterable[Sequence[int]]) -> Ranges:
    """All these ranges [a, b), sorted, those that touch or overlap made one."""
    found: list[list[int]] = []
    for a, b in sorted((one[0], one[1]) for some in ranges for one in some):
        if found and a <= found[-1][1]:
            found[-1][1] = max(found[-1][1], b)
        else:
            found.append([a, b])
    return tuple((a, b) for a, b in found)


def clipped(ranges: Iterable[Sequence[int]], low: int, high: int) -> Ranges:
    """The part of the ranges inside [low, high)."""
    inside = ((max(a, low), min(b, high)) for a, b in ranges)
    return tuple((a, b) for a, b in inside if a < b)


def rebuilt(plan: Plan, stretches: Sequence[Stretched], skip: Ranges) -> Plan:
    """`plan` with these stretches and skipped steps. ValueError when they cannot be an order over its sources."""
    made = tuple(
        Stretch(one.steps, one.batch, one.seq_len, tuple(one.samples.get(s.uid, 0) for s in plan.sources), one.used)
        for one in stretches
    )
    sources = [Source(s.uid, s.digest, s.units, plan.rows.get(s.name, {})) for s in plan.sources]
    order = Order(plan.data_seed, plan.model.seq_len, sources, made, skip)
    first = list(accumulate((stretch.length for stretch in made), initial=0))
    tokens = list(accumulate((s.length * s.batch * s.seq_len for s in made), initial=0))
    phases = []
    for piece in order.pieces:
        one = stretches[piece.stretch]
        before = tokens[piece.stretch] + (piece.data - first[piece.stretch]) * one.batch * one.seq_len
        phases.append(
            PhasePlan(one.name, piece.first, piece.steps, before, one.seq_len, one.batch, one.mix, one.lr_factor)
        )
    return _counted(replace(plan, phases=tuple(phases), stretches=made, skip=skip))


def jumping(plan: Plan, ranges: Iterable[Sequence[int]]) -> Plan:
    """`plan` passing over these data steps too."""
    return rebuilt(plan, stretched(plan), merged(plan.skip, ranges))


def following(plan: Plan, past: History, state: State) -> Plan:
    """`plan` as it goes on from a checkpoint: the order so far, then what it asks for.

    Comes back as it is (with the steps that the guard passes over) where it cannot go on from there: its chain then
    differs from that of the checkpoint.
    """
    asked, here = stretched(plan), past.data_step
    skip = merged(clipped(plan.skip, 0, plan.order.data_steps), state.jumped)
    if clipped(skip, 0, here) != clipped(past.skip, 0, here):
        return plan
    begun = _begun(past.followed, here)
    try:
        if _keys(asked) == _keys(past.asked) == _keys(past.followed) and skip == plan.skip:
            return plan
        if _keys(asked) == _keys(past.asked):
            return rebuilt(plan, _rates_of(past.followed, asked), skip)
        if _keys(asked[:begun]) == _keys(past.followed[:begun]):
            return rebuilt(plan, asked, skip)
        done, tokens = _cut(past.followed, here)
        whole = _whole_before(past.asked, tokens)
        if _keys(asked[:whole]) != _keys(past.asked[:whole]):
            return rebuilt(plan, asked, skip)
        return rebuilt(plan, [*done, *_behind(asked, tokens)], skip)
    except ValueError:  # a source is gone, say
        return plan


def moves(plan: Plan, past: History, step: int) -> str | None:
    """How an edit moves the learning rate of the next step, and the length of the run; None where it does not."""
    if step >= plan.steps:
        return None
    old_schedule = SchedulePlan(**past.schedule)  # type: ignore[arg-type]
    factor = plan.phase_at(step).lr_factor
    old, new = rate(old_schedule, plan.tokens_at(step + 1)) * factor, rate_at(plan, step)
    said = []
    if old_schedule.total_tokens != plan.schedule.total_tokens:
        said.append(
            f"the run has {plan.schedule.total_tokens:,} tokens (before: {old_schedule.total_tokens:,}), {plan.steps:,} steps"
        )
    if old != new:
        change = f"{new / old - 1:+.1%}" if old else "from 0"
        said.append(f"the learning rate of step {step + 1:,} moves from {old:.4g} to {new:.4g} ({change})")
    return "; ".join(said) or None


def _keys(stretches: Sequence[Stretched]) -> list[tuple]:
    """What of them decides the order."""
    return [(s.steps, s.batch, s.seq_len, sorted(s.samples.items()), s.used) for s in stretches]


def _length(one: Stretched) -> int:
    return one.steps if one.used is None else one.used


def _begun(stretches: Sequence[Stretched], data_step: int) -> int:
    """How many of them have begun before a data step."""
    firsts = accumulate((_length(one) for one in stretches[:-1]), initial=0)
    return sum(first < data_step for first in firsts)


def _cut(stretches: Sequence[Stretched], data_step: int) -> tuple[list[Stretched], int]:
    """`(the stretches up to a data step, their positions)`; the last one ends there."""
    found, tokens, left = [], 0, data_step
    for one in stretches:
        if left <= 0:
            break
        length = min(left, _length(one))
        found.append(one if length == _length(one) else one.model_copy(update={"used": length}))
        tokens, left = tokens + length * one.batch * one.seq_len, left - length
    return found, tokens


def _whole_before(stretches: Sequence[Stretched], tokens: int) -> int:
    """How many of them are over after so many positions; the last one never is: it may be made longer."""
    ends = accumulate(_length(one) * one.batch * one.seq_len for one in stretches[:-1])
    return sum(end <= tokens for end in ends)


def _behind(stretches: Sequence[Stretched], tokens: int) -> list[Stretched]:
    """What of them lies behind so many positions, in whole steps."""
    found = []
    for one in stretches:
        step = one.batch * one.seq_len
        if (whole := _length(one) * step) <= tokens:
            tokens -= whole
            continue
        if not tokens:
            found.append(one)
            continue
        steps, tokens = round((whole - tokens) / step), 0
        if steps:
            samples = _shared(one.samples, steps * one.batch)
            found.append(one.model_copy(update={"steps": steps, "samples": samples, "used": None}))
    return found


def _shared(weights: dict[str, int], slots: int) -> dict[str, int]:
    """`slots` in the ratio of the weights, whole numbers by largest remainder, ties by name."""
    total = sum(weights.values())
    whole = {name: weight * slots // total for name, weight in weights.items()}
    rest = sorted(weights, key=lambda name: (-(weights[name] * slots % total), name))
    for name in rest[: slots - sum(whole.values())]:
        whole[name] += 1
    return {name: n for name, n in whole.items() if n}


def _rates_of(followed: Sequence[Stretched], asked: Sequence[Stretched]) -> list[Stretched]:
    """`followed` with the rates of `asked`, matched from the end: what was cut is behind."""
    found = list(followed)
    for i in range(1, min(len(found), len(asked)) + 1):
        if found[-i].name != asked[-i].name:
            break
        found[-i] = found[-i].model_copy(update={"lr_factor": asked[-i].lr_factor})
    return found


def _counted(plan: Plan) -> Plan:
    """The plan with the sequences that its stretches read of each source, for the table."""
    ranks = {uid: i for i, uid in enumerate(sorted(s.uid for s in plan.sources))}
    samples = [0] * len(plan.sources)
    read = [0] * len(plan.sources)
    for stretch in plan.stretches:
        counts = list(stretch.samples)
        if stretch.used is not None:
            tree = Tree(list(stretch.samples), [ranks[s.uid] for s in plan.sources])
            counts = tree.counts(stretch.used * stretch.batch).tolist()
        samples = [a + b for a, b in zip(samples, counts, strict=True)]
        read = [a + b * stretch.seq_len for a, b in zip(read, counts, strict=True)]
    sources = tuple(
        replace(s, samples=n, read=r, epochs=r / s.tokens if s.tokens else 0.0)
        for s, n, r in zip(plan.sources, samples, read, strict=True)
    )
    return replace(plan, sources=sources)
