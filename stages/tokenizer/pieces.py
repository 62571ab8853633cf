"""A table of distinct pieces of text: bytes in, small numbers out, no Python object per piece.

Counting pieces (to train a tokenizer) and remembering how a piece is encoded both need it. Keys of up to 15 bytes
are compared inside the slot; longer ones by two hashes and then in the pool.

A slot is four words, half a cache line: low and high word of the key, number + 1 (0 = free), a value of the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from stages.text.vectors import load8

_SHORT = 15  # longest key that a slot holds: 15 bytes and its length in 128 bits
#: Keys that are hashed, and slots fetched into the cache, ahead of the one that is looked up.
BLOCK = 16
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
_SLOTS = types.uint64[:, ::1]


class PieceTable:
    """Distinct byte strings, numbered from 0 in the order in which they came.

    count    how many
    pool     uint8, the strings back to back; string i is pool[offsets[i]:offsets[i + 1]]
    offsets  int64, count + 1 of them in use
    """

    def __init__(self, entries: int = 1 << 12, pool_bytes: int = 1 << 16) -> None:
        """Room for `entries` strings of `pool_bytes` bytes in all; it grows when that is too little."""
        self.offsets = np.zeros(entries + 1, np.int64)
        self.pool = np.empty(pool_bytes, np.uint8)
        self.slots = free_slots(entries)
        self.count = 0

    @property
    def used(self) -> int:
        """Bytes of the pool in use."""
        return int(self.offsets[self.count])

    def clear(self) -> None:
        """Forget every string, keep the room."""
        self.slots.fill(0)
        self.count = 0

    def intern(self, data: np.ndarray, start: int, ends: np.ndarray) -> np.ndarray:
        """The number of each piece, int32; new ones are added. Piece i ends at data[ends[i]], piece 0 begins at `start`."""
        numbers = np.empty(len(ends), np.int32)
        self._enter(data, start, ends, 0, numbers)
        return numbers

    def tally(self, data: np.ndarray, start: int, ends: np.ndarray) -> None:
        """Counts each of the pieces once more; new ones are added."""
        self._enter(data, start, ends, 1, np.empty(0, np.int32))

    def tallied(self) -> np.ndarray:
        """int64 per entry: how often `tally` has met it."""
        return _values(self.slots, self.count)

    def _enter(
        self, data: np.ndarray, start: int, ends: np.ndarray, weight: int, numbers: np.ndarray
    ) -> None:
        done = 0
        while done < len(ends):
            first = start if done == 0 else int(ends[done - 1])
            filled, self.count = _enter(
                data,
                first,
                ends[done:],
                self.slots,
                self.pool,
                self.offsets,
                self.count,
                weight,
                numbers[done:],
            )
            done += filled
            if done < len(ends):
                self.grow(int(ends[done] - (ends[done - 1] if done else start)))

    def find(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The number of each string data[offsets[i]:offsets[i + 1]], int32, or -1 where it is not in the table."""
        return _find(data, offsets, self.slots, self.pool, self.offsets)

    def hashes(self) -> np.ndarray:
        """uint64 per entry: a hash of its bytes that is the same in every process."""
        return _hashes(self.pool, self.offsets[: self.count + 1])

    def grow(self, need: int) -> None:
        """Double what is full, at least to hold one more string of `need` bytes."""
        if self.used + need > len(self.pool):
            pool = np.empty(max(2 * len(self.pool), self.used + need), np.uint8)
            pool[: self.used] = self.pool[: self.used]
            self.pool = pool
        if self.count + 1 == len(self.offsets):
            offsets = np.zeros(2 * self.count + 1, np.int64)
            offsets[: self.count + 1] = self.offsets
            self.offsets = offsets
            slots = free_slots(2 * self.count)
            _rehash(self.slots, slots)
            self.slots = slots


def free_slots(entries: int, words: int = 4) -> np.ndarray:
    """uint64 (slots, words): a power of two of slots, at least twice as many as entries, none across two cache lines."""
    size = 1 << max(4, int(2 * entries - 1).bit_length())
    flat = np.zeros(words * size + 8, np.uint64)
    skip = -flat.ctypes.data % 64 // 8
    return flat[skip : skip + words * size].reshape(size, words)


def _fetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Asks for the cache line of an element of a one- or two-dimensional array, by its place in memory; only a hint."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        name = "llvm.prefetch.p0"
        hint = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(hint, [place, number(0), number(3), number(1)])  # for reading, to keep, data
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


prefetch: Any = intrinsic(_fetch)


@njit(inline="always", cache=True, nogil=True)
def mix(low, high):  # type: ignore[no-untyped-def]
    """64-bit hash of a 128-bit key (multiply and xor-shift rounds, as in the finaliser of MurmurHash3)."""
    h = low ^ (high * np.uint64(0x9E3779B97F4A7C15))
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(32))


@njit(inline="always", cache=True, nogil=True)
def key_of(data, start, end):  # type: ignore[no-untyped-def]
    """`(low, high)`: the bytes themselves up to 15 of them, with the length on top; else two hashes and 255 on top."""
    low = np.uint64(0)
    high = np.uint64(0)
    size = end - start
    if size <= _SHORT:
        if start + 16 <= len(data):
            full = np.uint64(0xFFFFFFFFFFFFFFFF)
            low = load8(data, start)
            if size < 8:
                low &= ~(full << np.uint64(8 * size))
            else:
                high = load8(data, start + 8)
                high &= ~(full << np.uint64(8 * (size - 8)))
        else:
            for i in range(size):
                byte = np.uint64(data[start + i]) << np.uint64(8 * (i & 7))
                low |= byte if i < 8 else np.uint64(0)
                high |= byte if i >= 8 else np.uint64(0)
        return low, high | np.uint64(size) << np.uint64(56)
    high = np.uint64(size)
    for i in range(start, end - 7, 8):
        low, high = _stir(load8(data, i), low, high)
    low, high = _stir(load8(data, end - 8), low, high)
    return low, high >> np.uint64(8) | np.uint64(0xFF) << np.uint64(56)


