"""Repeated lines: navigation, notices and slogans that a site puts on its pages are counted over all of them and cut.

    send      each part: the different lines of its documents and how many documents have each, to the task that the hash names
    count     lines that enough documents have, to the task that the site names, where the documents of the site are known
    judge     lines that a large enough share of the documents of the site have, back
    spread    those lines, to the parts that hold them

A line is compared by its words, so case, punctuation and spaces do not matter; a line without a word is never cut. A
repeated paragraph goes with its lines. A line that a document has twice counts once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import orjson
import pyarrow as pa
import xxhash
from numba import njit, types
from pydantic import Field

from stages.contract.config import Count, Share
from stages.document import drop_rows, text_array, text_buffers, with_column
from stages.exchange import column_values
from stages.numbering import partition_bits, top_bits
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep
from stages.text import VERSION
from stages.text.cutting import cut_lines, line_bounds
from stages.text.kernels import BYTES, CLASSES, FOLD, LOWER, OFFSETS, TABLE, absorb, mix
from stages.text.scan import scan_words
from stages.urls import parse_url

#: Different lines of a document that sizes are planned with.
_LINES = 32
_SEED = np.uint64(0x452821E638D01377)

_FACTS = pa.schema(
    [pa.field("line", pa.uint64(), nullable=False), pa.field("documents", pa.uint32(), nullable=False)]
)


class RepeatedLines(GlobalStage):
    """Cuts lines that many documents of a site (or source) have, and drops a document of which nothing is left.

    Emission per document: `site` (u64) and `lines` (a list of u64, different ones). Facts per part: `line` (hash of site and
    line, ascending) and `documents` that have it. Columns: `repeated.lines`, how many lines were cut, and
    `repeated.documents`, how many documents have the most frequent of them. Counters: `lines` that are repeated, by hash.
    """

    name: ClassVar[str] = "repeated-lines"
    drops_only: ClassVar[bool] = False
    changes_text: ClassVar[bool] = True
    #: Lines that one task sorts; about 60 bytes of memory each.
    rows_per_task: ClassVar[int] = 4_000_000

    scope: Annotated[
        Literal["site", "source"],
        Field(
            description="What is counted over: the host of `url` in the metadata (the source where there is none), or the source."
        ),
    ] = "site"
    min_documents: Annotated[
        Count, Field(ge=2, description="A line is repeated if at least so many documents have it.")
    ] = 10
    min_share: Annotated[
        Share, Field(description="And at least this share of the documents of the site or source.")
    ] = 0.1
    unit: Annotated[
        Literal["line", "paragraph"],
        Field(description="Count lines, or whole paragraphs (runs of lines that are not empty)."),
    ] = "line"

    def adds(self) -> dict[str, pa.DataType]:
        return {"repeated.lines": pa.int32(), "repeated.documents": pa.int32()}

    def recipe(self) -> dict[str, str]:
        return {"text": VERSION}

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """Site and different lines of each document."""
        hashes, offsets_N1, _, _ = self._lines(batch)
        kept, counts = [np.empty(0, np.uint64)], []
        for row in range(len(batch)):
            mine = np.unique(hashes[offsets_N1[row] : offsets_N1[row + 1]])
            kept.append(mine[mine != 0])
            counts.append(len(kept[-1]))
        bounds = np.cumsum([0, *counts]).astype(np.int64)
        lines = pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(np.concatenate(kept)))
        return pa.RecordBatch.from_arrays([pa.array(self._sites(batch)), lines], ["site", "lines"])

    def _lines(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        data_U8, offsets_N1 = text_buffers(batch.column("text"))
        bounds_N1, starts, stops = line_bounds(data_U8, offsets_N1, self.unit == "paragraph")
        return hash_lines(data_U8, starts, stops), bounds_N1, starts, stops

    def _sites(self, batch: pa.RecordBatch) -> np.ndarray:
        """uint64 [N]: a hash of the site of each document."""
        names = []
        for source, meta in zip(
            batch.column("source").to_pylist(), batch.column("meta").to_pylist(), strict=True
        ):
            url = orjson.loads(meta).get("url") if meta and self.scope == "site" else None
            host = parse_url(url).host if isinstance(url, str) else ""
            names.append(f"site {host.removeprefix('www.')}" if host else f"source {source}")
        return np.array(
            [xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) for name in names], np.uint64
        )

    # ------------------------------------------------------------------------------------------ supersteps

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """The rounds; the number of tasks is a function of the number of documents."""
        tasks = 1 << self._bits(parts)
        return (
            Superstep("send"),
            Superstep("count", tasks, ("lines",)),
            Superstep("judge", tasks, ("sites", "frequent")),
            Superstep("spread", tasks, ("lines", "repeated")),
        )

    def _bits(self, parts: tuple[PartInfo, ...]) -> int:
        return partition_bits(sum(part.rows for part in parts) * _LINES, self.rows_per_task)

    def send(self, context: StepContext) -> dict[str, Outbox]:
        """Lines of a part with the documents that have them, and sites with their documents."""
        table, bits = context.emission(context.index), self._bits(context.parts)
        alive = np.ones(table.num_rows, bool)
        alive[context.dropped(context.index)] = False
        table = table.filter(pa.array(alive)).combine_chunks()
        sites = column_values(table, "site")
        lists = table.column("lines").combine_chunks() if table.num_rows else None
        counts = np.diff(lists.offsets.to_numpy()) if lists is not None else np.empty(0, np.int64)
        lines = lists.flatten().to_numpy() if lists is not None else np.empty(0, np.uint64)
        of_line = np.repeat(sites, counts)
        keys, first, documents = np.unique(_joined(of_line, lines), return_index=True, return_counts=True)
        hosts, pages = np.unique(sites, return_counts=True)
        part = np.full(len(keys), context.index, np.uint32)
        rows = {"line": keys, "site": of_line[first], "documents": documents.astype(np.uint32), "part": part}
        return {
            "lines": Outbox(top_bits(keys, bits), pa.table(rows)),
            "sites": Outbox(
                top_bits(hosts, bits), pa.table({"site": hosts, "documents": pages.astype(np.uint32)})
            ),
        }

    def count(self, context: StepContext) -> dict[str, Outbox]:
        """Lines that enough documents have, to the task of their site."""
        inbox = context.inbox["lines"]
        keys, first, where = np.unique(column_values(inbox, "line"), return_index=True, return_inverse=True)
        documents = np.bincount(where, column_values(inbox, "documents"), len(keys)).astype(np.uint32)
        often = documents >= self.min_documents
        site = column_values(inbox, "site")[first[often]]
        rows = {"line": keys[often], "site": site, "documents": documents[often]}
        return {"frequent": Outbox(top_bits(site, self._bits(context.parts)), pa.table(rows))}

    def judge(self, context: StepContext) -> dict[str, Outbox]:
        """Lines that a large enough share of the documents of their site have."""
        sites, frequent = context.inbox["sites"], context.inbox["frequent"]
        names, where = np.unique(column_values(sites, "site"), return_inverse=True)
        pages = np.bincount(where, column_values(sites, "documents"), len(names))
        documents, line = column_values(frequent, "documents"), column_values(frequent, "line")
        total = pages[np.searchsorted(names, column_values(frequent, "site"))] if len(line) else np.empty(0)
        keep = documents >= self.min_share * total
        rows = {"line": line[keep], "documents": documents[keep].astype(np.uint32)}
        context.counters["lines"] += int(keep.sum())
        return {"repeated": Outbox(top_bits(line[keep], self._bits(context.parts)), pa.table(rows))}

    def spread(self, context: StepContext) -> dict[str, Outbox]:
        """Each repeated line, to every part that has it."""
        inbox, repeated = context.inbox["lines"], context.inbox["repeated"]
        line = column_values(repeated, "line")
        order = np.argsort(line)
        line, documents = line[order], column_values(repeated, "documents")[order]
        mine, part = column_values(inbox, "line"), column_values(inbox, "part")
        at = np.searchsorted(line, mine)
        found = np.flatnonzero(at < len(line))
        found = found[line[at[found]] == mine[found]] if len(line) else found
        found = found[np.lexsort((mine[found], part[found]))]
        table = pa.table([mine[found], documents[at[found]].astype(np.uint32)], schema=_FACTS)
        return {"facts": Outbox(part[found].astype(np.uint32), table)}

    # ------------------------------------------------------------------------------------------ apply

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """The batch with repeated lines cut (with `mark` only counted)."""
        cut_N, most_N = np.zeros((2, len(batch)), np.int32)
        bare_N = np.zeros(len(batch), bool)
        if "line" in facts.column_names and facts.num_rows and len(batch):
            repeated = facts.sort_by("line")
            known, documents = column_values(repeated, "line"), column_values(repeated, "documents")
            hashes, offsets_N1, starts, stops = self._lines(batch)
            keys = _joined(np.repeat(self._sites(batch), np.diff(offsets_N1)), hashes)
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            gone = (known[at] == keys) & (hashes != 0)
            rows = np.repeat(np.arange(len(batch)), np.diff(offsets_N1))[gone]
            np.add.at(cut_N, rows, 1)
            np.maximum.at(most_N, rows, documents[at[gone]].astype(np.int32))
            if not self.mark and gone.any():
                kept = cut_lines(*text_buffers(batch.column("text")), offsets_N1, starts, stops, gone)
                batch = with_column(batch, "text", text_array(*kept))
                bare_N = (np.diff(kept[1]) == 0) & (cut_N > 0)
        batch = with_column(batch, "repeated.lines", pa.array(cut_N, pa.int32()))
        batch = with_column(batch, "repeated.documents", pa.array(most_N, pa.int32()))
        return drop_rows(batch, bare_N, f"{self.name}.nothing-left", "every line is repeated")


def _joined(sites: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """One hash, uint64, of a site and a line."""
    return (sites ^ (sites >> np.uint64(31)) ^ lines) * np.uint64(0x9E3779B97F4A7C15)


@njit(types.void(BYTES, OFFSETS, OFFSETS, TABLE, FOLD, types.uint64[::1]), cache=True, nogil=True)
def _hash_lines(data, starts, stops, classes, lower, hashes):
    words = np.empty(1024, np.uint64)
    for k in range(len(starts)):
        size = stops[k] - starts[k]
        if size > 2 * len(words) - 2:
            words = np.empty(size + 2, np.uint64)
        found = scan_words(data, starts[k], stops[k], classes, lower, words)
        state = _SEED
        for j in range(found):
            state = absorb(state, words[j])
        hashes[k] = mix(state) | np.uint64(1) if found else np.uint64(0)


def hash_lines(data_U8: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """uint64 [L]: a hash of the words of each line; 0 for a line without words."""
    hashes = np.empty(len(starts), np.uint64)
    _hash_lines(data_U8, starts, stops, CLASSES, LOWER, hashes)
    return hashes
