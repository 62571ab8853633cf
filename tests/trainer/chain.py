"""One rank of a world that trains a run piece by piece, each piece in a layout of its own: run by test_layouts.

    RANK=0 WORLD_SIZE=4 python tests/trainer/chain.py MANIFEST OUT RENDEZVOUS PIECE ...

A piece is `--set` texts joined by `;`, with `stop.after_steps`. At step POISONED the first stage's output is NaN on one rank.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.trainer.tiny import planned
from trainer.launch import Stop
from trainer.loader import Batch, Loader
from trainer.loop import parallel
from trainer.loop.fit import Fit
from trainer.loop.parallel import World
from trainer.loop.step import Measured

#: Counted from 0.
POISONED = 1


def poison(run: Fit, rank: int) -> None:
    """Let a forward pass of this rank give NaN in one step."""
    plain = run.train_step

    def train_step(batch: Batch, step: int) -> Measured:
        handle = None
        if step == POISONED and run.world.rank == rank:
            handle = run.model.register_forward_hook(lambda _module, _inputs, output: output * float("nan"))
        try:
            return plain(batch, step)
        finally:
            if handle is not None:
                handle.remove()

    run.train_step: Any = train_step  # type: ignore[method-assign]


def piece(manifest: Path, out: Path, world: World, sets: list[str]) -> None:
    """Go on with the run in a layout until it says stop."""
    plan, manifests = planned(manifest, *sets, world=world.size)
    with Loader([manifest.parent], plan, manifests) as loader:
        run = Fit(plan, loader, out, world, Stop(), quiet=True)
        poison(run, world.size - 1 if world.size == 1 else 1)
        run.resume()
        run.run()
        run.close()


if __name__ == "__main__":
    path, out, rendezvous, *pieces = sys.argv[1:]
    here = parallel.join("cpu", rendezvous, threads=1)
    for one in pieces:
        piece(Path(path), Path(out), here, one.split(";"))
    parallel.leave()
