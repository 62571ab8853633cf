"""Near-duplicate removal: MinHash bands propose, a sketch decides, the best document of its like stays.

Here are the settings, what a document emits, and the drop. How documents find each other: `neighbours.py`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from stages import signature
from stages.bands import DATASKETCH, VERIFIED, choose_bands, collision_curve, collision_probability
from stages.contract.config import Share
from stages.document import drop_rows, text_buffers
from stages.exchange import binary_of, column_values
from stages.neighbours import Neighbours
from stages.numbering import facts_in
from stages.text import VERSION


class MinhashDedup(Neighbours):
    """Drops documents that are similar to a better one that stays: source priority, then canonical order.

    Emission per document: `keys` (8 bytes a band), `sketch` (256), `twin` (16), `shingles` (uint32).
    Facts per part: `row` (uint32, ascending), `similarity` (float32, the estimated Jaccard similarity).
    Counters: `twins`; `candidates` and `verified`: comparisons made and passed; `released`: pairs not compared
    because a bucket was too big.
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
        Field(description="`signature`: estimate by a 256-byte sketch. `exact` is not built yet."),
    ] = "signature"
    survivor: Annotated[
        Literal["priority"], Field(description="Who stays: source priority, then the order of the inputs.")
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.verify == "exact":
            raise ValueError("`verify: exact` is not built yet; `verify: signature` estimates within 0.02")
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

    def recipe(self) -> dict[str, str]:
        """The table of word characters."""
        return {"words": VERSION}

    def emit(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        """Band keys, sketch, twin hash and number of shingles of each document."""
        bands, rows = self.shape
        constants = signature.Permutations.make(self.seed, bands * rows)
        made = signature.sign_texts(*text_buffers(batch.column("text")), self.ngram, bands, rows, constants)
        columns = [
            binary_of(made.keys),
            binary_of(made.sketches),
            binary_of(made.twins),
            pa.array(made.counts),
        ]
        return pa.RecordBatch.from_arrays(columns, ["keys", "sketch", "twin", "shingles"])

    def apply(self, batch: pa.RecordBatch, facts: pa.Table, first_row: int) -> pa.RecordBatch:
        """The batch with `drop` = `minhash-dedup.near-duplicate` on the rows that the facts name."""
        mask, which = facts_in(batch, facts, first_row)
        values = [""] * batch.num_rows
        rows = column_values(facts, "row")[which].astype(np.int64) - first_row
        for row, alike in zip(rows.tolist(), column_values(facts, "similarity")[which].tolist(), strict=True):
            values[row] = f"{alike:.3f} >= {self.threshold:g}"
        return drop_rows(batch, mask, f"{self.name}.near-duplicate", values)
