"""Exact byte-level BPE of single pieces, compiled.

The rule (Sennrich et al. 2016, with ranks as in GPT-2): of all adjacent pairs that the merge list knows, the one of
lowest rank is merged, the leftmost first, until none is left. Short pieces scan for it; pieces longer than
`_SCAN` bytes keep the pairs in a heap, so that a line of a million characters costs n log n.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numba import njit, types

_SCAN = 128  # a power of two: places fit into 7 bits
_NONE = 0x7FFFFFFF
#: Ids and ranks are below this, so that a pair and its rank share one word.
LARGEST_ID = 1 << 21
_FREE = 0xFFFFFFFFFFFFFFFF

_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int32, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)


class Merges:
    """The merge list as arrays that the kernels take.

    byte_ids   int32[256]     id of each single byte
    byte_pairs int32[65536]   rank of each pair of bytes, first << 8 | second
    pairs      uint64         open-addressed table: left << 42 | right << 21 | rank, all ones where free
    results    int32          per rank, the id that the pair becomes
    """

    def __init__(self, byte_ids: np.ndarray, merges: Mapping[tuple[int, int], tuple[int, int]]) -> None:
        """`merges`: (left id, right id) -> (rank, id of the result)."""
        if max(len(merges), max(map(max, merges), default=0)) >= LARGEST_ID:
            raise ValueError(f"a vocabulary of {LARGEST_ID} ids or more")
        self.byte_ids = byte_ids.astype(np.int32)
        pairs = np.array(list(merges), np.uint64).reshape(-1, 2)
        values = np.array(list(merges.values()), np.int64).reshape(-1, 2)
        self.results = np.zeros(int(values[:, 0].max(initial=-1)) + 1, np.int32)
        self.results[values[:, 0]] = values[:, 1]
        self.pairs = np.full(1 << max(4, (2 * len(pairs)).bit_length()), _FREE, np.uint64)
        _fill(
            pairs[:, 0] << np.uint64(42) | pairs[:, 1] << np.uint64(21) | values[:, 0].astype(np.uint64),
            self.pairs,
        )
        self.byte_pairs = _byte_pairs(self.byte_ids, self.pairs)


@njit(inline="always", cache=True, nogil=True)
def _place(key, pairs):  # type: ignore[no-untyped-def]
    """The slot of a pair (left << 21 | right), or the free one where it belongs."""
    mask = np.uint64(len(pairs) - 1)
    h = key * np.uint64(0x9E3779B97F4A7C15)
    at = (h ^ (h >> np.uint64(32))) & mask
    while pairs[at] >> np.uint64(21) != key and pairs[at] != np.uint64(_FREE):
        at = (at + np.uint64(1)) & mask
    return at


@njit(types.void(_KEYS, types.uint64[::1]), cache=True, nogil=True)
def _fill(entries, pairs):  # type: ignore[no-untyped-def]
    """Puts the entries into the table."""
    for i in range(len(entries)):
        pairs[_place(entries[i] >> np.uint64(21), pairs)] = entries[i]


@njit(inline="always", cache=True, nogil=True)
def _rank(left, right, pairs):  # type: ignore[no-untyped-def]
    """Rank of the pair, or _NONE."""
    entry = pairs[_place(np.uint64(left) << np.uint64(21) | np.uint64(right), pairs)]
    return np.int32(entry & np.uint64(LARGEST_ID - 1)) if entry != np.uint64(_FREE) else np.int32(_NONE)


@njit(types.int32[::1](_NUMBERS, _KEYS), cache=True, nogil=True)
def _byte_pairs(byte_ids, pairs):  # type: ignore[no-untyped-def]
    """int32[65536]: ranks of the pairs of bytes; a byte without an id (below 0) is in no pair."""
    ranks = np.full(65536, _NONE, np.int32)
    for first in range(256):
        for second in range(256):
            if byte_ids[first] >= 0 and byte_ids[second] >= 0:
                ranks[first << 8 | second] = _rank(byte_ids[first], byte_ids[second], pairs)
    return ranks


@njit(cache=True, nogil=True)
def _merge_short(data, start, n, byte_ids, byte_pairs, pairs, results, ids, filled):  # type: ignore[no-untyped-def]
    """Encodes the `n` <= _SCAN bytes from data[start] on into ids[filled:]; how many ids.

    A pair stands at the place of its left token as rank << 7 | place, so one minimum over all places, which compiles
    to vector instructions, finds the leftmost pair of lowest rank. Tokens merged away leave _NONE behind.
    """
    token = np.empty(_SCAN, np.int32)
    order = np.empty(_SCAN, np.int32)
    after = np.empty(_SCAN, np.int32)
    before = np.empty(_SCAN, np.int32)
    for i in range(n):
        token[i] = byte_ids[data[start + i]]
        order[i] = _NONE
        after[i] = i + 1
        before[i] = i - 1
    for i in range(n - 1):
        rank = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
        order[i] = rank << 7 | i if rank != _NONE else _NONE
    left = n
    while left > 1:
        lowest = np.int32(_NONE)
        for i in range(n):
            lowest = min(lowest, order[i])
        if lowest == _NONE:
            break
        at = np.int64(lowest & (_SCAN - 1))
        gone = np.int64(after[at])
        token[at] = results[lowest >> 7]
        order[gone] = _NONE
        left -= 1
        behind = np.int64(after[gone])
        after[at] = behind
        order[at] = _NONE
        if behind < n:
            before[behind] = at
            rank = _rank(token[at], token[behind], pairs)
            if rank != _NONE:
                order[at] = rank << 7 | at
        ahead = np.int64(before[at])
        if ahead >= 0:
            rank = _rank(token[ahead], token[at], pairs)
            order[ahead] = rank << 7 | ahead if rank != _NONE else _NONE
    at = np.int64(0)
    for i in range(left):
        ids[filled + i] = token[at]
        at = np.int64(after[at])
    return left


@njit(inline="always", cache=True, nogil=True)
def _push(heap, size, item):  # type: ignore[no-untyped-def]
    """Adds to a binary min-heap of `size` items; the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= item:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item
    return size + 1


