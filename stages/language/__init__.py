"""Language identification: adds `lang` and `lang_score`, and drops what is not asked for."""

from __future__ import annotations

import difflib
import os
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from numba import njit, types
from pydantic import BeforeValidator, Field

from stages.contract.config import FilePath, Share, Size
from stages.document import text_buffers, with_column
from stages.language import identify
from stages.language.codes import short_code
from stages.language.identify import UNKNOWN, Identifier
from stages.stage import RowStage
from stages.text import scripts
from stages.text.kernels import BYTES, OFFSETS
from stages.verdict import give_verdict, mark_column

Code = Annotated[str, BeforeValidator(lambda value: short_code(str(value)))]

#: Scores are kept as multiples of this: models differ in the last bits from machine to machine, decisions must not.
STEP = 1 / 4096
#: The first look takes one part in so many of `look_at`, and decides if its score is at least SURE.
FIRST_LOOK, SURE = 8, 0.9


class Language(RowStage):
    """Adds `lang` (short code) and `lang_score` (0 to 1); drops `language` where it is not in `keep` or too unsure.

    At most `look_at` bytes of a text are looked at: a third each from its beginning, middle and end; a quarter of that where
    it leaves no doubt. Texts with fewer than `least_letters` bytes of letters (4 Chinese characters, 12 English letters) are `und` with score 0: they are
    kept, unless `keep_unknown` is off.
    """

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 3

    keep: Annotated[
        tuple[Code, ...] | None,
        Field(description="Languages to keep: en, eng, English, zh-CN … Default: all, only tag."),
    ] = None
    min_score: Annotated[
        Share, Field(description="A document with a lower score is dropped (where `keep` is given).")
    ] = 0.5
    keep_unknown: Annotated[bool, Field(description="Keep texts that are too short to tell.")] = True
    model: Annotated[
        FilePath | None, Field(description="A fastText model (.bin, .ftz) to ask, such as lid.176.")
    ] = None
    look_at: Annotated[Size, Field(ge=64, description="Bytes of a text that are looked at.")] = 12288
    least_letters: Annotated[int, Field(ge=0, description="Texts with fewer bytes of letters are `und`.")] = (
        12
    )

    def adds(self) -> dict[str, pa.DataType]:
        return {"lang": pa.string(), "lang_score": pa.float32()} | mark_column(self)

    def memory(self) -> int:
        """A model of the user's own is held in memory."""
        return 0 if self.model is None else os.path.getsize(self.model)

    def recipe(self) -> dict[str, str]:
        return identify.recipe(self.model)

    def problems(self) -> list[str]:
        if self.model is not None and not os.path.isfile(self.model):
            return [f"there is no model file `{self.model}`"]
        labels = sorted(self._identifier().labels)
        return [
            f"the model does not know `{code}`, so everything would go"
            f" (nearest: {', '.join(difflib.get_close_matches(code, labels, 1, 0)) or 'none'}); it knows {', '.join(labels)}"
            for code in self.keep or ()
            if code not in labels
        ]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column("text")
        codes, scores_N = self._look(texts, self.look_at // FIRST_LOOK)
        long_N = np.diff(text_buffers(texts)[1]) > self.look_at // FIRST_LOOK
        unsure = np.flatnonzero(long_N & (scores_N < SURE))
        again, scores_N[unsure] = self._look(texts.take(pa.array(unsure)), self.look_at)
        for row, code in zip(unsure.tolist(), again, strict=True):
            codes[row] = code
        batch = with_column(batch, "lang", pa.array(codes, pa.string()))
        batch = with_column(batch, "lang_score", pa.array(scores_N, pa.float32()))
        if self.keep is None:
            wanted_N = np.ones(len(batch), bool)
        else:
            wanted_N = np.array([code in self.keep for code in codes], bool) & (
                scores_N >= np.float32(self.min_score)
            )
        unknown_N = np.array([code == UNKNOWN for code in codes], bool)
        goes_N = np.where(unknown_N, not self.keep_unknown, ~wanted_N)
        values = [f"{code} {score:.2f}" for code, score in zip(codes, scores_N.tolist(), strict=True)]
        return give_verdict(self, batch, goes_N, "language", values)

    def _look(self, texts: pa.Array, look_at: int) -> tuple[list[str], np.ndarray]:
        """Codes and scores (float32 [N], multiples of STEP) by that many bytes of each text."""
        sample_U8, offsets_N1 = sample(*text_buffers(texts), look_at)
        letters_NS = scripts.letter_bytes(sample_U8, offsets_N1)
        codes, raw_N = self._identifier().identify(sample_U8, offsets_N1, letters_NS)
        scores_N = (np.round(raw_N / STEP) * STEP).astype(np.float32)
        short_N = letters_NS.sum(axis=1) < self.least_letters
        scores_N[short_N] = 0
        return [
            UNKNOWN if short else code for code, short in zip(codes, short_N.tolist(), strict=True)
        ], scores_N

    def _identifier(self) -> Identifier:
        return identify.built_in() if self.model is None else identify.fasttext_model(str(self.model))


@njit(types.int64(BYTES, OFFSETS, types.int64, types.uint8[::1], types.int64[::1]), cache=True, nogil=True)
def _copy_windows(data, offsets, third, out, out_offsets):
    at = 0
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        size = end - start
        for part in range(3):
            if size <= 3 * third:
                low, high = (start, end) if part == 0 else (end, end)
            else:
                low = start + (size - third) * part // 2
                high = low + third
                while low < high and data[low] & 0xC0 == 0x80:  # begin and end between characters
                    low += 1
                while high > low and high < end and data[high] & 0xC0 == 0x80:
                    high -= 1
                if part > 0:
                    out[at] = 0x20
                    at += 1
            for i in range(low, high):
                out[at] = max(data[i], np.uint8(0x20))  # line breaks and tabs say nothing about a language
                at += 1
        out_offsets[row + 1] = at
    return at


def sample(data_U8: np.ndarray, offsets_N1: np.ndarray, look_at: int) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of the texts, those over `look_at` bytes cut to their beginning, middle and end with a space between."""
    third = look_at // 3
    room = int(np.minimum(np.diff(offsets_N1), 3 * third).sum()) + 2 * (len(offsets_N1) - 1)
    out_U8 = np.empty(room, np.uint8)
    out_offsets_N1 = np.zeros(len(offsets_N1), np.int64)
    used = _copy_windows(data_U8, offsets_N1, third, out_U8, out_offsets_N1)
    return out_U8[:used], out_offsets_N1
