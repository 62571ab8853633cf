"""Word lists: documents with too many words of a list that you give (adult, toxic, or whatever it is) go.

Whole words of the text core are compared, in lower case, so `Scunthorpe` is fine; in scripts without spaces an entry is
a sequence of characters. An entry of several words is found whatever stands between them, if it is no word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field

from stages.contract.config import Count, Share
from stages.contract.files import sha256_file
from stages.document import text_buffers, with_column
from stages.language.codes import short_code
from stages.stage import RowStage
from stages.text import VERSION, shingle_hashes, word_hashes
from stages.text.lookup import hash_table, look_up
from stages.urls import Files, Stamped, list_entries, stamped
from stages.verdict import give_verdict, mark_column

#: The list for every language.
ANY = "any"


def _codes(lists: Mapping[str, Files]) -> dict[str, Files]:
    return {ANY if name == ANY else short_code(name): paths for name, paths in lists.items()}


class Words(RowStage):
    """Drops `words.count` and `words.share` where a text has too many words of the lists; adds `words.hits`.

    The list of the language in the column `lang` counts, if the stage `language` ran before and knew it; else all lists do.
    """

    name: ClassVar[str] = "words"

    lists: Annotated[
        dict[str, Files],
        AfterValidator(_codes),
        Field(
            min_length=1, description="Files of words by language (en, zh …; `any` for all), an entry a line."
        ),
    ]
    max_count: Annotated[
        Count | None,
        Field(description="A text with more hits is dropped. Default: 0, if `max_share` is not given."),
    ] = None
    max_share: Annotated[
        Share | None, Field(description="A text with more hits for each of its words is dropped.")
    ] = None

    def adds(self) -> dict[str, pa.DataType]:
        return {"words.hits": pa.int32()} | mark_column(self)

    def recipe(self) -> dict[str, str]:
        digests = {
            f"{language}.{number}": sha256_file(path)
            for language, paths in sorted(self.lists.items())
            for number, path in enumerate(paths)
        }
        return {"text": VERSION, **digests}

    def problems(self) -> list[str]:
        found = []
        for path in (path for paths in self.lists.values() for path in paths):
            try:
                if not sum(1 for _ in list_entries(path)):
                    found.append(f"the list `{path.written}` has no entries")
            except (OSError, UnicodeDecodeError, EOFError) as error:
                found.append(
                    f"the list `{path.written}` cannot be read: {getattr(error, 'strerror', None) or error}"
                )
        return found

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        data_U8, offsets_N1 = text_buffers(batch.column("text"))
        words_N = np.diff(word_hashes(data_U8, offsets_N1)[1])
        hits_N = self._hits(batch, data_U8, offsets_N1)
        limit = 0 if self.max_count is None and self.max_share is None else self.max_count
        many_N = hits_N > limit if limit is not None else np.zeros(len(batch), bool)
        share_N = hits_N / np.maximum(words_N, 1)
        dense_N = share_N > self.max_share if self.max_share is not None else np.zeros(len(batch), bool)
        reasons = ["words.count" if many else "words.share" for many in many_N.tolist()]
        values = [
            f"{hits} > {limit}" if many else f"{hits} of {words} words > {self.max_share or 0:g}"
            for hits, words, many in zip(hits_N.tolist(), words_N.tolist(), many_N.tolist(), strict=True)
        ]
        batch = with_column(batch, "words.hits", pa.array(hits_N.astype(np.int32)))
        return give_verdict(self, batch, many_N | dense_N, reasons, values)

    def _hits(self, batch: pa.RecordBatch, data_U8: np.ndarray, offsets_N1: np.ndarray) -> np.ndarray:
        """int64 [N]: places where an entry of a list that counts begins."""
        found_N = np.zeros(len(batch), np.int64)
        languages = batch.column("lang").to_pylist() if "lang" in batch.schema.names else [None] * len(batch)
        for language, paths in sorted(self.lists.items()):
            counts_N = np.array([language in (ANY, own) or own in (None, "und") for own in languages], bool)
            for size, (keys, slots) in _entries(stamped(paths)).items():
                hashes, bounds_N1 = shingle_hashes(data_U8, offsets_N1, size)
                hit = np.concatenate([[0], np.cumsum(look_up(hashes, keys, slots) >= 0)])
                found_N += np.where(counts_N, np.diff(hit[bounds_N1]), 0)
        return found_N


@lru_cache(maxsize=64)
def _entries(files: Stamped) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By number of words, `(sorted hashes of the entries, their hash table)`. Entries without a word are left out."""
    entries = sorted({entry for path, _, _ in files for _, entry in list_entries(path)})
    data_U8, offsets_N1 = text_buffers(pa.array(entries, pa.large_string()))
    lengths_N = np.diff(word_hashes(data_U8, offsets_N1)[1])
    found = {}
    for size in np.unique(lengths_N[lengths_N > 0]).tolist():
        chosen = pa.array([entries[i] for i in np.flatnonzero(lengths_N == size).tolist()], pa.large_string())
        keys = np.unique(shingle_hashes(*text_buffers(chosen), size)[0])
        found[size] = (keys, hash_table(keys))
    return found


if __name__ == "__main__":
    from stages.attempt import main

    main("words")
