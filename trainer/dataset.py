"""The batches of a plan for a training loop of your own: a torch IterableDataset whose whole state is one place.

    from trainer.loader import TokenDataset

    data = TokenDataset(["out/manifest.json"], overrides=["model.seq_len=2048", "batch.global_tokens=1M"])
    for row in torch.utils.data.DataLoader(data, batch_size=8): ...

Rows come in the order of the plan, already mixed and shuffled, and are read ahead by a thread, so the DataLoader needs
no workers. `state_dict` and `load_state_dict` make it resume at any row; StatefulDataLoader calls them by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from stages.contract.manifest import load_manifest
from stages.contract.problem import Problem, SpecError
from trainer.config import read_plan
from trainer.loader import Batch, Loader, Micro
from trainer.planning.plan import Machine, Plan, resolve


class TokenDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Rows (or micro-batches) of the plan for one rank, from where the state stands to the end of the run.

    manifests  manifest.json files, or their folders
    plan       a plan.yaml, or a resolved plan; left out: derived from the corpus
    overrides  texts such as `model.seq_len=2048`, as behind `--set`
    rank, world  of this process; left out: RANK and WORLD_SIZE of the environment, else 0 and 1
    micro      None: each item is one row, `input_ids`, `labels`, `position_ids` int64 of shape (L,), for a DataLoader
               to put together. A number: each item is a micro-batch of that many rows with `cu_seqlens` (int32) and
               `max_seqlen` besides, for a DataLoader with `batch_size=None`; ranks get equally many of equal shape,
               made even by rows whose `weight` is 0
    pin        arrays in pinned memory, so that copies to a device do not wait

    Labels stand where their prediction is made: position i of `labels` is the token behind position i of `input_ids`
    (-100: none). A model that shifts labels itself, as those of transformers do, wants `shifted=True`: then `labels`
    are the tokens of the row itself, -100 where the one before may not predict them.
    """

    def __init__(
        self,
        manifests: Sequence[str | Path],
        plan: str | Path | Plan | None = None,
        overrides: Sequence[str] = (),
        rank: int | None = None,
        world: int | None = None,
        micro: int | None = None,
        pin: bool = False,
        shifted: bool = False,
    ) -> None:
        super().__init__()
        folders = [Path(path) for path in manifests]
        read = [load_manifest(folder) for folder in folders]
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        if not isinstance(plan, Plan):
            machine = Machine("cuda" if torch.cuda.is_available() else "cpu", os.cpu_count() or 1, self.world)
            plan = resolve(read_plan(None if plan is None else Path(plan), overrides), read, machine)
        elif overrides:
            raise SpecError(Problem("C017", "overrides change a plan.yaml; this plan is resolved already"))
        self.plan = plan
        self.micro, self.shifted = micro, shifted
        self.loader = Loader(folders, plan, read, allocate=pinned if pin else np.empty)
        self._step = self._item = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Items from where the state stands. RuntimeError in a worker process: a thread reads ahead already."""
        if get_worker_info() is not None:
            raise RuntimeError("TokenDataset reads ahead by itself: make its DataLoader with num_workers=0")
        skip = self._item
        batches = self.loader.batches(self._step, self.rank, self.world, self.micro or 1)
        try:
            for batch in batches:
                items = self._items(batch)
                for i, item in enumerate(items[skip:], skip + 1):
                    self._step, self._item = (batch.step, i) if i < len(items) else (batch.step + 1, 0)
                    yield item
                skip = 0
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _items(self, batch: Batch) -> list[dict[str, torch.Tensor]]:
        if self.micro is not None:
            return [self._item_of(micro) for micro in batch.micros]
        names = ("input_ids", "labels", "position_ids")
        whole = [self._item_of(micro) for micro in batch.micros]
        return [
            {name: item[name][i] for name in names} for item in whole for i in np.flatnonzero(item["weight"].numpy())
        ]

    def _item_of(self, micro: Micro) -> dict[str, torch.Tensor]:
        arrays = {name: value for name, value in micro.items() if name != "span_id"}
        if self.shifted:
            arrays["labels"] = np.roll(micro["labels"], 1, axis=1)
            arrays["labels"][:, 0] = -100
        return {name: torch.as_tensor(value) for name, value in arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """The place of the next item: step of the run, item of the step; and the order it is a place in."""
        begun = sum(phase.first_step <= self._step for phase in self.plan.phases)
        return {"step": self._step, "item": self._item, "chain": list(self.plan.chain[: begun + 1])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a place. SpecError when it is a place in another order of data."""
        own = self.plan.chain[: len(state["chain"])]
        if list(own) != state["chain"]:
            message = "this state belongs to another order of data: the manifest, seed, mixture or phases differ"
            raise SpecError(Problem("P004", message))
        self._step, self._item = state["step"], state["item"]


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in pinned memory, from which copies to a GPU do not wait."""
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True).numpy()
