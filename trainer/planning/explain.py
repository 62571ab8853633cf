"""Why a value of the plan is what it is: its help, its origin, and every equation and rule it takes part in."""

from __future__ import annotations

from typing import Any

from stages.contract.problem import Problem, SpecError
from stages.contract.wrong import name_repairs
from trainer.config import PlanConfig
from trainer.planned import Note
from trainer.planning.equations import FIELDS, equations_of
from trainer.planning.figures import shown
from trainer.planning.plan import Study
from trainer.planning.rules import RULES

WORDS = {"given": "given", "derived": "follows from others", "default": "free: nobody gave it, so it was chosen"}

UNKNOWN = "free: nothing says it, and nothing else needs it"


def explain(study: Study, asked: str) -> str:
    """The story of one value, as lines. SpecError for a name that the plan does not have."""
    note = find((*study.notes, *_unknown(study)), asked)
    lines = [f"{note.key} = {note.value}", f"  {WORDS[note.origin] if note.value else UNKNOWN}"]
    where = study.draft.at(tuple(note.key.split("."))) if note.origin == "given" else None
    if where is not None:
        lines[-1] += f", at {where.file}:{where.line}:{where.column}"
    if note.why:
        lines.append(f"  {note.why}")
    if text := help_of(note.key):
        lines.append(f"  help: {text}")
    numbers = study.values.numbers()
    for rule in (rule for rule in RULES if rule.field == note.key):
        kind = "left out" if rule.free else "always"
        lines.append(f"  rule ({kind}): {rule.text}{f'  [{rule.source}]' if rule.source else ''}")
    for equation in equations_of(note.key):
        lines.append(f"  equation: {equation.formula()}{f'  [{equation.source}]' if equation.source else ''}")
        if all(name in numbers for name in equation.fields):
            right = " x ".join(shown(name, numbers[name]) for name in equation.factors)
            right += "".join(f" / {shown(name, numbers[name])}" for name in equation.divisors)
            if equation.constant != 1:
                right += f" / {1 / equation.constant:,.6g}" if equation.constant < 1 else f" x {equation.constant:,.6g}"
            holds = "" if equation.agrees(numbers) else "   does not hold"
            lines.append(f"            {shown(equation.left, numbers[equation.left])} = {right}{holds}")
    return "\n".join(lines)


def _unknown(study: Study) -> list[Note]:
    """Fields that have no value in this plan."""
    known = {note.key for note in study.notes}
    return [Note(name, "", "default", "") for name in FIELDS if name not in known]


def find(notes: tuple[Note, ...], asked: str) -> Note:
    """The value of this name, or the only one that ends in it (`global_tokens`)."""
    exact = [note for note in notes if note.key == asked]
    ending = [note for note in notes if note.key.endswith(f".{asked}")]
    for found in (exact, ending):
        if len(found) == 1:
            return found[0]
    if len(ending) > 1:
        names = ", ".join(note.key for note in ending)
        raise SpecError(Problem("C001", f"the plan has {len(ending)} values called {asked}", repairs=(f"say which: {names}",)))
    repairs = name_repairs(asked, [note.key for note in notes], "values")
    raise SpecError(Problem("C001", f"the plan has no value called {asked}", repairs=repairs))


def help_of(name: str) -> str:
    """What a key of plan.yaml, or a value that follows from others, is."""
    model: Any = PlanConfig
    info: Any = None
    for step in name.split("."):
        info = model.model_fields.get(step)
        if info is None:
            break
        model = info.annotation if hasattr(info.annotation, "model_fields") else model
    if info is not None and info.description:
        return info.description
    return FIELDS[name].help if name in FIELDS else ""