@njit(inline="always", cache=True, nogil=True)
def _stir(word, low, high):  # type: ignore[no-untyped-def]
    """Both hashes after eight more bytes."""
    low = (low ^ word) * np.uint64(0xFF51AFD7ED558CCD)
    high = (high + word) * np.uint64(0x9E3779B97F4A7C15)
    return low ^ (low >> np.uint64(32)), high ^ (high >> np.uint64(29))


@njit(inline="always", cache=True, nogil=True)
def home_of(low, high, slots):  # type: ignore[no-untyped-def]
    """The slot where the search for a key begins."""
    return np.int64(mix(low, high) & np.uint64(len(slots) - 1))


@njit(inline="always", cache=True, nogil=True)
def slot_of(low, high, at, data, start, end, slots, pool, offsets):  # type: ignore[no-untyped-def]
    """The slot that holds the key, or the free one where it belongs; `at` is its home."""
    mask = len(slots) - 1
    while slots[at, 2] != 0:
        if slots[at, 0] == low and slots[at, 1] == high:
            if end - start <= _SHORT:
                break
            entry = np.int64(slots[at, 2]) - 1
            if _same(data, start, end - start, pool, offsets[entry], offsets[entry + 1]):
                break
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def _same(data, start, size, pool, begin, end):  # type: ignore[no-untyped-def]
    """Whether a key of `size` > 15 bytes is what stands in the pool."""
    if end - begin != size:
        return False
    for i in range(0, size - 7, 8):
        if load8(data, start + i) != load8(pool, begin + i):
            return False
    return load8(data, start + size - 8) == load8(pool, end - 8)


@njit(
    types.UniTuple(types.int64, 2)(
        _BYTES,
        types.int64,
        _OFFSETS,
        _SLOTS,
        types.uint8[::1],
        types.int64[::1],
        types.int64,
        types.uint64,
        types.int32[::1],
    ),
    cache=True,
    nogil=True,
)
def _enter(data, start, ends, slots, pool, offsets, count, weight, numbers):  # type: ignore[no-untyped-def]
    """Adds the weight to the value of each piece, else numbers the pieces, until something is full.

    `(pieces done, entries now)`.
    """
    keys = np.empty((BLOCK, 2), np.uint64)
    homes = np.empty(BLOCK, np.int64)
    for first in range(0, len(ends), BLOCK):
        block = min(BLOCK, len(ends) - first)
        begin = start
        for i in range(block):
            low, high = key_of(data, begin, ends[first + i])
            begin = ends[first + i]
            keys[i, 0] = low
            keys[i, 1] = high
            homes[i] = home_of(low, high, slots)
            prefetch(slots, 4 * homes[i])
        for i in range(block):
            end = ends[first + i]
            low, high = keys[i, 0], keys[i, 1]
            at = slot_of(low, high, homes[i], data, start, end, slots, pool, offsets)
            if slots[at, 2] == 0:
                begin = offsets[count]
                if count + 1 == len(offsets) or begin + end - start > len(pool):
                    return first + i, count
                pool[begin : begin + end - start] = data[start:end]
                count += 1
                offsets[count] = begin + end - start
                slots[at, 0] = low
                slots[at, 1] = high
                slots[at, 2] = np.uint64(count)
                slots[at, 3] = 0
            if weight > 0:
                slots[at, 3] += weight
            else:
                numbers[first + i] = np.int64(slots[at, 2]) - 1
            start = end
    return len(ends), count


@njit(types.int64[::1](_SLOTS, types.int64), cache=True, nogil=True)
def _values(slots, count):  # type: ignore[no-untyped-def]
    """The value of each entry."""
    result = np.empty(count, np.int64)
    for at in range(len(slots)):
        if slots[at, 2] != 0:
            result[np.int64(slots[at, 2]) - 1] = slots[at, 3]
    return result


@njit(types.int32[::1](_BYTES, _OFFSETS, _SLOTS, _BYTES, _OFFSETS), cache=True, nogil=True)
def _find(data, bounds, slots, pool, offsets):  # type: ignore[no-untyped-def]
    """Entry numbers, -1 where there is none."""
    numbers = np.empty(len(bounds) - 1, np.int32)
    for i in range(len(bounds) - 1):
        start, end = bounds[i], bounds[i + 1]
        low, high = key_of(data, start, end)
        at = slot_of(low, high, home_of(low, high, slots), data, start, end, slots, pool, offsets)
        numbers[i] = np.int64(slots[at, 2]) - 1
    return numbers


@njit(types.uint64[::1](_BYTES, _OFFSETS), cache=True, nogil=True)
def _hashes(pool, offsets):  # type: ignore[no-untyped-def]
    """uint64 per entry."""
    result = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(result)):
        low, high = key_of(pool, offsets[i], offsets[i + 1])
        result[i] = mix(low, high)
    return result


@njit(types.void(_SLOTS, _SLOTS), cache=True, nogil=True)
def _rehash(old, new):  # type: ignore[no-untyped-def]
    """Moves every used slot; keys are distinct, so none is compared."""
    mask = np.uint64(len(new) - 1)
    for i in range(len(old)):
        if old[i, 2] != 0:
            at = mix(old[i, 0], old[i, 1]) & mask
            while new[at, 2] != 0:
                at = (at + np.uint64(1)) & mask
            new[at] = old[i]
