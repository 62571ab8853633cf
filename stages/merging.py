"""Exact byte-level BPE of single pieces, compiled.

The rule (Sennrich et al. 2016, with ranks as in GPT-2): of all adjacent pairs that the merge list knows, the one of
lowest rank is merged, the leftmost first, until none is left. Short pieces scan for it; pieces longer than
`_SCAN` bytes keep the pairs in a heap, so that a line of a million characters costs n log n.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numba import njit, types

_SCAN = 128
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

    def encode(
        self,
        pool: np.ndarray,
        offsets: np.ndarray,
        known: np.ndarray,
        first: int,
        ids: np.ndarray,
        packed: np.ndarray,
    ) -> None:
        """Encodes the pieces pool[offsets[i]:offsets[i + 1]] from number `first` on.

        known   int32, per piece (from `first`) the id that it has as a whole, or -1: merge it
        ids     uint32, gets the ids of piece i from ids[offsets[i]] on (never more than it has bytes)
        packed  uint64, gets for piece i: number of ids << 32 | first id
        """
        _encode(
            pool, offsets, known, first, self.byte_ids, self.byte_pairs, self.pairs, self.results, ids, packed
        )


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
def _merge_short(ids, scratch, n, pairs, results):  # type: ignore[no-untyped-def]
    """Merges ids[:n] in place, by scanning; how many are left. scratch[i] is the rank of (ids[i], ids[i + 1])."""
    while n > 1:
        best = 0
        for i in range(1, n - 1):
            if scratch[i] < scratch[best]:
                best = i
        if scratch[best] == _NONE:
            break
        ids[best] = results[scratch[best]]
        n -= 1
        for i in range(best + 1, n):
            ids[i] = ids[i + 1]
            scratch[i - 1] = scratch[i]
        # scratch[best] was overwritten by the next pair's rank, which the new id makes stale, as is the one before
        if best > 0:
            scratch[best - 1] = _rank(ids[best - 1], ids[best], pairs)
        if best + 1 < n:
            scratch[best] = _rank(ids[best], ids[best + 1], pairs)
    return n


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
def _merge_long(ids, current, n, pairs, results):  # type: ignore[no-untyped-def]
    """The same with a heap of rank << 32 | place over a linked list; an entry is stale if the pair there changed."""
    after = np.arange(1, n + 1).astype(np.int32)
    before = np.arange(-1, n - 1).astype(np.int32)
    heap = np.empty(3 * n, np.uint64)
    size = 0
    for i in range(n - 1):
        if current[i] != _NONE:
            size = _push(heap, size, np.uint64(current[i]) << np.uint64(32) | np.uint64(i))
    while size > 0:
        item, size = _pop(heap, size)
        at = np.int64(item & np.uint64(0xFFFFFFFF))
        rank = np.int32(item >> np.uint64(32))
        if current[at] != rank:
            continue
        gone = after[at]
        ids[at] = results[rank]
        current[gone] = _NONE
        after[at] = after[gone]
        if after[at] < n:
            before[after[at]] = at
            current[at] = _rank(ids[at], ids[after[at]], pairs)
            if current[at] != _NONE:
                size = _push(heap, size, np.uint64(current[at]) << np.uint64(32) | np.uint64(at))
        else:
            current[at] = _NONE
        left = before[at]
        if left >= 0:
            current[left] = _rank(ids[left], ids[at], pairs)
            if current[left] != _NONE:
                size = _push(heap, size, np.uint64(current[left]) << np.uint64(32) | np.uint64(left))
    count = 0
    at = np.int64(0)
    while at < n:
        ids[count] = ids[at]
        count += 1
        at = np.int64(after[at])
    return count


@njit(
    types.void(
        _BYTES, _OFFSETS, _NUMBERS, types.int64, _NUMBERS, _NUMBERS, _KEYS, _NUMBERS,
        types.uint32[::1], types.uint64[::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _encode(pool, offsets, known, first, byte_ids, byte_pairs, pairs, results, out, packed):  # type: ignore[no-untyped-def]
    """See `Merges.encode`."""
    short = np.empty(_SCAN, np.int32)
    short_ranks = np.empty(_SCAN, np.int32)
    for piece in range(first, first + len(known)):
        start, end = offsets[piece], offsets[piece + 1]
        n = end - start
        if known[piece - first] >= 0:
            out[start] = known[piece - first]
            packed[piece] = np.uint64(1) << np.uint64(32) | np.uint64(out[start])
            continue
        ids = short if n <= _SCAN else np.empty(n, np.int32)
        ranks = short_ranks if n <= _SCAN else np.empty(n, np.int32)
        for i in range(n - 1):
            ids[i] = byte_ids[pool[start + i]]
            ranks[i] = byte_pairs[np.int64(pool[start + i]) << 8 | pool[start + i + 1]]
        ids[n - 1] = byte_ids[pool[end - 1]]
        ranks[n - 1] = _NONE
        if n <= _SCAN:
            n = _merge_short(ids, ranks, n, pairs, results)
        else:
            n = _merge_long(ids, ranks, n, pairs, results)
        for i in range(n):
            out[start + i] = ids[i]
        packed[piece] = np.uint64(n) << np.uint64(32) | np.uint64(out[start])
