"""Packed rows on disk: `NNNNN.rows-4096` says which documents stand side by side in rows of 4,096 tokens.

A row is a list of spans, each a whole document or, of a document longer than a row, one of its pieces. Tokens are not
stored again and pads are not stored at all: a reader fills a row up to its length. All numbers are little-endian.

    magic "GRISTROW", u32 version, u32 length, u64 rows, u64 spans          32 bytes
    u64 x (rows + 1)    number of the first span of each row, and of all spans
    (u64 start, u32 length, u32 document) x spans    tokens of the shard from `start` on; number of the document in it

Rows stand in groups, and a group holds all pieces of its documents and no others. How many rows each group has is in
the manifest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.contract.files import on_disk
from stages.contract.problem import Problem, RunError

SPAN = np.dtype([("start", "<u8"), ("length", "<u4"), ("document", "<u4")])

_HEAD = struct.Struct("<8sIIQQ")
_MAGIC, _VERSION = b"GRISTROW", 1


@dataclass(frozen=True)
class PackedRows:
    """The rows of one length of one shard; read from a file, both arrays are memory-mapped.

    first  u64 (rows + 1,), number of the first span of each row
    spans  SPAN (spans,)
    """

    length: int
    first: np.ndarray
    spans: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.first) - 1

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(which, spans)`: the spans of these rows, row by row, and for each the index into `rows`."""
        low = self.first[rows].astype(np.int64)
        counts = self.first[rows + 1].astype(np.int64) - low
        which = np.repeat(np.arange(len(rows)), counts)
        before = np.cumsum(counts) - counts
        return which, self.spans[np.arange(len(which)) + (low - before)[which]]

    def holding(self, document: int) -> np.ndarray:
        """The rows that hold a piece of this document, int64, rising."""
        spans = np.flatnonzero(self.spans["document"] == document)
        return np.unique(np.searchsorted(self.first, spans, side="right") - 1)

    def to_bytes(self) -> bytes:
        """The content of the file."""
        head = _HEAD.pack(_MAGIC, _VERSION, self.length, self.rows, len(self.spans))
        return head + self.first.astype("<u8").tobytes() + self.spans.astype(SPAN).tobytes()


def rows_kind(length: int) -> str:
    """What the manifest calls the file of this length, and its ending: `rows-4096`."""
    return f"rows-{length}"


def read_rows(path: Path, length: int) -> PackedRows:
    """The rows in a file. RunError when it is no such file, or of another length."""
    try:
        path = on_disk(path)
        with open(path, "rb") as file:
            head = file.read(_HEAD.size)
        size = path.stat().st_size
        magic, version, own, rows, spans = _HEAD.unpack(head)
    except OSError as error:
        raise RunError(Problem("D002", f"{path} cannot be read: {error.strerror}")) from error
    except struct.error as error:
        raise RunError(Problem("D002", f"{path} is too short for a file of packed rows")) from error
    if (magic, version) != (_MAGIC, _VERSION):
        raise RunError(Problem("D002", f"{path} is no file of packed rows"))
    wanted = _HEAD.size + 8 * (rows + 1) + SPAN.itemsize * spans
    if own != length or size != wanted:
        raise RunError(
            Problem("D002", f"{path} states rows of {own:,} and {wanted:,} bytes; wanted are rows of {length:,}, and "
                            f"it has {size:,} bytes")
        )  # fmt: skip
    first = np.memmap(path, "<u8", "r", _HEAD.size, rows + 1)
    at = _HEAD.size + 8 * (rows + 1)
    mapped = np.memmap(path, SPAN, "r", at, spans) if spans else np.empty(0, SPAN)
    return PackedRows(length, np.asarray(first), np.asarray(mapped))


def check_rows(path: Path, length: int, groups: tuple[int, ...], lengths_D: np.ndarray) -> list[Problem]:
    """What is wrong inside a file of packed rows: every token of every document stands in it exactly once.

    lengths_D  int64, tokens of each document of the shard
    """
    try:
        packed = read_rows(path, length)
    except RunError as error:
        return list(error.problems)
    first, spans = packed.first.astype(np.int64), packed.spans
    if packed.rows != sum(groups) or int(first[-1]) != len(spans) or np.any(np.diff(first) < 1):
        return [Problem("D002", f"{path} has {packed.rows:,} rows, but the manifest states {sum(groups):,}")]
    filled = np.add.reduceat(spans["length"].astype(np.int64), first[:-1]) if packed.rows else np.empty(0, np.int64)
    starts = np.cumsum(lengths_D) - lengths_D
    order = np.argsort(spans["start"], kind="stable")
    start, size = spans["start"][order].astype(np.int64), spans["length"][order].astype(np.int64)
    whole = np.array_equal(start, np.cumsum(size) - size) and int(size.sum()) == int(lengths_D.sum())
    inside = whole and np.array_equal(
        np.searchsorted(starts, start, side="right") - 1, spans["document"][order].astype(np.int64)
    )
    if not inside or np.any(filled > length):
        return [Problem("D002", f"{path} does not hold every token of the shard exactly once, in rows of {length:,}")]
    return []
