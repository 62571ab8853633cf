"""Best-fit packing: documents side by side in rows of a fixed length, none cut that fits into a row.

A shard is cut into groups of about 8,192 documents or 16 Mi tokens, whichever is less, and packed group by group,
so that packing reads little at a time and rows of one group are read from one stretch of the shard. A document longer
than a row gives full rows and a rest; the rest and all other documents go, longest first, each into the row that it
fills best (best-fit decreasing; Johnson 1973). Rows are then put in hashed order, so that any part of a group is a
sample of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit

from stages.contract.permutation import scramble
from stages.contract.rows import SPAN, PackedRows

#: Raised when the rows of the same lengths change.
VERSION = 1

GROUP_DOCUMENTS = 8192
GROUP_TOKENS = 16 << 20


@dataclass(frozen=True)
class Packing:
    """The packed rows of a shard and how many each group has."""

    rows: PackedRows
    groups: tuple[int, ...]


def pack_shard(lengths_D: np.ndarray, ids_D: np.ndarray, length: int, whole: bool = False) -> Packing:
    """The rows of `length` tokens that hold every token of these documents exactly once.

    lengths_D  integers, tokens of each document of the shard, EOS included
    ids_D      V16, their ids; they decide the order of rows
    whole      never cut a document: one longer than a row has a row of its own, of its length
    """
    lengths = np.asarray(lengths_D, np.int64)
    starts = np.cumsum(lengths) - lengths
    marks = np.frombuffer(np.ascontiguousarray(ids_D).tobytes(), "<u8")[::2]
    first, spans, groups = [np.zeros(1, np.int64)], [np.empty(0, SPAN)], []
    total = 0
    borders = group_borders(lengths)
    for low, high in pairwise(borders):
        row_first, found = _pack_group(lengths[low:high], starts[low:high], marks[low:high], low, length, whole)
        first.append(row_first[1:] + total)
        spans.append(found)
        groups.append(len(row_first) - 1)
        total += len(found)
    return Packing(PackedRows(length, np.concatenate(first), np.concatenate(spans)), tuple(groups))


def group_borders(lengths_D: np.ndarray) -> list[int]:
    """Numbers of the first document of each group, and of all documents: groups of about equal weight.

    As many groups as 8,192 documents or 16 Mi tokens go into the shard, rounded, so that none is much smaller. A
    document weighs its share of all documents plus its share of all tokens.
    """
    lengths = np.asarray(lengths_D, np.int64)
    documents, tokens = len(lengths), int(lengths.sum())
    if not documents:
        return [0]
    count = max(1, round(max(documents / GROUP_DOCUMENTS, tokens / GROUP_TOKENS)))
    weight = np.arange(1, documents + 1) / documents + np.cumsum(lengths) / tokens
    inner = np.searchsorted(weight, 2 * np.arange(1, count) / count, side="right")
    return np.unique([0, *inner.tolist(), documents]).tolist()


def _pack_group(
    lengths: np.ndarray, starts: np.ndarray, marks: np.ndarray, number: int, length: int, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """`(first span of each row and of all, spans)` of one group whose first document is number `number`."""
    pieces = np.ones_like(lengths) if whole else np.maximum(1, -(-lengths // length))
    document = np.repeat(np.arange(len(lengths)), pieces)
    part = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset = part * length
    room = np.minimum(length, lengths[document] - offset)
    size = lengths if whole else room
    longest_first = np.argsort(-room, kind="stable")
    row = np.empty(len(size), np.int64)
    row[longest_first] = _best_fit(room[longest_first], length)
    start = starts[document] + offset
    order = np.lexsort((start, row))
    counts = np.bincount(row)
    heads = order[np.cumsum(counts) - counts]  # the first span of each row
    shuffled = np.lexsort((start[heads], scramble(marks[document[heads]] + part[heads].astype(np.uint64))))
    place = np.empty(len(counts), np.int64)
    place[shuffled] = np.arange(len(counts))
    order = np.lexsort((start, place[row]))
    spans = np.empty(len(size), SPAN)
    spans["start"], spans["length"], spans["document"] = start[order], size[order], document[order] + number
    return np.concatenate([[0], np.cumsum(counts[shuffled])]), spans


@njit(cache=True, nogil=True)
def _best_fit(sizes, capacity):
    """The row of each piece, longest first, int64 (N,). Rows are numbered as they are opened.

    Rows of equal room form a stack; `words` marks the rooms that have one, `lines` the words that are not 0.
    """
    head = np.full(capacity + 1, -1, np.int64)
    below = np.empty(len(sizes), np.int64)
    words = np.zeros((capacity >> 6) + 1, np.uint64)
    lines = np.zeros((len(words) >> 6) + 1, np.uint64)
    result = np.empty(len(sizes), np.int64)
    opened = 0
    for i in range(len(sizes)):
        size = sizes[i]
        room = _first_from(words, lines, size)
        if room < 0:
            row, room = opened, capacity
            opened += 1
        else:
            row = head[room]
            head[room] = below[row]
            if head[room] < 0:
                words[room >> 6] &= ~(np.uint64(1) << np.uint64(room & 63))
                if words[room >> 6] == 0:
                    lines[room >> 12] &= ~(np.uint64(1) << np.uint64((room >> 6) & 63))
        result[i] = row
        left = room - size
        if left > 0:
            below[row] = head[left]
            head[left] = row
            words[left >> 6] |= np.uint64(1) << np.uint64(left & 63)
            lines[left >> 12] |= np.uint64(1) << np.uint64((left >> 6) & 63)
    return result


@njit(cache=True, nogil=True)
def _first_from(words, lines, low):
    """The smallest marked number from `low` on; -1 if there is none."""
    word = low >> 6
    rest = words[word] >> np.uint64(low & 63)
    if rest != 0:
        return low + _lowest(rest)
    line = (word + 1) >> 6
    if (word + 1) < len(words):
        rest = lines[line] >> np.uint64((word + 1) & 63)
        if rest != 0:
            found = word + 1 + _lowest(rest)
            return (found << 6) + _lowest(words[found])
        for line in range(((word + 1) >> 6) + 1, len(lines)):
            if lines[line] != 0:
                found = (line << 6) + _lowest(lines[line])
                return (found << 6) + _lowest(words[found])
    return -1


@njit(cache=True, nogil=True)
def _lowest(bits):
    """Position of the lowest bit that is set; `bits` is not 0."""
    place = 0
    if bits & np.uint64(0xFFFFFFFF) == 0:
        bits >>= np.uint64(32)
        place += 32
    if bits & np.uint64(0xFFFF) == 0:
        bits >>= np.uint64(16)
        place += 16
    while bits & np.uint64(1) == 0:
        bits >>= np.uint64(1)
        place += 1
    return place
