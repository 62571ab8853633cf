"""Token weights, phases and repeat limits, resolved to whole numbers of sequences before anything runs.

The words and their meaning are in `weights.py`. Repeats count stored tokens, EOS included, over the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stages.contract.interleave import Tree
from stages.contract.names import source_uid
from stages.contract.order import Meter, Stretch
from stages.contract.problem import Problem, SpecError, Where
from stages.contract.tree import Path
from stages.contract.weights import (
    MIX,
    ON_EXHAUST,
    At,
    OnExhaust,
    Phase,
    Request,
    Shape,
    Weight,
    nowhere,
    pieces_of,
    shape_of,
)

__all__ = ["MixedPhase", "Mixture", "OnExhaust", "Phase", "Request", "Use", "Weight", "resolve_mixture"]

#: From here on, more epochs of the same text help clearly less (Muennighoff et al. 2023).
MANY_EPOCHS = 4.0


@dataclass(frozen=True)
class MixedPhase:
    """A phase in whole numbers. `samples` (sequences per source) add up to planned * batch.

    A phase that ends early (`until`) has fewer `steps` than it was `planned` for; `read` says what it reads.
    """

    name: str
    steps: int
    seq_len: int
    batch: int
    mix: dict[str, float]
    samples: dict[str, int]
    lr: float | None = None
    planned: int = 0
    read: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Token positions of the phase."""
        return self.steps * self.batch * self.seq_len

    @property
    def stretch(self) -> Stretch:
        """The phase as the data order sees it, sources in the order of the request."""
        used = None if self.steps == self.planned else self.steps
        return Stretch(self.planned, self.batch, self.seq_len, tuple(self.samples.values()), used)


@dataclass(frozen=True)
class Use:
    """What the run does with one source. Units are windows of the longest sequence length, or packed rows.

    Where phases have rows of several lengths, units are those of the last one.
    """

    tokens: int  # stored
    units: int  # in one epoch
    unused: int  # tokens at the end that fill no unit
    samples: int
    read: int  # positions
    drawn: int  # units, of all epochs
    unit: int  # positions of one
    stored: float  # stored tokens read: positions without pads
    limit: float | None

    @property
    def epochs(self) -> float:
        """How often the source is read; tokens read over stored tokens."""
        return self.stored / self.tokens if self.tokens else 0.0

    @property
    def room(self) -> int | None:
        """How many units may be drawn at most."""
        return None if self.limit is None else math.floor(self.limit * self.units)


@dataclass(frozen=True)
class Mixture:
    """The resolved mixture. `longest` is the unit: the longest sequence length of any phase."""

    phases: tuple[MixedPhase, ...]
    longest: int
    uses: dict[str, Use]
    warnings: tuple[Problem, ...]

    @property
    def tokens(self) -> int:
        """Token positions of the run."""
        return sum(phase.tokens for phase in self.phases)


def resolve_mixture(request: Request, at: At = nowhere) -> Mixture:
    """The mixture in whole numbers.

    `at` gives the place of a value such as `data.phases[1].mix`, for messages. SpecError holds all problems found:
    weights or shares that do not add up, unknown or forgotten sources, and what the repeat limits do not allow.
    """
    shapes = shape_of(request, at)
    mixture = _count(request, shapes)
    problems = _too_small(mixture, at)
    if problems:
        raise SpecError(*problems)
    over = {name for name, use in mixture.uses.items() if use.room is not None and use.drawn > use.room}
    warnings: list[Problem] = []
    if over and request.on_exhaust == "error":
        raise SpecError(*(_exhausted(request, mixture, name, at) for name in mixture.uses if name in over))
    if over and request.on_exhaust == "redistribute":
        mixture, warning = _redistribute(request, mixture, at)
        warnings = [warning]
    elif over:
        shorter = _longest_that_fits(request, mixture)
        if shorter is None:
            raise SpecError(
                *(_exhausted(request, mixture, name, at) for name in mixture.uses if name in over)
            )
        warnings = [_warning(
            f"the run is shortened from {mixture.tokens:,} to {shorter.tokens:,} tokens: "
            f"{', '.join(sorted(over))} would be read more often than allowed", at(ON_EXHAUST))]  # fmt: skip
        mixture = shorter
    return replace(mixture, warnings=(*warnings, *_remarks(mixture, at)))


