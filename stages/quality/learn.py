"""The rounds that train a classifier inside a build, from sources of the corpus itself.

    offer    each part: keys and sizes of its documents of the good and the bad sources, those of the smallest keys
    pick     up to which key each side is taken: at most `texts` texts and `bytes` bytes of it
    bring    each part: these texts
    learn    the model, bit for bit the same for the same texts
    score    each part: scores of its documents

A key is a hash of the text, so the sample is the same however the corpus is cut into parts, and equal texts go together.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.contract.config import Count, Size
from stages.exchange import column_values
from stages.quality.scoring import Scorer, card_path, load_scorer
from stages.quality.train import Settings, train
from stages.stage import Outbox, StepContext, Superstep

GOOD, BAD = 0, 1
STEPS_OF_LEARNING = (
    Superstep("offer"),
    Superstep("pick", 1, ("offers",)),
    Superstep("bring", reads=("picked",)),
    Superstep("learn", 1, ("texts",)),
    Superstep("score", reads=("*model",)),
)


class Train(BaseModel):
    """Which sources are good and which are bad, and how much of them is learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    good: Annotated[tuple[str, ...], Field(min_length=1, description="Sources whose documents are good.")]
    bad: Annotated[tuple[str, ...], Field(min_length=1, description="Sources whose documents are bad.")]
    texts: Annotated[Count, Field(ge=20, description="At most so many texts of each side, by hash.")] = 20_000
    bytes: Annotated[Size, Field(ge=1, description="At most so many bytes of text of each side.")] = 128 * 2**20
    epochs: Annotated[Count, Field(ge=1, description="How often the texts are read.")] = 10

    @model_validator(mode="after")
    def _different(self) -> Train:
        if both := sorted(set(self.good) & set(self.bad)):
            raise ValueError(f"{', '.join(both)} cannot be good and bad")
        return self

    def side(self, source: str) -> int | None:
        """GOOD, BAD, or None for a source that nothing is learned from."""
        return GOOD if source in self.good else BAD if source in self.bad else None


def text_keys(texts: pa.Array) -> np.ndarray:
    """uint64 [N]: the key of each text; texts that hold nothing but white space get the largest, and are never taken."""
    none = 2**64 - 1
    return np.array(
        [
            xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) if text.strip() else none
            for text in texts.to_pylist()
        ],
        np.uint64,
    )


def offer(given: Train, context: StepContext) -> dict[str, Outbox]:
    """Keys and sizes of the documents of a part that may be learned from: at most `texts` of them."""
    side = given.side(context.part.source)
    keys, sizes = np.empty(0, np.uint64), np.empty(0, np.int64)
    if side is not None:
        table = context.emission(context.index)
        stays = np.ones(table.num_rows, bool)
        stays[context.dropped(context.index)] = False
        keys, sizes = column_values(table, "key")[stays], column_values(table, "bytes")[stays]
        first = np.argsort(keys, kind="stable")[: given.texts]
        keys, sizes = keys[first], sizes[first]
    sides = np.full(len(keys), side or 0, np.uint8)
    return {"offers": Outbox(0, pa.table({"side": sides, "key": keys, "bytes": sizes}))}


def pick(given: Train, context: StepContext) -> dict[str, Outbox]:
    """For every part the key behind the last one that is taken, of either side; 0 takes nothing."""
    inbox = context.inbox["offers"]
    side, key, size = (column_values(inbox, name) for name in ("side", "key", "bytes"))
    limits = np.zeros(2, np.uint64)
    for number in (GOOD, BAD):
        mine = side == number
        keys, first = np.unique(key[mine], return_index=True)  # equal texts count once
        fits = np.cumsum(size[mine][first]) <= given.bytes
        taken = keys[: min(int(fits.sum()), given.texts)]
        limits[number] = np.uint64(taken[-1]) + np.uint64(1) if len(taken) else np.uint64(0)
    address = np.array([part.index for part in context.parts], np.uint32)
    rows = {"good": np.full(len(address), limits[GOOD]), "bad": np.full(len(address), limits[BAD])}
    return {"picked": Outbox(address, pa.table(rows))}


def bring(given: Train, context: StepContext) -> dict[str, Outbox]:
    """The texts of a part that are taken."""
    side = given.side(context.part.source)
    taken: list[pa.Array] = []
    if side is not None:
        limit = column_values(context.inbox["picked"], ("good", "bad")[side])[0]
        chosen = column_values(context.emission(context.index), "key") < limit
        chosen[context.dropped(context.index)] = False
        row = 0
        for batch in context.documents(context.index):
            taken.append(batch.column("text").filter(pa.array(chosen[row : row + len(batch)])))
            row += len(batch)
    texts = pa.chunked_array(taken, pa.large_string()) if taken else pa.chunked_array([], pa.large_string())
    return {"texts": Outbox(0, pa.table({"side": np.full(len(texts), side or 0, np.uint8), "text": texts}))}


def learn(given: Train, column: str, context: StepContext) -> dict[str, Outbox]:
    """The model and its card: for the scores, and as files of the corpus below `quality/`.

    ValueError where a side has fewer than 20 different texts.
    """
    inbox = context.inbox["texts"]
    side, texts = column_values(inbox, "side"), inbox.column("text")
    good, bad = (texts.filter(pa.array(side == number)).to_pylist() for number in (GOOD, BAD))
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        out = Path(folder) / "model.bin"
        how = Settings(epoch=given.epochs, seed=context.seed % 2**31)
        card = train(good, bad, out, how, (*given.good, *given.bad))
        files = {f"{column}.bin": out.read_bytes(), f"{column}.bin.json": card_path(str(out)).read_bytes()}
    middle = next(row for row in card["curve"] if row["threshold"] == 0.5)
    context.counters["good texts learned from"] += card["trained_on"]["good"]
    context.counters["bad texts learned from"] += card["trained_on"]["bad"]
    context.counters["precision at 0.5, %"] += round(100 * middle["precision"])
    context.counters["recall at 0.5, %"] += round(100 * middle["recall"])
    contents = pa.array(list(files.values()), pa.large_binary())
    return {
        "model": Outbox(0, pa.table({"content": contents})),
        "artifact": Outbox(0, pa.table({"name": [f"quality/{name}" for name in files], "content": contents})),
    }


def scorer_of(context: StepContext) -> Scorer:
    """The model that `learn` sent, loaded."""
    model, card = (content.as_buffer() for content in context.inbox["model"].column("content"))
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        path = Path(folder) / "model.bin"
        path.write_bytes(model)
        card_path(str(path)).write_bytes(card)
        return load_scorer(str(path), None, None)
