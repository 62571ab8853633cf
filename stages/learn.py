"""Learning byte-pair merges from counted pieces, compiled.

The greedy rule (Sennrich et al. 2016): merge the pair of adjacent tokens that occurs most often, everywhere, and
repeat. Between equally frequent pairs the one with the smaller left id goes first, then the smaller right id; a byte
has its value as id and each merge the next number. So the result depends on the counted pieces alone, not on their order.

Only what a merge touches is counted anew. Bytes of all pieces stand in one array, with a -1 between pieces; a token
is written at its first and its last byte, so both neighbours are found without pointers. The places where a pair
occurs are a doubly linked list threaded through arrays of the same length. A heap holds pairs by count, entries
that have become too high are put back with what they are now.

No two merges spell the same bytes: as long as no merge crosses its ends, the same bytes are the same tokens at the
same step everywhere, so when one pair of them becomes a token, all do.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)


def learn_merges(
    flat: np.ndarray, offsets: np.ndarray, counts: np.ndarray, vocab_size: int, min_count: int = 2
) -> np.ndarray:
    """The merges, int32 (M, 2): left id and right id, in the order in which they were learned; merge i makes id 256 + i.

    flat, offsets  uint8 and int64: piece i is flat[offsets[i]:offsets[i + 1]]; pieces should be distinct
    counts         int64, how often each piece occurs; sums must stay below 2**63
    vocab_size     ids wanted, the 256 bytes included; fewer come back when no pair occurs `min_count` times

    ValueError for 2**31 bytes of pieces or more, or a vocabulary below 256.
    """
    if vocab_size < 256:
        raise ValueError(f"{vocab_size} tokens are fewer than the 256 bytes")
    if int(offsets[-1] - offsets[0]) + len(offsets) >= 2**31:
        raise ValueError("pieces of 2 GiB or more cannot be learned from at once")
    tokens, owners = _lay_out(flat, offsets)
    return _learn(tokens, owners, np.asarray(counts, np.int64), vocab_size, min_count)


@njit(types.UniTuple(types.int32[::1], 2)(_BYTES, _OFFSETS), cache=True, nogil=True)
def _lay_out(flat, offsets):  # type: ignore[no-untyped-def]
    """`(tokens, owners)`, int32 by place: token ids (-1 before, between and behind pieces) and piece numbers."""
    pieces = len(offsets) - 1
    size = offsets[pieces] - offsets[0] + pieces + 1
    tokens = np.full(size, -1, np.int32)
    owners = np.zeros(size, np.int32)
    at = 1
    for piece in range(pieces):
        for i in range(offsets[piece], offsets[piece + 1]):
            tokens[at] = flat[i]
            owners[at] = piece
            at += 1
        at += 1
    return tokens, owners


@njit(inline="always", cache=True, nogil=True)
def _slot(key, slots, keys):  # type: ignore[no-untyped-def]
    """The slot of a pair, or the free one where it belongs. slots hold pair number + 1."""
    mask = np.uint64(len(slots) - 1)
    h = key * np.uint64(0x9E3779B97F4A7C15)
    at = (h ^ (h >> np.uint64(32))) & mask
    while slots[at] != 0 and keys[slots[at] - 1] != key:
        at = (at + np.uint64(1)) & mask
    return at


@njit(inline="always", cache=True, nogil=True)
def _pair(left, right, slots, keys, pairs):  # type: ignore[no-untyped-def]
    """`(number of the pair, pairs there are now)`; a new pair gets the next number."""
    key = np.uint64(left) << np.uint64(32) | np.uint64(right)
    at = _slot(key, slots, keys)
    if slots[at] == 0:
        keys[pairs] = key
        pairs += 1
        slots[at] = pairs
    return np.int64(slots[at]) - 1, pairs


@njit(inline="always", cache=True, nogil=True)
def _link(at, pair, pair_at, heads, after, before):  # type: ignore[no-untyped-def]
    """Puts a place at the head of the list of its pair."""
    pair_at[at] = pair
    first = heads[pair]
    after[at] = first
    before[at] = -1
    if first >= 0:
        before[first] = at
    heads[pair] = at


@njit(inline="always", cache=True, nogil=True)
def _unlink(at, pair_at, heads, after, before):  # type: ignore[no-untyped-def]
    """Takes a place out of the list of its pair."""
    if before[at] >= 0:
        after[before[at]] = after[at]
    else:
        heads[pair_at[at]] = after[at]
    if after[at] >= 0:
        before[after[at]] = before[at]
    pair_at[at] = -1


@njit(inline="always", cache=True, nogil=True)
def _first(count, pair, other_count, other_pair, keys):  # type: ignore[no-untyped-def]
    """Whether a pair goes before another: higher count, then smaller ids."""
    return count > other_count or (count == other_count and keys[pair] < keys[other_pair])


@njit(cache=True, nogil=True)
def _push(count, pair, heap_counts, heap_pairs, size, keys):  # type: ignore[no-untyped-def]
    """Adds to the heap of `size` entries; the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not _first(count, pair, heap_counts[parent], heap_pairs[parent], keys):
            break
        heap_counts[at] = heap_counts[parent]
        heap_pairs[at] = heap_pairs[parent]
        at = parent
    heap_counts[at] = count
    heap_pairs[at] = pair
    return size + 1


