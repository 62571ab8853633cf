"""The n-grams of bytes that a language model knows, found at each place of a text without walking through states.

py3langid walks a text through an automaton (Aho and Corasick, 1975) with a full table of transitions, 40 MB that it jumps
about in, and each step waits for the one before. The state at a place is nothing but the longest run of bytes that ends
there and that a known n-gram begins with. So it can be asked for at each place alone: a small filter, which stays in the
cache, tells for each length whether such a run may be known, and only the longest that may is looked up, with its place in
memory asked for some steps ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, types

from stages.text.memory import prefetch
from stages.text.vectors import highest, load8

U8 = types.Array(types.uint64, 1, "C", readonly=True)

#: Bytes that one call of `find` looks at, at most, and bytes in front of them that must be readable.
PIECE, MARGIN = 256, 8

_MIX = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE, _8, _64 = np.uint64(1), np.uint64(8), np.uint64(64)
_FILTER_BITS = 20
#: Runs of 2 to `_LONG` bytes are in one table, with the number of the n-gram, plus 1, in the low bits; longer ones (few) in another.
_SHORT, _LONG, _LONGEST = 2, 5, 6
_WIDTH = 18
_NUMBER, _NUMBER_MASK = np.uint64(_WIDTH), np.uint64((1 << _WIDTH) - 1)


@dataclass(frozen=True)
class NGrams:
    """All runs of bytes that a known n-gram begins with, of at least two bytes.

    known   uint64: 2^20 bits, set at the hashes of the runs
    table   uint64, open addressing: key of a run << 18 | number of the n-gram + 1 (0: it only begins one)
    long    uint64, open addressing, two for each slot: key of a run of 6 bytes, number of the n-gram + 1
    """

    known: np.ndarray
    table: np.ndarray
    long: np.ndarray


@njit(inline="always")
def _key(word, length):
    """What stands for the last `length` bytes of a little-endian word."""
    shift = _64 - _8 * np.uint64(length)
    return word >> shift | _ONE << (_8 * np.uint64(length))


@njit(inline="always")
def _slot(key, size):
    return np.int64((key * _MIX) >> np.uint64(44)) & (size - 1)


@njit(inline="always")
def _may_be(key, known):
    """1 if the run may be known, 0 if it is not."""
    place = (key * _MIX) >> np.uint64(64 - _FILTER_BITS)
    return np.int64(known[place >> np.uint64(6)] >> (place & np.uint64(63)) & _ONE)


@njit(inline="always")
def _look_up(key, table):
    """The number of the n-gram that is this run, plus 1; 0 if the run only begins one, -1 if it is not known."""
    size = len(table)
    slot = _slot(key, size)
    while table[slot] != _EMPTY:
        if table[slot] >> _NUMBER == key:
            return np.int64(table[slot] & _NUMBER_MASK)
        slot = (slot + 1) & (size - 1)
    return np.int64(-1)


@njit(inline="always")
def _look_up_long(key, table):
    size = len(table) // 2
    slot = _slot(key, size)
    while table[2 * slot] != _EMPTY:
        if table[2 * slot] == key:
            return np.int64(table[2 * slot + 1])
        slot = (slot + 1) & (size - 1)
    return np.int64(-1)


@njit(cache=True, nogil=True)
def find(data, count, known, table, long, found):
    """The number of the n-gram at each of the bytes data[MARGIN:MARGIN + count], or -1, into found[:count]; at most PIECE.

    At a byte is the n-gram that is the longest known run ending there, if that is one. Runs begin at byte MARGIN or later.
    """
    for k in range(count):
        word = load8(data, MARGIN + k - 7)
        may = np.int64(0)
        for length in range(_SHORT, _LONG + 1):
            may |= _may_be(_key(word, length), known) << length
        may &= (4 << min(k, _LONG)) - 1  # no run begins before the first byte
        prefetch(table, _slot(_key(word, max(highest(np.uint64(may)), _SHORT)), len(table)))
        found[k] = may
    longest = np.int64(0)  # of the byte before: a run is no longer than that and one byte more
    for k in range(count):
        word = load8(data, MARGIN + k - 7)
        number = np.int64(-1)
        if longest >= _LONG:
            number = _look_up_long(_key(word, _LONGEST), long)
        left = np.uint64(found[k])
        longest = np.int64(_LONGEST)
        while number < 0 and left:
            longest = highest(left)
            left ^= _ONE << np.uint64(longest)
            number = _look_up(_key(word, longest), table)
        if number < 0:
            longest = np.int64(0)
        found[k] = number - 1 if number > 0 else -1


@njit(cache=True, nogil=True)
def _walk_tree(next_move, row_of, order, depth, keys, number):
    """Numbers the states breadth first, with the bytes that lead there; returns how many there are."""
    order[0], number[0], depth[0], keys[0] = 0, 0, 0, 0
    seen = 1
    for at in range(len(order)):
        if at >= seen:
            break
        old = order[at]
        for byte in range(256):
            to = np.int64(next_move[(np.int64(row_of[old]) << 8) + byte])
            if number[to] < 0:
                number[to] = seen
                depth[seen] = depth[at] + 1
                keys[seen] = keys[at] | np.uint64(byte) << (_8 * np.uint64(depth[at]))
                order[seen] = to
                seen += 1
    return seen


def build(next_move: np.ndarray, row_of: np.ndarray, feature_of: np.ndarray) -> tuple[NGrams, np.ndarray]:
    """The n-grams of an automaton with a full table, and int64 [n-grams]: the old number of each, in the order of the new ones.

    next_move   uint32, 256 for each row: the next state
    row_of      the row of each state
    feature_of  the n-gram of each state, or -1
    ValueError if there are n-grams that the tables have no room for.
    """
    count = len(row_of)
    order, depth, number = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1, np.int64)
    runs = np.zeros(count, np.uint64)
    reached = _walk_tree(next_move, row_of.astype(np.int64), order, depth, runs, number)
    order, depth = order[:reached], depth[:reached]
    keys = runs[:reached] | np.left_shift(_ONE, (8 * depth).astype(np.uint64))
    feature = feature_of[order]
    if reached >= 1 << _WIDTH or depth.max() > _LONGEST or (feature[depth < _SHORT] >= 0).any():
        raise ValueError(f"a model of {reached:,} runs of up to {depth.max()} bytes: there is no room for it")
    has = np.flatnonzero(feature >= 0)
    old, first, inverse = np.unique(feature[has], return_index=True, return_inverse=True)
    by_state = np.argsort(first)
    numbers = np.zeros(reached, np.uint64)
    numbers[has] = np.argsort(by_state)[inverse] + 1
    made = NGrams(
        np.zeros(1 << _FILTER_BITS - 6, np.uint64),
        np.full(1 << int(np.ceil(np.log2(2 * reached))), _EMPTY, np.uint64),
        np.full(2 << int(np.ceil(np.log2(4 * max(int((depth > _LONG).sum()), 1)))), _EMPTY, np.uint64),
    )
    _fill(keys, depth, numbers, made.known, made.table, made.long)
    return made, old[by_state].astype(np.int64)


@njit(cache=True, nogil=True)
def _fill(keys, depth, numbers, known, table, long):
    for run in range(len(keys)):
        if depth[run] > _LONG:
            slot = _slot(keys[run], len(long) // 2)
            while long[2 * slot] != _EMPTY:
                slot = (slot + 1) & (len(long) // 2 - 1)
            long[2 * slot], long[2 * slot + 1] = keys[run], numbers[run]
        elif depth[run] >= _SHORT:
            slot = _slot(keys[run], len(table))
            while table[slot] != _EMPTY:
                slot = (slot + 1) & (len(table) - 1)
            table[slot] = keys[run] << _NUMBER | numbers[run]
            place = (keys[run] * _MIX) >> np.uint64(64 - _FILTER_BITS)
            known[place >> np.uint64(6)] |= _ONE << (place & np.uint64(63))
