"""The equations of a plan: one table, read by the solver, the checker, `trainer plan --explain` and the documentation.

An equation is `left = constant x factors / divisors`; any one of its fields can be left out. Values are plain numbers
in base units: tokens, seconds, bytes, FLOP. What is no product has its rule in `rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal[
    "tokens", "sequences", "steps", "devices", "parameters", "share", "ratio", "rate", "seconds", "hours", "bytes",
    "FLOP", "FLOP/s", "tokens/s", "bytes/s", "money", "text",
]  # fmt: skip

#: Units that are counted, so that only whole numbers have a meaning.
COUNTED = frozenset({"tokens", "sequences", "steps", "devices", "parameters"})

#: Two sides of an equation agree when they are this close: most factors are whole numbers.
AGREEMENT = 0.02


@dataclass(frozen=True)
class Field:
    """One value of a plan. `help` describes what is no key of plan.yaml; a key has its help in `config.py`.

    powers  only powers of two are usable: lengths and numbers of devices
    """

    unit: Unit
    help: str = ""
    powers: bool = False


#: Every value that equations and rules know, in the order in which they are shown.
FIELDS: dict[str, Field] = {
    "model.params": Field("parameters"),
    "model.parameters": Field("parameters", "Exact number of parameters of the shape."),
    "model.vocab_size": Field("tokens"),
    "model.seq_len": Field("tokens", powers=True),
    "model.flops_per_token": Field("FLOP", "Work of forward and backward pass for one token."),
    "data.total_tokens": Field("tokens"),
    "data.tokens_per_parameter": Field("ratio"),
    "data.attended": Field("tokens", "Mean number of tokens that a token's document has in its row."),
    "batch.global_tokens": Field("tokens"),
    "batch.micro_batch_size": Field("sequences"),
    "batch.data_parallel": Field("devices", powers=True),
    "batch.grad_accum_steps": Field("steps"),
    "parallel.tensor_parallel": Field("devices", powers=True),
    "parallel.pipeline_parallel": Field("devices", powers=True),
    "hardware.gpus": Field("devices", powers=True),
    "lr_schedule.total_steps": Field("steps"),
    "lr_schedule.warmup_steps": Field("steps"),
    "lr_schedule.warmup_share": Field("share"),
    "lr_schedule.peak_lr": Field("rate"),
    "lr_schedule.min_lr_ratio": Field("share"),
    "lr_schedule.min_lr": Field("rate", "Learning rate at the end of the run."),
    "hardware.gpu": Field("text"),
    "hardware.gpu_memory": Field("bytes"),
    "hardware.peak_flops": Field("FLOP/s"),
    "hardware.mfu": Field("share"),
    "hardware.tokens_per_second": Field("tokens/s"),
    "run.step_time": Field("seconds", "Time of one step."),
    "run.wall_time": Field("seconds", "Time of the run."),
    "run.gpu_hours": Field("hours", "Devices times the time of the run."),
    "hardware.price_per_gpu_hour": Field("money"),
    "run.cost": Field("money", "Price of the run, in the currency of hardware.price_per_gpu_hour."),
    "run.flops": Field("FLOP", "Work of the run."),
    "checkpoint.bytes_per_parameter": Field("bytes", "Weights and optimizer state of one parameter."),
    "checkpoint.bytes": Field("bytes", "Size of a checkpoint."),
    "checkpoint.kept": Field("steps", "Checkpoints on disk at a time, the one being written too."),
    "checkpoint.disk": Field("bytes", "Room that checkpoints take."),
    "hardware.disk_bandwidth": Field("bytes/s"),
    "checkpoint.save_time": Field("seconds", "Time to write a checkpoint."),
    "checkpoint.save_every_steps": Field("steps"),
    "checkpoint.interval": Field("seconds", "Time between two checkpoints."),
    "checkpoint.best_interval": Field("seconds", "Time between saves that costs least, lost work counted."),
    "monitoring.eval_every_steps": Field("steps"),
}  # fmt: skip


@dataclass(frozen=True)
class Equation:
    """`left = constant x product of factors / product of divisors`.

    up         fields that are rounded up when solved for: a last pass may be partly empty
    near       those of them for which a whole number close by goes first
    tolerance  how far the two sides may be apart, as a share; 0 for devices
    source     where the formula comes from, where that is not plain counting
    """

    title: str
    left: str
    factors: tuple[str, ...]
    divisors: tuple[str, ...] = ()
    constant: float = 1.0
    up: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    tolerance: float = AGREEMENT
    source: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """All that takes part, the left side first."""
        return (self.left, *self.factors, *self.divisors)

    def right(self, known: Mapping[str, float]) -> float:
        """The value of the right side."""
        above = math.prod(known[name] for name in self.factors)
        return self.constant * above / (math.prod(known[name] for name in self.divisors) or math.inf)

    def solve(self, name: str, known: Mapping[str, float]) -> float | None:
        """What a field must be, whole where it is counted; None where nothing would do."""
        if name == self.left:
            exact = self.right(known)
        else:
            one = self.right({**known, name: 1.0})
            if not one or (name in self.divisors and not known[self.left]):
                return None
            exact = known[self.left] / one if name in self.factors else one / known[self.left]
        near = 2 ** max(0, round(math.log2(exact))) if FIELDS[name].powers and exact > 0 else 0
        # A power of two also where it leaves a part of the last pass empty.
        return near if near and self.tolerance and self.agrees({**known, name: near}) else self.whole(name, exact)

    def whole(self, name: str, exact: float) -> float | None:
        """The usable value nearest to an exact one, or the next above it for what is rounded up."""
        field = FIELDS[name]
        if field.unit not in COUNTED:
            return exact
        if name in self.near and round(exact) and abs(round(exact) / exact - 1) <= AGREEMENT:
            return round(exact)
        if name in self.up:
            return max(1, math.ceil(exact * (1 - 1e-12)))
        whole = round(exact)
        if self.tolerance == 0 and abs(whole - exact) > 1e-9:
            return None
        return whole if whole > 0 or field.unit == "steps" else None

    def agrees(self, known: Mapping[str, float]) -> bool:
        """Whether the two sides are equal, but for what rounding to whole numbers explains."""
        left, right = known[self.left], self.right(known)
        if abs(left - right) <= self.tolerance * abs(right) + 1e-12 * abs(left):
            return True
        if self.tolerance == 0:
            return False
        rounded = (name for name in self.fields if name in self.up or FIELDS[name].unit == "steps")
        return any(self._explained(name, known) for name in rounded)

    def _explained(self, name: str, known: Mapping[str, float]) -> bool:
        """Whether this field is the whole number that the others make of it."""
        made = self.solve(name, known)
        if made is None:
            return False
        # Steps of a run and of a warm-up are counted phase by phase, which may shift them by one.
        slack = 1 if FIELDS[name].unit == "steps" and name not in self.up else 0
        return abs(made - known[name]) <= slack

    def formula(self, name: str | None = None) -> str:
        """The equation, solved for a field: `data.total_tokens / batch.global_tokens`; without one, both sides."""
        if name is None:
            return f"{self.left} = {self._side(self.factors, self.divisors)}"
        if name == self.left:
            return self._side(self.factors, self.divisors)
        if name in self.factors:
            rest = tuple(one for one in self.factors if one != name)
            return _product((self.left, *self.divisors), rest, 1 / self.constant)
        rest = tuple(one for one in self.divisors if one != name)
        return _product(self.factors, (self.left, *rest), self.constant)

    def _side(self, above: tuple[str, ...], below: tuple[str, ...]) -> str:
        return _product(above, below, self.constant)


def _product(above: tuple[str, ...], below: tuple[str, ...], constant: float) -> str:
    text = " x ".join(above)
    if below:
        text += f" / {below[0]}" if len(below) == 1 else f" / ({' x '.join(below)})"
    if constant < 1:
        return f"{text} / {1 / constant:,.6g}"
    return text if constant == 1 else f"{constant:,.6g} x {text}"


#: The step, whose parts are sequences: a target that is no whole number of them is met as nearly as possible.
STEP = Equation(
    "tokens in a step", "batch.global_tokens",
    ("batch.micro_batch_size", "model.seq_len", "batch.data_parallel", "batch.grad_accum_steps"),
    up=("batch.micro_batch_size", "batch.grad_accum_steps"), near=("batch.micro_batch_size",),
)  # fmt: skip
RUN = Equation("tokens in the run", "data.total_tokens", ("lr_schedule.total_steps", "batch.global_tokens"))

EQUATIONS: tuple[Equation, ...] = (
    Equation(
        "devices", "hardware.gpus",
        ("batch.data_parallel", "parallel.tensor_parallel", "parallel.pipeline_parallel"), tolerance=0,
    ),
    STEP,
    RUN,
    Equation(
        "tokens for each parameter", "data.total_tokens", ("data.tokens_per_parameter", "model.params"),
        source="Hoffmann et al. 2022: about 20 spend compute best",
    ),
    Equation("warm-up", "lr_schedule.warmup_steps", ("lr_schedule.warmup_share", "lr_schedule.total_steps")),
    Equation("last rate", "lr_schedule.min_lr", ("lr_schedule.min_lr_ratio", "lr_schedule.peak_lr")),
    Equation("work", "run.flops", ("model.flops_per_token", "data.total_tokens")),
    Equation(
        "speed", "hardware.tokens_per_second", ("hardware.gpus", "hardware.mfu", "hardware.peak_flops"),
        ("model.flops_per_token",), source="MFU as PaLM counts it (Chowdhery et al. 2022, appendix B)",
    ),
    Equation("time of a step", "run.step_time", ("batch.global_tokens",), ("hardware.tokens_per_second",)),
    Equation("time of the run", "run.wall_time", ("data.total_tokens",), ("hardware.tokens_per_second",)),
    Equation("device hours", "run.gpu_hours", ("hardware.gpus", "run.wall_time"), constant=1 / 3600),
    Equation("cost", "run.cost", ("run.gpu_hours", "hardware.price_per_gpu_hour")),
    Equation("size of a checkpoint", "checkpoint.bytes", ("model.parameters", "checkpoint.bytes_per_parameter")),
    Equation("disk", "checkpoint.disk", ("checkpoint.bytes", "checkpoint.kept")),
    Equation("time of a save", "checkpoint.save_time", ("checkpoint.bytes",), ("hardware.disk_bandwidth",)),
    Equation("time between saves", "checkpoint.interval", ("checkpoint.save_every_steps", "run.step_time")),
)  # fmt: skip


def equations_of(name: str) -> Iterator[Equation]:
    """The equations that a field takes part in."""
    return (equation for equation in EQUATIONS if name in equation.fields)
