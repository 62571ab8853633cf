"""`verify: exact`: edges that the sketch lets pass are measured on the sets of shingles, read from the text again.

    shingles   a part reads the better documents of its edges, and sends each set once to every part that wants it
    measure    a part reads the worse ones and compares: the edges that are left go on as without this

A set of shingles takes 8 bytes each. The threshold is compared with J in integers, so no float decides.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from stages.contract.config import Share
from stages.dedup.jaccard import Sets, shingle_sets, similarities
from stages.exchange import column_values
from stages.numbering import Numbering
from stages.stage import Outbox, StepContext

#: How far below the threshold a sketch may say a pair is, for it to be measured: three standard errors.
SLACK = 0.06


class Exactly:
    """Two supersteps of `Neighbours`, whose settings they read."""

    threshold: Share
    ngram: int

    def _ask(self, context: StepContext, number: int, worse: np.ndarray, better: np.ndarray) -> dict[str, Outbox]:
        """Pairs to measure, to the part of the better document."""
        part, _ = Numbering(context.parts).locate(better)
        return {f"asked.{number}": Outbox(part, pa.table({"worse": worse, "better": better}))}

    def _to_stretches(self, context: StepContext, edges: pa.Table) -> Outbox:
        raise NotImplementedError

    def shingles(self, context: StepContext) -> dict[str, Outbox]:
        """The sets of this part's documents, each once to every part that holds a worse one, and the pairs."""
        (channel, asked), = context.inbox.items()
        number, numbering = channel.rpartition(".")[2], Numbering(context.parts)
        worse, better = column_values(asked, "worse"), column_values(asked, "better")
        part, _ = numbering.locate(worse)
        sets = _read(context, numbering, better, self.ngram)
        place = np.searchsorted(sets.keys, better)
        visits = np.unique(place.astype(np.uint64) << np.uint64(32) | part)
        chosen = (visits >> np.uint64(32)).astype(np.int64)
        return {
            f"sets.{number}": Outbox((visits & np.uint64(0xFFFFFFFF)).astype(np.uint32), sets.at(chosen).table()),
            f"measured.{number}": Outbox(part, pa.table({"worse": worse, "better": better})),
        }

    def measure(self, context: StepContext) -> dict[str, Outbox]:
        """Edges: the pairs whose exact similarity reaches the threshold."""
        number = max(int(name.rpartition(".")[2]) for name in context.inbox)
        theirs = Sets.of_table(context.inbox[f"sets.{number}"])
        pairs = context.inbox[f"measured.{number}"]
        worse, better = column_values(pairs, "worse"), column_values(pairs, "better")
        mine = _read(context, Numbering(context.parts), worse, self.ngram)
        sizes = similarities(
            mine, np.searchsorted(mine.keys, worse), theirs, np.searchsorted(theirs.keys, better)
        )
        similar = reaches(sizes, self.threshold)
        context.counters["measured"] += len(similar)
        context.counters["verified"] += int(similar.sum())
        agreement = -(-255 * sizes[similar, 0] // sizes[similar, 1])
        edges = {"worse": worse[similar], "better": better[similar], "agreement": agreement.astype(np.uint8)}
        return {f"edges.{number}": self._to_stretches(context, pa.table(edges))}


def reaches(sizes_N2: np.ndarray, threshold: float) -> np.ndarray:
    """Which (shared, all) are a share of at least the threshold, taken to six decimals."""
    millionths = math.ceil(threshold * 1_000_000 - 1e-3)
    return sizes_N2[:, 0] * 1_000_000 >= millionths * np.maximum(sizes_N2[:, 1], 1)


def _read(context: StepContext, numbering: Numbering, codes: np.ndarray, ngram: int) -> Sets:
    """The sets of some documents of this part, keyed by their codes, in order of the codes."""
    codes = np.unique(codes)
    _, rows = numbering.locate(codes)
    order = np.argsort(rows)  # of the text; codes may have another one
    found = shingle_sets(context.documents(context.index), rows[order], codes[order], ngram)
    return found.at(np.argsort(found.keys))
