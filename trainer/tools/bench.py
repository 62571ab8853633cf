"""`trainer bench`: how fast this machine trains the plan's model, one thing changed at a time.

First the micro-batch, doubled until memory or the batch ends; then, at the fastest, what is kept for the backward pass,
and compiled layers. Steps are those of `fit`, over real batches, so documents are as long as they are. The fastest is
written as a piece of plan.yaml: `trainer plan` estimates time and cost with it.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import torch

from stages.contract.files import write_atomic
from stages.contract.manifest import Manifest
from stages.contract.problem import Problem, RunError
from trainer.loader import IGNORE, Batch, Loader
from trainer.loop import parallel
from trainer.loop.flops import peak_of, token_flops
from trainer.loop.optim import Updater
from trainer.loop.parallel import World
from trainer.loop.step import Stepper
from trainer.model import build
from trainer.planned import Plan
from trainer.planning.figures import size
from trainer.planning.show import table

if TYPE_CHECKING:
    from trainer.command import Output

#: Forward passes in a measured step at most.
PASSES = 4


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    micro: int
    checkpointing: str
    compiled: bool


@dataclass(frozen=True)
class Speed:
    """What came of it. Memory in bytes; `failed` says why there is nothing else."""

    setting: Setting
    tokens_per_second: float = 0.0
    seconds: float = 0.0
    memory: int = 0
    mfu: float | None = None
    failed: str = ""


def measured(plan: Plan, loader: Loader, world: World, setting: Setting, steps: int) -> Speed:
    """Train a step to warm up and `steps` that count."""
    own = replace(
        plan, micro_batch=setting.micro, activation_checkpointing=setting.checkpointing, compile=setting.compiled  # type: ignore[arg-type]
    )
    _forget_peak(world)
    try:
        model = build(own, world)
        stepper = Stepper(own, model, Updater(model, own.optimizer), world)
        batches = [_cut(loader.batch(step % plan.steps, micro=setting.micro)) for step in range(steps + 1)]
        _finished(stepper, batches[0], 0)
        began = time.perf_counter()
        context = 0.0
        for step in range(1, steps + 1):
            context += _finished(stepper, batches[step], step % plan.steps)
        seconds = (time.perf_counter() - began) / steps
    except (torch.OutOfMemoryError, MemoryError):
        return Speed(setting, failed="out of memory")
    tokens = sum(micro["input_ids"].size for batch in batches[1:] for micro in batch.micros) / steps
    peak = peak_of(torch.cuda.get_device_name(world.device)) if world.device.type == "cuda" else None
    mfu = None if peak is None else tokens / seconds * token_flops(plan.model, context / steps) / peak
    return Speed(setting, tokens / seconds, seconds, _peak(world), mfu)


def _cut(batch: Batch) -> Batch:
    """At most `PASSES` passes of a step."""
    micros = batch.micros[:PASSES]
    return replace(batch, micros=micros, targets=sum(int((micro["labels"] != IGNORE).sum()) for micro in micros))


def _finished(stepper: Stepper, batch: Batch, step: int) -> float:
    """Do a step and wait for it: the mean length of its documents."""
    done = stepper(batch, step)
    done.numbers.sum().item()
    return done.context


def _forget_peak(world: World) -> None:
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)
        return
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")  # the high-water mark begins again; see proc(5)


def _peak(world: World) -> int:
    """Bytes used at most since `_forget_peak`: of the device, on a CPU of the process."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device)
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    from trainer.checkpoint.runfolder import peak_memory

    return peak_memory(world.device)


