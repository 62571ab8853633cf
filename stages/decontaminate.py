"""Decontamination: documents that hold a piece of a benchmark go, and the item that they hold is named.

A benchmark item is looked for as its n-grams of words, so case, punctuation and spaces do not matter; an item with fewer
words than an n-gram is looked for as a whole. Before anything else the list is tried on itself: each item must be found
in its own text, and planted in another one in other case and spacing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from stages.contract.config import Share
from stages.contract.files import sha256_file
from stages.contract.names import path_name
from stages.document import text_buffers, with_column
from stages.readers import Damaged, FileSlice, ReadSettings, Reject, list_files, read_slice
from stages.stage import RowStage
from stages.text import VERSION, shingle_hashes, word_hashes
from stages.text.lookup import hash_table, look_up
from stages.urls import Files
from stages.verdict import give_verdict, mark_column


class Decontaminate(RowStage):
    """Drops `decontaminate.<benchmark>` where a document holds a piece of one of its items; the value names the item.

    Adds `decontaminate.ngrams`, how many n-grams of all benchmarks a document holds.
    """

    name: ClassVar[str] = "decontaminate"

    benchmarks: Annotated[
        Files,
        Field(
            min_length=1,
            description="Files of benchmark items (any format that sources have), globs, or folders.",
        ),
    ]
    text: Annotated[
        str | None,
        Field(
            description='The field with the text of an item, or a template such as "{question} {answer}". Default: text.'
        ),
    ] = None
    id: Annotated[str, Field(description="The field with the name of an item.")] = "id"
    ngram: Annotated[
        int, Field(ge=4, le=64, description="Words of a piece that must be equal; in Chinese … characters.")
    ] = 13
    min_words: Annotated[
        int,
        Field(
            ge=2,
            description="Items with fewer words are too common to look for; they are counted and left out.",
        ),
    ] = 8
    min_share: Annotated[
        Share,
        Field(description="Share of the n-grams of an item that a document must hold; 0: one is enough."),
    ] = 0.0

    def adds(self) -> dict[str, pa.DataType]:
        return {"decontaminate.ngrams": pa.int32()} | mark_column(self)

    def recipe(self) -> dict[str, str]:
        digests = {f"benchmark.{number}": sha256_file(path) for number, (path, _) in enumerate(self._files())}
        return {"text": VERSION, **digests}

    def problems(self) -> list[str]:
        try:
            self._index()  # runs the self-test
        except (OSError, ValueError) as error:
            return [str(error)]
        return []

    def notes(self) -> list[str]:
        """What a plan should say."""
        index = self._index()
        said = [
            f"{len(index.names):,} items of {len(index.benchmarks)} benchmarks, {len(index.keys):,} different n-grams; "
            f"the self-test found all of them"
        ]
        if index.short:
            said.append(
                f"{index.short:,} items have fewer than {self.min_words} words and are not looked for"
            )
        return said

    def remarks(self, documents: int, dropped: int, totals: Mapping[str, int]) -> list[str]:
        """That nothing was found, if so: a list that was made wrong finds nothing either."""
        if totals.get("decontaminate.ngrams") or dropped:
            return []
        return [
            f"none of the {len(self._index().names):,} benchmark items was found in {documents:,} documents"
        ]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = self._index()
        reasons, values = [""] * len(batch), [""] * len(batch)
        counts_N = np.zeros(len(batch), np.int32)
        for row, found in index.find(batch.column("text")).items():
            counts_N[row] = len(found)
            item, held = index.best(found)
            total = index.totals[item]
            if held >= self.min_share * total:
                reasons[row] = f"{self.name}.{index.benchmarks[index.benchmark_of[item]]}"
                values[row] = f"{index.names[item]}: {held} of {total} n-grams"
        batch = with_column(batch, "decontaminate.ngrams", pa.array(counts_N, pa.int32()))
        return give_verdict(
            self, batch, np.array([bool(reason) for reason in reasons], bool), reasons, values
        )

    def _files(self) -> list[tuple[str, str]]:
        """`(path, name of the benchmark)` of each file; FileNotFoundError where a path names none."""
        listing = list_files([str(path) for path in self.benchmarks], os.sep)
        if not listing.files:
            raise FileNotFoundError(
                f"`benchmarks` names no file: {', '.join(path.written for path in self.benchmarks)}"
            )
        return [
            (found.path, path_name(found.uri.rsplit("/", 1)[-1].split(".")[0])) for found in listing.files
        ]

    def _index(self) -> Index:
        stamped = tuple(
            (path, name, (stat := os.stat(path)).st_mtime_ns, stat.st_size) for path, name in self._files()
        )
        return _load(stamped, self.text, self.id, self.ngram, self.min_words)


@dataclass(frozen=True)
class Index:
    """The n-grams of all items.

    names, totals, benchmark_of   of each item: its id, how many different n-grams it has, which benchmark
    keys, slots                   sorted hashes of the n-grams; where they stand in a hash table (or -1)
    items_of                      of each n-gram, the items that have it
    short                         items that are not looked for
    """

    benchmarks: tuple[str, ...]
    names: tuple[str, ...]
    texts: tuple[str, ...]
    benchmark_of: tuple[int, ...]
    totals: tuple[int, ...]
    sizes: tuple[int, ...]
    keys: np.ndarray
    slots: np.ndarray
    items_of: tuple[tuple[int, ...], ...]
    short: int

    def find(self, texts: pa.Array) -> dict[int, list[int]]:
        """For each text that holds any, the different n-grams (as places in `keys`) that it holds, ascending."""
        data_U8, offsets_N1 = text_buffers(texts)
        found: dict[int, set[int]] = {}
        for size in self.sizes:
            hashes, bounds_N1 = shingle_hashes(data_U8, offsets_N1, size)
            places = look_up(hashes ^ np.uint64(size), self.keys, self.slots)
            hits = np.flatnonzero(places >= 0)
            for row, place in zip(
                (np.searchsorted(bounds_N1, hits, side="right") - 1).tolist(),
                places[hits].tolist(),
                strict=True,
            ):
                found.setdefault(row, set()).add(place)
        return {row: sorted(found[row]) for row in sorted(found)}

    def best(self, found: list[int]) -> tuple[int, int]:
        """`(the item of which these n-grams hold the largest share, how many of it)`; the first of several."""
        held = Counter(item for place in found for item in self.items_of[place])
        return max(held.items(), key=lambda pair: (pair[1] / self.totals[pair[0]], -pair[0]))

    def self_test(self) -> list[str]:
        """The items that are not found in their own text, and in it planted in another one, in other case and spacing."""
        planted = [
            f"Then he said:  {'  '.join(_raised(text).split())} -- and went on." for text in self.texts
        ]
        missed = []
        for texts in (list(self.texts), planted):
            found = self.find(pa.array(texts, pa.large_string()))
            for item, name in enumerate(self.names):
                own = {place for place in found.get(item, []) if item in self.items_of[place]}
                complete = len(own) == self.totals[item] if texts is not planted else bool(own)
                if not complete and name not in missed:
                    missed.append(name)
        return missed


def _raised(text: str) -> str:
    """The text in upper case, as far as that can be undone letter by letter."""
    return "".join(upper if (upper := c.upper()).lower() == c else c for c in text)


@lru_cache(maxsize=4)
def _load(
    files: tuple[tuple[str, str, int, int], ...], text: str | None, id_field: str, ngram: int, min_words: int
) -> Index:
    """The index of these files; ValueError where one cannot be read or has no items, or where the self-test fails."""
    benchmarks = tuple(dict.fromkeys(name for _, name, _, _ in files))
    names: list[str] = []
    texts: list[str] = []
    benchmark_of: list[int] = []
    for path, benchmark, _, _ in files:
        for number, (own_id, content) in enumerate(_items(path, text, id_field)):
            names.append(f"{benchmark} {number if own_id is None else own_id}")
            texts.append(content)
            benchmark_of.append(benchmarks.index(benchmark))
    grams, sizes = _grams(texts, ngram, min_words)
    kept = [i for i, own in enumerate(grams) if own]
    if not kept:
        raise ValueError(f"no benchmark item has {min_words} words or more")
    places: dict[int, list[int]] = {}
    for item, i in enumerate(kept):
        for key in grams[i]:
            places.setdefault(key, []).append(item)
    keys = np.array(sorted(places), np.uint64)
    index = Index(
        benchmarks=benchmarks,
        names=tuple(names[i] for i in kept),
        texts=tuple(texts[i] for i in kept),
        benchmark_of=tuple(benchmark_of[i] for i in kept),
        totals=tuple(len(grams[i]) for i in kept),
        sizes=sizes,
        keys=keys,
        slots=hash_table(keys),
        items_of=tuple(tuple(places[key]) for key in keys.tolist()),
        short=len(texts) - len(kept),
    )
    if missed := index.self_test():
        raise ValueError(
            f"the self-test did not find {len(missed)} of {len(kept)} items, such as {missed[0]}"
        )
    return index


def _items(path: str, text: str | None, id_field: str) -> Iterator[tuple[str | None, str]]:
    """`(id, text)` of the items of a file; ValueError when it cannot be read whole."""
    settings = ReadSettings("benchmark", text=text, id=id_field)
    for batch in read_slice(FileSlice(path, os.path.basename(path)), settings):
        if isinstance(batch, Damaged):
            raise ValueError(f"{path} cannot be read: {batch.reason}: {batch.detail}")
        if isinstance(batch, Reject):
            where = f"line {batch.line_hint}" if batch.line_hint else f"record {batch.record}"
            raise ValueError(f"{path}, {where}: {batch.reason}: {batch.detail}")
        yield from zip(batch.column("user_id").to_pylist(), batch.column("text").to_pylist(), strict=True)


def _grams(texts: list[str], ngram: int, min_words: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """`(hashes of the different n-grams of each text, none for short ones; lengths of n-grams in use)`."""
    data_U8, offsets_N1 = text_buffers(pa.array(texts, pa.large_string()))
    _, words_N1 = word_hashes(data_U8, offsets_N1)
    lengths_N = np.minimum(np.diff(words_N1), ngram)
    sizes = sorted({int(n) for n in lengths_N if n >= min_words})
    grams: list[list[int]] = [[] for _ in texts]
    for size in sizes:
        hashes, bounds_N1 = shingle_hashes(data_U8, offsets_N1, size)
        for row in np.flatnonzero(lengths_N == size).tolist():
            own = hashes[bounds_N1[row] : bounds_N1[row + 1]] ^ np.uint64(size)
            grams[row] = np.unique(own).tolist()
    return grams, tuple(sizes)


if __name__ == "__main__":
    from stages.attempt import main

    main("decontaminate")
