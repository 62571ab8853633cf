"""One u64 per document while global stages talk: its place in the order of who survives, and in the corpus.

    code = rank of the source (6 bits) | order by a column (24 bits, 0 unless a stage asks) | global row number (34)

A smaller code is a better document: comparing codes compares priority, then the column, then the canonical order of
files and rows. Codes live inside one run of a stage and are never stored: a new input file shifts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stages.exchange import column_values
from stages.stage import PartInfo

ROW_BITS = 34
ROW_MASK = np.uint64((1 << ROW_BITS) - 1)
ORDER_BITS = 24
#: The order of a document that has no value, or NaN: behind all others.
LAST = (1 << ORDER_BITS) - 1
_RANK_SHIFT = ROW_BITS + ORDER_BITS

#: Rows of the channel `evidence`, addressed to the part of `row`.
EVIDENCE = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("survivor_part", pa.uint32(), nullable=False),
        pa.field("survivor_row", pa.uint32(), nullable=False),
        pa.field("similarity", pa.float32(), nullable=False),
    ]
)


class Numbering:
    """Codes of documents for some parts (ascending index and base), and the way back.

    ValueError when the corpus has 2**34 documents or more, or its sources more than 64 different priorities.
    """

    def __init__(self, parts: Sequence[PartInfo]) -> None:
        self.indices_P = np.array([part.index for part in parts], np.uint32)
        self.bases_P = np.array([part.base for part in parts], np.uint64)
        self.rows_P = np.array([part.rows for part in parts], np.uint64)
        self.ranks_P = np.array([part.rank for part in parts], np.uint64)
        #: One more than the largest global row number; numbers of parts that the stage does not see are gaps.
        self.end = max((part.base + part.rows for part in parts), default=0)
        #: Documents with a smaller number stay whatever happens: they are of an earlier corpus, whose parts come first.
        self.fixed_end = max((part.base + part.rows for part in parts if part.fixed), default=0)
        if self.end > int(ROW_MASK):
            raise ValueError(f"{self.end:,} documents are more than one deduplication can number (2**{ROW_BITS})")
        if len(parts) and int(self.ranks_P.max()) >= 1 << (64 - _RANK_SHIFT):
            raise ValueError("sources of more than 64 different priorities are more than one deduplication can rank")

    def codes(self, part: PartInfo, rows_N: np.ndarray, order_N: np.ndarray | None = None) -> np.ndarray:
        """The codes, uint64, of these rows of a part; `order_N` (uint32, below 2**24) is their place by a column."""
        codes = np.asarray(rows_N, np.uint64) + np.uint64((part.rank << _RANK_SHIFT) + part.base)
        return codes if order_N is None else codes | order_N.astype(np.uint64) << np.uint64(ROW_BITS)

    def locate(self, codes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(part index uint32, row in that part uint32)` of each code."""
        places = self.places(codes_N)
        return self.indices_P[places], ((codes_N & ROW_MASK) - self.bases_P[places]).astype(np.uint32)

    def places(self, codes_N: np.ndarray) -> np.ndarray:
        """The place of each code's part among the parts, int64."""
        # Empty parts share their base with the next one; the last of equal bases is the one with rows.
        return np.searchsorted(self.bases_P, codes_N & ROW_MASK, side="right") - 1

    def splitters(self, pieces: int) -> np.ndarray:
        """`pieces - 1` ascending codes that cut all documents, best first, into about equal pieces."""
        order = np.argsort(self.ranks_P, kind="stable")
        ends = np.cumsum(self.rows_P[order])
        total = int(ends[-1]) if len(ends) else 0
        wanted = np.array([total * k // pieces for k in range(1, pieces)], np.uint64)
        places = np.minimum(np.searchsorted(ends, wanted, side="right"), len(ends) - 1)
        rows = wanted - (ends - self.rows_P[order])[places] + self.bases_P[order][places]
        return (self.ranks_P[order][places] << np.uint64(_RANK_SHIFT)) | rows


def sortable(values: pa.Array) -> np.ndarray:
    """The 24 bits, in uint32, that sort numbers from the largest to the smallest; nulls and NaN come last.

    They are the upper bits of a float32, so values closer than 2**-15 of their size may count as equal.
    """
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32) + np.float32(0)  # no -0.0
    bits = numbers.view(np.uint32)
    ascending = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31)) >> np.uint32(32 - ORDER_BITS)
    return np.where(np.isnan(numbers), np.uint32(LAST), np.minimum(LAST - ascending, LAST - 1)).astype(np.uint32)


def partition_bits(rows: int, rows_per_task: int) -> int:
    """`b` so that 2**b tasks (at most 65,536) have about `rows_per_task` rows: a function of size alone."""
    return min(max(0, (max(rows, 1) - 1) // rows_per_task).bit_length(), 16)


def top_bits(keys_N: np.ndarray, bits: int) -> np.ndarray:
    """The partition, uint32 in 0 to 2**bits - 1, of each u64 key."""
    if bits == 0:
        return np.zeros(len(keys_N), np.uint32)
    return (keys_N >> np.uint64(64 - bits)).astype(np.uint32)


def duplicates(high_N: np.ndarray, low_N: np.ndarray, codes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(others, best)`: codes of all but the best of each equal 128-bit hash, and that best one's code."""
    order = np.lexsort((codes_N, low_N, high_N))
    high, low, codes = high_N[order], low_N[order], codes_N[order]
    fresh = np.ones(len(codes), bool)
    fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    best = codes[np.maximum.accumulate(np.where(fresh, np.arange(len(codes)), 0))]
    return codes[~fresh], best[~fresh]


def evidence_table(
    row: np.ndarray, survivor_part: np.ndarray, survivor_row: np.ndarray, similarity: np.ndarray | float
) -> pa.Table:
    """Rows of the channel `evidence`: which kept document each dropped row stands behind."""
    similarity = np.broadcast_to(np.asarray(similarity, np.float32), row.shape)
    return pa.table([row, survivor_part, survivor_row, np.ascontiguousarray(similarity)], schema=EVIDENCE)


def facts_in(batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> tuple[np.ndarray, np.ndarray]:
    """`(mask, which)`: which rows of the batch the facts name, and where in the facts those rows are."""
    mask = np.zeros(batch.num_rows, bool)
    if facts.num_columns == 0:
        return mask, np.empty(0, np.int64)
    rows = column_values(facts, "row").astype(np.int64) - first_row
    which = np.flatnonzero((rows >= 0) & (rows < batch.num_rows))
    mask[rows[which]] = True
    return mask, which
