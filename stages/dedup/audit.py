"""The audit: a sample of documents and removals whose exact similarities are computed, whatever LSH and sketch said.

    audit_sample   some documents, drawn by a hash of their number, show their sketch to every part; largest clusters
    audit_search   each part compares all its documents with them (8 ns a comparison) and says what may be similar
    audit_choose   some of those pairs, and some removals, are taken
    audit_read     their text is read, their sets of shingles are sent
    audit_judge    counts: of pairs that are similar enough, those with a side removed (recall); of removals, those
                   that were similar enough (precision); `shares.audit_text` says it in words

Draws depend on numbers, so on nothing but the corpus. Nothing here changes what is removed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit, types

from stages.contract.config import Share
from stages.dedup import signature
from stages.dedup.clusters import compare_all
from stages.dedup.exactly import SLACK, reaches
from stages.dedup.jaccard import Sets, shingle_sets, similarities
from stages.dedup.signature import U64_1
from stages.exchange import binary_of, column_values, fixed_words
from stages.numbering import ROW_MASK, Numbering
from stages.stage import Outbox, StepContext, Superstep
from stages.text.kernels import mix

#: Pairs that are measured per sampled document.
_PAIRS_EACH = 16
#: Removals that are measured per sampled document: they cost two texts, a sampled document a look at all sketches.
_REMOVALS_EACH = 4
#: Documents whose sketches are compared at a time.
_BLOCK = 4096
#: Clusters a part reports.
_LARGEST = 8


class Audit:
    """The last supersteps of `Neighbours`, whose settings they read."""

    threshold: Share
    ngram: int
    audit: int
    cluster_alarm: int

    def _alive(self, context: StepContext) -> np.ndarray:
        raise NotImplementedError

    def _audit_steps(self) -> tuple[Superstep, ...]:
        if self.audit == 0:
            return (Superstep("largest_clusters", reads=("members",)), Superstep("alarm", 1, ("largest",)))
        return (
            Superstep("largest_clusters", reads=("members",)),
            Superstep("audit_sample", reads=("verdicts",)),
            Superstep("audit_search", reads=("sampled", "verdicts")),
            Superstep("audit_choose", 1, ("found", "removed")),
            Superstep("audit_read", reads=("to_read",)),
            Superstep("audit_judge", 1, ("chosen", "audit_sets")),
            Superstep("alarm", 1, ("largest",)),
        )

    # ------------------------------------------------------------------------------------------ clusters

    def largest_clusters(self, context: StepContext) -> dict[str, Outbox]:
        """The largest clusters around documents of this part: the survivor and the number of documents, itself too."""
        inbox = context.inbox["members"]
        rows, place = np.unique(column_values(inbox, "row"), return_inverse=True)
        sizes = 1 + np.bincount(place, column_values(inbox, "members"), len(rows)).astype(np.int64)
        first = np.lexsort((rows, -sizes))[:_LARGEST]
        numbers = rows[first].astype(np.uint64) + np.uint64(context.part.base)
        return {"largest": Outbox(0, pa.table({"number": numbers, "size": sizes[first]}))}

    def alarm(self, context: StepContext) -> dict[str, Outbox]:
        """Nothing is sent; the largest cluster is counted, and those above `cluster_alarm` are warned about."""
        sizes = column_values(context.inbox["largest"], "size").astype(np.int64)
        if len(sizes):
            context.counters["largest_cluster"] = int(sizes.max())
        if (sizes > self.cluster_alarm).any():
            text = (
                f"a cluster of {int(sizes.max()):,} documents was reduced to one, more than cluster_alarm = "
                f"{self.cluster_alarm:,}: look at `pipeline inspect --clusters`; clusters of that size"
            )
            context.counters[f"warn:{text}"] = int((sizes > self.cluster_alarm).sum())
        return {}

    # ------------------------------------------------------------------------------------------ sample and search

    def audit_sample(self, context: StepContext) -> dict[str, Outbox]:
        """Sampled documents of this part, to all parts; the removals that a hash puts first, to the judge."""
        total = sum(part.rows for part in context.parts)
        fallen = _fallen(context)
        numbers = np.arange(context.part.rows, dtype=np.uint64) + np.uint64(context.part.base)
        limit = min(self.audit / max(total, 1), 1.0) * 2.0**64
        rows = np.flatnonzero(self._alive(context) & (_drawn(numbers, 1) < limit))
        sketches = signature.sketches_of(context.emission(context.index), rows)
        sample = pa.table(
            {"number": numbers[rows], "fallen": fallen[rows].astype(np.uint8), "sketch": binary_of(sketches)}
        )
        everyone = np.array([part.index for part in context.parts], np.uint32)
        copies = np.tile(np.arange(len(rows)), len(everyone))
        verdicts = context.inbox["verdicts"]
        removed = column_values(verdicts, "row").astype(np.uint64) + np.uint64(context.part.base)
        draw = _drawn(removed, 2)
        first = np.argsort(draw, kind="stable")[: _REMOVALS_EACH * self.audit]
        survivors = column_values(verdicts, "survivor").astype(np.uint64)[first] & ROW_MASK
        proofs = {"draw": draw[first], "left": removed[first], "right": survivors}
        return {
            "sampled": Outbox(np.repeat(everyone, len(rows)), sample.take(pa.array(copies))),
            "removed": Outbox(0, pa.table(proofs)),
        }

    def audit_search(self, context: StepContext) -> dict[str, Outbox]:
        """Pairs of a sampled document and one of this part that the sketches do not exclude, to the judge."""
        sample, numbering = context.inbox["sampled"], Numbering(context.parts)
        theirs, fallen = column_values(sample, "number").astype(np.uint64), _fallen(context)
        sketches = fixed_words(sample, "sketch", signature.SKETCH_WORDS)
        need = signature.needed(max(self.threshold - SLACK, 0.01))
        alive = np.flatnonzero(self._alive(context))
        which, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, len(alive), _BLOCK):
            block = alive[start : start + _BLOCK]
            mine = signature.sketches_of(context.emission(context.index), block)
            left, right = compare_all(sketches, mine, need)
            which.append(left)
            rows.append(block[right])
        left, right = np.concatenate(which), np.concatenate(rows)
        numbers = right.astype(np.uint64) + np.uint64(context.part.base)
        wanted = (theirs[left] != numbers) & (np.maximum(theirs[left], numbers) >= np.uint64(numbering.fixed_end))
        found = fallen[right] | (column_values(sample, "fallen") != 0)[left]
        pairs = {"left": theirs[left], "right": numbers, "found": found.astype(np.uint8)}
        return {"found": Outbox(0, _first_each(pa.table(pairs).filter(pa.array(wanted))))}

    # ------------------------------------------------------------------------------------------ the judge

    def audit_choose(self, context: StepContext) -> dict[str, Outbox]:
        """The pairs and removals to measure, to the judge; the documents they are made of, to their parts."""
        pairs, removed = _first_each(context.inbox["found"]), context.inbox["removed"]
        left, right = column_values(pairs, "left"), column_values(pairs, "right")
        found = column_values(pairs, "found").astype(np.uint8)
        ends = np.unique(np.stack([np.minimum(left, right), np.maximum(left, right)], 1), axis=0, return_index=True)[1]
        draw = column_values(removed, "draw")
        first = np.argsort(draw, kind="stable")[: _REMOVALS_EACH * self.audit]
        chosen = pa.table(
            {
                "left": np.concatenate([left[ends], column_values(removed, "left")[first]]),
                "right": np.concatenate([right[ends], column_values(removed, "right")[first]]),
                "found": np.concatenate([found[ends], np.ones(len(first), np.uint8)]),
                "removal": np.repeat(np.array([0, 1], np.uint8), [len(ends), len(first)]),
            }
        )
        numbers = np.unique(np.concatenate([column_values(chosen, "left"), column_values(chosen, "right")]))
        part, row = Numbering(context.parts).locate(numbers.astype(np.uint64))
        return {"chosen": Outbox(0, chosen), "to_read": Outbox(part, pa.table({"row": row}))}

    def audit_read(self, context: StepContext) -> dict[str, Outbox]:
        """The sets of shingles of the documents to read, to the judge."""
        rows = np.sort(column_values(context.inbox["to_read"], "row").astype(np.int64))
        if context.part.fixed:
            rows = rows[:0]  # there is no text of an earlier corpus
        keys = rows.astype(np.uint64) + np.uint64(context.part.base)
        sets = shingle_sets(context.documents(context.index), rows, keys, self.ngram)
        return {"audit_sets": Outbox(0, sets.table())}

    def audit_judge(self, context: StepContext) -> dict[str, Outbox]:
        """Nothing is sent; what was measured is counted. Documents of an earlier corpus cannot be read, nor judged."""
        sets, chosen = Sets.of_table(context.inbox["audit_sets"]), context.inbox["chosen"]
        left, right = column_values(chosen, "left"), column_values(chosen, "right")
        readable = np.isin(left, sets.keys) & np.isin(right, sets.keys)
        left, right = left[readable], right[readable]
        found = column_values(chosen, "found")[readable] != 0
        removal = column_values(chosen, "removal")[readable] != 0
        sizes = similarities(sets, np.searchsorted(sets.keys, left), sets, np.searchsorted(sets.keys, right))
        similar = reaches(sizes, self.threshold)
        pairs = similar & ~removal
        context.counters["audit_removals"] = int(removal.sum())
        context.counters["audit_removals_similar"] = int((removal & similar).sum())
        context.counters["audit_removals_far"] = int((removal & ~reaches(sizes, max(self.threshold - 0.15, 0))).sum())
        context.counters["audit_pairs"] = int(pairs.sum())
        context.counters["audit_pairs_found"] = int((pairs & found).sum())
        return {}


def _drawn(numbers: np.ndarray, purpose: int) -> np.ndarray:
    """A hash of each number, u64; another one for each purpose."""
    return _mixed(numbers ^ np.uint64(purpose << 60))


@njit(types.uint64[::1](U64_1), cache=True)
def _mixed(values):
    result = np.empty_like(values)
    for i in range(len(values)):
        result[i] = mix(values[i] + np.uint64(0x9E3779B97F4A7C15))
    return result


def _fallen(context: StepContext) -> np.ndarray:
    """Which rows of this part were removed, bool per row."""
    fallen = np.zeros(context.part.rows, bool)
    fallen[column_values(context.inbox["verdicts"], "row").astype(np.int64)] = True
    return fallen


def _first_each(pairs: pa.Table) -> pa.Table:
    """At most _PAIRS_EACH pairs of each sampled document, those with the first draws: cuts cannot change them."""
    left, right = column_values(pairs, "left").astype(np.uint64), column_values(pairs, "right").astype(np.uint64)
    order = np.lexsort((right, _drawn(right, 3), left))
    _, starts, counts = np.unique(left[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(starts, counts)
    return pairs.take(pa.array(np.sort(order[place < _PAIRS_EACH])))
