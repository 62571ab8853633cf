"""A model with the weights of a checkpoint, to look at: no optimizer, no run folder is touched."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stages.contract.problem import Problem, RunError, SpecError
from trainer import checkpoint
from trainer.checkpoint import COMPLETE, Checkpoint
from trainer.checkpoint.records import Complete
from trainer.loop.parallel import World
from trainer.model import Llama, build
from trainer.planned import Plan


def chosen(out: Path, step: int | None, best: bool) -> Checkpoint:
    """A checkpoint of a run folder: of this step, the one with the best holdout loss, or the newest sound one.

    SpecError when there is none.
    """
    root = out / "checkpoints"
    present = checkpoint.folders(root)
    if best and present:
        newest = Complete.model_validate_json((present[max(present)] / COMPLETE).read_bytes())
        step = newest.state.best_step
        if step is None:
            raise SpecError(Problem("C005", f"{out} has evaluated nothing, so no checkpoint is the best"))
    if step is None:
        found, _ = checkpoint.newest(root)
        if found is None:
            raise SpecError(Problem("C005", f"there is no checkpoint in {root}", repairs=("trainer fit writes them",)))
        return found
    if step not in present:
        steps = ", ".join(f"{one:,}" for one in present) or "none"
        raise SpecError(Problem("C005", f"{root} has no checkpoint of step {step:,}", repairs=(f"there are: {steps}",)))
    read = checkpoint.read(present[step])
    if not isinstance(read, Checkpoint):
        raise RunError(Problem("T001", f"{present[step]} cannot be used: {read}"))
    return read


def with_weights(plan: Plan, found: Checkpoint, world: World) -> Llama:
    """The model of the plan with these weights, in evaluation mode. SpecError when they are of another shape."""
    mine = asdict(plan.model)
    theirs = found.record.identity.model
    rows = [f"model.{k}: checkpoint {theirs.get(k)}, plan {v}" for k, v in mine.items() if k != "seq_len" and theirs.get(k) != v]
    if rows:
        message = f"{found.path} holds a model of another shape than the plan"
        raise SpecError(Problem("P004", message, repairs=(*rows, "give the plan and --set values that the run had")))
    model = build(plan, world)
    checkpoint.load(found, {"model": dict(model.named_parameters())})
    return model.eval()
