"""One rank of a small world that takes two steps of many plans, and leaves what came of them: run by test_parallel.

    RANK=0 WORLD_SIZE=2 python tests/trainer/ranks.py MANIFEST OUT RENDEZVOUS CASE ...

A case is `--set` texts joined by `;`. OUT/<number>-<stage>.safetensors gets the parameters of a stage, the first moment after
one step and what both steps measured, all whole; the first rank of the stage writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tests.trainer.tiny import planned
from trainer.loader import Loader
from trainer.loop import parallel
from trainer.loop.optim import Updater
from trainer.loop.parallel import World
from trainer.loop.step import Stepper
from trainer.model import build


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on every rank."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def two_steps(manifest: Path, world: World, *sets: str) -> dict[str, torch.Tensor]:
    """What two steps of this plan leave: see the module."""
    plan, manifests = planned(manifest, *sets, world=world.size)
    world = world.laid_out(plan.tensor_parallel, plan.pipeline_parallel)
    model = build(plan, world)
    updater = Updater(model, plan.optimizer)
    stepper = Stepper(plan, model, updater, world)
    found = {}
    with Loader([manifest.parent], plan, manifests) as loader:
        for step in range(2):
            measured = stepper(loader.batch(step, world.reader, world.readers, plan.micro_batch), step)
            found[f"measured {step}"] = measured.numbers[: 2 * len(plan.sources)].clone()
            found[f"norm {step}"] = measured.numbers[2 * len(plan.sources) + world.size + 1].clone()
            found[f"whole {step}"] = measured.whole
            if step == 0:
                moments = {"exp_avg", "momentum"}
                states = updater.state_tensors().items()
                found |= {f"moment {n}": whole(t) for n, t in states if n.rpartition(".")[2] in moments}
        found |= {name: whole(p) for name, p in model.named_parameters()}
    return found


if __name__ == "__main__":
    path, out, rendezvous, *cases = sys.argv[1:]
    here = parallel.join("cpu", rendezvous, threads=1)
    for number, case in enumerate(cases):
        result = two_steps(Path(path), here, *case.split(";"))
        stages = int(case.partition("pipeline_parallel=")[2][:1] or 1)
        if here.rank % (here.size // stages) == 0:
            save_file(result, Path(out) / f"{number}-{here.rank * stages // here.size}.safetensors")
    parallel.leave()
