"""The messages of near-duplicate removal: how similar documents of a corpus of any size find each other.

What a document emits is in `signature.py`; the kernels, and what the result is, in `clusters.py`. The supersteps:

    twin_hashes, twins        documents that are equal in keys and sketch stand behind the best of them
    band_keys, stars          rows (band key, document) to buckets; the best of one with each other is a pair
    hubs, compare             pairs, each once, to the sketches: an edge where they are similar enough
    sort_edges, decide,       one pass over the edges, best document first, 2 bits a document; each stretch of edges
    outcome                   then reads from those bits what was dropped for whom, and what is open
    serve, leftover,          twice: what is left of the buckets sends its sketches and is compared in place, the
    sort_edges, ...           best 32, then the best `max_bucket` of each bucket with all others
    settle, finish            twins take the verdict of the one they stand behind; facts and evidence by part

With `verify: exact` each `compare` and `leftover` is followed by `shingles` and `measure` (`exactly.py`): what the sketch
lets pass is read again, and exact Jaccard similarity decides. Around it all: `self_test` at the start (`selftest.py`),
and the audit at the end (`audit.py`). Documents of an earlier corpus (fixed parts) have the smallest codes, so they
take part as survivors, and nothing is dropped among them.

The result is the one of comparing every two documents that share a band, unless a bucket has more than
`max_bucket` live documents; then duplicates may stay, and `released` counts the pairs not compared.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from stages.contract.config import Share
from stages.dedup import clusters, signature
from stages.dedup.audit import Audit
from stages.dedup.exactly import SLACK, Exactly
from stages.exchange import binary_of, column_values, fixed_words
from stages.numbering import (
    ROW_MASK,
    Numbering,
    duplicates,
    evidence_table,
    partition_bits,
    top_bits,
)
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep

_EDGES = pa.schema([("worse", pa.uint64()), ("better", pa.uint64()), ("agreement", pa.uint8())])
_VERDICTS = pa.schema([("row", pa.uint32()), ("survivor", pa.uint64()), ("agreement", pa.uint8())])


#: Two numbers in one: the lower is a part of this corpus or a document of a group.
_LOW_BITS = np.uint64(30)
_LOW = np.uint64((1 << 30) - 1)
#: Documents whose order by the survivor column is looked at to cut all of them into stretches.
_ORDER_SAMPLE = 65_536


class Neighbours(Exactly, Audit, GlobalStage):
    """The supersteps of `minhash-dedup`; the settings and what is emitted are in `minhash.py`."""

    #: Rows that one task of an exchange sorts; about 40 bytes of memory each.
    rows_per_task: ClassVar[int] = 4_000_000
    #: Documents of one bucket that may wait for a comparison besides that with the best one; 300 bytes each.
    bucket_rows: ClassVar[int] = 1_000_000

    threshold: Share
    ngram: int
    min_shingles: int
    max_bucket: int
    verify: str
    survivor: str
    audit: int
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """`(bands, rows)`."""
        raise NotImplementedError

    @property
    def _need(self) -> int:
        """What sketches must agree in: for the threshold, or a little below it when exact similarity decides."""
        return signature.needed(max(self.threshold - (SLACK if self.verify == "exact" else 0.0), 0.01))

    @property
    def _heads(self) -> tuple[int, ...]:
        """How many of each bucket are compared with all others, in each round after the stars."""
        return () if self.max_bucket == 1 else tuple(sorted({min(32, self.max_bucket), self.max_bucket}))

    def _document_bits(self, parts: tuple[PartInfo, ...]) -> int:
        return partition_bits(sum(part.rows for part in parts), self.rows_per_task)

    def _pair_bits(self, parts: tuple[PartInfo, ...]) -> int:
        """Fewer documents than elsewhere: each may bring a sketch of 256 bytes with it."""
        return partition_bits(sum(part.rows for part in parts), self.rows_per_task // 4)

    def _band_bits(self, parts: tuple[PartInfo, ...]) -> int:
        return partition_bits(sum(part.rows for part in parts) * self.shape[0], self.rows_per_task)

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """The rounds; how many tasks they have is a function of the number of documents."""
        documents, buckets = 1 << self._document_bits(parts), 1 << self._band_bits(parts)
        last = len(self._heads)
        steps = [
            Superstep("self_test", 1),
            Superstep("twin_hashes"),
            Superstep("twins", documents, ("twin_hashes",)),
            Superstep("band_keys", reads=("twin_rows",)),
            Superstep("stars", buckets, ("band_keys",)),
            Superstep("hubs", 1 << self._pair_bits(parts), ("pairs",)),
            Superstep("compare", reads=("hub_sketches", "hub_pairs")),
        ]
        for number in range(last + 1):
            edges: tuple[str, ...] = (f"edges.{number}",)
            states: tuple[str, ...] = ()
            if number > 0:
                drops = tuple(f"drops.{earlier}" for earlier in range(number))
                steps.append(Superstep("serve", reads=(f"wanted.{number}", *drops)))
                steps.append(Superstep("leftover", buckets, (f"live.{number}",)))
                edges, states = (*edges, f"carried.{number}"), (f"states.{number}",)
            if number < last:
                states = (*states, f"marks.{number}")
            if self.verify == "exact":
                steps += [
                    Superstep("shingles", reads=(f"asked.{number}",)),
                    Superstep("measure", reads=(f"sets.{number}", f"measured.{number}")),
                ]
            steps.append(Superstep("sort_edges", documents, edges))
            steps.append(Superstep("decide", 1, (f"ordered.{number}", *states)))
            steps.append(Superstep("outcome", documents, (f"sorted.{number}", f"*states.{number + 1}")))
        drops = tuple(f"drops.{number}" for number in range(last + 1))
        steps.append(Superstep("settle", reads=(*drops, "twin_heads")))
        steps.append(Superstep("finish", reads=("verdicts",)))
        return (*steps, *self._audit_steps())

    def self_test(self, context: StepContext) -> dict[str, Outbox]:
        """Nothing is sent; RunError when planted documents do not come out as they must."""
        from stages.dedup.selftest import check

        _count(context, "self_test_pairs", check(self))
        return {}

    # ------------------------------------------------------------------------------------------ twins

    def _alive(self, context: StepContext) -> np.ndarray:
        """Which rows of this part take part, bool per row."""
        alive = column_values(context.emission(context.index), "shingles") >= self.min_shingles
        alive[context.dropped(context.index)] = False
        return alive

    def _codes(self, context: StepContext, rows: np.ndarray) -> np.ndarray:
        """The codes of these rows of this part."""
        order = None
        if self.survivor != "priority":
            order = column_values(context.emission(context.index), "order")[rows.astype(np.int64)]
        return Numbering(context.parts).codes(context.part, rows, order)

    def twin_hashes(self, context: StepContext) -> dict[str, Outbox]:
        """The twin hashes of a part, to the task that their top bits name."""
        rows = np.flatnonzero(self._alive(context))
        twins = fixed_words(context.emission(context.index), "twin", 2)[rows]
        codes = self._codes(context, rows)
        address = top_bits(twins[:, 0], self._document_bits(context.parts))
        return {
            "twin_hashes": Outbox(address, pa.table({"high": twins[:, 0], "low": twins[:, 1], "code": codes}))
        }

    def twins(self, context: StepContext) -> dict[str, Outbox]:
        """All but the best of equal twins leave: `twin_rows` go to their part, `twin_heads` to the best one's.

        Twins have the same neighbours: if the best of them stays, it is similar to the others; if a better
        document drops it, that one drops the others too. So what is kept does not change. With `verify: exact` there
        are none: long texts that differ in a word may be equal in keys and sketch.
        """
        inbox = context.inbox["twin_hashes"]
        others = heads = np.empty(0, np.uint64)
        if self.verify != "exact":
            others, heads = duplicates(*(column_values(inbox, name) for name in ("high", "low", "code")))
        _count(context, "twins", len(others))
        numbering = Numbering(context.parts)
        part, row = numbering.locate(others)
        head_part, head_row = numbering.locate(heads)
        return {
            "twin_rows": Outbox(part, pa.table({"row": row})),
            "twin_heads": Outbox(head_part, pa.table({"row": head_row, "twin": others})),
        }

    # ------------------------------------------------------------------------------------------ buckets

    def band_keys(self, context: StepContext) -> dict[str, Outbox]:
        """A row per document and band: to the bucket task of the key's top bits, with the 32 bits below."""
        alive = self._alive(context)
        alive[column_values(context.inbox["twin_rows"], "row").astype(np.int64)] = False
        rows = np.flatnonzero(alive)
        bits = self._band_bits(context.parts)
        keys = fixed_words(context.emission(context.index), "keys", self.shape[0])[rows]
        codes = np.repeat(self._codes(context, rows), keys.shape[1])
        keys = keys.reshape(-1)
        below = (keys >> np.uint64(32 - bits)).astype(np.uint32)
        return {"band_keys": Outbox(top_bits(keys, bits), pa.table({"key": below, "code": codes}))}

    def stars(self, context: StepContext) -> dict[str, Outbox]:
        """Pairs with the best of each bucket, to its part; the others of three or more are wanted later."""
        inbox = context.inbox["band_keys"]
        keys, codes = column_values(inbox, "key"), column_values(inbox, "code")
        if (codes[1:] < codes[:-1]).any():  # parts come in canonical order, but some have a better rank
            order = np.argsort(codes, kind="stable")
            keys, codes = keys[order], codes[order]
        packed = np.sort(keys.astype(np.uint64) << np.uint64(32) | np.arange(len(keys), dtype=np.uint64))
        limit = self.bucket_rows if self._heads else 0
        hubs, others, rest, runs, marks, released = clusters.stars(packed, codes, limit)
        _count(context, "released", released)
        numbering = Numbering(context.parts)
        fresh = (others & ROW_MASK) >= np.uint64(numbering.fixed_end)  # of two old documents none goes
        hubs, others = hubs[fresh] & ROW_MASK, others[fresh] & ROW_MASK
        tasks = np.uint64(1 << self._pair_bits(context.parts))
        group = others * tasks // np.uint64(max(numbering.end, 1))
        sent = {"pairs": Outbox(group.astype(np.uint32), pa.table({"hub": hubs, "other": others}))}
        return sent | self._wait(context, 1, rest, runs, marks)

    def _wait(
        self, context: StepContext, number: int, rest: np.ndarray, runs: np.ndarray, marks: np.ndarray
    ) -> dict[str, Outbox]:
        """Ask for the sketches of `rest` in round `number`, and tell the pass before it who waits for that."""
        if number > len(self._heads):
            return {}
        numbering = Numbering(context.parts)
        part, row = numbering.locate(rest)
        marks = marks[(marks & ROW_MASK) >= np.uint64(numbering.fixed_end)]
        task = np.full(len(rest), context.index, np.uint32)
        return {
            f"wanted.{number}": Outbox(part, pa.table({"row": row, "task": task, "run": runs})),
            f"marks.{number - 1}": Outbox(0, pa.table({"code": marks})),
        }

    def hubs(self, context: StepContext) -> dict[str, Outbox]:
        """Each pair once, to the part of the worse document; the sketch of a hub once to each such part.

        Tasks are groups of worse documents, each of which is in a pair per band at most: so no task has more pairs than
        that, although the best documents of the corpus may be hubs of all others.
        """
        inbox, numbering = context.inbox["pairs"], Numbering(context.parts)
        first = -(-context.index * numbering.end >> self._pair_bits(context.parts))  # number of the first of the group
        hub, other = column_values(inbox, "hub"), column_values(inbox, "other")
        pairs = np.unique(hub << _LOW_BITS | other - np.uint64(first))
        hub, other = pairs >> _LOW_BITS, (pairs & _LOW) + np.uint64(first)
        part, row = numbering.locate(other)
        visits = np.unique(hub << _LOW_BITS | numbering.places(other).astype(np.uint64))  # (hub, part to visit)
        visitor, destination = visits >> _LOW_BITS, numbering.indices_P[(visits & _LOW).astype(np.int64)]
        sketches, codes = self._looked_up(context, numbering, visitor)
        return {
            "hub_pairs": Outbox(part, pa.table({"hub": hub, "row": row})),
            "hub_sketches": Outbox(
                destination, pa.table({"hub": visitor, "code": codes, "sketch": binary_of(sketches)})
            ),
        }

    def _looked_up(
        self, context: StepContext, numbering: Numbering, numbers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """`(sketches, codes)` of documents anywhere, by ascending number: their pages of the emissions are read."""
        sketches = np.empty((len(numbers), signature.SKETCH_WORDS), np.uint64)
        codes = np.empty(len(numbers), np.uint64)
        owner, row = numbering.locate(numbers)
        parts = {part.index: part for part in context.parts}
        for index, start, count in zip(*np.unique(owner, return_index=True, return_counts=True), strict=True):
            mine, emission = slice(start, start + count), context.emission(int(index))
            rows = row[mine].astype(np.int64)
            order = column_values(emission, "order")[rows] if self.survivor != "priority" else None
            sketches[mine] = signature.sketches_of(emission, rows)
            codes[mine] = numbering.codes(parts[int(index)], rows, order)
        return sketches, codes

    def compare(self, context: StepContext) -> dict[str, Outbox]:
        """The pairs whose worse document is in this part, as edges where they are similar enough."""
        pairs, hubs = context.inbox["hub_pairs"], context.inbox["hub_sketches"]
        number, row = column_values(pairs, "hub"), column_values(pairs, "row")
        rows, place = np.unique(row, return_inverse=True)
        known, first = np.unique(column_values(hubs, "hub"), return_index=True)  # a part may be of two groups
        hub = first[np.searchsorted(known, number)]
        agreement = clusters.compare_pairs(
            fixed_words(hubs, "sketch", signature.SKETCH_WORDS),
            hub,
            signature.sketches_of(context.emission(context.index), rows.astype(np.int64)),
            place,
            self._need,
        )
        _count(context, "candidates", len(agreement))
        similar = agreement > 0
        better = column_values(hubs, "code")[hub[similar]]
        return self._edges(context, 0, self._codes(context, row[similar]), better, agreement[similar])

    def _edges(
        self, context: StepContext, number: int, worse: np.ndarray, better: np.ndarray, agreement: np.ndarray
    ) -> dict[str, Outbox]:
        """Edges of a round, to the stretch of all documents in order that the worse end is in, or to be measured."""
        if self.verify == "exact":
            return self._ask(context, number, worse, better)
        _count(context, "verified", len(worse))
        edges = pa.table({"worse": worse, "better": better, "agreement": agreement})
        return {f"edges.{number}": self._to_stretches(context, edges)}

    def _to_stretches(self, context: StepContext, edges: pa.Table) -> Outbox:
        pieces = 1 << self._document_bits(context.parts)
        if self.survivor == "priority":
            splitters = Numbering(context.parts).splitters(pieces)
        else:
            sample = self._order_sample(context) if pieces > 1 else np.empty(0, np.uint64)
            splitters = sample[[len(sample) * piece // pieces for piece in range(1, pieces)]]
        return Outbox(np.searchsorted(splitters, column_values(edges, "worse"), side="right"), edges)

    def _order_sample(self, context: StepContext) -> np.ndarray:
        """Codes of documents at equal distances in the corpus, ascending: by them it is cut into stretches."""
        numbering = Numbering(context.parts)
        step = max(1, numbering.end // _ORDER_SAMPLE)
        codes = [np.empty(0, np.uint64)]
        for part in context.parts:
            rows = np.arange(-part.base % step, part.rows, step)
            order = column_values(context.emission(part.index), "order")
            codes.append(numbering.codes(part, rows, order[rows]) if len(rows) else codes[0])
        return np.sort(np.concatenate(codes))

    # ------------------------------------------------------------------------------------------ the pass

    def sort_edges(self, context: StepContext) -> dict[str, Outbox]:
        """The edges of one stretch in order of (worse, better), each once."""
        tables = [table for table in context.inbox.values() if table.num_columns]
        edges = pa.concat_tables(tables) if tables else pa.table({})
        worse, better, agreement = (column_values(edges, name) for name in ("worse", "better", "agreement"))
        order = np.lexsort((better, worse))
        fresh = np.ones(len(order), bool)
        fresh[1:] = (worse[order[1:]] != worse[order[:-1]]) | (better[order[1:]] != better[order[:-1]])
        order = order[fresh]
        table = pa.table(
            {"worse": worse[order], "better": better[order], "agreement": agreement[order].astype(np.uint8)}
        )
        number = _round(context)
        return {
            f"ordered.{number}": Outbox(0, table.select(["worse", "better"])),
            f"sorted.{number}": Outbox(context.index, table),
        }

    def decide(self, context: StepContext) -> dict[str, Outbox]:
        """The pass over all edges so far: the states behind it, 2 bits a document, to all."""
        number, numbering = _round(context), Numbering(context.parts)
        states = column_values(context.inbox.get(f"states.{number}", pa.table({})), "states").astype(np.uint8)
        if number == 0:
            states = clusters.new_states(numbering.end)
        clusters.forget_undecided(states)
        if number < len(self._heads):
            for chunk in context.inbox[f"marks.{number}"].to_batches():
                clusters.mark_undecided(states, column_values(chunk, "code"))
        for chunk in context.inbox[f"ordered.{number}"].to_batches():
            clusters.decide(states, column_values(chunk, "worse"), column_values(chunk, "better"))
        return {f"states.{number + 1}": Outbox(0, pa.table({"states": states}))}

    def outcome(self, context: StepContext) -> dict[str, Outbox]:
        """What the pass decided about the edges of one stretch: drops go to the parts, what is open to the next round."""
        number, numbering = _round(context) - 1, Numbering(context.parts)
        states = column_values(context.inbox[f"states.{number + 1}"], "states")
        edges = context.inbox[f"sorted.{number}"]
        edges = edges.combine_chunks() if edges.num_columns else _EDGES.empty_table()
        columns = (column_values(edges, name) for name in ("worse", "better", "agreement"))
        drops, still_open = clusters.outcomes(states, *columns)
        dropped = edges.take(pa.array(drops))
        part, row = numbering.locate(column_values(dropped, "worse"))
        verdicts = pa.table(
            [row, dropped.column("better"), dropped.column("agreement")], ["row", "survivor", "agreement"]
        )
        sent = {f"drops.{number}": Outbox(part, verdicts)}
        if number < len(self._heads):
            carried = edges.filter(pa.array(still_open.astype(bool)))
            sent[f"carried.{number + 1}"] = self._to_stretches(context, carried)
        return sent

    # ------------------------------------------------------------------------------------------ leftover buckets

    def serve(self, context: StepContext) -> dict[str, Outbox]:
        """The sketches that bucket tasks want of this part, without the documents dropped so far."""
        number = _round(context)
        live = np.ones(context.part.rows, bool)
        for earlier in range(number):
            live[column_values(context.inbox[f"drops.{earlier}"], "row").astype(np.int64)] = False
        wanted = context.inbox[f"wanted.{number}"]
        row, task, run = (column_values(wanted, name).astype(np.int64) for name in ("row", "task", "run"))
        chosen = live[row]
        row, task, run = row[chosen], task[chosen], run[chosen].astype(np.uint32)
        rows, place = np.unique(row, return_inverse=True)
        sketches = signature.sketches_of(context.emission(context.index), rows)[place]
        codes = self._codes(context, row)
        table = pa.table({"run": run, "code": codes, "sketch": binary_of(sketches)})
        return {f"live.{number}": Outbox(task, table)}

    def leftover(self, context: StepContext) -> dict[str, Outbox]:
        """The best of what is left of each bucket against all others; those behind them wait once more."""
        number = _round(context)
        heads = self._heads[number - 1]
        inbox = context.inbox[f"live.{number}"]
        run, codes = column_values(inbox, "run").astype(np.uint32), column_values(inbox, "code")
        order = np.lexsort((codes, run))
        run, codes = run[order], codes[order]
        starts = (
            np.flatnonzero(np.concatenate([[True], run[1:] != run[:-1]]))
            if len(run)
            else np.empty(0, np.int64)
        )
        bounds = np.append(starts, len(run)).astype(np.int64)
        better, worse, agreement, compared = clusters.compare_runs(
            fixed_words(inbox, "sketch", signature.SKETCH_WORDS)[order],
            bounds,
            heads,
            self._need,
        )
        _count(context, "candidates", compared)
        fresh = (codes[worse] & ROW_MASK) >= np.uint64(Numbering(context.parts).fixed_end)
        better, worse, agreement = better[fresh], worse[fresh], agreement[fresh]
        sent = self._edges(context, number, codes[worse], codes[better], agreement)
        sizes = np.diff(bounds)
        behind = np.arange(len(run)) - np.repeat(starts, sizes)
        if number == len(self._heads):
            rest = np.maximum(sizes - heads, 0)
            _count(context, "released", int((rest * (rest - 1) // 2).sum()))
        rest_rows = (behind >= heads) & (np.repeat(sizes, sizes) > heads + 1)
        return sent | self._wait(context, number + 1, codes[rest_rows], run[rest_rows], codes[behind > heads])

    # ------------------------------------------------------------------------------------------ verdicts

    def settle(self, context: StepContext) -> dict[str, Outbox]:
        """The verdicts of a part's documents, and of the twins that stand behind them, each to its part."""
        numbering, part = Numbering(context.parts), context.part
        drops = [table for name, table in context.inbox.items() if name != "twin_heads" and table.num_columns]
        table = pa.concat_tables(drops).sort_by("row") if drops else _VERDICTS.empty_table()
        row, survivor, agreement = (column_values(table, name) for name in ("row", "survivor", "agreement"))
        heads = context.inbox["twin_heads"]
        head, twin = column_values(heads, "row").astype(np.uint32), column_values(heads, "twin")
        place = np.searchsorted(row, head)
        fallen = np.zeros(len(head), bool)
        fallen[place < len(row)] = row[place[place < len(row)]] == head[place < len(row)]
        stands = numbering.codes(part, head)
        stands[fallen] = survivor[place[fallen]]
        alike = np.full(len(head), 255, np.uint8)
        alike[fallen] = agreement[place[fallen]]
        twin_part, twin_row = numbering.locate(twin)
        address = np.concatenate([np.full(len(row), part.index, np.uint32), twin_part])
        verdicts = [
            np.concatenate(pair) for pair in ((row, twin_row), (survivor, stands), (agreement, alike))
        ]
        return {"verdicts": Outbox(address, pa.table(verdicts, ["row", "survivor", "agreement"]))}

    def finish(self, context: StepContext) -> dict[str, Outbox]:
        """Facts and evidence of one part, by row."""
        inbox = context.inbox["verdicts"]
        verdicts = inbox.sort_by("row") if inbox.num_columns else _VERDICTS.empty_table()
        survivor_part, survivor_row = Numbering(context.parts).locate(column_values(verdicts, "survivor"))
        alike = self._similarity(column_values(verdicts, "agreement"))
        table = evidence_table(column_values(verdicts, "row"), survivor_part, survivor_row, alike)
        survivors, members = np.unique(column_values(verdicts, "survivor"), return_counts=True)
        part, row = Numbering(context.parts).locate(survivors)
        return {
            "facts": Outbox(context.index, table.select(["row", "similarity"])),
            "evidence": Outbox(context.index, table),
            "members": Outbox(part, pa.table({"row": row, "members": members.astype(np.uint32)})),
        }

    def _similarity(self, agreement: np.ndarray) -> np.ndarray:
        """J of the stored bytes: of sketches, or with `verify: exact` J itself in steps of 1/255, rounded up."""
        if self.verify == "exact":
            return np.round(agreement.astype(np.float64) / 255, 3).astype(np.float32)
        return signature.similarity(agreement)


def _round(context: StepContext) -> int:
    """The number of the round, which is in the names of the channels that a task reads."""
    return max(int(name.rpartition(".")[2]) for name in context.inbox)


def _count(context: StepContext, name: str, amount: int) -> None:
    context.counters[name] = context.counters.get(name, 0) + amount
