"""`checkpoint.verify_resume`: what was saved brings back what was there, shown on the run itself.

The next step is taken twice: from the state as it is, and from the checkpoint that was just made of it. Every bit of
parameters and optimizer must be the same both times. Then the run goes on from the checkpoint.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stages.contract.problem import Problem, RunError
from trainer.checkpoint import Checkpoint, read
from trainer.loop.parallel import local_box

if TYPE_CHECKING:
    from trainer.loop.fit import Fit


def prove_resume(run: Fit, path: Path) -> None:
    """RunError when the checkpoint at `path`, just made, leads elsewhere than the run itself; costs two steps."""
    if not run.plan.deterministic:
        run.say("checkpoint.verify_resume compares bits, which needs deterministic: true; nothing was compared")
        return
    found = read(path)
    if not isinstance(found, Checkpoint):
        raise RunError(Problem("T006", f"{path} cannot be read back: {found}"))
    here = digests(run)
    there = _one_step(run)
    run.load(found)
    back = digests(run)
    again = _one_step(run)
    run.load(found)
    differing = [name for name in here if here[name] != back[name]]
    later = [name for name in there if there[name] != again[name]]
    wrong = run.world.texts(", ".join([*(f"{n} at the save" for n in differing), *(f"{n} a step later" for n in later)]))
    if any(wrong):
        listing = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(wrong) if text)
        raise RunError(
            Problem("T006", f"{path} does not bring back what it was made of: {listing}",
                    repairs=("this is a fault of the program, of a driver or of the hardware; `trainer verify` shows more",))
        )  # fmt: skip
    run.say(f"resume was tried at step {found.step:,}: from the checkpoint the next step has the same bits")


def _one_step(run: Fit) -> dict[str, str]:
    """What the next step makes of the state."""
    step = run.state.step
    run.train_step(run.loader.batch(step, run.world.reader, run.world.readers, run.micro), step)
    return digests(run)


def digests(run: Fit) -> dict[str, str]:
    """SHA-256 (hex) of this rank's part of each tensor of a checkpoint."""
    found = {}
    for group, named in run.tensors().items():
        for name, tensor in named.items():
            local = local_box(tensor.detach())[0].contiguous().cpu()
            found[f"{group}/{name}"] = hashlib.sha256(local.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
    return found
