"""Exact similarity: the sets of shingles of some documents, read from their text, and how many two of them share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit, types

from stages.dedup.signature import I64_1, U64_1
from stages.document import text_buffers
from stages.exchange import column_values
from stages.text import shingle_hashes


@dataclass(frozen=True)
class Sets:
    """Sets of 64-bit hashes by a key: set i, of keys[i], is values[offsets[i]:offsets[i + 1]], ascending."""

    keys: np.ndarray
    offsets: np.ndarray
    values: np.ndarray

    def at(self, chosen: np.ndarray) -> Sets:
        """The sets of these places, in this order."""
        sizes = np.diff(self.offsets)[chosen]
        offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        return Sets(self.keys[chosen], offsets, self.values[np.repeat(self.offsets[:-1][chosen], sizes) + within])

    def table(self) -> pa.Table:
        """One row a set, columns `key` and `set`, as it is sent."""
        lists = pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.values))
        return pa.table({"key": self.keys, "set": lists})

    @classmethod
    def of_table(cls, table: pa.Table) -> Sets:
        """The sets that were sent, each key once, in order of the keys."""
        if table.num_rows == 0:
            return cls(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint64))
        lists = pa.concat_arrays(table.column("set").chunks)
        keys = column_values(table, "key")
        sent = cls(keys, lists.offsets.to_numpy(), lists.values.to_numpy())
        return sent.at(np.unique(keys, return_index=True)[1])


def shingle_sets(batches: Iterable[pa.RecordBatch], rows: np.ndarray, keys: np.ndarray, ngram: int) -> Sets:
    """The sets of shingles of some rows (ascending) of a part, with the keys given to them.

    The text is read batch by batch, and no further than the last of those rows.
    """
    found: list[np.ndarray] = []
    first = place = 0
    for batch in batches if len(rows) else ():
        stop = int(np.searchsorted(rows, first + batch.num_rows))
        if stop > place:
            texts = batch.column("text").take(pa.array(rows[place:stop].astype(np.int64) - first))
            hashes, offsets = shingle_hashes(*text_buffers(texts), ngram)
            found += [np.unique(hashes[a:b]) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
            place = stop
        first += batch.num_rows
        if place == len(rows):
            break
    offsets = np.append(0, np.cumsum([len(one) for one in found])).astype(np.int64)
    return Sets(keys, offsets, np.concatenate([np.empty(0, np.uint64), *found]))


def similarities(left: Sets, left_places: np.ndarray, right: Sets, right_places: np.ndarray) -> np.ndarray:
    """`(shared, all)` int64 [pairs, 2]: sizes of intersection and union of each pair of sets, by their places."""
    shared = _shared(
        left.values, left.offsets, left_places.astype(np.int64), right.values, right.offsets, right_places.astype(np.int64)
    )
    sizes = np.diff(left.offsets)[left_places] + np.diff(right.offsets)[right_places]
    return np.stack([shared, sizes - shared], 1)


@njit(types.int64[::1](U64_1, I64_1, I64_1, U64_1, I64_1, I64_1), cache=True, nogil=True)
def _shared(left, left_offsets, left_places, right, right_offsets, right_places):
    result = np.zeros(len(left_places), np.int64)
    for pair in range(len(left_places)):
        i, i_stop = left_offsets[left_places[pair]], left_offsets[left_places[pair] + 1]
        j, j_stop = right_offsets[right_places[pair]], right_offsets[right_places[pair] + 1]
        while i < i_stop and j < j_stop:
            result[pair] += left[i] == right[j]
            ahead, behind = left[i] <= right[j], right[j] <= left[i]
            i, j = i + ahead, j + behind
    return result
