"""Hashes of pieces of text, and sets of them, for the kernels of this package."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.kernels import mix
from stages.text.vectors import load8

SEED = np.uint64(0x13198A2E03707344)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_8, _29, _64 = np.uint64(8), np.uint64(29), np.uint64(64)
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)


@njit(inline="always")
def absorb(state, block):
    """The hash state with 64 more bits in it: a bijection of either, if the other is fixed."""
    state = (state ^ np.uint64(block)) * _STEP
    return state ^ (state >> _29)


@njit(inline="always")
def first_bytes(data, i, count):
    """data[i:i + count] as a little-endian number, for 1 to 8 bytes."""
    if i + 8 <= len(data):
        return load8(data, i) & (_ONES >> (_64 - _8 * np.uint64(count)))
    block = np.uint64(0)
    for k in range(count):
        block |= np.uint64(data[i + k]) << (_8 * np.uint64(k))
    return block


@njit(cache=True, nogil=True)
def hash_bytes(data, i, end):
    """uint64 hash of data[i:end]."""
    state = absorb(SEED, end - i)
    while end - i > 8:
        state = absorb(state, load8(data, i))
        i += 8
    if end > i:
        state = absorb(state, first_bytes(data, i, end - i))
    return mix(state)


def hash_text(text: str) -> int:
    """The same of the UTF-8 of a text."""
    content, mask = text.encode(), 2**64 - 1
    state = int(SEED)
    for block in (
        len(content),
        *(int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content), 8)),
    ):
        state = (state ^ block) * int(_STEP) & mask
        state ^= state >> 29
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> 33) * factor & mask
    return state ^ state >> 33


@njit(cache=True, nogil=True)
def room_for(most):
    """Slots of a set for that many keys: a power of two, at most two thirds taken."""
    size = 64
    while 2 * size < 3 * most:
        size *= 2
    return size


@njit(cache=True, nogil=True)
def clear(table, most):
    """Empties a hash set for `most` different keys; returns the mask of its slots. The table must have room: `room_for`."""
    mask = room_for(most) - 1
    table[: mask + 1] = 0
    return mask


@njit(inline="always")
def add(table, keys, mask, used, key):
    """`(number of the key, whether it was there)` in a hash set; a new key gets the number `used` and stands in keys[used].

    A slot holds the upper half of a key and its number plus 1: 8 bytes, so that a set of many keys stays near.
    """
    slot = np.int64(key & np.uint64(mask))
    high = key & _HIGH
    while table[slot] != 0:
        number = np.int64(table[slot] & _LOW) - 1
        if table[slot] & _HIGH == high and keys[number] == key:
            return number, True
        slot = (slot + 1) & mask
    table[slot] = high | np.uint64(used + 1)
    keys[used] = key
    return used, False
