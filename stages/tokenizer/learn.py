"""Learning byte-pair merges from counted pieces, compiled.

The greedy rule (Sennrich et al. 2016): merge the pair of adjacent tokens that occurs most often, everywhere, and
repeat. Between equally frequent pairs the one with the smaller left id goes first, then the smaller right id; a byte
has its value as id and each merge the next number. So the result depends on the counted pieces alone, not on their order.

Two facts make it fast. A pair can gain occurrences only in the step that makes one of its tokens, so the list of the
pieces it is in is written once and from then on only goes stale. And a pair that has become rarer than a floor never
comes back. So the work goes in rounds with a falling floor: a round counts all pairs of the pieces as they are by
now, follows those at or above the floor until none is left, and leaves shorter pieces to the next one. Rare pairs,
which are nearly all of them, cost one look per round and no memory between rounds.

No two merges spell the same bytes: as long as no merge crosses its ends, the same bytes are the same tokens at the
same step everywhere, so when one pair of them becomes a token, all do.

    cells   int32, pieces back to back: number of tokens, weight (low, high 32 bits), the tokens; where a piece has
            become shorter, minus the number of unused cells follows it; 0 at the end. A piece is known by the index
            of its first cell.
    key     uint64, a pair: left << 32 | right
    facts   int64 by pair number: count, start and end of its list in the pool, places (room in the list)
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.tokenizer.pieces import prefetch

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_CELLS = types.int32[::1]
_KEYS = types.uint64[::1]
_TABLE = types.int64[:, ::1]

_HEAD = 3  # cells before the tokens of a piece
_COUNT, _START, _END, _PLACES = 0, 1, 2, 3  # columns of facts
_FREE = 0xFFFFFFFFFFFFFFFF

#: By how much the floor falls from round to round: more rounds count more often, fewer keep more lists.
_FALL = 64
#: Pieces that are fetched into the cache ahead of the one that is worked on.
_AHEAD = 12


def learn_merges(
    flat: np.ndarray, offsets: np.ndarray, counts: np.ndarray, vocab_size: int, min_count: int = 2
) -> np.ndarray:
    """The merges, int32 (M, 2): left id and right id, in the order in which they were learned; merge i makes id 256 + i.

    flat, offsets  uint8 and int64: piece i is flat[offsets[i]:offsets[i + 1]]; pieces should be distinct, and short:
                   a merge in a piece takes time in proportion to its length
    counts         int64, how often each piece occurs; sums must stay below 2**63
    vocab_size     ids wanted, the 256 bytes included; fewer come back when no pair occurs `min_count` times

    ValueError for 2**31 cells (bytes of pieces, and three a piece) or more, or a vocabulary below 256.
    """
    if vocab_size < 256:
        raise ValueError(f"{vocab_size} tokens are fewer than the 256 bytes")
    if int(offsets[-1] - offsets[0]) + _HEAD * len(offsets) >= 2**31:
        raise ValueError("pieces of 2 GiB or more cannot be learned from at once")
    cells = _lay_out(flat, offsets, np.asarray(counts, np.int64))
    merges = np.empty((vocab_size - 256, 2), np.int32)
    merged, floor = 0, np.iinfo(np.int64).max
    while merged < len(merges) and floor > min_count:
        size, keys, sums = _count_pairs(cells)
        cells = cells[:size]
        floor = max(min_count, min(floor // 2, _floor(sums[:, 0], len(merges) - merged)))
        listed = _listed(cells, keys, sums, floor)
        merged = _round(cells, *listed, floor, merges, merged)  # type: ignore[call-arg]
    return merges[:merged].copy()


def _floor(counts: np.ndarray, wanted: int) -> int:
    """A count that leaves about twice the wanted number of pairs, but not far below the highest one."""
    highest = int(counts.max())
    if len(counts) <= 2 * wanted:
        return highest // _FALL
    return max(highest // _FALL, int(np.partition(counts, -2 * wanted)[-2 * wanted]))


@njit(_CELLS(_BYTES, _NUMBERS, _NUMBERS), cache=True, nogil=True)
def _lay_out(flat, offsets, counts):  # type: ignore[no-untyped-def]
    """The cells of all pieces of two bytes or more."""
    size = np.int64(1)
    for piece in range(len(counts)):
        length = offsets[piece + 1] - offsets[piece]
        size += _HEAD + length if length > 1 else 0
    cells = np.zeros(size, np.int32)
    at = np.int64(0)
    for piece in range(len(counts)):
        length = offsets[piece + 1] - offsets[piece]
        if length > 1:
            cells[at] = length
            cells[at + 1] = np.int32(np.uint32(counts[piece] & 0xFFFFFFFF))
            cells[at + 2] = counts[piece] >> 32
            for i in range(length):
                cells[at + _HEAD + i] = flat[offsets[piece] + i]
            at += _HEAD + length
    return cells


@njit(inline="always", cache=True, nogil=True)
def _weight(cells, piece):  # type: ignore[no-untyped-def]
    return np.int64(cells[piece + 2]) << 32 | np.int64(np.uint32(cells[piece + 1]))


@njit(inline="always", cache=True, nogil=True)
def _key(left, right):  # type: ignore[no-untyped-def]
    return np.uint64(left) << np.uint64(32) | np.uint64(right)


@njit(inline="always", cache=True, nogil=True)
def _hash(key):  # type: ignore[no-untyped-def]
    h = key * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(32))


@njit(inline="always", cache=True, nogil=True)
def _place(key, keys):  # type: ignore[no-untyped-def]
    """Where a pair stands in an open-addressed table of keys, or the free place where it belongs."""
    mask = np.uint64(len(keys) - 1)
    at = _hash(key) & mask
    while keys[at] != key and keys[at] != np.uint64(_FREE):
        at = (at + np.uint64(1)) & mask
    return at


@njit(types.Tuple((types.int64, _KEYS, _TABLE))(_CELLS), cache=True, nogil=True)
def _count_pairs(cells):  # type: ignore[no-untyped-def]
    """`(size, keys, sums)`: counts every pair and moves the cells of pieces with one together into cells[:size].

    keys and sums (weight, places) are the places of a table; keys are all ones where it is free.
    """
    keys = np.full(1 << 17, np.uint64(_FREE))
    sums = np.zeros((1 << 17, 2), np.int64)
    used = np.int64(0)
    at = np.int64(0)
    to = np.int64(0)
    while cells[at] != 0:
        n = np.int64(cells[at])
        if n < 2:  # one token, or unused cells
            at += _HEAD + n if n > 0 else -n
            continue
        if to < at:
            for i in range(_HEAD + n):
                cells[to + i] = cells[at + i]
        at += _HEAD + n
        while used + n > len(keys) >> 1:
            old_keys, old_sums = keys, sums
            keys = np.full(2 * len(old_keys), np.uint64(_FREE))
            sums = np.zeros((2 * len(old_keys), 2), np.int64)
            for i in range(len(old_keys)):
                if old_keys[i] != np.uint64(_FREE):
                    place = _place(old_keys[i], keys)
                    keys[place] = old_keys[i]
                    sums[place] = old_sums[i]
        weight = _weight(cells, to)
        for i in range(to + _HEAD, to + _HEAD + n - 1):
            key = _key(cells[i], cells[i + 1])
            place = _place(key, keys)
            if keys[place] != key:
                keys[place] = key
                used += 1
            sums[place, 0] += weight
            sums[place, 1] += 1
        to += _HEAD + n
    cells[to] = 0
    return to + 1, keys, sums


@njit(inline="always", cache=True, nogil=True)
def _slot(key, slots, keys):  # type: ignore[no-untyped-def]
    """The slot of a pair, or the free one where it belongs. slots hold pair number + 1."""
    mask = np.uint64(len(slots) - 1)
    at = _hash(key) & mask
    while slots[at] != 0 and keys[slots[at] - 1] != key:
        at = (at + np.uint64(1)) & mask
    return at


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


@njit(cache=True, nogil=True)
def _grown(array, room):  # type: ignore[no-untyped-def]
    """A copy with room for more."""
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(cache=True, nogil=True)
def _grown_table(table, room):  # type: ignore[no-untyped-def]
    """A copy with room for more rows."""
    larger = np.empty((room, table.shape[1]), table.dtype)
    larger[: len(table)] = table
    return larger


@njit(inline="always", cache=True, nogil=True)
def _note(pair, piece, facts, pool):  # type: ignore[no-untyped-def]
    """Adds a piece to the list of a pair, unless it is the last one there."""
    end = facts[pair, _END]
    if end == facts[pair, _START] or pool[end - 1] != piece:
        pool[end] = piece
        facts[pair, _END] = end + 1


@njit(
    types.Tuple((_KEYS, _TABLE, _CELLS, types.int64, types.int64))(_CELLS, _KEYS, _TABLE, types.int64),
    cache=True,
    nogil=True,
)
def _listed(cells, counted, sums, floor):  # type: ignore[no-untyped-def]
    """`(keys, facts, pool, pairs, used)`: the pairs at or above the floor with the lists of their pieces."""
    pairs = np.int64(0)
    for i in range(len(counted)):
        pairs += sums[i, 0] >= floor
    room = 2 * pairs if pairs > 512 else np.int64(1024)
    keys = np.empty(room, np.uint64)
    facts = np.empty((room, 4), np.int64)
    pairs = np.int64(0)
    used = np.int64(0)
    for i in range(len(counted)):
        if sums[i, 0] >= floor:
            keys[pairs] = counted[i]
            facts[pairs, _COUNT] = sums[i, 0]
            facts[pairs, _START] = facts[pairs, _END] = used
            facts[pairs, _PLACES] = sums[i, 1]
            used += sums[i, 1]
            pairs += 1
    pool = np.empty(used + (used >> 1), np.int32)
    slots = _slots(keys, pairs, pairs)
    at = np.int64(0)
    while cells[at] != 0:
        n = np.int64(cells[at])
        for i in range(at + _HEAD, at + _HEAD + n - 1):
            pair = np.int64(slots[_slot(_key(cells[i], cells[i + 1]), slots, keys)]) - 1
            if pair >= 0:
                _note(pair, at, facts, pool)
        at += _HEAD + n
    return keys, facts, pool, pairs, used


@njit(inline="always", cache=True, nogil=True)
def _before(count, key, other_count, other_key):  # type: ignore[no-untyped-def]
    """Whether a pair is merged before another: higher count, then smaller ids."""
    return count > other_count or (count == other_count and key < other_key)


@njit(cache=True, nogil=True)
def _push(count, key, pair, heap, heap_keys, size):  # type: ignore[no-untyped-def]
    """Adds to the heap of `size` entries (count and pair in `heap`, its key in `heap_keys`); the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not _before(count, key, heap[parent, 0], heap_keys[parent]):
            break
        heap[at] = heap[parent]
        heap_keys[at] = heap_keys[parent]
        at = parent
    heap[at, 0] = count
    heap[at, 1] = pair
    heap_keys[at] = key
    return size + 1


