"""Out of memory: what to change, in the order in which to try it, with what each change frees by the memory ledger."""

from __future__ import annotations

import re

import torch

from stages.contract.problem import Problem, RunError
from trainer.loop.parallel import World
from trainer.planned import Plan
from trainer.planning.figures import size
from trainer.planning.memory import Setting, ledger, ways_out

#: How an allocator says that host memory is full; on a GPU it is an error of its own.
_HOST_IS_FULL = re.compile(r"can't allocate memory|std::bad_alloc")


def explained(error: RuntimeError | MemoryError, plan: Plan, step: int, micro: int, world: World) -> Exception:
    """The error of a step (0-based) as one that says what to change, if it is that memory is full; else itself."""
    full = isinstance(error, torch.OutOfMemoryError | MemoryError) or _HOST_IS_FULL.search(str(error))
    if not full:
        return error
    message = f"rank {world.rank} ran out of memory on {world.device} at step {step + 1:,}"
    setting = setting_at(plan, step, micro, world.readers, world.device.type == "cpu")
    return RunError(Problem("T005", message, repairs=("in this order:", *advice(setting, world.memory()))))


def setting_at(plan: Plan, step: int, micro: int, readers: int, on_cpu: bool) -> Setting:
    """What decides the memory of a device at a step, in passes of `micro` sequences."""
    phase = plan.phase_at(step)
    return Setting(
        shape=plan.model,
        rows=micro,
        seq_len=phase.seq_len,
        passes=max(1, -(-phase.batch // (micro * readers))),
        devices=readers,
        shard=plan.shard,
        replicas=plan.replicas,
        tensor=plan.tensor_parallel,
        pipeline=plan.pipeline_parallel,
        recompute=plan.activation_checkpointing,
        compute=plan.compute,
        optimizer=plan.optimizer.type,
        on_cpu=on_cpu,
    )


def advice(setting: Setting, memory: float) -> list[str]:
    """One line for each change that frees memory: `batch.micro_batch_size: 4 frees about 1.2 GiB (the result stays the same)`.

    memory  bytes of the device. Where the ledger says that the step should have fitted, half of the micro-batch is advised.
    """
    lines = [
        f"{way.key}: {way.value} frees about {size(way.frees)} ({way.price})"
        for way in ways_out(setting, memory)
    ]
    return [*lines, f"a step of this plan is reckoned to take {size(ledger(setting).total)} of the {size(memory)} of a device"]