# ---- from shapes to whole numbers ------------------------------------------------------------------------------


def _count(request: Request, shapes: list[Shape], scale: float = 1.0) -> Mixture:
    """Steps and sequences of the run at `scale` times its length, limits not yet looked at.

    What rounding to whole steps gives or takes goes on to the next phase, so the run as a whole is within half a
    step of what was asked.
    """
    phases: list[MixedPhase] = []
    wanted = 0.0
    done = steps_done = 0
    for i, shape in enumerate(shapes):
        step = shape.batch * shape.seq_len
        for share, mix in pieces_of(shapes, i):
            wanted += shape.tokens * share * scale
            planned = max(0, round((wanted - done) / step))
            steps = planned if shape.until is None else max(0, min(planned, shape.until - steps_done))
            if steps:
                done, steps_done = done + steps * step, steps_done + steps
                phases.append(_phase(shape, planned, steps, mix))
    if not phases:  # less than half a step in all
        phases = [_phase(shapes[-1], 1, 1, shapes[-1].mix)]
    return _mixture(request, phases, max(shape.seq_len for shape in shapes))


def _phase(shape: Shape, planned: int, steps: int, mix: dict[str, float]) -> MixedPhase:
    samples = _quotas(mix, planned * shape.batch)
    phase = MixedPhase(shape.name, steps, shape.seq_len, shape.batch, mix, samples, shape.lr, planned)
    return replace(phase, read=_read(phase))


def _read(phase: MixedPhase) -> dict[str, int]:
    """The sequences of each source that the phase reads."""
    if phase.steps == phase.planned:
        return phase.samples
    counts = _tree(phase).counts(phase.steps * phase.batch)
    return dict(zip(phase.samples, counts.tolist(), strict=True))


def _tree(phase: MixedPhase) -> Tree:
    uids = [source_uid(name) for name in phase.samples]
    rank = {uid: i for i, uid in enumerate(sorted(uids))}
    return Tree(list(phase.samples.values()), [rank[uid] for uid in uids])


def _quotas(mix: Mapping[str, float], slots: int) -> dict[str, int]:
    """Whole numbers in the ratio of the weights that add up to `slots` (largest remainders, ties by order)."""
    total = sum(mix.values())
    exact = {name: weight / total * slots for name, weight in mix.items()}
    whole = {name: math.floor(share) for name, share in exact.items()}
    missing = slots - sum(whole.values())
    by_rest = sorted((name for name in mix if mix[name] > 0), key=lambda name: whole[name] - exact[name])
    for name in by_rest[: max(0, missing)]:
        whole[name] += 1
    for name in [name for name in reversed(by_rest) if whole[name] > 0][: max(0, -missing)]:
        whole[name] -= 1
    return whole