@njit(cache=True, nogil=True)
def _settle(count, key, pair, heap, heap_keys, size):  # type: ignore[no-untyped-def]
    """Puts an entry in the place of the top one of a heap of `size` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _before(heap[other, 0], heap_keys[other], heap[child, 0], heap_keys[child]):
            child = other
        if not _before(heap[child, 0], heap_keys[child], count, key):
            break
        heap[at] = heap[child]
        heap_keys[at] = heap_keys[child]
        at = child
    heap[at, 0] = count
    heap[at, 1] = pair
    heap_keys[at] = key


@njit(inline="always", cache=True, nogil=True)
def _meet(neighbour, piece, weight, near, touched, touches, log, logged):  # type: ignore[no-untyped-def]
    """Counts a neighbour of a merged pair and logs the piece; touches now."""
    if near[neighbour, 1] == 0:
        touched[touches] = neighbour
        touches += 1
    near[neighbour, 0] += weight
    near[neighbour, 1] += 1
    log[logged, 0] = piece
    log[logged, 1] = neighbour
    return touches


@njit(cache=True, nogil=True)
def _merge(cells, pieces, left, right, result, near, touched, log):  # type: ignore[no-untyped-def]
    """Merges a pair in the pieces where it still is; `(neighbours touched, lines logged)`.

    near (weight, places) by neighbour: x for x beside the pair on its left, vocabulary size + y on its right.
    """
    vocabulary = len(near) >> 1
    touches = 0
    logged = 0
    for entry in range(len(pieces)):
        if entry + _AHEAD < len(pieces):
            prefetch(cells, np.int64(pieces[entry + _AHEAD]))
        piece = np.int64(pieces[entry])
        first = piece + _HEAD
        end = first + np.int64(cells[piece])
        at = first
        while at + 1 < end and (cells[at] != left or cells[at + 1] != right):
            at += 1
        if at + 1 >= end:
            continue
        weight = _weight(cells, piece)
        to = at
        while at < end:
            token = cells[at]
            if token == left and at + 1 < end and cells[at + 1] == right:
                if to > first:
                    before = np.int64(cells[to - 1])
                    touches = _meet(before, piece, weight, near, touched, touches, log, logged)
                    logged += 1
                if at + 2 < end:
                    behind = vocabulary + np.int64(cells[at + 2])
                    touches = _meet(behind, piece, weight, near, touched, touches, log, logged)
                    logged += 1
                token = result
                at += 1
            cells[to] = token
            to += 1
            at += 1
        unused = np.int64(cells[end])
        cells[to] = to - end + (unused if unused < 0 else 0)
        cells[piece] = to - first
    return touches, logged


@njit(cache=True, nogil=True)
def _follow(
    touched, left, right, result, floor, near, slots, keys, facts, pairs, used, heap, heap_keys, size
):  # type: ignore[no-untyped-def]
    """Moves counts from the pairs that neighbours were in to their pairs with the result; `(pairs, used, heap size)`.

    Sets near[..., 2] to the number of the new pair, -1 for one below the floor, and the rest of `near` to 0.
    """
    vocabulary = len(near) >> 1
    # of two results side by side, the second one was counted as a `left` behind the first
    chained = near[result, 0]
    for i in range(len(touched)):
        neighbour = np.int64(touched[i])
        weight, places = near[neighbour, 0], near[neighbour, 1]
        near[neighbour] = 0
        near[neighbour, 2] = -1
        if neighbour < vocabulary:
            old, new = _key(neighbour, left), _key(neighbour, result)
        else:
            old, new = _key(right, neighbour - vocabulary), _key(result, neighbour - vocabulary)
        if neighbour != result:
            pair = np.int64(slots[_slot(old, slots, keys)]) - 1
            if pair >= 0:
                facts[pair, _COUNT] -= weight
        if neighbour == vocabulary + left:
            weight -= chained
        if weight >= floor:
            keys[pairs] = new
            facts[pairs, _COUNT] = weight
            facts[pairs, _START] = facts[pairs, _END] = used
            facts[pairs, _PLACES] = places
            used += places
            slots[_slot(new, slots, keys)] = pairs + 1
            size = _push(weight, new, pairs, heap, heap_keys, size)
            near[neighbour, 2] = pairs
            pairs += 1
    return pairs, used, size


@njit(
    types.int64(
        _CELLS, _KEYS, _TABLE, _CELLS, types.int64, types.int64, types.int64, types.int32[:, ::1], types.int64
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _round(cells, keys, facts, pool, pairs, used, floor, merges, merged):  # type: ignore[no-untyped-def]
    """Learns merges until no pair is at or above the floor; how many there are now.

    One function, because the arrays of pairs, the heap and the pool are replaced when they grow.
    """
    slots = _slots(keys, pairs, len(keys))
    heap = np.empty((len(keys), 2), np.int64)
    heap_keys = np.empty(len(keys), np.uint64)
    heap_size = 0
    for pair in range(pairs):
        heap_size = _push(facts[pair, _COUNT], keys[pair], pair, heap, heap_keys, heap_size)
    vocabulary = len(merges) + 256
    near = np.zeros((2 * vocabulary, 3), np.int64)  # weight, places, number of the new pair
    touched = np.empty(2 * vocabulary, np.int32)
    log = np.empty((1024, 2), np.int32)
    while merged < len(merges) and heap_size > 0:
        best = heap[0, 1]
        now = facts[best, _COUNT]
        stale = heap[0, 0] != now
        if stale and now >= floor:
            _settle(now, heap_keys[0], best, heap, heap_keys, heap_size)
            continue
        heap_size -= 1
        _settle(heap[heap_size, 0], heap_keys[heap_size], heap[heap_size, 1], heap, heap_keys, heap_size)
        if stale:
            continue
        left = np.int32(keys[best] >> np.uint64(32))
        right = np.int32(keys[best] & np.uint64(0xFFFFFFFF))
        result = np.int32(256 + merged)
        merges[merged, 0] = left
        merges[merged, 1] = right
        merged += 1
        if 2 * facts[best, _PLACES] > len(log):
            log = np.empty((4 * facts[best, _PLACES], 2), np.int32)
        found = pool[facts[best, _START] : facts[best, _END]]
        touches, logged = _merge(cells, found, left, right, result, near, touched, log)
        if pairs + touches > len(keys):
            room = max(2 * len(keys), pairs + touches)
            keys, facts = _grown(keys, room), _grown_table(facts, room)
            heap, heap_keys = _grown_table(heap, room), _grown(heap_keys, room)
            slots = _slots(keys, pairs, room)
        facts[best, _COUNT] = 0
        pairs, used, heap_size = _follow(
            touched[:touches], left, right, result, floor, near,
            slots, keys, facts, pairs, used, heap, heap_keys, heap_size,
        )  # fmt: skip
        if used > len(pool):
            pool = _grown(pool, max(used, len(pool) + (len(pool) >> 1)))
        for i in range(logged):
            pair = near[log[i, 1], 2]
            if pair >= 0:
                _note(pair, log[i, 0], facts, pool)
    return merged
