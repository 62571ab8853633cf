"""The equations behind a plan, and the rules for what plan.yaml leaves out.

    tokens in a step   batch.global_tokens = micro_batch_size x seq_len x data_parallel x grad_accum_steps
    tokens in the run  data.total_tokens   = total_steps x global_tokens

`global_tokens` is a target while a factor on the right is free (a step is then round(global_tokens / seq_len)
sequences, whatever the machine) and a constraint when all are given.

Rules behind derived values: parameters = tokens / 20 (Hoffmann et al. 2022); step = 160 sequences of 2,048 times
(N / 108M)^(2/3) and peak_lr = 0.0047 (N / 108M)^(-1/3), at most 3e-3 (Bhagia et al. 2024, after Porian et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stages.contract.epochs import Rows
from stages.contract.manifest import Manifest, SourceEntry
from stages.contract.mixture import Mixture, Phase, Request
from stages.contract.problem import Problem, Where
from stages.contract.tree import Path, path_text
from trainer.config import PlanConfig
from trainer.planned import Note
from trainer.shape import Given, ModelShape, find_shape, smallest_sensible

#: A given number of parameters is met by the nearest shape: above the first share of difference that is said, above
#: the second it is an error. Small models with a large vocabulary come in coarse steps.
PARAMS_NEAR, PARAMS_FAR = 0.1, 0.5

#: What a core does with small models, in FLOP/s.
CORE = 25e9

#: What a plan without a size may ask of a CPU: ten minutes of two cores. The real number of cores is not looked at,
#: so that the same command gives the same plan on every machine.
CPU_BUDGET = 600 * 2 * CORE

#: Two sides of an equation agree when they are this close: factors are whole numbers.
AGREEMENT = 0.02

#: fp32 weights, gradients and two moments of AdamW: bytes of a parameter that never leave the device.
BYTES_OF_PARAMETER = 16


@dataclass(frozen=True)
class Machine:
    """What a plan may know of where it runs. Only `device` enters derived values, so that the same command gives the
    same data order on every CPU machine, and on every GPU machine."""

    device: Literal["cpu", "cuda"] = "cpu"
    cpus: int = 1  # cores; for the estimate of time alone
    world: int = 1  # ranks, each a replica of the data parallel group
    memory: int | None = None  # bytes of one accelerator


@dataclass
class Draft:
    """What is known while the equations are solved."""

    config: PlanConfig
    machine: Machine
    given: Callable[[Path], bool]
    at: Callable[[Path], Where | None]
    sources: dict[str, SourceEntry]
    manifests: Sequence[Manifest]
    packed: dict[str, dict[int, Rows]] = field(default_factory=dict)  # rows of each source by length
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        return self.manifests[0].tokenizer.vocab_size

    def note(self, path: Path, value: Any, why: str, derived: bool = True) -> None:
        """A line for the table; a value that plan.yaml has is `given` whatever the reason."""
        origin: Literal["given", "derived", "default"] = "derived" if derived else "default"
        if self.given(path):
            origin, why = "given", ""
        shown = (
            f"{value:,}"
            if isinstance(value, int)
            else f"{value:g}"
            if isinstance(value, float)
            else str(value)
        )
        self.notes.append(Note(path_text(path), shown, origin, why))

    def error(self, code: str, message: str, path: Path, *repairs: str) -> None:
        """An error at a value of plan.yaml."""
        self.problems.append(Problem(code, message, self.at(path), repairs))

    def warn(self, message: str, path: Path, *repairs: str) -> None:
        """A warning at a value of plan.yaml."""
        self.problems.append(Problem("W001", message, self.at(path), repairs, severity="warning"))


def _default_mix(draft: Draft) -> tuple[dict[str, float], bool, str]:
    """`(mix, whether it is a default, why)`: of plan.yaml, else of the only manifest, else by size."""
    if draft.config.data.mix is not None:
        return draft.config.data.mix, False, ""
    if len(draft.manifests) == 1 and draft.manifests[0].mixture:
        return dict(draft.manifests[0].mixture), True, "the mixture of the manifest"
    return (
        {name: float(entry.tokens) for name, entry in draft.sources.items()},
        True,
        "by tokens of each source",
    )


def request_of(draft: Draft) -> tuple[Request, ModelShape]:
    """The mixture to resolve and the model, everything that was left out filled in."""
    config = draft.config
    mix, is_default, why = _default_mix(draft)
    phases: tuple[Phase, ...] = config.data.phases
    if not phases and config.data.mix is None and len(draft.manifests) == 1:
        phases = draft.manifests[0].phases
    if config.data.mix is not None or not phases:
        draft.note(
            ("data", "mix"),
            ", ".join(f"{name} {weight / (sum(mix.values()) or 1):.4g}" for name, weight in mix.items()),
            why,
        )
    seq_len = _seq_len(draft, mix)
    longest = max([seq_len, *(phase.seq_len for phase in phases if phase.seq_len)])
    shape = _shape(draft, longest)
    total = _total_tokens(draft, phases, shape)
    global_tokens = _global_tokens(draft, shape, seq_len, total)
    request = Request(
        rows=_rows(draft, mix, phases, seq_len),
        sources={name: entry.tokens for name, entry in draft.sources.items()},
        seq_len=seq_len,
        global_tokens=global_tokens,
        total_tokens=total,
        mix=mix if config.data.mix is not None or not phases or any(p.mix is None for p in phases) else None,
        phases=phases,
        limit=config.data.repeat_limit,
        limits=config.data.repeat_limits,
        on_exhaust=_on_exhaust(draft),
        mix_is_default=is_default,
    )
    for name in config.data.repeat_limits:
        if name not in draft.sources and not any(one.rpartition(".")[0] == name for one in draft.sources):
            message = f"data.repeat_limits names `{name}`, which is not in the manifest"
            draft.error(
                "M003", message, ("data", "repeat_limits", name), f"sources: {', '.join(draft.sources)}"
            )
    return request, shape


def _rows(
    draft: Draft, mix: dict[str, float], phases: Sequence[Phase], seq_len: int
) -> dict[str, dict[int, int]] | None:
    """Packed rows of each source by length, if they are read; None: windows are."""
    draft.packed = {name: entry.packed() for name, entry in draft.sources.items()}
    packing, why = draft.config.data.packing, ""
    if packing is None:
        read = [(phase.mix or mix, phase.seq_len or seq_len) for phase in phases] or [(mix, seq_len)]
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


def _seq_len(draft: Draft, mix: dict[str, float]) -> int:
    given = draft.config.model.seq_len
    if given is None:
        most = 256 if draft.machine.device == "cpu" else 2048
        held = [entry.tokens for name, entry in draft.sources.items() if mix.get(name, 1) and entry.tokens]
        room = max(16, min(held, default=16) // 8)
        given = min(most, 1 << (room.bit_length() - 1))
    why = "the largest power of two up to 256 (CPU) or 2,048 of which the smallest source holds eight"
    draft.note(("model", "seq_len"), given, why)
    return given


def _shape(draft: Draft, longest: int) -> ModelShape:
    """The model; with neither size nor shape given, from the tokens of the corpus and the machine."""
    model = draft.config.model
    given = Given(
        model.params, model.width, model.layers, model.heads, model.kv_heads, model.ffn, model.tie_embeddings
    )
    target, why = model.params or 0, ""
    if not target:
        least = smallest_sensible(draft.vocab_size)
        tokens = draft.config.data.total_tokens or sum(entry.tokens for entry in draft.sources.values())
        target, why = tokens // 20, "tokens / 20"
        if draft.machine.device == "cpu":
            fitting = round(math.sqrt(CPU_BUDGET / 6 / 20))
            if fitting < target:
                target, why = fitting, "what two CPU cores train on 20 tokens each in ten minutes"
        if target < least:
            target, why = least, "128 wide and 4 layers deep, the least of which something can be expected"
    shape = find_shape(given, target, draft.vocab_size, longest, model.rope_theta, model.norm_eps)
    shape = replace(shape, qk_norm=model.qk_norm, dropout=model.dropout)
    for fault in shape.faults():
        draft.error("P001", fault, ("model",))
    real = shape.parameters
    if model.params and abs(real / model.params - 1) > PARAMS_NEAR:
        far = f"the shape nearest to model.params {model.params:,} has {real:,} parameters ({real / model.params - 1:+.1%})"
        if abs(real / model.params - 1) > PARAMS_FAR:
            draft.error("P001", far, ("model", "params"), f"write params: {real:_}")
        else:
            draft.warn(far, ("model", "params"), f"write params: {real:_} to mean it")
    draft.note(("model", "params"), real, why or "width, layers and vocabulary")
    layout = f"{shape.width:,} wide, {shape.layers} layers, {shape.heads} heads ({shape.kv_heads} for keys), ffn {shape.ffn:,}"
    draft.notes.append(Note("model shape", layout, "derived", "nearest to params; see trainer/shape.py"))
    return shape


def _total_tokens(draft: Draft, phases: Sequence[Phase], shape: ModelShape) -> int | None:
    """Positions of the run; None when the phases state them all."""
    config = draft.config
    total, why = config.data.total_tokens, ""
    if total is None and config.lr_schedule.total_steps and config.batch.global_tokens:
        total, why = (
            config.lr_schedule.total_steps * config.batch.global_tokens,
            "total_steps x global_tokens",
        )
    if total is None and phases and all(phase.tokens is not None for phase in phases):
        return None
    if total is None:
        held = sum(entry.tokens for entry in draft.sources.values())
        readings = 4 if held < 20_000_000 else 1
        total, why = (
            readings * held,
            "four readings of a corpus under 20M tokens" if readings > 1 else "one reading",
        )
        fitting = int(CPU_BUDGET / 6 / shape.parameters)
        if draft.machine.device == "cpu" and fitting < total:
            total, why = fitting, "what two CPU cores do in ten minutes"
    draft.note(("data", "total_tokens"), total, why)
    return total


def _global_tokens(draft: Draft, shape: ModelShape, seq_len: int, total: int | None) -> int:
    """Positions of a step, checked against its factors when all of them are given."""
    batch = draft.config.batch
    path = ("batch", "global_tokens")
    factors = (batch.micro_batch_size, batch.data_parallel, batch.grad_accum_steps)
    if None not in factors:
        real = math.prod(factor or 1 for factor in factors) * seq_len
        if _step_disagrees(draft, seq_len, real):
            real = (
                max(1, round((batch.global_tokens or real) / seq_len)) * seq_len
            )  # to go on and find the rest
        draft.note(path, real, "micro_batch_size x seq_len x data_parallel x grad_accum_steps")
        return real
    if batch.global_tokens is not None:
        real = max(1, round(batch.global_tokens / seq_len)) * seq_len
        draft.note(path, real, "")
        if abs(real / batch.global_tokens - 1) > AGREEMENT:
            draft.warn(f"a step of {batch.global_tokens:,} tokens is no whole number of sequences of {seq_len:,}; it has "
                       f"{real:,}", path, f"write {real:_}")  # fmt: skip
        return real
    wanted = 2048 * 160 * (shape.parameters / 108e6) ** (2 / 3)
    wanted = min(wanted, (total or wanted * 100) / 100)
    real = max(seq_len, (1 << (max(1, int(wanted)).bit_length() - 1)) // seq_len * seq_len)
    draft.note(path, real, "160 x 2,048 x (params / 108M)^(2/3), at least 100 steps, a power of two")
    return real


def _step_disagrees(draft: Draft, seq_len: int, real: int) -> bool:
    """Whether the factors miss the step; then P001 names every single change that makes them meet it and is usable."""
    batch = draft.config.batch
    micro, replicas, passes = batch.micro_batch_size, batch.data_parallel, batch.grad_accum_steps
    wanted = batch.global_tokens
    if not (wanted and micro and replicas and passes) or abs(real / wanted - 1) <= AGREEMENT:
        return False
    repairs = []
    for key, value, powers in (
        ("batch.micro_batch_size", micro, False),
        ("batch.grad_accum_steps", passes, False),
        ("batch.data_parallel", replicas, True),
        ("model.seq_len", seq_len, True),
    ):
        exact = wanted * value / real
        near = 2 ** max(0, round(math.log2(exact))) if powers else max(1, round(exact))
        made = real // value * near
        off = made / wanted - 1
        if abs(off) <= AGREEMENT:
            repairs.append(f"  {key}: {near:_}  ({made:,}, {off:+.1%})")
    repairs.append(f"  batch.global_tokens: {real:_}")
    keys = ("micro_batch_size", "data_parallel", "grad_accum_steps", "global_tokens")
    places = [
        (place.line, place.column, key) for key in keys if (place := draft.at(("batch", key))) is not None
    ]
    last = max(places)[2] if places else "global_tokens"
    draft.error(
        "P001",
        f"tokens in a step do not agree: {micro} x {seq_len:,} x {replicas} x {passes} = {real:,}, but "
        f"batch.global_tokens is {wanted:,} ({real / wanted:.2f} times)",
        ("batch", last),
        "any one of these makes it hold:",
        *repairs,
    )
    return True


def check_steps(draft: Draft, mixture: Mixture) -> None:
    """Steps that were given against steps that follow."""
    steps = sum(phase.steps for phase in mixture.phases)
    given = draft.config.lr_schedule.total_steps
    if given is not None and abs(steps / given - 1) > AGREEMENT and abs(steps - given) > 1:
        per_step = mixture.tokens / steps
        draft.error(
            "P001",
            f"tokens in the run do not agree: {given:,} steps x {per_step:,.0f} = {given * per_step:,.0f}, but the run "
            f"has {mixture.tokens:,} tokens, which is {steps:,} steps",
            ("lr_schedule", "total_steps"),
            f"write lr_schedule.total_steps: {steps:_}",
            f"write data.total_tokens: {round(given * per_step):_}",
        )


def check_warmup(draft: Draft, steps: int | None) -> None:
    """The warm-up against the steps of the run, or against those that plan.yaml states if there is no run."""
    schedule = draft.config.lr_schedule
    steps = steps or schedule.total_steps
    warmup = schedule.warmup_steps
    if warmup is not None and schedule.warmup_share is not None:
        draft.error("C017", "both warmup_steps and warmup_share are given", ("lr_schedule", "warmup_share"))
    if warmup is None or steps is None:
        return
    if warmup >= steps:
        path = ("lr_schedule", "warmup_steps")
        draft.error("P001", f"a warm-up of {warmup:,} steps leaves nothing of a run of {steps:,}", path,
                    f"write {max(1, steps // 100):_}")  # fmt: skip
    elif warmup > 100 and warmup > 0.02 * steps:
        draft.warn(f"the warm-up takes {warmup / steps:.1%} of the run; 0.5 to 2 % is usual",
                   ("lr_schedule", "warmup_steps"), f"write {steps // 100:_}, which is 1 %")  # fmt: skip


def check_memory(draft: Draft, shape: ModelShape) -> None:
    """Whether the part that never leaves the devices fits: 16 bytes a parameter, sharded over all of them."""
    hardware = draft.config.hardware
    memory = hardware.gpu_memory or draft.machine.memory
    if memory is None:
        return
    devices = hardware.gpus or draft.machine.world
    needed = BYTES_OF_PARAMETER * shape.parameters / devices
    if needed > hardware.memory_target * memory:
        enough = math.ceil(BYTES_OF_PARAMETER * shape.parameters / (hardware.memory_target * memory))
        draft.error(
            "P003",
            f"weights, gradients and optimizer state need {needed / 2**30:.1f} GiB on each of {devices} devices; "
            f"{hardware.memory_target:.0%} of {memory / 2**30:.0f} GiB are {hardware.memory_target * memory / 2**30:.1f}",
            ("hardware", "gpus"),
            f"use at least {enough} devices, before activations",
            f"write model.params: {int(hardware.memory_target * memory * devices / BYTES_OF_PARAMETER):_} or less",
        )
