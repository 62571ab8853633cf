"""Near-duplicate removal: MinHash bands propose, a sketch decides, the best document of its like stays.

Here are the settings, what a document emits, and the drop. How documents find each other: `neighbours.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages import signature
from stages.bands import DATASKETCH, VERIFIED, choose_bands, collision_curve, collision_probability
from stages.contract.config import Count, Share
from stages.document import drop_rows, text_buffers
from stages.exact import Manifests
from stages.exchange import binary_of, column_values
from stages.neighbours import Neighbours
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
        Field(ge=0, le=10_000, description="Documents and removals whose exact similarities are computed; 0: no audit."),
    ] = 200
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
        weights = DATASKETCH if self.bands == "datasketch" else VERIFIED
        bands = self.bands if isinstance(self.bands, int) else None
        return choose_bands(self.threshold, self.permutations, weights, bands, self.rows)

    def notes(self) -> list[str]:
        """What a plan should say: the shape, its collision curve, and a warning when the shape is a poor one."""
        bands, rows = self.shape
        curve = ", ".join(f"{j:.1f}: {p:.1%}" for j, p in collision_curve(bands, rows).items())
        notes = [f"{bands} bands x {rows} rows propose two documents of similarity J with chance {curve}"]
        chance = collision_probability(self.threshold, bands, rows)
        if chance < 0.5:
            best = choose_bands(self.threshold, self.permutations, VERIFIED)
            notes.append(
                f"warning: only {chance:.1%} of the duplicates at the threshold {self.threshold:g} would be "
                f"found; {best[0]} bands x {best[1]} rows find {collision_probability(self.threshold, *best):.1%}"
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
