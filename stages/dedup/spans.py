"""Span deduplication: long runs of words that another, better document has too are cut out of the text.

    emit      fingerprints of each text, chosen by winnowing: each run of `min_words` words that two texts share holds one
    meet      equal fingerprints meet in one task: the best document of each with every other one
    fetch     the better document is read, and its words are sent once to every part that holds a worse one
    cut       the worse one is read; from each meeting the runs are extended as far as words agree, so a span is a fact
              and not a guess by hash; what is shorter than `min_words` is left alone

Words are compared as hashes of 64 bits, in lower case. The best document that has a run keeps it. A run of which only a
piece is in the very best document may keep a remainder shorter than `min_words`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from stages.dedup.winnow import agreement, winnow
from stages.document import drop_rows, text_buffers, with_column
from stages.exchange import column_values
from stages.numbering import Numbering, partition_bits, top_bits
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep
from stages.text import VERSION, kernels, word_hashes

#: Fingerprints of a document that sizes are planned with: a page of 700 words has about so many.
_PRINTS = 64

_CUTS = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # bytes of the text
        pa.field("stop", pa.int64(), nullable=False),
        pa.field("words", pa.uint32(), nullable=False),
        pa.field("survivor", pa.binary(16), nullable=False),  # id of the document that keeps the span
    ]
)


class SpanDedup(GlobalStage):
    """Cuts runs of at least `min_words` words that a better document has too: source priority, then canonical order.

    Emission per document: `prints` (a list of u64) and `places` (of u32). Facts per part: `row`, `start`, `stop`, `words`,
    `survivor`, in order. Columns: `spans.words`, the words cut, and `spans.from`, a JSON list of what was cut and the id of
    the document that keeps it. A document of which no word is left is dropped.
    Counters: `meetings` of fingerprints, `spans` and `words` that were cut.
    """

    name: ClassVar[str] = "span-dedup"
    drops_only: ClassVar[bool] = False
    changes_text: ClassVar[bool] = True
    #: Fingerprints that one task sorts; about 60 bytes of memory each.
    rows_per_task: ClassVar[int] = 4_000_000

    min_words: Annotated[
        int, Field(ge=8, le=10_000, description="Words of the shortest run that is cut; in Chinese ... characters.")
    ] = 50

    def recipe(self) -> dict[str, str]:
        """The table of word characters."""
        return {"words": VERSION}

    def adds(self) -> dict[str, pa.DataType]:
        """How many words were cut, and the evidence."""
        return {"spans.words": pa.int32(), "spans.from": pa.string()}

    def notes(self) -> list[str]:
        """What a plan should say."""
        k, window = self._sizes
        return [
            f"runs of {self.min_words} words and more, found by hashes of {k} words, one chosen in {(window + 1) / 2:.0f}: "
            f"about {20 * 2 / (window + 1):.1f} bytes of scratch a word"
        ]

    @property
    def _sizes(self) -> tuple[int, int]:
        """Words of a fingerprint, and hashes of which one is chosen."""
        k = self.min_words // 2
        return k, self.min_words - k + 1

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """The chosen fingerprints of each document, and where they begin."""
        hashes, places, offsets = winnow(*word_hashes(*text_buffers(batch.column("text"))), *self._sizes)
        bounds = pa.array(offsets)
        lists = [pa.LargeListArray.from_arrays(bounds, pa.array(values)) for values in (hashes, places)]
        return pa.RecordBatch.from_arrays(lists, ["prints", "places"])

    # ------------------------------------------------------------------------------------------ supersteps

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """The rounds; the number of tasks is a function of the number of documents."""
        return (
            Superstep("send"),
            Superstep("meet", 1 << self._bits(parts), ("prints",)),
            Superstep("fetch", reads=("meetings",)),
            Superstep("cut", reads=("words", "pairs")),
        )

    def _bits(self, parts: tuple[PartInfo, ...]) -> int:
        return partition_bits(sum(part.rows for part in parts) * _PRINTS, self.rows_per_task)

    def send(self, context: StepContext) -> dict[str, Outbox]:
        """The fingerprints of a part, to the task that their top bits name."""
        table, numbering = context.emission(context.index), Numbering(context.parts)
        alive = np.ones(context.part.rows, bool)
        alive[context.dropped(context.index)] = False
        pieces, first = [], 0
        for chunk in table.to_batches():
            lists = chunk.column("prints")
            counts = np.diff(lists.offsets.to_numpy())
            rows = np.repeat(np.arange(first, first + chunk.num_rows), counts)
            places = chunk.column("places").flatten().to_numpy()
            pieces.append((lists.flatten().to_numpy(), numbering.codes(context.part, rows), places, alive[rows]))
            first += chunk.num_rows
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)] if pieces else []
        hashes, codes, places = (c[columns[3]] for c in columns[:3]) if columns else (np.empty(0, np.uint64),) * 3
        prints = pa.table({"print": hashes, "code": codes, "place": places.astype(np.uint32)})
        return {"prints": Outbox(top_bits(hashes, self._bits(context.parts)), prints)}

    def meet(self, context: StepContext) -> dict[str, Outbox]:
        """Each fingerprint of the best document with those of all others, to the part of the best one."""
        inbox = context.inbox["prints"]
        prints, codes, places = (column_values(inbox, name) for name in ("print", "code", "place"))
        order = np.lexsort((places, codes, prints))
        prints, codes, places = prints[order], codes[order], places[order]
        fresh = np.ones(len(prints), bool)
        fresh[1:] = prints[1:] != prints[:-1]
        first = np.maximum.accumulate(np.where(fresh, np.arange(len(prints)), 0))
        others = np.flatnonzero(codes != codes[first])
        best = first[others]
        context.counters["meetings"] += len(others)
        part, _ = Numbering(context.parts).locate(codes[best])
        columns = {"better": codes[best], "at": places[best], "worse": codes[others], "place": places[others]}
        return {"meetings": Outbox(part, pa.table(columns))}

    def fetch(self, context: StepContext) -> dict[str, Outbox]:
        """Words and id of the better documents, once to each part that wants them; and the meetings, to the worse."""
        inbox, numbering = context.inbox["meetings"], Numbering(context.parts)
        better, worse = column_values(inbox, "better"), column_values(inbox, "worse")
        part, row = numbering.locate(worse)
        visits = np.unique(np.stack([better, part.astype(np.uint64)], 1), axis=0)
        codes = np.unique(better)
        words = {
            code: (identity, hashes)
            for code, (identity, hashes, _) in zip(
                codes.tolist(), _read(context, numbering.locate(codes)[1]), strict=True
            )
        }
        sent = [words[code] for code in visits[:, 0].tolist()]
        offsets = np.append(0, np.cumsum([len(hashes) for _, hashes in sent])).astype(np.int64)
        lists = pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(np.concatenate([np.empty(0, np.uint64), *(hashes for _, hashes in sent)]))
        )
        table = {"better": visits[:, 0], "id": pa.array([identity for identity, _ in sent], pa.binary(16)), "words": lists}
        pairs = {"better": better, "at": column_values(inbox, "at"), "row": row, "place": column_values(inbox, "place")}
        return {
            "words": Outbox(visits[:, 1].astype(np.uint32), pa.table(table)),
            "pairs": Outbox(part, pa.table(pairs)),
        }

    def cut(self, context: StepContext) -> dict[str, Outbox]:
        """The facts of a part: stretches of bytes to cut, in order, none over another."""
        pairs, sent = context.inbox["pairs"], context.inbox["words"]
        theirs: dict[int, tuple[bytes, np.ndarray]] = {}
        for chunk in sent.to_batches():
            for code, identity, words in zip(*(chunk.column(name) for name in ("better", "id", "words")), strict=True):
                theirs[code.as_py()] = identity.as_py(), words.values.to_numpy()
        order = np.lexsort([column_values(pairs, name) for name in ("at", "better", "place", "row")])
        row, place, better, at = (column_values(pairs, name)[order] for name in ("row", "place", "better", "at"))
        rows, facts = np.unique(row), []
        for number, (_, words, bounds) in zip(rows.tolist(), _read(context, rows), strict=True):
            low = int(np.searchsorted(row, number))
            high = int(np.searchsorted(row, number, side="right"))
            meetings = zip(place[low:high].tolist(), better[low:high].tolist(), at[low:high].tolist(), strict=True)
            for first, stop, identity in self._spans(words, meetings, theirs):
                facts.append((number, int(bounds[first]), int(bounds[stop]), stop - first, identity))
        context.counters["spans"] += len(facts)
        context.counters["words"] += sum(fact[3] for fact in facts)
        arrays = [pa.array([fact[i] for fact in facts], field.type) for i, field in enumerate(_CUTS)]
        return {"facts": Outbox(context.index, pa.table(arrays, schema=_CUTS))}

    def _spans(
        self, words: np.ndarray, meetings: Iterator[tuple[int, int, int]], theirs: dict[int, tuple[bytes, np.ndarray]]
    ) -> list[tuple[int, int, bytes]]:
        """`(first word, word behind the last, id of the survivor)`, in order, none over another."""
        found: list[tuple[int, int, bytes]] = []
        seen: dict[tuple[int, int], int] = {}  # (better, how far apart) -> where the last run of that pair ended
        for place, better, at in meetings:
            if seen.get((better, at - place), -1) > place:
                continue  # inside of a run that is known
            identity, other = theirs[better]
            before, behind = agreement(words, place, other, at)
            seen[better, at - place] = place + behind
            if before + behind >= self.min_words:
                found.append((place - before, place + behind, identity))
        apart: list[tuple[int, int, bytes]] = []
        for first, stop, identity in sorted(found):
            first = max(first, apart[-1][1] if apart else 0)
            if first < stop:
                apart.append((first, stop, identity))
        return apart

    # ------------------------------------------------------------------------------------------ apply

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with spans cut (with `mark` only counted); `drop` on documents of which no word is left."""
        rows = column_values(facts, "row").astype(np.int64) - first_row
        mine = facts.filter(pa.array((rows >= 0) & (rows < batch.num_rows))) if facts.num_columns else facts
        cuts: dict[int, list[dict]] = {}
        for cut in mine.to_pylist() if mine.num_columns else []:
            cuts.setdefault(cut["row"] - first_row, []).append(cut)
        counts = np.zeros(batch.num_rows, np.int32)
        evidence: list[str | None] = [None] * batch.num_rows
        texts = batch.column("text").to_pylist() if cuts else []
        for row, spans in cuts.items():
            counts[row] = sum(span["words"] for span in spans)
            evidence[row] = json.dumps(
                [{"start": s["start"], "bytes": s["stop"] - s["start"], "words": s["words"], "from": s["survivor"].hex()} for s in spans],
                separators=(",", ":"),
            )
            texts[row] = _without(texts[row], spans)
        bare = np.zeros(batch.num_rows, bool)
        if cuts and not self.mark:
            batch = with_column(batch, "text", pa.array(texts, pa.large_string()))
            left = np.diff(word_hashes(*text_buffers(batch.column("text")))[1])
            bare[list(cuts)] = left[list(cuts)] == 0
        batch = with_column(batch, "spans.words", pa.array(counts, pa.int32()))
        batch = with_column(batch, "spans.from", pa.array(evidence, pa.string()))
        return drop_rows(batch, bare, f"{self.name}.nothing-left")