@njit(cache=True, nogil=True)
def _settle(count, pair, heap_counts, heap_pairs, size, keys):  # type: ignore[no-untyped-def]
    """Puts an entry in the place of the top one of a heap of `size` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _first(
            heap_counts[other], heap_pairs[other], heap_counts[child], heap_pairs[child], keys
        ):
            child = other
        if not _first(heap_counts[child], heap_pairs[child], count, pair, keys):
            break
        heap_counts[at] = heap_counts[child]
        heap_pairs[at] = heap_pairs[child]
        at = child
    heap_counts[at] = count
    heap_pairs[at] = pair


@njit(cache=True, nogil=True)
def _grown(array, room):  # type: ignore[no-untyped-def]
    """A copy with room for more; what is new is 0."""
    larger = np.zeros(room, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True, nogil=True)
def _slots(keys, pairs, room):  # type: ignore[no-untyped-def]
    """Slots for `room` pairs at half load or less, with the first `pairs` of them put in."""
    size = 16
    while size < 2 * room:
        size *= 2
    slots = np.zeros(size, np.int32)
    for pair in range(pairs):
        slots[_slot(keys[pair], slots, keys)] = pair + 1
    return slots


@njit(
    types.int32[:, ::1](types.int32[::1], types.int32[::1], _OFFSETS, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def _learn(tokens, owners, weights, vocab_size, min_count):  # type: ignore[no-untyped-def]
    """See `learn_merges`. One function, because the arrays of pairs and the heap are replaced when they grow."""
    size = len(tokens)
    pair_at = np.full(size, -1, np.int32)
    after = np.empty(size, np.int32)
    before = np.empty(size, np.int32)
    room = 1 << 16  # as many as there are pairs of bytes
    keys = np.zeros(room, np.uint64)
    counts = np.zeros(room, np.int64)
    heads = np.full(room, -1, np.int32)
    slots = _slots(keys, 0, room)
    pairs = np.int64(0)
    for at in range(size - 2, 0, -1):
        if tokens[at] >= 0 and tokens[at + 1] >= 0:
            pair, pairs = _pair(tokens[at], tokens[at + 1], slots, keys, pairs)
            counts[pair] += weights[owners[at]]
            _link(at, pair, pair_at, heads, after, before)
    heap_counts = np.empty(room, np.int64)
    heap_pairs = np.empty(room, np.int32)
    heap_size = np.int64(0)
    for pair in range(pairs):
        if counts[pair] >= min_count:
            heap_size = _push(counts[pair], pair, heap_counts, heap_pairs, heap_size, keys)

    lengths = np.ones(vocab_size, np.int32)
    found = np.empty(1 << 10, np.int32)
    merges = np.empty((vocab_size - 256, 2), np.int32)
    merged = 0
    while merged < len(merges) and heap_size > 0:
        best = np.int64(heap_pairs[0])
        now = counts[best]
        if heap_counts[0] != now and now >= min_count:
            _settle(now, best, heap_counts, heap_pairs, heap_size, keys)
            continue
        stale = heap_counts[0] != now
        heap_size -= 1
        _settle(heap_counts[heap_size], heap_pairs[heap_size], heap_counts, heap_pairs, heap_size, keys)
        if stale:
            continue

        left = np.int32(keys[best] >> np.uint64(32))
        right = np.int32(keys[best] & np.uint64(0xFFFFFFFF))
        here = 0
        at = heads[best]
        while at >= 0:
            if here == len(found):
                found = _grown(found, 2 * here)
            found[here] = at
            here += 1
            at = after[at]
        if left == right:
            found[:here].sort()  # in a run of three the first two merge
        needed = pairs + 2 * here
        if needed > len(keys):
            larger = needed if needed > 2 * len(keys) else 2 * len(keys)
            old = len(heads)
            keys, counts, heads = _grown(keys, larger), _grown(counts, larger), _grown(heads, larger)
            heads[old:] = -1
            # a pair enters the heap once, so it needs no more room than the pairs
            heap_counts, heap_pairs = _grown(heap_counts, larger), _grown(heap_pairs, larger)
            slots = _slots(keys, pairs, larger)
        result = np.int32(256 + merged)
        lengths[result] = lengths[left] + lengths[right]
        merges[merged, 0] = left
        merges[merged, 1] = right
        merged += 1
        known_pairs = pairs
        for i in range(here):
            place = np.int64(found[i])
            if pair_at[place] != best:  # gone into the one before, in a run of the same token
                continue
            weight = weights[owners[place]]
            second = place + lengths[left]
            third = second + lengths[right]
            _unlink(place, pair_at, heads, after, before)
            if tokens[third] >= 0:
                counts[pair_at[second]] -= weight
                _unlink(second, pair_at, heads, after, before)
            tokens[place] = result
            tokens[third - 1] = result
            if tokens[place - 1] >= 0:
                previous = place - lengths[tokens[place - 1]]
                counts[pair_at[previous]] -= weight
                _unlink(previous, pair_at, heads, after, before)
                pair, pairs = _pair(tokens[place - 1], result, slots, keys, pairs)
                counts[pair] += weight
                _link(previous, pair, pair_at, heads, after, before)
            if tokens[third] >= 0:
                pair, pairs = _pair(result, tokens[third], slots, keys, pairs)
                counts[pair] += weight
                _link(place, pair, pair_at, heads, after, before)
        for pair in range(known_pairs, pairs):
            if counts[pair] >= min_count:
                heap_size = _push(counts[pair], pair, heap_counts, heap_pairs, heap_size, keys)
    return merges[:merged].copy()
