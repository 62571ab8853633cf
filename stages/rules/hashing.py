"""Hashes of pieces of text, and sets of them, for the kernels of this package."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.vectors import fold_product, load8

SEED = np.uint64(0x13198A2E03707344)
_SECRET_1, _SECRET_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xA0761D6478BD642F)
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_8, _64 = np.uint64(8), np.uint64(64)
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)


@njit(inline="always")
def absorb(state, one, other):
    """The hash state with 128 more bits in it (Wang Yi, 2020: wyhash)."""
    return fold_product(state ^ np.uint64(one), np.uint64(other) ^ _SECRET_1)


@njit(inline="always")
def close(state, size):
    """The hash of what was absorbed, of that many bytes."""
    return fold_product(state ^ _SECRET_2, np.uint64(size) ^ _SECRET_1)


@njit(inline="always")
def short_hash(data, i, size):
    """`hash_bytes` of 1 to 15 bytes; 16 must be readable at byte i."""
    one = load8(data, i) & (_ONES >> (_64 - _8 * np.uint64(min(size, 8))))
    other = load8(data, i + 8) & ~(_ONES << (_8 * np.uint64(max(size - 8, 0))))
    return close(absorb(SEED, one, other), size)


@njit(cache=True, nogil=True)
def hash_bytes(data, i, end):
    """uint64 hash of data[i:end]; 16 bytes must be readable at byte `end`."""
    size = end - i
    state = SEED
    while end - i > 15:
        state = absorb(state, load8(data, i), load8(data, i + 8))
        i += 16
    left = end - i
    one = load8(data, i) & (_ONES >> (_64 - _8 * np.uint64(min(left, 8)))) if left else np.uint64(0)
    other = load8(data, i + 8) & ~(_ONES << (_8 * np.uint64(max(left - 8, 0))))
    return close(absorb(state, one, other), size)


def hash_text(text: str) -> int:
    """The same of the UTF-8 of a text."""

    def fold(a: int, b: int) -> int:
        return (a * b >> 64) ^ (a * b & 2**64 - 1)

    content = text.encode()
    whole = len(content) // 16 * 16
    state = int(SEED)
    for i in range(0, whole + 1, 16):
        one, other = (int.from_bytes(content[k : k + 8], "little") for k in (i, i + 8))
        state = fold(state ^ one, other ^ int(_SECRET_1))
    return fold(state ^ int(_SECRET_2), len(content) ^ int(_SECRET_1))


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
