"""A sample of the documents of a source by size: those with the smallest keyed hashes of their ids.

Which documents are in depends on ids, sizes, seed and budget alone; a larger budget only adds to a smaller one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stages.exchange import column_values
from stages.stage import PartInfo, StepContext

LARGEST = 2**64 - 1
_BINS = 1 << 16


def keys_of(batch: pa.RecordBatch, seed: int) -> np.ndarray:
    """uint64 per document: the first 8 bytes of its id, mixed with the seed (the finaliser of SplitMix64)."""
    column = batch.column("id")
    ids = np.frombuffer(column.buffers()[1], np.uint64) if len(batch) else np.empty(0, np.uint64)
    key = ids[2 * column.offset : 2 * (column.offset + len(column)) : 2] + np.uint64(
        seed * 0x9E3779B97F4A7C15 & LARGEST
    )
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _alive(context: StepContext, part: PartInfo) -> tuple[np.ndarray, np.ndarray]:
    """`(keys, bytes)` of the documents of a part that are alive."""
    table = context.emission(part.index)
    keys, sizes = column_values(table, "key"), column_values(table, "bytes").astype(np.int64)
    alive = np.ones(len(keys), bool)
    alive[context.dropped(part.index)] = False
    return keys[alive], sizes[alive]


def profile_of(context: StepContext, parts: list[PartInfo]) -> np.ndarray:
    """int64[65536]: bytes of text by the top 16 bits of the document key."""
    profile = np.zeros(_BINS, np.int64)
    for part in parts:
        keys, sizes = _alive(context, part)
        np.add.at(profile, (keys >> np.uint64(48)).astype(np.int64), sizes)
    return profile


def limit_of(context: StepContext, parts: list[PartInfo], profile: np.ndarray, budget: int) -> int:
    """The smallest key so that documents up to it hold `budget` bytes; the largest possible key if all hold less."""
    reached = np.cumsum(profile)
    if reached[-1] <= budget:
        return LARGEST
    last = int(np.searchsorted(reached, budget))
    keys, sizes = np.empty(0, np.uint64), np.empty(0, np.int64)
    for part in parts:
        more, lengths = _alive(context, part)
        inside = (more >> np.uint64(48)) == np.uint64(last)
        keys, sizes = np.concatenate([keys, more[inside]]), np.concatenate([sizes, lengths[inside]])
    order = np.argsort(keys, kind="stable")
    filled = reached[last] - profile[last] + np.cumsum(sizes[order])
    return int(keys[order][np.searchsorted(filled, budget)])
