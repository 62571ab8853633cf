"""Corpora that can be learned, and runs with something wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.trainer.corpora import make_corpus
from tests.trainer.tiny import alone, planned
from trainer.checkpoint.runfolder import describe_run
from trainer.launch import Stop
from trainer.loader import Loader
from trainer.loop.fit import Fit
from trainer.tools.causes import findings
from trainer.tools.causes.case import LIKELY, Finding
from trainer.tools.doctor import case_of
from trainer.tools.runs import open_run

VOCAB = 64

#: A tiny run that learns: 8 sequences of 32 a step at a rate that suits the size.
BASE = (
    "model.width=32", "model.layers=2", "model.heads=4", "model.kv_heads=2", "model.ffn=64", "model.seq_len=32",
    "model.tie_embeddings=false", "batch.global_tokens=256", "lr_schedule.peak_lr=3e-3", "lr_schedule.warmup_steps=4",
    "data.on_exhaust=error",
)  # fmt: skip


def sets(steps: int, *more: str) -> tuple[str, ...]:
    return (*BASE, f"data.total_tokens={256 * steps}", *more)


def speech(count: int, longest: int = 40, seed: int = 0, dialect: int = 0) -> list[list[int]]:
    """Documents of a language: each token is followed by one of four, likelier the nearer; dialects differ in which."""
    rng = np.random.default_rng(seed)
    follow = np.random.default_rng(100 + dialect).integers(1, VOCAB, (VOCAB, 4))
    found = []
    for length in rng.integers(8, longest + 1, count):
        token, made = int(rng.integers(1, VOCAB)), []
        for _ in range(length):
            made.append(token)
            token = int(follow[token, min(3, int(rng.exponential(0.8)))])
        found.append(made)
    return found


def corpus(folder: Path, documents: int = 400, changed=None, mixture=None, **options) -> Path:
    """Two sources with a holdout each; `changed` may change the documents of a source in place."""
    sources = {name: speech(documents, seed=i, dialect=i) for i, name in enumerate(("web", "书"))}
    held = {name: speech(12, seed=50 + i, dialect=i) for i, name in enumerate(sources)}
    if changed is not None:
        changed(sources)
    return make_corpus(folder, sources, vocab=VOCAB, mixture=mixture or {"web": 0.7, "书": 0.3}, holdout=held, **options)


@contextmanager
def running(manifest: Path, out: Path, *texts: str, loader: type[Loader] = Loader) -> Iterator[Fit]:
    """As `tests.trainer.tiny.fit`, with another loader and what stands in run.json."""
    plan, manifests = planned(manifest, *texts)
    out.mkdir(parents=True, exist_ok=True)
    with loader([manifest.parent], plan, manifests) as feed:
        run = Fit(plan, feed, out, alone(), Stop(), quiet=True)
        try:
            run.resume()
            describe_run(out, run.plan, alone(), run.state.step, [manifest.parent])
            yield run
        finally:
            run.close()


def train(manifest: Path, out: Path, *texts: str, loader: type[Loader] = Loader) -> Path:
    with running(manifest, out, *texts, loader=loader) as run:
        run.run()
    return out


def judged(out: Path) -> list[Finding]:
    with case_of(open_run(out)) as (case, missing):
        assert not missing
        return findings(case)


def first(out: Path) -> str:
    """The cause that the doctor names first; "" where nothing is likely."""
    found = judged(out)
    return found[0].cause if found and found[0].certainty >= LIKELY else ""
