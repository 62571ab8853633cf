"""Kernels of near-duplicate removal behind the signatures: buckets, comparisons, and who stays.

Documents are the vertices of a graph, verified pairs its edges, and a smaller code is a better document
(`numbering.py`). Kept is the lexicographically first maximal independent set: going from the best document to
the worst, each one stays unless it is similar to one that stays. That set depends on the graph and the order
alone. Each dropped document is directly similar to a kept one (no transitive chains), and no two kept ones
were found similar.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.dedup.signature import BINS, U64_1, U64_2, agree
from stages.numbering import ROW_MASK

KEPT, DROPPED, UNDECIDED = 0, 1, 2
#: Members of a bucket compared with all heads before the next ones, so that both stay in the nearest cache.
_TILE = 128

_CODES = types.uint64[::1]
_FLAGS = types.Array(types.uint8, 1, "C", readonly=True)
_INDEX = types.Array(types.int64, 1, "C", readonly=True)


@njit(inline="always")
def _run_end(packed, start):
    key = packed[start] >> np.uint64(32)
    stop = start + 1
    while stop < len(packed) and packed[stop] >> np.uint64(32) == key:
        stop += 1
    return stop


@njit(
    types.Tuple((_CODES, _CODES, _CODES, types.uint32[::1], _CODES, types.int64))(U64_1, U64_1, types.int64),
    cache=True,
)
def stars(packed, codes, limit):
    """Buckets as stars: `(hubs, others, rest, runs, marks, released)`.

    packed   sorted; key << 32 | index into `codes`; equal keys are one bucket, in order of code
    hubs, others  pairs to compare: the best document of each bucket with each other one
    rest, runs    codes, and number of the bucket, of all but the best of each bucket of three or more
    marks    codes of those that have a better bucket mate besides the best, not compared with them yet
    released pairs that will never be compared, because the bucket has more than `limit` such documents
    """
    n = len(packed)
    pairs, room = 0, 0
    start = 0
    while start < n:
        stop = _run_end(packed, start)
        if stop - start >= 2:
            pairs += stop - start - 1
        if stop - start >= 3:
            room += stop - start - 1
        start = stop
    hubs, others = np.empty(pairs, np.uint64), np.empty(pairs, np.uint64)
    rest, runs = np.empty(room, np.uint64), np.empty(room, np.uint32)
    marks = np.empty(room, np.uint64)
    pair, left, marked, run, released = 0, 0, 0, 0, 0
    start = 0
    while start < n:
        stop = _run_end(packed, start)
        if stop - start >= 2:
            hub = codes[np.int64(packed[start] & np.uint64(0xFFFFFFFF))]
            before, members = hub, 0
            for i in range(start + 1, stop):
                code = codes[np.int64(packed[i] & np.uint64(0xFFFFFFFF))]
                if code == before:  # two bands of one document met by chance
                    continue
                before = code
                hubs[pair], others[pair] = hub, code
                pair += 1
                members += 1
                if stop - start >= 3:
                    if members > limit:
                        released += members - 1
                        continue
                    rest[left], runs[left] = code, run
                    left += 1
                    if members >= 2:
                        marks[marked] = code
                        marked += 1
            run += 1
        start = stop
    return hubs[:pair], others[:pair], rest[:left], runs[:left], marks[:marked], released


@njit(inline="always")
def _agreement(left, right, need):
    """The byte 255 * q of two sketches when they are similar enough, else 0."""
    m, z = agree(left, right, need)
    if m == 0 or m * 255 < need * (BINS - z):
        return np.uint8(0)
    return np.uint8((m * 510 + (BINS - z)) // (2 * (BINS - z)))


@njit(types.uint8[::1](U64_2, _INDEX, U64_2, _INDEX, types.int64), cache=True, nogil=True)
def compare_pairs(left_sketches, left, right_sketches, right, need):
    """For each pair of row numbers the byte 255 * q when similar enough (`signature.needed`), else 0."""
    result = np.empty(len(left), np.uint8)
    for i in range(len(left)):
        result[i] = _agreement(left_sketches[left[i]], right_sketches[right[i]], need)
    return result


@njit(
    types.Tuple((types.int64[::1], types.int64[::1], types.uint8[::1], types.int64))(
        U64_2, _INDEX, types.int64, types.int64
    ),
    cache=True,
    nogil=True,
)
def compare_runs(sketches, starts, heads, need):
    """The first `heads` members of each run against all behind them: `(better, worse, agreement, compared)`.

    sketches  rows of all runs, best first in each; run i is rows starts[i] to starts[i + 1] - 1
    better, worse  row numbers of the pairs that are similar enough; compared = how many pairs were looked at
    """
    better, worse = np.empty(1024, np.int64), np.empty(1024, np.int64)
    agreement = np.empty(1024, np.uint8)
    found, compared = 0, 0
    for run in range(len(starts) - 1):
        first, stop = starts[run], starts[run + 1]
        last_head = min(first + heads, stop)
        for tile in range(first, stop, _TILE):
            tile_stop = min(tile + _TILE, stop)
            for i in range(first, min(last_head, tile_stop)):
                begin = max(i + 1, tile)
                compared += max(tile_stop - begin, 0)
                for j in range(begin, tile_stop):
                    value = _agreement(sketches[i], sketches[j], need)
                    if value == 0:
                        continue
                    if found == len(better):
                        better = np.append(better, np.empty_like(better))
                        worse = np.append(worse, np.empty_like(worse))
                        agreement = np.append(agreement, np.empty_like(agreement))
                    better[found], worse[found], agreement[found] = i, j, value
                    found += 1
    return better[:found], worse[:found], agreement[:found], compared


@njit(types.Tuple((types.int64[::1], types.int64[::1]))(U64_2, U64_2, types.int64), cache=True, nogil=True)
def compare_all(left_sketches, right_sketches, need):
    """Row numbers `(left, right)` of all pairs that are similar enough, in order of right, then left."""
    left, right, found = np.empty(1024, np.int64), np.empty(1024, np.int64), 0
    for j in range(len(right_sketches)):
        for i in range(len(left_sketches)):
            if _agreement(left_sketches[i], right_sketches[j], need) == 0:
                continue
            if found == len(left):
                left, right = np.append(left, np.empty_like(left)), np.append(right, np.empty_like(right))
            left[found], right[found] = i, j
            found += 1
    return left[:found], right[:found]


def new_states(documents: int) -> np.ndarray:
    """Two bits per document, all KEPT: uint8, four documents a byte."""
    return np.zeros((documents + 3) // 4, np.uint8)


@njit(inline="always")
def _get(states, code):
    number = code & ROW_MASK
    return (states[np.int64(number >> np.uint64(2))] >> np.uint8((number & np.uint64(3)) * np.uint64(2))) & 3


@njit(inline="always")
def _set(states, code, value):
    number = code & ROW_MASK
    place, shift = np.int64(number >> np.uint64(2)), (number & np.uint64(3)) * np.uint64(2)
    states[place] = np.uint8(
        (np.uint64(states[place]) & ~(np.uint64(3) << shift)) | (np.uint64(value) << shift)
    )


@njit(types.void(types.uint8[::1]), cache=True)
def forget_undecided(states):
    """UNDECIDED becomes KEPT: what holds a document back is told anew for each pass."""
    for i in range(len(states)):
        states[i] &= np.uint8(0x55)  # the low bit of each pair is DROPPED


@njit(types.void(types.uint8[::1], U64_1), cache=True)
def mark_undecided(states, codes):
    """Documents with better bucket mates that they were not compared with cannot be KEPT yet."""
    for code in codes:
        if _get(states, code) == KEPT:
            _set(states, code, UNDECIDED)


@njit(types.void(types.uint8[::1], U64_1, U64_1), cache=True)
def decide(states, worse, better):
    """One stretch of the pass, best document first; `states` changes.

    worse, better  edges in order of (worse, better); all edges of better documents went before
    """
    start = 0
    while start < len(worse):
        code, stop = worse[start], start
        kept, waits = False, _get(states, code) == UNDECIDED
        while stop < len(worse) and worse[stop] == code:
            state = _get(states, better[stop])
            kept |= state == KEPT
            waits |= state == UNDECIDED
            stop += 1
        if _get(states, code) != DROPPED:
            if kept:
                _set(states, code, DROPPED)
            elif waits:
                _set(states, code, UNDECIDED)
        start = stop


@njit(types.Tuple((_INDEX, types.uint8[::1]))(_FLAGS, U64_1, U64_1, _FLAGS), cache=True)
def outcomes(states, worse, better, agreement):
    """What the pass decided about one stretch: `(drops, open_edges)`. States are those behind the whole pass.

    drops       for each document that was dropped, the number of the edge to its most similar kept neighbour, the
                better one of equals
    open_edges  uint8 flag per edge: its worse end is undecided and its better end not dropped
    """
    drops, dropped = np.empty(len(worse), np.int64), 0
    open_edges = np.zeros(len(worse), np.uint8)
    start = 0
    while start < len(worse):
        code, stop = worse[start], start
        state, survivor = _get(states, code), -1
        while stop < len(worse) and worse[stop] == code:
            other = _get(states, better[stop])
            if other == KEPT and (survivor < 0 or agreement[stop] > agreement[survivor]):
                survivor = stop
            open_edges[stop] = state == UNDECIDED and other != DROPPED
            stop += 1
        if state == DROPPED:
            drops[dropped] = survivor
            dropped += 1
        start = stop
    return drops[:dropped], open_edges