@njit(inline="always", cache=True, nogil=True)
def _pop(heap, size):  # type: ignore[no-untyped-def]
    """Takes the smallest item off; `(item, new size)`."""
    top = heap[0]
    size -= 1
    item = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item
    return top, size


@njit(cache=True, nogil=True)
def _merge_long(data, start, n, byte_ids, byte_pairs, pairs, results, ids, filled):  # type: ignore[no-untyped-def]
    """The same with a heap of rank << 32 | place over a linked list; an entry is stale if the pair there changed."""
    token = np.empty(n, np.int32)
    current = np.full(n, _NONE, np.int32)
    after = np.arange(1, n + 1).astype(np.int32)
    before = np.arange(-1, n - 1).astype(np.int32)
    heap = np.empty(3 * n, np.uint64)
    size = 0
    for i in range(n):
        token[i] = byte_ids[data[start + i]]
    for i in range(n - 1):
        current[i] = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
        if current[i] != _NONE:
            size = _push(heap, size, np.uint64(current[i]) << np.uint64(32) | np.uint64(i))
    while size > 0:
        item, size = _pop(heap, size)
        at = np.int64(item & np.uint64(0xFFFFFFFF))
        rank = np.int32(item >> np.uint64(32))
        if current[at] != rank:
            continue
        gone = after[at]
        token[at] = results[rank]
        current[gone] = _NONE
        after[at] = after[gone]
        if after[at] < n:
            before[after[at]] = at
            current[at] = _rank(token[at], token[after[at]], pairs)
            if current[at] != _NONE:
                size = _push(heap, size, np.uint64(current[at]) << np.uint64(32) | np.uint64(at))
        else:
            current[at] = _NONE
        left = before[at]
        if left >= 0:
            current[left] = _rank(token[left], token[at], pairs)
            if current[left] != _NONE:
                size = _push(heap, size, np.uint64(current[left]) << np.uint64(32) | np.uint64(left))
    count = 0
    at = np.int64(0)
    while at < n:
        ids[filled + count] = token[at]
        count += 1
        at = np.int64(after[at])
    return count


@njit(inline="always", cache=True, nogil=True)
def merge_piece(data, start, end, byte_ids, byte_pairs, pairs, results, ids, filled):  # type: ignore[no-untyped-def]
    """Encodes the piece data[start:end] into ids[filled:]; how many ids, never more than it has bytes."""
    n = end - start
    if n <= _SCAN:
        return _merge_short(data, start, n, byte_ids, byte_pairs, pairs, results, ids, filled)
    return _merge_long(data, start, n, byte_ids, byte_pairs, pairs, results, ids, filled)
