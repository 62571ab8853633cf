"""The solver: given values, the table of equations and the rules, to every value with its origin; or contradictions.

Equations with one unknown are solved until nothing moves; then the first rule whose field is still unknown gives it a
value, and so on. What an equation gave follows (`derived`); what a rule gave was free (`default`). An equation whose
fields are all known and that does not hold is a contradiction. Its repairs are found by trying: each value that was
given is changed to what makes the equation hold, all is solved again, and a change that leaves something else wrong is
completed by a second one or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.planning.equations import COUNTED, EQUATIONS, FIELDS, STEP, Equation

Origin = Literal["given", "derived", "default"]
Number = float | str


@dataclass(frozen=True)
class Value:
    """A solved value and where it comes from: an equation, a rule (its text in `why`), or plan.yaml."""

    number: Number
    origin: Origin
    why: str = ""
    equation: Equation | None = None


@dataclass(frozen=True)
class Rule:
    """How a field that no equation decides is chosen, or follows from what is no product.

    find   the value and a few words on it, or None while it lacks something
    free   it may as well be given; else the value follows
    """

    field: str
    text: str
    find: Callable[[Values], tuple[Number, str] | Number | None]
    free: bool = True
    source: str = ""


@dataclass
class Values:
    """What is known so far."""

    given: dict[str, Number]
    context: Any = None  # what rules may look at besides
    known: dict[str, Value] = field(default_factory=dict)
    shape: Any = None  # of the model, once a rule has found it
    conflicts: list[Equation] = field(default_factory=list)

    def number(self, name: str) -> float:
        """The number of a field that is known. KeyError for one that is not."""
        value = self.known[name].number
        assert not isinstance(value, str)
        return value

    def get(self, name: str) -> float | None:
        """The number of a field, or None."""
        return self.number(name) if name in self.known else None

    def text(self, name: str) -> str | None:
        """A field that is text, or None."""
        return str(self.known[name].number) if name in self.known else None

    def numbers(self) -> dict[str, float]:
        """All that are numbers."""
        return {name: v.number for name, v in self.known.items() if not isinstance(v.number, str)}


def solve(values: Values, rules: Sequence[Rule], equations: Sequence[Equation] = EQUATIONS) -> None:
    """Fills `values` in place as far as equations and rules reach, and lists the equations that do not hold.

    Values that are known already stay; it may be called again with more rules.
    """
    for name, number in values.given.items():
        values.known.setdefault(name, Value(number, "given"))
    unsolvable: list[Equation] = []
    bound = {rule.field for rule in rules if not rule.free} - {rule.field for rule in rules if rule.free}
    while True:
        while any(_apply(values, rule) for rule in rules if not rule.free):
            pass
        _propagate(values, equations, unsolvable, bound)
        if not any(_apply(values, rule) for rule in rules):
            break
    numbers = values.numbers()
    wrong = [e for e in equations if all(name in numbers for name in e.fields) and not e.agrees(numbers)]
    values.conflicts = list(dict.fromkeys([*unsolvable, *wrong]))


def _propagate(
    values: Values, equations: Sequence[Equation], unsolvable: list[Equation], bound: set[str]
) -> None:
    """Solves equations with one unknown until nothing moves; fields in `bound` are left to their rules."""
    moved = True
    while moved:
        moved = False
        for equation in equations:
            unknown = [name for name in equation.fields if name not in values.known]
            if len(unknown) != 1 or unknown[0] in bound or equation in unsolvable:
                continue
            if equation is STEP:
                _whole_sequences(values)
            name = unknown[0]
            number = equation.solve(name, values.numbers())
            if number is None:
                unsolvable.append(equation)
            else:
                values.known[name] = Value(number, "derived", equation.formula(name), equation)
            moved = True
        _whole_sequences(values)


def _whole_sequences(values: Values) -> None:
    """A step has whole sequences: its tokens are rounded to them, as soon as their length is known."""
    step, length = values.known.get("batch.global_tokens"), values.get("model.seq_len")
    if step is None or not length or isinstance(step.number, str):
        return
    numbers = values.numbers()
    sequences = max(1, round(step.number / length))
    factors = [values.given.get(name) for name in STEP.factors if name != "model.seq_len"]
    if None not in factors and step.origin == "given" and abs(STEP.right(numbers) / step.number - 1) <= STEP.tolerance:
        passes = -(-sequences // round(numbers[STEP.factors[0]] * numbers[STEP.factors[2]]))
        if passes != numbers[STEP.factors[3]]:  # else the last of them is partly empty, and the step is as asked
            sequences = round(STEP.right(numbers) / length)
    values.known["batch.global_tokens"] = Value(sequences * length, step.origin, step.why, step.equation)


def _apply(values: Values, rule: Rule) -> bool:
    """Whether the rule gave its field a value."""
    if rule.field in values.known:
        return False
    found = rule.find(values)
    if found is None:
        return False
    number, why = found if isinstance(found, tuple) else (found, "")
    values.known[rule.field] = Value(number, "default" if rule.free else "derived", why or rule.text)
    return True


# ---- repairs ---------------------------------------------------------------------------------------------------

#: A change of plan.yaml: fields and the values they should have.
Change = dict[str, float]


def repairs(values: Values, broken: Equation, again: Callable[[dict[str, Number]], Values]) -> Iterator[Change]:
    """Every smallest usable change after which the equation, and all that held before, holds.

    again  solves from other given values
    """
    bad_before = set(values.conflicts)
    for change in _single(values, broken):
        tried = again({**values.given, **change})
        left = [equation for equation in tried.conflicts if equation not in bad_before - {broken}]
        if not left:
            yield change
        elif len(left) == 1:
            for second in _single(tried, left[0]):
                if not set(second) & set(change):
                    both = change | second
                    if not set(again({**values.given, **both}).conflicts) - (bad_before - {broken}):
                        yield both


def _single(values: Values, broken: Equation) -> Iterator[Change]:
    """Changes of one given value that make an equation hold, the left side last."""
    numbers = values.numbers()
    missing = [name for name in broken.fields if name not in numbers]
    if missing:
        yield from _solvable(values, broken, missing[0], numbers)
        return
    # As they were asked for; only a step stays as it was rounded to sequences.
    numbers |= {k: v for k, v in values.given.items() if not isinstance(v, str) and k != STEP.left}
    for name in (*broken.factors, *broken.divisors, broken.left):
        for target, wanted in _origins(values, name, broken, numbers, 0):
            if wanted != values.given.get(target):
                yield {target: wanted}


def _solvable(
    values: Values, broken: Equation, missing: str, numbers: Mapping[str, float]
) -> Iterator[Change]:
    """The changes of one given value nearest to it for which a whole number of the missing field exists."""
    for name in broken.fields:
        now = values.given.get(name)
        if not isinstance(now, int):
            continue
        found = [
            one
            for one in range(1, 2 * now + 1)
            if (name == broken.left or one.bit_count() == 1)
            and broken.solve(missing, {**numbers, name: float(one)}) is not None
        ]
        nearest = min((abs(one - now) for one in found), default=0)
        yield from ({name: float(one)} for one in found if abs(one - now) == nearest)


def _origins(
    values: Values, name: str, equation: Equation, numbers: Mapping[str, float], depth: int
) -> Iterator[tuple[str, float]]:
    """The given value behind a field, and what it must be for the equation to hold."""
    wanted = _usable(name, equation, numbers)
    if wanted is None:
        return
    if name in values.given:
        yield name, wanted
        return
    origin = values.known[name].equation if name in values.known else None
    if origin is None or origin is equation or depth:
        return
    changed = {**numbers, name: wanted}
    for other in origin.fields:
        if other != name and other in values.given:
            yield from _origins(values, other, origin, changed, depth + 1)


def _usable(name: str, equation: Equation, numbers: Mapping[str, float]) -> float | None:
    """The value nearest to the exact one that a person would write: whole, a power of two, few digits."""
    exact = _exact(name, equation, numbers)
    if exact is None or exact <= 0:
        return None
    spec = FIELDS[name]
    candidates: list[float] = [exact]
    if spec.unit in COUNTED:
        low = int(exact)
        candidates = [low, low + 1]
        if spec.powers and equation.tolerance:
            power = 1 << max(0, low.bit_length() - 1)
            candidates = [power, 2 * power]
    elif spec.unit != "text":
        candidates = [float(f"{exact:.3g}")]
    candidates = [one for one in candidates if one > 0]
    best = min(candidates, key=lambda one: abs(one / exact - 1), default=None)
    if best is None:
        return None
    if name == equation.left or equation.tolerance == 0:
        return best if equation.agrees({**numbers, name: best}) else None
    made = equation.right({**numbers, name: best})
    return best if abs(made / numbers[equation.left] - 1) <= equation.tolerance else None


def _exact(name: str, equation: Equation, numbers: Mapping[str, float]) -> float | None:
    if name == equation.left:
        return equation.right(numbers)
    one = equation.right({**numbers, name: 1.0})
    if not one or not numbers[equation.left]:
        return None
    return numbers[equation.left] / one if name in equation.factors else one / numbers[equation.left]