def sweep(plan: Plan, measure: Callable[[Setting], Speed], most: int | None = None, compile_too: bool = False) -> Iterator[Speed]:
    """Every measurement, one thing changed at a time from the plan's own setting."""
    batch = plan.phases[0].batch
    compiled = bool(plan.compile)
    best: Speed | None = None
    micro = 1
    while micro <= min(batch, most or batch):
        one = measure(Setting(micro, plan.activation_checkpointing, compiled))
        yield one
        if one.failed:
            break
        if best is None or one.tokens_per_second > best.tokens_per_second:
            best = one
        elif one.tokens_per_second < 0.9 * best.tokens_per_second:
            break  # it has been falling: larger ones only cost memory
        micro *= 2
    if best is None:
        return
    for kept in ("none", "selective", "full"):
        if kept != plan.activation_checkpointing:
            yield measure(replace(best.setting, checkpointing=kept))
    if compile_too:
        yield measure(replace(best.setting, compiled=not compiled))


def fastest(found: Sequence[Speed]) -> Speed:
    """RunError when nothing ran."""
    fine = [one for one in found if not one.failed]
    if not fine:
        message = "the model does not fit on this device, even one sequence at a time"
        raise RunError(Problem("T005", message, repairs=("`trainer plan --fit-memory` says what would",)))
    return max(fine, key=lambda one: one.tokens_per_second)


def plan_piece(best: Speed, devices: int, device: str) -> str:
    """bench.yaml."""
    speed = float(f"{best.tokens_per_second * devices:.3g}")
    lines = [
        f"# Written by `trainer bench`: {best.tokens_per_second:,.0f} tokens/s on one {device}; put `extends: [bench.yaml]` into plan.yaml.",
        *([f"# Of {devices} devices, without what they say to each other: an upper bound."] if devices > 1 else []),
        "batch:", f"  micro_batch_size: {best.setting.micro}",
        "parallel:", f"  activation_checkpointing: {best.setting.checkpointing}", f"  compile: {str(best.setting.compiled).lower()}",
        "hardware:", f"  tokens_per_second: {speed:.0f}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def report(found: Sequence[Speed], best: Speed) -> str:
    """A line for each measurement; the fastest has a star."""
    rows = [
        [
            "*" if one is best else "", f"{one.setting.micro:,}", one.setting.checkpointing, "yes" if one.setting.compiled else "no",
            one.failed or f"{one.tokens_per_second:,.0f}", "-" if one.mfu is None else f"{one.mfu:.1%}", "-" if one.failed else size(one.memory),
            "-" if one.failed else f"{one.seconds:.3g} s",
        ]
        for one in found
    ]  # fmt: skip
    return "\n".join(table([["", "micro-batch", "checkpointing", "compiled", "tokens/s", "MFU", "memory", "step"], *rows]))


def command(
    output: Output, plan: Plan, manifests: Sequence[Manifest], folders: Sequence[Path], arguments: Sequence[str],
    out: Path, steps: int, most: int | None, devices: int, device: Literal["cpu", "cuda"],
) -> int:  # fmt: skip
    """`trainer bench`: the exit code."""
    with Loader(folders, plan, manifests) as loader:
        world = parallel.join(device)
        name = torch.cuda.get_device_name(world.device) if device == "cuda" else "CPU"
        found: list[Speed] = []
        try:
            for one in sweep(plan, lambda setting: measured(plan, loader, world, setting, steps), most, device == "cuda"):
                found.append(one)
                output.say(f"micro-batch {one.setting.micro}, {one.setting.checkpointing}: {one.failed or f'{one.tokens_per_second:,.0f} tokens/s'}")
        finally:
            parallel.leave()
    best = fastest(found)
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"plan": plan.digest, "device": name, "steps": steps, "measured": [asdict(one) for one in found], "best": asdict(best)}
    write_atomic(out / "bench.json", json.dumps(record, indent=1).encode() + b"\n")
    write_atomic(out / "bench.yaml", plan_piece(best, devices, name).encode())
    if output.as_json:
        output.emit("result", {"exit": 0} | record)
    else:
        click.echo(report(found, best))
    speed = float(f"{best.tokens_per_second * devices:.3g}")
    output.next(["trainer", "plan", *arguments, "--set", f"hardware.tokens_per_second={speed:.0f}"])
    return 0
