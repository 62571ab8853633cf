"""The plan as a system of equations: plan.yaml solved against the real corpus, before anything runs.

`study` works everything out and tells what does not fit; `resolve` is the same for a run, which needs a plan without
contradictions. Tokens, steps and shape come first (`equations.py`, `rules.py`), then the mixture in whole numbers, then
what follows from both: rates, time, memory, checkpoints. The result is the `Plan` of `planned.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stages.contract.config import Loaded
from stages.contract.manifest import Manifest, SourceEntry
from stages.contract.mixture import Mixture, Phase, Request, resolve_mixture
from stages.contract.problem import Problem, SpecError, in_order
from trainer.config import Compute, PlanConfig
from trainer.edits import check_skip, read_tombstones
from trainer.planned import (
    CheckpointPlan,
    MonitoringPlan,
    Note,
    OptimizerPlan,
    PhasePlan,
    Plan,
    SchedulePlan,
    SourcePlan,
)
from trainer.planning import budget, checks, corpus, suggest
from trainer.planning.assemble import assemble
from trainer.planning.contradictions import contradiction
from trainer.planning.draft import Draft, Machine, merged
from trainer.planning.equations import EQUATIONS, FIELDS, RUN
from trainer.planning.figures import shown
from trainer.planning.rules import FIRST, RULES, setting_of
from trainer.planning.solver import Number, Value, Values, solve
from trainer.shape import ModelShape

__all__ = [
    "CheckpointPlan", "Machine", "ModelShape", "MonitoringPlan", "Note", "OptimizerPlan", "PhasePlan", "Plan",
    "SchedulePlan", "SourcePlan", "Study", "resolve", "study",
]  # fmt: skip

#: Equations that decide the data order: devices, a step, the run, tokens for each parameter.
FIRST_EQUATIONS = EQUATIONS[:4]

#: Checks that need a corpus, by what they would say.
OF_A_CORPUS = (
    "tokens of each source", "repeat limits", "what is read out first", "sequences of each source in a step",
    "holdout", "vocabulary", "document lengths", "packing",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A plan worked out as far as it goes.

    plan      None where something contradicts
    notes     every value with its origin
    skipped   checks that were left out, as there is no corpus
    """

    draft: Draft
    values: Values
    plan: Plan | None
    notes: tuple[Note, ...]
    problems: tuple[Problem, ...]
    skipped: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether something contradicts, so that nothing could run."""
        return any(problem.severity == "error" for problem in self.problems)


def resolve(loaded: Loaded[PlanConfig] | None, manifests: Sequence[Manifest], machine: Machine) -> Plan:
    """The plan that `fit` runs. SpecError holds every contradiction found, each with usable repairs.

    Pure: the same plan.yaml and manifests give the same data order on every machine.
    """
    found = study(loaded, manifests, machine)
    if found.plan is None:
        raise SpecError(*found.problems)
    return found.plan


def study(loaded: Loaded[PlanConfig] | None, manifests: Sequence[Manifest], machine: Machine) -> Study:
    """The plan and all that is wrong with it. Without a manifest what needs a corpus is left out and named.

    SpecError only where manifests cannot be read together.
    """
    config = loaded.value if loaded else PlanConfig()
    draft = Draft(config, machine, loaded, merged(manifests), manifests)
    _read_mixture(draft)
    values = begin(draft)
    solve(values, FIRST, FIRST_EQUATIONS)
    again = _again(draft)
    draft.problems += [contradiction(draft, values, broken, again) for broken in values.conflicts]
    request = _request(draft, values)
    mixture = _mix(draft, request)
    tombstones = read_tombstones(draft)
    known_before = set(values.conflicts)
    if mixture is not None:
        _count(draft, values, mixture)
        check_skip(draft, mixture)
        checks.check_phases(draft, mixture)
    solve(values, RULES)
    new = [broken for broken in values.conflicts if broken not in known_before and broken is not RUN]
    draft.problems += [contradiction(draft, values, broken, again) for broken in new]
    checks.all_of(draft, values)
    if mixture is not None:
        checks.check_stages(draft, values, mixture)
    corpus.note_training(draft, values)
    suggest.note_suggestions(draft, values)
    if mixture is not None and manifests and values.shape is not None:
        corpus.note_corpus(draft, values, mixture)
    budget.note_memory(draft, values)
    compute = _compute(draft, values)
    plan = None
    if mixture is not None and not any(problem.severity == "error" for problem in draft.problems):
        plan = assemble(draft, values, mixture, request.rows is not None, tombstones, compute)
    notes = _notes(draft, values)
    problems = in_order(draft.problems)
    plan = replace(plan, notes=notes, problems=problems) if plan is not None else None
    return Study(draft, values, plan, notes, problems, () if manifests else OF_A_CORPUS)


def begin(draft: Draft, given: dict[str, Number] | None = None) -> Values:
    """What plan.yaml gives, and the defaults of its keys; `given` stands for other given values."""
    values = Values(draft.numbers_given(list(FIELDS)) if given is None else given, draft)
    for name in FIELDS:
        default = draft.value(name)
        if name not in values.given and default is not None and not draft.given(tuple(name.split("."))):
            values.known[name] = Value(default, "default", "the default")
    return values


def _again(draft: Draft) -> Callable[[dict[str, Number]], Values]:
    """Solves the same plan from other given values, for repairs."""

    def again(given: dict[str, Number]) -> Values:
        values = begin(draft, given)
        solve(values, FIRST, FIRST_EQUATIONS)
        solve(values, RULES)
        return values

    return again


# ---- the mixture -----------------------------------------------------------------------------------------------


def _read_mixture(draft: Draft) -> None:
    """Weights and phases: of plan.yaml, else of the only manifest, else by size."""
    config, only = draft.config.data, draft.manifests[0] if len(draft.manifests) == 1 else None
    phases: tuple[Phase, ...] = config.phases
    if not phases and config.mix is None and only is not None:
        phases = only.phases
    mix, why = config.mix, ""
    if mix is None:
        draft.mix_is_default = True
        if only is not None and only.mixture:
            mix, why = dict(only.mixture), "the mixture of the manifest"
        elif draft.manifests:
            mix, why = {name: float(entry.tokens) for name, entry in draft.sources.items()}, "by tokens of each source"
        else:
            mix, why = {}, "nothing says one"
    draft.mix, draft.phases = mix, phases
    if mix and (config.mix is not None or not phases):
        total = sum(mix.values()) or 1
        draft.note(("data", "mix"), ", ".join(f"{name} {weight / total:.4g}" for name, weight in mix.items()), why)


def _request(draft: Draft, values: Values) -> Request:
    """The mixture to resolve, everything that was left out filled in."""
    config = draft.config
    seq_len = int(values.number("model.seq_len"))
    stated = config.data.total_tokens is None and all(phase.tokens is not None for phase in draft.phases)
    mix = draft.mix or dict.fromkeys(draft.tokens, 1.0)
    own = config.data.mix is not None or not draft.phases or any(phase.mix is None for phase in draft.phases)
    request = Request(
        rows=_rows(draft, seq_len),
        sources=draft.tokens,
        seq_len=seq_len,
        global_tokens=int(values.number("batch.global_tokens")),
        total_tokens=None if draft.phases and stated else int(values.number("data.total_tokens")),
        mix=mix if own else None,
        phases=draft.phases,
        limit=config.data.repeat_limit if draft.manifests else None,
        limits=config.data.repeat_limits if draft.manifests else {},
        on_exhaust=_on_exhaust(draft),
        mix_is_default=draft.mix_is_default,
    )
    for name in config.data.repeat_limits:
        if draft.manifests and name not in draft.sources and not _family(name, draft.sources):
            message = f"data.repeat_limits names `{name}`, which is not in the manifest"
            draft.error("M003", message, ("data", "repeat_limits", name), f"sources: {', '.join(draft.sources)}")
    return request


def _family(name: str, sources: dict[str, SourceEntry]) -> bool:
    return any(one.rpartition(".")[0] == name for one in sources)


def _rows(draft: Draft, seq_len: int) -> dict[str, dict[int, int]] | None:
    """Packed rows of each source by length, if they are read; None: windows are."""
    draft.packed = {name: entry.packed() for name, entry in draft.sources.items()}
    packing, why = draft.config.data.packing, ""
    if not draft.manifests:
        return None
    if packing is None:
        mix = draft.mix
        read = [(phase.mix or mix, phase.seq_len or seq_len) for phase in draft.phases] or [(mix, seq_len)]
        there = all(
            length in lengths
            for weights, length in read
            for name, lengths in draft.packed.items()
            if weights.get(name, weights.get(name.rpartition(".")[0], 0)) and draft.sources[name].tokens
        )
        packing = "best-fit" if there else "concat"
        why = "the corpus has packed rows of every length" if there else "the corpus has no packed rows of this length"
    draft.note(("data", "packing"), packing, why)
    if packing == "concat":
        return None
    return {name: {length: rows.total for length, rows in one.items()} for name, one in draft.packed.items()}


def _on_exhaust(draft: Draft) -> Literal["error", "redistribute", "shorten"]:
    """A length that nobody asked for gives way to a limit that somebody did."""
    own = draft.given(("data", "total_tokens")) or draft.given(("lr_schedule", "total_steps"))
    if not own and not draft.given(("data", "on_exhaust")):
        return "shorten"
    return draft.config.data.on_exhaust


def _mix(draft: Draft, request: Request) -> Mixture | None:
    try:
        mixture = resolve_mixture(request, draft.at)
    except SpecError as error:
        draft.problems += error.problems
        return None
    draft.problems += mixture.warnings
    draft.shares = {name: use.read / mixture.tokens for name, use in mixture.uses.items()}
    return mixture


def _count(draft: Draft, values: Values, mixture: Mixture) -> None:
    """Steps and tokens of the run as they were counted, phase by phase, against those that were given."""
    steps = sum(phase.steps for phase in mixture.phases)
    asked = values.given.get("lr_schedule.total_steps")
    numbers = values.numbers() | {"batch.global_tokens": mixture.tokens / steps, "data.total_tokens": mixture.tokens}
    own_steps = any(phase.global_tokens for phase in draft.phases)
    if own_steps and isinstance(asked, int | float) and abs(steps - asked) > max(1, RUN.tolerance * asked):
        average = numbers["batch.global_tokens"]
        message = (
            f"tokens in the run do not agree: {asked:,} steps x {average:,.0f} = {asked * average:,.0f}, but the run has "
            f"{mixture.tokens:,} tokens, which is {steps:,} steps"
        )
        draft.error("P001", message, ("lr_schedule", "total_steps"), f"write lr_schedule.total_steps: {steps:_}",
                    f"write data.total_tokens: {round(asked * average):_}")  # fmt: skip
    elif not values.conflicts:
        why = "data.total_tokens / batch.global_tokens, phase by phase"
        why = f"{asked:,} asked; {why}" if asked is not None and asked != steps else why
        origin: Literal["given", "derived"] = "derived" if asked is None else "given"
        values.known["lr_schedule.total_steps"] = Value(steps, origin, why, RUN)
    total = values.known.get("data.total_tokens")
    if total is not None and total.origin != "given" and abs(mixture.tokens / float(total.number) - 1) > 0.5 / steps:
        values.known["data.total_tokens"] = Value(mixture.tokens, total.origin, f"{total.why}, shortened by repeat limits")
        values.known.pop("data.tokens_per_parameter", None)


def _compute(draft: Draft, values: Values) -> Compute:
    """The number format of matrix products; a note says why."""
    compute = setting_of(values, 1, 1, 1).compute
    draft.note(("precision", "compute"), compute, "fp32 on CPU, bf16 on GPU", section="model")
    return compute


def _notes(draft: Draft, values: Values) -> tuple[Note, ...]:
    """Every value in the order of the table of fields, then what is no number of an equation."""
    found = []
    for name in FIELDS:
        if (value := values.known.get(name)) is not None:
            text, asked, why = shown(name, value.number), values.given.get(name), value.why
            if asked is not None and asked != value.number:
                why = why or f"{shown(name, asked)} asked, in whole sequences"
            found.append(Note(name, text, value.origin, why, value.number, name.partition(".")[0]))
    return (*found, *draft.notes)