def _without(text: str, spans: list[dict]) -> str:
    """The text without some stretches of its UTF-8."""
    content, at, pieces = text.encode(), 0, []
    for span in spans:
        pieces.append(content[at : span["start"]])
        at = span["stop"]
    return b"".join([*pieces, content[at:]]).decode()


def _read(context: StepContext, rows: np.ndarray) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """`(id, word hashes, byte where each word begins and where the text ends)` of some rows (ascending) of this part."""
    first = place = 0
    for batch in context.documents(context.index) if len(rows) else ():
        stop = int(np.searchsorted(rows, first + batch.num_rows))
        if stop > place:
            chosen = batch.take(pa.array(rows[place:stop].astype(np.int64) - first))
            data, offsets = text_buffers(chosen.column("text"))
            words, word_offsets = word_hashes(data, offsets)
            starts, ends = np.empty((2, len(words)), np.int64)
            kernels.word_spans(data, offsets, kernels.CLASSES, starts, ends)
            for number, identity in enumerate(chosen.column("id").to_pylist()):
                mine = slice(int(word_offsets[number]), int(word_offsets[number + 1]))
                bounds = np.append(starts[mine] - offsets[number], offsets[number + 1] - offsets[number])
                yield identity, words[mine], bounds
            place = stop
        first += batch.num_rows
        if place == len(rows):
            return
