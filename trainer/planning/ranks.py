"""Whether a number of ranks can run a plan whose layers are shared or cut into stages."""

from __future__ import annotations

from stages.contract.config import Loaded
from stages.contract.problem import Problem, SpecError
from trainer.config import PlanConfig
from trainer.planned import Plan


def least_devices(config: PlanConfig) -> int:
    """Devices that one copy of the model takes: those that share a layer, times stages."""
    return config.parallel.tensor_parallel * config.parallel.pipeline_parallel


def check_groups(loaded: Loaded[PlanConfig], ranks: int) -> None:
    """SpecError when the ranks cannot be cut into groups that each hold one copy of the model."""
    least, parallel = least_devices(loaded.value), loaded.value.parallel
    if ranks % least == 0:
        return
    message = (
        f"{ranks} ranks cannot be cut into groups of {least} (parallel.tensor_parallel {parallel.tensor_parallel} x "
        f"parallel.pipeline_parallel {parallel.pipeline_parallel})"
    )
    below = ranks // least * least
    fitting = f"{below} or {below + least}" if below else f"{least}"
    path = ("parallel", "tensor_parallel" if parallel.tensor_parallel > 1 else "pipeline_parallel")
    raise SpecError(loaded.problem("P001", message, path, (f"start {fitting} ranks", "lower one of the two")))


def check_passes(plan: Plan, ranks: int) -> None:
    """SpecError with every phase whose steps have too few passes for the stages, with so many ranks."""
    stages = plan.pipeline_parallel
    readers = ranks // (plan.tensor_parallel * stages)
    found = [too_few_passes(phase.name, phase.batch, readers, plan.micro_batch or 1, stages) for phase in plan.phases]
    if any(found):
        raise SpecError(*filter(None, found))


def too_few_passes(phase: str, batch: int, readers: int, micro: int, stages: int) -> Problem | None:
    """What is wrong when the passes of a step do not fill the stages; None when they do.

    batch, micro  sequences of a step and of a pass;  readers  groups of ranks that read sequences of their own
    """
    share = -(-batch // readers)
    passes = -(-share // micro)
    if passes >= stages:
        return None
    message = f"phase {phase}: a step has {passes} passes for {stages} pipeline stages, which need one each at least"
    repairs = [f"write parallel.pipeline_parallel: {passes}"]
    if share >= stages:
        repairs.insert(0, f"write batch.micro_batch_size: {share // stages}")
    else:
        repairs.insert(0, f"raise batch.global_tokens: {share} sequences of a step are not enough for {stages} passes")
    return Problem("P001", message, repairs=tuple(repairs))