def _units(request: Request, longest: int, seq_len: int) -> np.ndarray:
    """Units of an epoch of each source in a phase of this length, int64 (S,)."""
    if request.rows is None:
        return np.array([tokens // longest for tokens in request.sources.values()], np.int64)
    return np.array([request.rows[name].get(seq_len, 0) for name in request.sources], np.int64)


def _take(request: Request, meter: Meter, phase: MixedPhase, longest: int) -> None:
    """Reads a phase, so that the meter stands at its end."""
    meter.begin(_units(request, longest, phase.seq_len))
    early = phase.steps < phase.planned
    ratio = 1 if request.rows is not None else longest // phase.seq_len
    meter.read(phase.stretch, ratio, _tree(phase) if early else None)


def _mixture(request: Request, phases: Sequence[MixedPhase], longest: int) -> Mixture:
    meter = Meter(len(request.sources))
    for phase in phases:
        _take(request, meter, phase, longest)
    if request.rows is None:
        meter.begin(_units(request, longest, longest))
    uses = {}
    for i, (name, tokens) in enumerate(request.sources.items()):
        units = int(meter.units_S[i])
        rows = request.rows[name] if request.rows is not None else {}
        stored = sum(
            phase.read[name] * (tokens / rows.get(phase.seq_len, 1) if rows else phase.seq_len) for phase in phases
        )
        last = next((phase.seq_len for phase in reversed(phases) if phase.read[name]), phases[-1].seq_len)
        uses[name] = Use(
            tokens=tokens,
            units=units,
            unused=0 if request.rows is not None else tokens - units * longest,
            samples=sum(phase.read[name] for phase in phases),
            read=sum(phase.read[name] * phase.seq_len for phase in phases),
            drawn=int(meter.end_S[i]),
            unit=longest if request.rows is None else last,
            stored=stored,
            limit=request.limit_of(name),
        )
    return Mixture(tuple(phases), longest, uses, ())


# ---- what the limits say ---------------------------------------------------------------------------------------


def _too_small(mixture: Mixture, at: At) -> list[Problem]:
    """Sources that are asked for sequences but do not hold a single one."""
    found = []
    for name, use in mixture.uses.items():
        if use.samples and not use.units:
            repairs = [f"write {name}: 0 to leave it out"]
            if use.tokens >= 2:
                repairs.insert(0, f"lower the sequence length to {1 << (use.tokens.bit_length() - 1):_}")
            found.append(
                Problem("M001", f"{name} has {use.tokens:,} tokens, which is less than one sequence of "
                                f"{use.unit:,}", at(MIX), tuple(repairs))
            )  # fmt: skip
    return found


def _fits(mixture: Mixture) -> bool:
    return all(use.room is None or use.drawn <= use.room for use in mixture.uses.values())


def _longest_that_fits(request: Request, mixture: Mixture) -> Mixture | None:
    """The longest run with the same phases that keeps to the limits; None if not even one step does."""
    shapes = shape_of(request, nowhere)
    steps = sum(phase.steps for phase in mixture.phases)
    low, high = 0, steps  # `low` fits or is 0, `high` does not fit
    best = None
    while high - low > 1:
        middle = (low + high) // 2
        shorter = _count(request, shapes, middle / steps)
        if _fits(shorter):
            low, best = middle, shorter
        else:
            high = middle
    return best


def _exhausted(request: Request, mixture: Mixture, name: str, at: At) -> Problem:
    """M001 with what would make it right, computed: limit, tokens of the run, weight."""
    use = mixture.uses[name]
    assert use.room is not None
    most = min(use.room * use.unit, round((use.limit or 0) * use.tokens))
    held = f"it has {use.tokens:,} and may be read {use.limit or 0:g} times ({most:,})"
    path: Path = ("data", "repeat_limits", name) if name in request.limits else ("data", "repeat_limit")
    needed = math.ceil(use.drawn / use.units * 100) / 100
    while math.floor(needed * use.units) < use.drawn:
        needed += 0.01
    repairs = [f"raise data.repeat_limits.{name} to {needed:.2f}"]
    shorter = _longest_that_fits(request, mixture)
    if shorter is not None:
        repairs.append(f"lower data.total_tokens to {shorter.tokens:_}")
    repairs += _lower_weight(mixture, name)
    repairs.append("write data.on_exhaust: redistribute, and the other sources take the rest")
    return Problem("M001", f"{name} cannot give {use.read:,} tokens: {held}", at(path), tuple(repairs))


def _lower_weight(mixture: Mixture, name: str) -> list[str]:
    """The weight at which the source would last, in the phase that asks most of it."""
    use = mixture.uses[name]
    assert use.room is not None
    phase = max(mixture.phases, key=lambda one: one.read[name] * one.seq_len)
    here = sum(one.tokens for one in mixture.phases if one.name == phase.name)
    too_many = (use.drawn - use.room) * use.unit
    weight = math.floor((phase.mix[name] - too_many / here) * 1000) / 1000
    if weight <= 0:
        return []
    return [f"lower its weight in phase {phase.name} from {phase.mix[name]:.4g} to {weight:.3f}"]


def _redistribute(request: Request, mixture: Mixture, at: At) -> tuple[Mixture, Problem]:
    """Each source stops at its limit; from there on the others of the phase take its place, by weight."""
    meter = Meter(len(request.sources))
    phases = []
    for phase in mixture.phases:
        meter.begin(_units(request, mixture.longest, phase.seq_len))
        ratio = 1 if request.rows is not None else mixture.longest // phase.seq_len
        room: dict[str, int | None] = {}
        for i, name in enumerate(request.sources):
            limit = request.limit_of(name)
            left = None if limit is None else math.floor(limit * int(meter.units_S[i])) - int(meter.end_S[i])
            room[name] = None if left is None else max(0, left) * ratio
        samples = _fill(phase, room)
        if samples is None:
            raise SpecError(
                Problem("M001", f"in phase {phase.name} no source is left that may be read again",
                        at(ON_EXHAUST), ("raise data.repeat_limit", "lower data.total_tokens"))
            )  # fmt: skip
        phase = replace(phase, samples=samples)
        phase = replace(phase, read=_read(phase))
        _take(request, meter, phase, mixture.longest)
        phases.append(phase)
    changed = _mixture(request, phases, mixture.longest)
    moves = [
        f"{name} {mixture.uses[name].read / mixture.tokens:.2%} -> {use.read / changed.tokens:.2%}"
        for name, use in changed.uses.items()
        if use.read != mixture.uses[name].read
    ]
    message = f"repeat limits move the mixture of the run: {', '.join(moves)}"
    return changed, _warning(message, at(ON_EXHAUST))


def _fill(phase: MixedPhase, room: Mapping[str, int | None]) -> dict[str, int] | None:
    """Sequences per source, none above its room; None when all together have too little."""
    fixed: dict[str, int] = {}
    while True:
        open_mix = {name: weight for name, weight in phase.mix.items() if name not in fixed and weight > 0}
        slots = phase.planned * phase.batch - sum(fixed.values())
        if not open_mix:
            return {name: fixed.get(name, 0) for name in phase.mix} if slots == 0 else None
        samples = _quotas(open_mix, slots)
        over = {
            name: limit for name in samples if (limit := room[name]) is not None and samples[name] > limit
        }
        if not over:
            return {name: fixed.get(name, samples.get(name, 0)) for name in phase.mix}
        fixed.update(over)


def _remarks(mixture: Mixture, at: At) -> list[Problem]:
    """What works but should be known: sources that are asked for and get nothing, and many epochs."""
    found = []
    for name, use in mixture.uses.items():
        weight = max(phase.mix[name] for phase in mixture.phases)
        if weight > 0 and use.samples == 0:
            found.append(_warning(f"{name} gets no sequence at all: its weight of {weight:g} is less than one of "
                                  f"{sum(phase.steps * phase.batch for phase in mixture.phases):,}", at(MIX)))  # fmt: skip
        if round(use.epochs, 1) > MANY_EPOCHS and use.limit is None:
            found.append(_warning(f"{name} is read {use.epochs:.2f} times; beyond {MANY_EPOCHS:g} the same text helps "
                                  "clearly less", at(MIX),
                                  (f"write data.repeat_limits.{name}: {math.ceil(use.epochs)} to say that it is meant",)))  # fmt: skip
    return found


def _warning(message: str, where: Where | None, repairs: tuple[str, ...] = ()) -> Problem:
    return Problem("W001", message, where, repairs, severity="warning")
