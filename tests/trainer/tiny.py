"""Small things for the tests of the trainer: one process as a world of one, tiny models, plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stages.contract.manifest import Manifest, load_manifest
from tests.trainer.corpora import make_corpus, random_documents
from trainer.config import read_plan
from trainer.launch import Stop
from trainer.loader import Loader
from trainer.loop import metrics, parallel
from trainer.loop.fit import Fit
from trainer.loop.metrics import TIMING
from trainer.loop.parallel import World
from trainer.loop.step import Numbers
from trainer.model import Llama, Recompute, fill
from trainer.planning.plan import Machine, Plan, resolve
from trainer.shape import ModelShape

SHAPE = ModelShape(
    vocab_size=64,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    ffn=64,
    seq_len=32,
    tie_embeddings=False,
    rope_theta=10_000.0,
    norm_eps=1e-5,
)

_ALONE: list[World] = []


def alone() -> World:
    """This test process as a world of one rank with one thread; joined once, and again where a test has left it."""
    if not torch.distributed.is_initialized():
        _ALONE.clear()
    if not _ALONE:
        _ALONE.append(parallel.join("cpu", threads=1))
    return _ALONE[0]


def model(shape: ModelShape = SHAPE, seed: int = 1, recompute: Recompute = "none", z_loss: float = 0.0) -> Llama:
    """A sharded model on one rank with its first weights."""
    world = alone()
    with torch.device("meta"):
        built = Llama(shape, recompute, z_loss)
    parallel.shard(built, built.model.layers, parallel.data_axes(parallel.mesh_of(world, "full")), "full", torch.float32)
    built.to_empty(device=world.device)
    built.tie()
    fill(built, seed)
    return built


def ids(count: int, seed: int = 0, vocab: int = 64) -> torch.Tensor:
    """Random token ids, int64."""
    return torch.randint(1, vocab, (count,), generator=torch.Generator().manual_seed(seed))


#: The smallest plan that has everything: 8 sequences of 32 tokens a step.
BASE = (
    "model.width=32",
    "model.layers=2",
    "model.heads=4",
    "model.kv_heads=2",
    "model.ffn=64",
    "model.seq_len=32",
    "model.tie_embeddings=false",
    "batch.global_tokens=256",
    "lr_schedule.peak_lr=1e-2",
)


def corpus(folder: Path, documents: int = 150, **options) -> Path:
    """The manifest of a corpus with two sources of documents of 1 to 40 ids, and a holdout of the first."""
    sources = {"web": random_documents(documents, 40, 64), "书": random_documents(documents, 40, 64, seed=1)}
    held = {"web": random_documents(6, 40, 64, seed=2)}
    return make_corpus(folder, sources, vocab=64, mixture={"web": 0.7, "书": 0.3}, holdout=held, **options)


def overrides(steps: int, *more: str) -> tuple[str, ...]:
    """`--set` texts of a tiny run of so many steps, with mask, saves and logging as `more` says."""
    return (*BASE, f"data.total_tokens={256 * steps}", *more)


def planned(manifest_path: Path, *sets: str, world: int = 1) -> tuple[Plan, list[Manifest]]:
    """The plan for a manifest with `--set` texts, and the manifest."""
    manifests = [load_manifest(manifest_path)]
    return resolve(read_plan(None, sets), manifests, Machine(world=world)), manifests


@contextmanager
def fit(manifest_path: Path, out: Path, *sets: str, stop: Stop | None = None) -> Iterator[Fit]:
    """A run on this process as the only rank, resumed and ready to `run()`."""
    plan, manifests = planned(manifest_path, *sets)
    out.mkdir(parents=True, exist_ok=True)
    with Loader([manifest_path.parent], plan, manifests) as loader:
        run = Fit(plan, loader, out, alone(), stop or Stop(), quiet=True)
        try:
            run.resume()
            yield run
        finally:
            run.close()


def lines(out: Path, kind: str = "step") -> list[dict[str, Any]]:
    """The records of metrics.jsonl without the fields that hold times."""
    return [
        {key: value for key, value in record.items() if key not in TIMING}
        for record in metrics.read(out / "metrics.jsonl")
        if record["kind"] == kind
    ]


def taken(run: Fit, step: int) -> Numbers:
    """One step of a run, and what it measured; nothing is looked at or written."""
    batch = run.loader.batch(step, 0, 1, run.micro)
    found = run.train_step(batch, step)
    return Numbers.read(found.numbers.tolist(), found.whole.tolist(), run.sources, 1)


def weights(run: Fit) -> dict[str, torch.Tensor]:
    """Copies of the parameters."""
    return {name: p.detach().to_local().clone() for name, p in run.model.named_parameters()}
