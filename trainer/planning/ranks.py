"""Whether a number of ranks can run a plan whose layers are shared or cut into stages."""

from __future__ import annotations

from stages.contract.problem import Problem, SpecError
from trainer.planned import Plan


def check_ranks(plan: Plan, ranks: int) -> None:
    """SpecError when tensor and pipeline parallelism do not divide the ranks, or leave a stage without passes."""
    tensor, stages = plan.tensor_parallel, plan.pipeline_parallel
    if ranks % (tensor * stages):
        fitting = f"{max(1, ranks // (tensor * stages)) * tensor * stages} or {(ranks // (tensor * stages) + 1) * tensor * stages}"
        message = (
            f"{ranks} ranks cannot be cut into groups of {tensor * stages} (parallel.tensor_parallel {tensor} x "
            f"parallel.pipeline_parallel {stages})"
        )
        raise SpecError(Problem("P001", message, repairs=(f"start {fitting} ranks", "write smaller values for the two")))
    readers = ranks // (tensor * stages)
    problems = [
        problem
        for phase in plan.phases
        if (problem := too_few_passes(phase.name, phase.batch, readers, plan.micro_batch or 1, stages)) is not None
    ]
    if problems:
        raise SpecError(*problems)


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
        rows = max(n for n in range(1, share // stages + 1) if share % n == 0)
        repairs.insert(0, f"write batch.micro_batch_size: {rows}")
    else:
        repairs.insert(0, f"raise batch.global_tokens: {share} sequences of a step are not enough for {stages} passes")
    return Problem("P001", message, repairs=tuple(repairs))
