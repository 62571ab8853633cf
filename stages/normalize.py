"""Normalisation: one form for the same text, without touching what a reader can see.

NFC, `\\n` as the only line break, no control characters, no invisible junk, no trailing space, no long gaps.
Never a compatibility form: full-width letters, circled digits and ligatures stay as they are, and so do the zero-width
joiners that Persian, the scripts of India and emoji need, and the ideographic space. `normal_form.py` has the details.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from stages.document import text_array, text_buffers, with_column
from stages.stage import RowStage
from stages.text.normal_form import DIRTY, MAY_COMPOSE, character_kinds, find_dirty, write_forms
from stages.verdict import give_verdict, mark_column

#: Something that can be seen.
_VISIBLE = r"[^\s\pZ\p{Cf}\p{Cc}]"


class Normalize(RowStage):
    """Unicode NFC, line breaks, control and zero-width characters, spaces at line ends, gaps; drops `normalize.empty`."""

    name: ClassVar[str] = "normalize"
    version: ClassVar[int] = 1
    changes_text: ClassVar[bool] = True

    blank_lines: Annotated[
        int, Field(ge=0, description="Longer runs of blank lines are cut to this many.")
    ] = 2
    no_break_space: Annotated[
        bool, Field(description="Turn no-break spaces (U+00A0, U+2007, U+202F) into plain ones.")
    ] = True

    def adds(self) -> dict[str, pa.DataType]:
        return mark_column(self)

    def recipe(self) -> dict[str, str]:
        return {"unicodedata": unicodedata.unidata_version}

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        before = batch.column("text")
        texts = self.clean(before.fill_null("") if before.null_count else before)
        if texts is not before:
            batch = with_column(batch, "text", texts)
        empty = np.asarray(pc.invert(pc.match_substring_regex(texts, _VISIBLE)))
        return give_verdict(self, batch, empty, "normalize.empty", "no visible character")

    def clean(self, texts: pa.Array) -> pa.Array:
        """The texts in the form, large_string; the same array where all were in it already."""
        data_U8, offsets_N1 = text_buffers(texts)
        found_N = np.zeros(len(texts), np.uint8)
        how = (character_kinds(), self.no_break_space, self.blank_lines + 1)
        find_dirty(data_U8, offsets_N1, *how, found_N)
        if (found_N & DIRTY).any():
            out_U8 = np.empty(int(offsets_N1[-1] - offsets_N1[0]), np.uint8)
            out_offsets_N1 = np.zeros(len(offsets_N1), np.int64)
            used = write_forms(data_U8, offsets_N1, *how, found_N, out_U8, out_offsets_N1)
            texts = text_array(out_U8[:used], out_offsets_N1)
        return _composed(texts, np.flatnonzero(found_N & MAY_COMPOSE))


def _composed(texts: pa.Array, rows_K: np.ndarray) -> pa.Array:
    """The texts with those of `rows_K` in NFC."""
    mask_N = np.zeros(len(texts), bool)
    fresh: list[str] = []
    for row, text in zip(rows_K.tolist(), texts.take(pa.array(rows_K)).to_pylist(), strict=True):
        if not unicodedata.is_normalized("NFC", text):
            mask_N[row] = True
            fresh.append(unicodedata.normalize("NFC", text))
    if not fresh:
        return texts
    return pc.replace_with_mask(texts, pa.array(mask_N), pa.array(fresh, pa.large_string()))


if __name__ == "__main__":
    from stages.attempt import main

    main("normalize")
