"""Sources as streams of tokens: where the tokens of a window or a packed row stand, and how they are read.

A source is its shards in manifest order, one behind the other. A window may begin in one shard and end in the next, so
a source loses less than one window at its end, however many shards it has. Document boundaries come from `.idx`, which
is memory-mapped; of each only every 64th start is kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from stages.contract.checksums import Guard
from stages.contract.manifest import ShardEntry
from stages.contract.problem import Problem, RunError
from stages.contract.rows import PackedRows, read_rows, rows_kind
from stages.contract.shard import INDEX, TokenFile, read_index
from stages.shards.assemble import STRIDE, walk

#: Files held open, of each kind.
OPEN_FILES = 256

#: Tokens that are read with others rather than making two reads of one.
GAP = 2048

#: A stretch of one document in one row.
SPAN = np.dtype([
    ("row", "<i8"),  # which of the rows that were asked for
    ("place", "<i8"),  # position in the row
    ("shard", "<i8"),  # number on the shelf
    ("start", "<i8"),  # token in the shard
    ("count", "<i8"),  # tokens; may reach one past the end of the row
    ("document", "<i8"),  # number in the shard
])  # fmt: skip

K = TypeVar("K")
T = TypeVar("T")


class Kept(Generic[K, T]):
    """The values of the last `size` keys that were asked for."""

    def __init__(self, make: Callable[[K], T], size: int, drop: Callable[[T], None] = lambda _value: None) -> None:
        self._make, self._size, self._drop = make, size, drop
        self._values: OrderedDict[K, T] = OrderedDict()

    def __getitem__(self, key: K) -> T:
        if key not in self._values:
            if len(self._values) >= self._size:
                self._drop(self._values.popitem(last=False)[1])
            self._values[key] = self._make(key)
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        """Lets go of all."""
        while self._values:
            self._drop(self._values.popitem()[1])


@dataclass(frozen=True)
class Book:
    """A shard on the shelf."""

    folder: Path
    entry: ShardEntry

    def path(self, kind: str) -> Path:
        """Where its file of this kind lies."""
        return self.entry.path(self.folder, kind)


class Shelf:
    """Shards by number, and the files of those that were read last. For one thread at a time."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.books: list[Book] = []
        self.bytes_read = 0
        self.reads = 0
        self._guards: dict[int, Guard] = {}
        self._coarse: dict[int, np.ndarray] = {}
        self._tokens = Kept(self._open, OPEN_FILES, lambda file: file.close())
        self._indexes = Kept(self._map, OPEN_FILES)
        self._rows = Kept(self._map_rows, OPEN_FILES)

    def add(self, folder: Path, entry: ShardEntry) -> int:
        """The number that the shard gets."""
        self.books.append(Book(folder, entry))
        return len(self.books) - 1

    def index(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """`(records, starts)` of `.idx`: dtype INDEX, memory-mapped, and int64 where every STRIDE-th document begins."""
        return self._indexes[shard], self._coarse[shard]

    def rows(self, shard: int, length: int) -> PackedRows:
        """The packed rows of this length of a shard, memory-mapped."""
        return self._rows[shard, length]

    def gather(self, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(tokens, at)`: the tokens of all spans, and where those of each begin, int64 (S,).

        Spans that stand near each other are read at once. RunError when a file is missing, short or damaged.
        """
        if not len(spans):
            return np.empty(0, self.dtype), np.empty(0, np.int64)
        key = (spans["shard"] << 40) + spans["start"]
        order = np.argsort(key, kind="stable")
        low = key[order]
        high = np.maximum.accumulate(low + spans["count"][order])
        begins = np.concatenate([[0], np.flatnonzero(low[1:] > high[:-1] + GAP) + 1])
        ends = np.append(begins[1:], len(low)) - 1
        first, size = low[begins], high[ends] - low[begins]
        place = np.cumsum(size) - size
        tokens = np.empty(int(size.sum()), self.dtype)
        shards, starts = first >> 40, first & ((1 << 40) - 1)
        heads = np.flatnonzero(np.diff(shards, prepend=-1))
        for a, b in pairwise([*heads.tolist(), len(shards)]):
            self._read(int(shards[a]), starts[a:b].tolist(), size[a:b].tolist(), tokens, int(place[a]))
        self.reads += len(first)
        self.bytes_read += tokens.nbytes
        run = np.repeat(np.arange(len(begins)), ends - begins + 1)
        at_S = np.empty(len(spans), np.int64)
        at_S[order] = low - first[run] + place[run]
        return tokens, at_S

    def _read(self, shard: int, starts: list[int], sizes: list[int], tokens: np.ndarray, place: int) -> None:
        """Reads stretches of one shard one behind the other into `tokens`, from `place` on."""
        file = self._tokens[shard]
        guard = self._guards.get(shard)
        if guard is not None and not guard.done:
            for start, count in zip(starts, sizes, strict=True):
                guard.check(file, start, count)
        file.read_many(starts, sizes, tokens[place:])

    def close(self) -> None:
        """Closes all files; a later read opens them again."""
        for kept in (self._tokens, self._indexes, self._rows):
            kept.clear()

    def _open(self, shard: int) -> TokenFile:
        book = self.books[shard]
        file = TokenFile(book.path(book.entry.token_kind), self.dtype, book.entry.places)
        if shard not in self._guards and "crc" in book.entry.files:
            self._guards[shard] = Guard(book.path("crc"), book.entry.tokens, self.dtype)
        return file

    def _map(self, shard: int) -> np.ndarray:
        book = self.books[shard]
        records = read_index(book.path("idx"), book.entry.tokens)
        if shard not in self._coarse:
            lengths = records["length"].astype(np.int64)
            self._coarse[shard] = (np.cumsum(lengths) - lengths)[::STRIDE].copy()
        return records

    def _map_rows(self, key: tuple[int, int]) -> PackedRows:
        shard, length = key
        book = self.books[shard]
        packed = read_rows(book.path(rows_kind(length)), length)
        stated = sum(book.entry.rows[str(length)])
        if packed.rows != stated:
            path = book.path(rows_kind(length))
            raise RunError(Problem("D002", f"{path} has {packed.rows:,} rows, but the manifest states {stated:,}"))
        return packed


class Stream:
    """The tokens and documents of some shards, one behind the other."""

    def __init__(self, shelf: Shelf, folder: Path, shards: Sequence[ShardEntry]) -> None:
        self.shelf = shelf
        self.shards = tuple(shards)
        self.base = len(shelf.books)  # number on the shelf of the first shard
        for entry in shards:
            shelf.add(folder, entry)
        self.first_token = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)
        self.first_document = np.cumsum([0, *(shard.documents for shard in shards)], dtype=np.int64)
        self._first_row: dict[int, np.ndarray] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return int(self.first_token[-1])

    def windows(self, offset_N: np.ndarray, count: int) -> np.ndarray:
        """The spans of windows of `count` tokens from these tokens of the stream on, dtype SPAN, by row and place.

        A window that reaches past the end of the stream ends there.
        """
        offset_N = np.asarray(offset_N, np.int64)
        end_N = np.minimum(offset_N + count, self.tokens)
        low = np.searchsorted(self.first_token, offset_N, side="right") - 1
        high = np.searchsorted(self.first_token, np.maximum(end_N - 1, offset_N), side="right") - 1
        parts = high - low + 1
        row = np.repeat(np.arange(len(offset_N)), parts)
        shard = low[row] + np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        begin = np.maximum(offset_N[row], self.first_token[shard])
        size = np.minimum(end_N[row], self.first_token[shard + 1]) - begin
        there = size > 0
        row, shard, begin, size = row[there], shard[there], begin[there], size[there]
        found = []
        for one in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == one)
            records, coarse = self.shelf.index(self.base + one)
            first = begin[mine] - self.first_token[one]
            which, document, start, length = walk(records.view("<u4"), coarse, first, size[mine])
            spans = np.empty(len(which), SPAN)
            spans["row"] = row[mine][which]
            spans["place"] = start + self.first_token[one] - offset_N[spans["row"]]
            spans["shard"], spans["start"], spans["count"] = self.base + one, start, length
            spans["document"] = document
            found.append(spans)
        return _in_order(found)

    def packed(self, row_N: np.ndarray, length: int) -> np.ndarray:
        """The spans of these packed rows of the stream, dtype SPAN, by row and place.

        A span that ends before its document does reaches one token further, for the label of its last position.
        """
        first = self.first_row(length)
        row_N = np.asarray(row_N, np.int64)
        shard = np.searchsorted(first, row_N, side="right") - 1
        found = []
        for one in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == one)
            which, pieces = self.shelf.rows(self.base + one, length).of(row_N[mine] - first[one])
            spans = np.empty(len(which), SPAN)
            count = pieces["length"].astype(np.int64)
            before = np.cumsum(count) - count
            heads = np.flatnonzero(np.diff(which, prepend=-1))
            spans["row"] = mine[which]
            spans["place"] = before - np.repeat(before[heads], np.diff(heads, append=len(which)))
            spans["shard"], spans["document"] = self.base + one, pieces["document"]
            spans["start"] = pieces["start"]
            spans["count"] = count + self._goes_on(one, pieces, count, length)
            found.append(spans)
        return _in_order(found)

    def _goes_on(self, one: int, pieces: np.ndarray, count: np.ndarray, length: int) -> np.ndarray:
        """1 for each piece that fills its row and is not the end of its document, else 0; int64 (S,)."""
        full = np.flatnonzero(count == length)
        result = np.zeros(len(pieces), np.int64)
        if len(full):
            records, _ = self.shelf.index(self.base + one)
            begin = self.begins(one, pieces["document"][full].astype(np.int64))
            end = begin + records["length"][pieces["document"][full]]
            result[full] = pieces["start"][full].astype(np.int64) + length < end
        return result

    def begins(self, one: int, document_D: np.ndarray) -> np.ndarray:
        """The token of shard `one` that each of these documents begins at, int64 (D,)."""
        records, coarse = self.shelf.index(self.base + one)
        result = np.empty(len(document_D), np.int64)
        for i, document in enumerate(document_D.tolist()):
            block = document // STRIDE
            lengths = records["length"][block * STRIDE : document]
            result[i] = coarse[block] + int(lengths.sum(dtype=np.int64))
        return result

    def first_row(self, length: int) -> np.ndarray:
        """The number of the first packed row of each shard, and of all; int64 (shards + 1,)."""
        if length not in self._first_row:
            counts = [sum(shard.rows[str(length)]) for shard in self.shards]
            self._first_row[length] = np.cumsum([0, *counts], dtype=np.int64)
        return self._first_row[length]

    def numbers(self, spans: np.ndarray) -> np.ndarray:
        """The numbers in the stream of the documents of these spans, int64 (S,)."""
        return self.first_document[spans["shard"] - self.base] + spans["document"]

    def find(self, document_id: bytes) -> list[tuple[int, int, int, int]]:
        """Where documents of this id stand: `(shard, number in it, start, end)`, in tokens of the stream.

        Reads every `.idx`.
        """
        wanted = np.frombuffer(document_id, "V16")[0]
        found = []
        for one in range(len(self.shards)):
            records, _ = self.shelf.index(self.base + one)
            for document in np.flatnonzero(records["id"] == wanted).tolist():
                start = int(self.begins(one, np.array([document]))[0] + self.first_token[one])
                found.append((one, document, start, start + int(records["length"][document])))
        return found


def _in_order(found: Sequence[np.ndarray]) -> np.ndarray:
    """Spans of several shards by row and place."""
    if len(found) == 1 and not np.any(np.diff(found[0]["row"]) < 0):
        return found[0]
    spans = np.concatenate([np.empty(0, SPAN), *found])
    return spans[np.lexsort((spans["place"], spans["row"]))]


def ids_of(shelf: Shelf, spans: np.ndarray) -> np.ndarray:
    """The id of the document of each span, V16 (S,)."""
    ids = np.empty(len(spans), INDEX["id"])
    for shard in np.unique(spans["shard"]).tolist():
        mine = np.flatnonzero(spans["shard"] == shard)
        ids[mine] = shelf.index(shard)[0]["id"][spans["document"][mine]]
    return ids
