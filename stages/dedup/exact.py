"""Exact deduplication: of all documents with the same text the best one stays.

Equality is decided by the 128-bit xxh3 hash of the UTF-8 text (with `normalise: text`, of its folded form).
xxh3 is not cryptographic; it is taken because it runs at memory speed (0.4 against 5.6 microseconds for a
page of 4 KB with blake2b) and an accidental collision among 10**10 documents has a chance of 10**-19.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BeforeValidator, Field

from stages.contract.config import FilePath
from stages.document import drop_rows, text_buffers
from stages.exchange import column_values, fixed_words
from stages.numbering import (
    EVIDENCE,
    Numbering,
    duplicates,
    evidence_table,
    facts_in,
    partition_bits,
    top_bits,
)
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext, Superstep


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


#: Paths of manifests, or of the folders they lie in; one may stand alone.
Manifests = Annotated[tuple[FilePath, ...], BeforeValidator(_listed)]


class ExactDedup(GlobalStage):
    """Drops every document whose text another, better document has: source priority, then canonical order.

    Emission per document: `hash` (16 bytes). Facts per part: `row` (uint32, ascending), the rows to drop.
    """

    name: ClassVar[str] = "exact-dedup"
    #: Documents that one task of the exchange groups; 24 bytes of memory each, a few times over.
    rows_per_task: ClassVar[int] = 4_000_000

    scope: Annotated[
        Literal["all", "source"],
        Field(description="Compare with all documents, or those of the same source."),
    ] = "all"
    normalise: Annotated[
        Literal["none", "text"],
        Field(description="Compare texts as they are, or NFC, in lower case, with white space collapsed."),
    ] = "none"

    against: Annotated[
        Manifests,
        Field(description="Manifests of earlier corpora: documents that one of them has are dropped; they stay as they are."),
    ] = ()

    def fingerprint(self) -> dict[str, Any]:
        """What decides whether two hashes can be compared."""
        return {"version": self.version, "normalise": self.normalise, "scope": self.scope, **self.recipe()}

    def recipe(self) -> dict[str, str]:
        """The Unicode tables behind `normalise: text` are Arrow's."""
        return {"pyarrow": pa.__version__} if self.normalise == "text" else {}

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """One 16-byte hash per document, column `hash`."""
        texts = batch.column("text")
        content, offsets = text_buffers(folded(texts) if self.normalise == "text" else texts)
        view = content.data
        bounds = offsets.tolist()
        digests = [xxhash.xxh3_128_digest(view[a:b]) for a, b in pairwise(bounds)]
        return pa.RecordBatch.from_arrays([pa.array(digests, pa.binary(16))], ["hash"])

    def supersteps(self, parts: tuple[PartInfo, ...]) -> tuple[Superstep, ...]:
        """Hashes to partitions, groups to parts, and each part puts its rows in order."""
        return (
            Superstep("send"),
            Superstep("group", over=1 << self._bits(parts), reads=("hashes",)),
            Superstep("settle", reads=("duplicates",)),
        )

    def _bits(self, parts: tuple[PartInfo, ...]) -> int:
        return partition_bits(sum(part.rows for part in parts), self.rows_per_task)

    def send(self, context: StepContext) -> dict[str, Outbox]:
        """The hashes of a part, to the partition that their top bits name."""
        part = context.part
        words_N2 = fixed_words(context.emission(part.index), "hash", 2)
        alive = np.ones(len(words_N2), bool)
        alive[context.dropped(part.index)] = False
        rows = np.flatnonzero(alive)
        high, low = words_N2[rows, 0], words_N2[rows, 1]
        if self.scope == "source":
            high = high ^ np.uint64(xxhash.xxh3_64_intdigest(part.source.encode()))
        codes = Numbering(context.parts).codes(part, rows)
        table = pa.table({"high": high, "low": low, "code": codes})
        return {"hashes": Outbox(top_bits(high, self._bits(context.parts)), table)}

    def group(self, context: StepContext) -> dict[str, Outbox]:
        """For each hash, all documents but the best, to their parts."""
        inbox = context.inbox["hashes"]
        high, low, codes = (column_values(inbox, name) for name in ("high", "low", "code"))
        others, best = duplicates(high, low, codes)
        numbering = Numbering(context.parts)
        address, row = numbering.locate(others)
        survivor_part, survivor_row = numbering.locate(best)
        return {"duplicates": Outbox(address, evidence_table(row, survivor_part, survivor_row, 1.0))}

    def settle(self, context: StepContext) -> dict[str, Outbox]:
        """Facts and evidence of one part, by row."""
        inbox = context.inbox["duplicates"]
        table = inbox.sort_by("row") if inbox.num_columns else EVIDENCE.empty_table()
        return {
            "facts": Outbox(context.index, table.select(["row"])),
            "evidence": Outbox(context.index, table),
        }

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with `drop` = `exact-dedup.duplicate` on the rows that the facts name."""
        mask, _ = facts_in(batch, facts, first_row)
        return drop_rows(batch, mask, f"{self.name}.duplicate")


def folded(texts: pa.Array) -> pa.Array:
    """The texts in NFC and lower case, white space of any script collapsed to one space, ends trimmed."""
    lower = pc.utf8_lower(pc.utf8_normalize(texts.cast(pa.large_string()), form="NFC"))
    return pc.utf8_trim(pc.replace_substring_regex(lower, r"[\s\p{Z}]+", " "), " ")
