"""Equations that do not hold, as problems: both sides in numbers, and every smallest change that makes them agree."""

from __future__ import annotations

from collections.abc import Callable

from stages.contract.problem import Problem, Where
from trainer.planning.draft import Draft
from trainer.planning.equations import RUN, STEP, Equation
from trainer.planning.figures import billions, shown, written
from trainer.planning.solver import Change, Number, Values, repairs

#: Repairs of one contradiction that are shown.
MOST = 8


def contradiction(
    draft: Draft, values: Values, broken: Equation, again: Callable[[dict[str, Number]], Values]
) -> Problem:
    """P001 for an equation, at the last of the values that are given, with repairs that leave nothing else wrong."""
    numbers = {**values.numbers(), **_asked(values)}
    places = _places(draft, values, broken)
    head = "any one of these makes it hold:"
    lines = [_line(draft, values, broken, change) for change in repairs(values, broken, again)]
    lines = list(dict.fromkeys(lines))[:MOST]
    found = (head, *lines) if lines else ("leave one of them out, and it follows from the others",)
    return Problem("P001", _message(broken, numbers, values), max(places, default=None, key=_order), found)


def _order(where: Where) -> tuple[int, int]:
    return where.line, where.column


def _asked(values: Values) -> dict[str, float]:
    """Numbers as plan.yaml has them, before a step was rounded to sequences."""
    return {name: number for name, number in values.given.items() if not isinstance(number, str)}


def _places(draft: Draft, values: Values, broken: Equation) -> list[Where]:
    given = (name for name in broken.fields if name in values.given)
    return [where for name in given if (where := draft.at(tuple(name.split(".")))) is not None]


def _message(broken: Equation, numbers: dict[str, float], values: Values) -> str:
    """`tokens in a step do not agree: 4 x 4,096 x 8 x 61 = 7,995,392, but batch.global_tokens is 4,000,000 (2.00 times)`."""
    missing = [name for name in broken.fields if name not in numbers]
    if missing:
        known = ", ".join(f"{name} {shown(name, numbers[name])}" for name in broken.fields if name in numbers)
        return f"{broken.title}: no whole number of {missing[0]} makes `{broken.formula()}` hold with {known}"
    right, left = broken.right(numbers), numbers[broken.left]
    text = " x ".join(shown(name, numbers[name]) for name in broken.factors)
    text += "".join(f" / {shown(name, numbers[name])}" for name in broken.divisors)
    times = f" ({right / left:.2f} times)" if left else ""
    plural = "do" if broken.title.split()[0].endswith("s") else "does"
    message = (
        f"{broken.title} {plural} not agree: {text} = {shown(broken.left, right)}, but {broken.left} is "
        f"{shown(broken.left, left)}{times}"
    )
    steps, total = values.given.get("lr_schedule.total_steps"), values.given.get("data.total_tokens")
    if broken is STEP and isinstance(steps, int | float) and isinstance(total, int | float):
        message += f"; {steps:,} such steps read {billions(steps * right)} tokens, not {billions(total)}"
    return message


def _line(draft: Draft, values: Values, broken: Equation, change: Change) -> str:
    """`  batch.micro_batch_size: 2  (3,997,696, -0.1%)  at plan.yaml:10:29`."""
    text = " and ".join(f"{name}: {written(name, number)}" for name, number in change.items())
    numbers = {**values.numbers(), **_asked(values), **change}
    result = ""
    if broken.left not in change and all(name in numbers for name in broken.fields):
        made, left = broken.right(numbers), numbers[broken.left]
        off = made / left - 1 if left else 0.0
        apart = abs(off) >= 5e-5 and set(change) & set(broken.fields)
        result = f"  ({shown(broken.left, made)}, {off:+.1%})" if apart else ""
    elif len(change) > 1:
        result = _kept(values, change)
    places = [draft.at(tuple(name.split("."))) for name in change]
    at = " and ".join(_spot(where) for where in places if where is not None)
    return f"  {text}{result}{f'  at {at}' if at else ''}"


def _kept(values: Values, change: Change) -> str:
    """What a pair of changes does to the length of the run."""
    total = change.get("data.total_tokens", values.given.get("data.total_tokens"))
    if not isinstance(total, int | float) or not set(change) & set(RUN.fields):
        return ""
    return f"  (the run reads {billions(total)} tokens)"


def _spot(where: Where) -> str:
    return where.text if where.file == "--set" else f"{where.file}:{where.line}:{where.column}"
