"""Near-duplicate removal: MinHash bands propose, a sketch decides, the best document of its like stays.

Here are the settings, what a document emits, and the drop. How documents find each other: `neighbours.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.contract.config import Count, Share
from stages.dedup import signature
from stages.dedup.bands import (
    DATASKETCH,
    choose_bands,
    collision_curve,
    collision_probability,
    selective_bands,
)
from stages.dedup.exact import Manifests
from stages.dedup.neighbours import Neighbours
from stages.document import drop_rows, text_buffers
from stages.exchange import binary_of, column_values
from stages.numbering import LAST, facts_in, sortable
from stages.text import VERSION


class MinhashDedup(Neighbours):
    """Drops documents that are similar to a better one that stays: source priority, a column, then canonical order.

    Emission per document: `keys` (8 bytes a band), `sketch` (256), `twin` (16), `shingles` (uint32), and `order` (uint32)
    when a column decides who survives.
    Facts per part: `row` (uint32, ascending), `similarity` (float32, estimated or exact Jaccard similarity).
    Counters: `twins`; `candidates` and `verified`: comparisons made and passed; `measured`: those of them measured
    exactly; `released`: pairs not compared because a bucket was too big; `largest_cluster`; `audit_...`.
    """

    name: ClassVar[str] = "minhash-dedup"
    version: ClassVar[int] = 2

    threshold: Annotated[
        Share, Field(description="Jaccard similarity from which two documents are duplicates.")
    ] = 0.8
    permutations: Annotated[int, Field(ge=1, le=4096, description="MinHash rows per document.")] = 112
    ngram: Annotated[
        int, Field(ge=1, le=64, description="Words in a shingle; in Chinese, Japanese, Thai … characters.")
    ] = 5
    bands: Annotated[
        Annotated[int, Field(ge=1)] | Literal["datasketch"] | None,
        Field(description="Bands of rows; default: the best for the threshold. `datasketch`: its choice."),
    ] = None
    rows: Annotated[
        int | None, Field(ge=1, description="Rows in a band; default: the best for the threshold.")
    ] = None
    verify: Annotated[
        Literal["signature", "exact"],
        Field(description="What decides: a 256-byte sketch (within 0.02), or exact similarity, read from the text."),
    ] = "signature"
    survivor: Annotated[
        str,
        Field(
            description="Who stays, after the priority of its source: `priority`, the order of the inputs; `length`, the "
            "longest text; or a column of numbers that an earlier stage adds, the largest value.",
            min_length=1,
        ),
    ] = "priority"
    seed: Annotated[int, Field(ge=0, lt=2**63, description="Of the hash functions.")] = 0
    min_shingles: Annotated[
        int,
        Field(ge=1, description="Documents with fewer shingles are not looked at; exact-dedup handles them."),
    ] = 1
    max_bucket: Annotated[
        int,
        Field(
            ge=1, le=1_000_000, description="Documents of a bucket that are compared with all others in it."
        ),
    ] = 512

    audit: Annotated[
        int,
        Field(
            ge=0,
            le=10_000,
            description="Documents that are compared with all others, and a quarter of the removals whose exact "
            "similarity is computed, to measure what was found and what was wrong; 0: no audit.",
        ),
    ] = 100
    against: Annotated[
        Manifests,
        Field(description="Manifests of earlier corpora: documents like one of theirs are dropped; they stay as they are."),
    ] = ()
    cluster_alarm: Annotated[Count, Field(ge=2, description="Warn when more documents are reduced to one.")] = 1_000
    max_loss: Annotated[
        Share | None, Field(description="Stop the build when a source loses more than this share here.")
    ] = 0.6

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.verify == "exact" and self.against:
            raise ValueError("`verify: exact` needs the text of both documents, and `against` reads no old text")
        if not 0.1 <= self.threshold <= 1:
            raise ValueError(f"a threshold of {self.threshold:g} is outside 0.1 to 1")
        if isinstance(self.bands, int) and self.bands * (self.rows or 1) > self.permutations:
            raise ValueError(self._misfit(self.bands, self.rows or 1))
        if self.rows is not None and self.rows > self.permutations:
            raise ValueError(f"{self.rows} rows in a band are more than permutations = {self.permutations}")
        return self

    def _misfit(self, bands: int, rows: int) -> str:
        sentence = (
            f"{bands} bands x {rows} rows = {bands * rows} are more than permutations = {self.permutations}"
        )
        if rows > self.permutations:
            return sentence
        return f"{sentence}; with {rows} rows at most {self.permutations // rows} bands fit"

    def wants(self) -> tuple[str, ...]:
        """The column that decides who survives."""
        return () if self.survivor in ("priority", "length") else (self.survivor,)

    @property
    def shape(self) -> tuple[int, int]:
        """`(bands, rows)`, as given or chosen for the threshold."""
        if self.bands == "datasketch":
            return choose_bands(self.threshold, self.permutations, DATASKETCH, None, self.rows)
        return selective_bands(self.threshold, self.permutations, self.bands, self.rows)

    def notes(self) -> list[str]:
        """What a plan should say: the shape, its collision curve, what N documents cost, and what looks wrong."""
        bands, rows = self.shape
        curve = ", ".join(f"{j:.1f}: {p:.1%}" for j, p in collision_curve(bands, rows).items())
        notes = [f"{bands} bands x {rows} rows propose two documents of similarity J with chance {curve}", *self._costs()]
        chance = collision_probability(self.threshold, bands, rows)
        if chance < 0.5:
            best = selective_bands(self.threshold, self.permutations)
            notes.append(
                f"warning: only {chance:.1%} of the duplicates at the threshold {self.threshold:g} would be "
                f"found; {best[0]} bands x {best[1]} rows find {collision_probability(self.threshold, *best):.1%}"
            )
        return notes

    def _costs(self) -> list[str]:
        """Scratch and memory for N documents, as ARCHITECTURE.md derives and benchmarks/dedup.py measures them."""
        bands = self.shape[0]
        stored, sent = 8 * bands + signature.BINS + 16 + 4, 12 * bands + 200
        each = stored + sent
        notes = [
            f"N documents take N x {each} bytes of scratch ({stored} for signatures, which stay, and about {sent} "
            f"exchanged): {each / 1e3:.1f} GB for 1 M, {each / 1e3:.1f} TB for 1 G",
            f"memory of a task: 110 MB + the larger of 40 bytes x {bands} x documents of its part and 40 bytes x "
            f"{self.rows_per_task:,} rows of a bucket task, whatever N is; one task of the pass holds N / 4 bytes",
        ]
        if self.verify == "exact":
            notes.append(
                "verify: exact reads the text of candidates, about half of all documents, once more, and sends "
                "8 bytes a shingle of each"
            )
        return notes

    def fingerprint(self) -> dict[str, Any]:
        """What decides whether two signatures can be compared."""
        bands, rows = self.shape
        made = {"version": self.version, "words": VERSION, "ngram": self.ngram, "seed": self.seed}
        return {**made, "bands": bands, "rows": rows}

    def recipe(self) -> dict[str, str]:
        """The table of word characters."""
        return {"words": VERSION}

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """Band keys, sketch, twin hash and number of shingles of each document."""
        bands, rows = self.shape
        constants = signature.Permutations.make(self.seed, bands * rows)
        made = signature.sign_texts(*text_buffers(batch.column("text")), self.ngram, bands, rows, constants)
        columns = {
            "keys": binary_of(made.keys),
            "sketch": binary_of(made.sketches),
            "twin": binary_of(made.twins),
            "shingles": pa.array(made.counts),
        }
        if self.survivor != "priority":
            columns["order"] = pa.array(self._order(batch))
        return pa.RecordBatch.from_pydict(columns)

    def _order(self, batch: pa.RecordBatch) -> np.ndarray:
        """Place of each document by the survivor column; those of sources whose stages do not add it come last."""
        if self.survivor == "length":
            return sortable(pc.binary_length(batch.column("text")))
        if self.survivor not in batch.schema.names:
            return np.full(batch.num_rows, LAST, np.uint32)
        return sortable(batch.column(self.survivor))

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with `drop` = `minhash-dedup.near-duplicate` on the rows that the facts name."""
        mask, which = facts_in(batch, facts, first_row)
        values = [""] * batch.num_rows
        rows = column_values(facts, "row")[which].astype(np.int64) - first_row
        for row, alike in zip(rows.tolist(), column_values(facts, "similarity")[which].tolist(), strict=True):
            values[row] = f"{alike:.3f} >= {self.threshold:g}"
        return drop_rows(batch, mask, f"{self.name}.near-duplicate", values)
