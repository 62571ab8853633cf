"""The words of a mixture: weights, phases, shares. Read here, checked against the sources there are.

The unit of a weight is the position: web 0.7 means that 70 % of the token positions of the phase come from web.
Weights of a mix are shares that add up to 1 (half a percent is rounding and is divided away), or, when all that
are not 0 are at least 1 and do not add up to 1, amounts such as `98B`. `web` in a mix means all its quality tiers
`web.0`, `web.1` …, by their tokens.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from stages.contract.config import Count, Model, Share
from stages.contract.problem import Problem, SpecError, Where
from stages.contract.scalars import read_count, read_share
from stages.contract.tree import Path, path_text

OnExhaust = Literal["error", "redistribute", "shorten"]

#: How far weights or shares may be from adding up to 1 before it is a mistake and not rounding.
ROUNDING = 0.005

#: A ramp becomes this many phases at most: finer steps move a weight by less than a batch can show.
RAMP_PIECES = 32


def _read_weight(value: Any) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        return read_share(value)
    try:
        return float(read_count(value))
    except ValueError:
        return read_share(value)


Weight = Annotated[
    float,
    BeforeValidator(_read_weight),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
            "description": "A share of token positions (0.7 or 70%), or an amount of tokens (98B).",
        }
    ),
]


class Phase(Model):
    """One phase of a curriculum, as corpus.yaml, plan.yaml and the manifest write it."""

    name: Annotated[str, Field(description="Shown in logs.", min_length=1)]
    share: Annotated[Share | None, Field(description="Share of the tokens of the run.")] = None
    tokens: Annotated[
        Count | None, Field(description="Token positions of the phase, instead of a share.")
    ] = None
    mix: Annotated[
        dict[str, Weight] | None,
        Field(description="Weight of each source, in token positions; left out: `mix`."),
    ] = None
    ramp: Annotated[
        Share, Field(description="Share of the phase over which the mix moves from that of the phase before.")
    ] = 0.0
    seq_len: Annotated[Count | None, Field(description="Sequence length in this phase.", gt=0)] = None
    global_tokens: Annotated[Count | None, Field(description="Token positions of one step.", gt=0)] = None
    lr: Annotated[
        float | None,
        Field(description="Peak learning rate in this phase: the schedule is scaled to it.", gt=0),
    ] = None
    until: Annotated[
        Count | None,
        Field(
            description="End the phase at this step of the run, before its planned end; what it leaves over goes to "
            "the phase behind it. For a change of the mixture during a run.",
            gt=0,
        ),
    ] = None


@dataclass(frozen=True)
class Request:
    """What is asked for.

    sources        stored tokens of each source there is, in manifest order
    rows           rows of each source by length, when packed rows are read
    total_tokens   positions of the run; None when every phase states its tokens
    seq_len, global_tokens   of phases that state none of their own
    mix            of phases that state none; with phases that do, it is checked against their average
    limit, limits  how often a source may be read, for all and for single ones; None is no limit
    """

    sources: Mapping[str, int]
    seq_len: int
    global_tokens: int
    total_tokens: int | None = None
    mix: Mapping[str, float] | None = None
    phases: Sequence[Phase] = ()
    limit: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    on_exhaust: OnExhaust = "error"
    mix_is_default: bool = False  # `mix` comes from the manifest: no check against the phases
    rows: Mapping[str, Mapping[int, int]] | None = None  # packed rows of each length; None: windows are read

    def limit_of(self, source: str) -> float | None:
        """How often the source may be read; None is no limit. A limit on `web` holds for each bucket of it."""
        for name in (source, source.rpartition(".")[0]):
            if name in self.limits:
                return self.limits[name]
        return self.limit


#: The place of a value of plan.yaml, by its path.
At = Callable[[Path], Where | None]

MIX: Path = ("data", "mix")
PHASES: Path = ("data", "phases")
ON_EXHAUST: Path = ("data", "on_exhaust")


def nowhere(_path: Path) -> None:
    """No place: for values that stand in no file."""
    return


@dataclass(frozen=True)
class Shape:
    """A phase before its length in steps is known; `tokens` is exact, in positions."""

    name: str
    tokens: float
    seq_len: int
    batch: int
    mix: dict[str, float]
    ramp: float
    lr: float | None
    until: int | None = None


def shape_of(request: Request, at: At) -> list[Shape]:
    """The phases with checked weights, tokens and batches. SpecError holds all problems found."""
    problems: list[Problem] = []
    phases = list(request.phases) or [Phase(name="train", share=1.0)]
    tokens = _phase_tokens(request, phases, at, problems)
    overall = None if request.mix is None else _weights(request.mix, request.sources, MIX, at, problems)
    shapes: list[Shape] = []
    for i, (phase, amount) in enumerate(zip(phases, tokens, strict=True)):
        path = (*PHASES, i)
        mix = overall
        if phase.mix is not None:
            mix = _weights(phase.mix, request.sources, (*path, "mix"), at, problems)
        elif mix is None:
            problems.append(
                Problem("P002", f"phase {phase.name} has no mix, and there is no data.mix", at(path))
            )
        if phase.ramp and i == 0:
            problems.append(
                Problem(
                    "C017", f"phase {phase.name} cannot ramp: no phase comes before it", at((*path, "ramp"))
                )
            )
        seq_len = phase.seq_len or request.seq_len
        batch = max(1, round((phase.global_tokens or request.global_tokens) / seq_len))
        shapes.append(Shape(phase.name, amount, seq_len, batch, mix or {}, phase.ramp, phase.lr, phase.until))
    longest = max(shape.seq_len for shape in shapes)
    for i, shape in enumerate(shapes):
        if request.rows is None and longest % shape.seq_len:
            problems.append(
                Problem("C005", f"phase {shape.name} has sequences of {shape.seq_len:,}, which do not divide the "
                                f"longest, {longest:,}", at((*PHASES, i, "seq_len")),
                        tuple(f"write {longest // n:_}" for n in _near_divisors(longest, shape.seq_len)))
            )  # fmt: skip
    problems += _forgotten(request, at)
    problems += _not_packed(request, shapes, at)
    if overall is not None and request.phases and not request.mix_is_default and not problems:
        problems += _average(overall, shapes, at)
    if problems:
        raise SpecError(*problems)
    return shapes


def _not_packed(request: Request, shapes: list[Shape], at: At) -> list[Problem]:
    """Lengths of phases that sources with a weight there have no rows of."""
    found: list[Problem] = []
    rows = request.rows
    if rows is None:
        return found
    for length in dict.fromkeys(shape.seq_len for shape in shapes):
        read = {name for shape in shapes if shape.seq_len == length for name, w in shape.mix.items() if w}
        lacking = [name for name in request.sources if name in read and length not in rows[name]]
        if lacking:
            there = sorted({one for name in lacking for one in rows[name]})
            has = f"only of {', '.join(f'{one:,}' for one in there)}" if there else "of no length"
            found.append(
                Problem("P002", f"data.packing is best-fit, but {', '.join(lacking)} have no rows of {length:,}, {has}",
                        at(("data", "packing")),
                        (f"run pipeline pack MANIFEST --length {length}", "write data.packing: concat"))
            )  # fmt: skip
    return found


def _near_divisors(longest: int, seq_len: int) -> list[int]:
    low = longest // seq_len
    return [n for n in (low, low + 1) if longest % n == 0]


def _phase_tokens(request: Request, phases: list[Phase], at: At, problems: list[Problem]) -> list[float]:
    """Positions of each phase. One phase may leave its size out: it gets what the others leave."""
    total = request.total_tokens
    for i, phase in enumerate(phases):
        if phase.share is not None and phase.tokens is not None:
            problems.append(
                Problem("C017", f"phase {phase.name} has both a share and tokens", at((*PHASES, i, "tokens")))
            )
    # What a phase with `until` leaves over goes to the one behind it, which then may state no size.
    heirs = {i for i, phase in enumerate(phases) if i and phases[i - 1].until is not None}
    sizeless = [i for i, phase in enumerate(phases) if phase.share is None and phase.tokens is None]
    open_phases = [i for i in sizeless if i not in heirs]
    if total is None and (open_phases or any(p.tokens is None for i, p in enumerate(phases) if i not in heirs)):
        problems.append(
            Problem("P002", "data.total_tokens is missing, and not every phase states its tokens", at(PHASES))
        )
        return [0.0] * len(phases)
    total = total if total is not None else sum(phase.tokens or 0 for phase in phases)
    amounts = [
        float(phase.tokens) if phase.tokens is not None else (phase.share or 0.0) * total for phase in phases
    ]
    if len(open_phases) > 1:
        names = ", ".join(phases[i].name for i in open_phases)
        problems.append(Problem("P002", f"phases {names} state neither a share nor tokens", at(PHASES)))
        return [0.0] * len(phases)
    if open_phases:
        amounts[open_phases[0]] = max(0.0, total - sum(amounts))
    found = sum(amounts)
    if abs(found - total) > ROUNDING * total:
        shown = " + ".join(f"{amount / total:.4g}" for amount in amounts)
        problems.append(
            Problem("C007", f"the phases hold {found / total:.4g} of the run, not 1: {shown}", at(PHASES))
        )
        return [0.0] * len(phases)
    return [amount * total / found for amount in amounts]


def _weights(
    mix: Mapping[str, float], sources: Mapping[str, int], path: Path, at: At, problems: list[Problem]
) -> dict[str, float]:
    """Weights that add up to 1, one for every source of the manifest, buckets expanded by their tokens."""
    given = sum(mix.values())
    amounts = all(weight == 0 or weight >= 1 for weight in mix.values()) and given >= 1
    if not amounts and abs(given - 1) > ROUNDING:
        shown = " + ".join(f"{weight:g}" for weight in mix.values())
        scaled = ", ".join(f"{name}: {weight / given:.4g}" for name, weight in mix.items()) if given else ""
        problems.append(
            Problem("C007", f"weights in {path_text(path)} add up to {given:.6g}, not 1: {shown}", at(path),
                    (f"scaled to 1: {{{scaled}}}",) if scaled else ())
        )  # fmt: skip
        return {}
    weights = dict.fromkeys(sources, 0.0)
    for name, weight in mix.items():
        members = [name] if name in sources else buckets(name, sources)
        held = sum(sources[member] for member in members)
        if not members:
            near = difflib.get_close_matches(name, sources, 1)
            repairs = (*(f"did you mean `{one}`?" for one in near), f"sources: {', '.join(sources)}")
            message = f"{path_text(path)} names `{name}`, which is not in the manifest"
            problems.append(Problem("M003", message, at((*path, name)), repairs))
        for member in members:
            part = 1.0 if len(members) == 1 else sources[member] / held if held else 0.0
            weights[member] += weight / given * part
    return weights


def buckets(name: str, sources: Mapping[str, int]) -> list[str]:
    """The sources that are quality tiers of `name`: `web.0`, `web.1` … for `web`."""
    return [one for one in sources if one.rpartition(".")[0] == name and one.rpartition(".")[2].isdecimal()]


def _forgotten(request: Request, at: At) -> list[Problem]:
    """Sources that no mix names. A weight of 0 is written, never assumed."""
    mixes: list[Mapping[str, float]] = [phase.mix for phase in request.phases if phase.mix is not None]
    if request.mix is not None:
        mixes.append(request.mix)
    named = {name for mix in mixes for name in mix}
    path = MIX if request.mix is not None else PHASES
    return [
        Problem("C018", f"source {name} was built ({tokens:,} tokens) but has no weight", at(path),
                (f"write {name}: 0 to leave it out",))
        for name, tokens in request.sources.items()
        if name not in named and name.rpartition(".")[0] not in named
    ] if mixes else []  # fmt: skip


def _average(asked: Mapping[str, float], shapes: list[Shape], at: At) -> list[Problem]:
    """Where data.mix and the average of the phases differ by more than half a point."""
    pieces = [
        (shapes[i].tokens * share, mix) for i in range(len(shapes)) for share, mix in pieces_of(shapes, i)
    ]
    total = sum(tokens for tokens, _ in pieces)
    real = {name: sum(tokens * mix[name] for tokens, mix in pieces) / total for name in asked}
    return [
        Problem("M002", f"data.mix gives {name} {asked[name]:.2%}, but the phases average to {real[name]:.2%}",
                at(MIX), (f"write {name}: {real[name]:.4f}", "leave data.mix out: the phases say it all"))
        for name in asked
        if abs(asked[name] - real[name]) > 0.005 + 1e-9
    ]  # fmt: skip


def pieces_of(shapes: list[Shape], i: int) -> list[tuple[float, dict[str, float]]]:
    """The phase as (share of it, mix): a ramp in pieces, each with the mix of its middle, then the rest."""
    shape = shapes[i]
    if not shape.ramp or i == 0:
        return [(1.0, shape.mix)]
    before, after = shapes[i - 1].mix, shape.mix
    steps = shape.tokens * shape.ramp / (shape.batch * shape.seq_len)
    count = max(1, min(RAMP_PIECES, math.floor(steps)))
    pieces = []
    for k in range(count):
        done = (k + 0.5) / count
        mix = {name: before[name] * (1 - done) + after[name] * done for name in after}
        pieces.append((shape.ramp / count, mix))
    return [*pieces, (1.0 - shape.ramp, after)] if shape.ramp < 1 else pieces
