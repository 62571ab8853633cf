"""A table of distinct pieces of text: bytes in, small numbers out, no Python object per piece.

Counting pieces (to train a tokenizer) and remembering how a piece is encoded both need it. Keys of up to 15 bytes
are compared inside the slot; longer ones by two hashes and then byte by byte in the pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_SHORT = 15  # longest key that a slot holds: 15 bytes and its length in 128 bits
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
        # low word, high word, number + 1 (0 = free); the fourth keeps a slot inside one cache line
        self._slots = np.zeros((_slots_for(entries), 4), np.uint64)
        self.count = 0

    @property
    def used(self) -> int:
        """Bytes of the pool in use."""
        return int(self.offsets[self.count])

    def clear(self) -> None:
        """Forget every string, keep the room."""
        self._slots.fill(0)
        self.count = 0

    def intern(self, data: np.ndarray, start: int, ends: np.ndarray) -> np.ndarray:
        """The number of each piece, int32; new ones are added. Piece i ends at data[ends[i]], piece 0 begins at `start`."""
        numbers = np.empty(len(ends), np.int32)
        done = 0
        while done < len(ends):
            first = start if done == 0 else int(ends[done - 1])
            filled, self.count = _intern(
                data, first, ends[done:], self._slots, self.pool, self.offsets, self.count, numbers[done:]
            )
            done += filled
            if done < len(ends):
                self._grow(int(ends[done] - (ends[done - 1] if done else start)))
        return numbers

    def find(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The number of each string data[offsets[i]:offsets[i + 1]], int32, or -1 where it is not in the table."""
        return _find(data, offsets, self._slots, self.pool, self.offsets)

    def hashes(self) -> np.ndarray:
        """uint64 per entry: a hash of its bytes that is the same in every process."""
        return _hashes(self.pool, self.offsets[: self.count + 1])

    def _grow(self, need: int) -> None:
        """Double what is full, at least to hold one more string of `need` bytes."""
        if self.used + need > len(self.pool):
            pool = np.empty(max(2 * len(self.pool), self.used + need), np.uint8)
            pool[: self.used] = self.pool[: self.used]
            self.pool = pool
        if self.count + 1 == len(self.offsets):
            offsets = np.zeros(2 * self.count + 1, np.int64)
            offsets[: self.count + 1] = self.offsets
            self.offsets = offsets
            slots = np.zeros((_slots_for(2 * self.count), 4), np.uint64)
            _rehash(self._slots, slots)
            self._slots = slots


def _slots_for(entries: int) -> int:
    """A power of two that leaves at least half of the slots free."""
    return 1 << max(4, int(2 * entries - 1).bit_length())


@intrinsic
def _word(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """The eight bytes array[index:index + 8] as a little-endian uint64, whatever their alignment."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(array, types.int64), generate


@njit(inline="always", cache=True, nogil=True)
def _mix(low, high):  # type: ignore[no-untyped-def]
    """64-bit hash of a 128-bit key (multiply and xor-shift rounds, as in the finaliser of MurmurHash3)."""
    h = low ^ (high * np.uint64(0x9E3779B97F4A7C15))
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(32))


@njit(inline="always", cache=True, nogil=True)
def _key(data, start, end):  # type: ignore[no-untyped-def]
    """`(low, high)`: the bytes themselves up to 15 of them, with the length on top; else two hashes and 255 on top."""
    low = np.uint64(0)
    high = np.uint64(0)
    size = end - start
    if size <= _SHORT:
        if start + 16 <= len(data):
            full = np.uint64(0xFFFFFFFFFFFFFFFF)
            low = _word(data, start)  # type: ignore[call-arg]
            if size < 8:
                low &= ~(full << np.uint64(8 * size))
            else:
                high = _word(data, start + 8)  # type: ignore[call-arg]
                high &= ~(full << np.uint64(8 * (size - 8)))
        else:
            for i in range(size):
                byte = np.uint64(data[start + i]) << np.uint64(8 * (i & 7))
                low |= byte if i < 8 else np.uint64(0)
                high |= byte if i >= 8 else np.uint64(0)
        return low, high | np.uint64(size) << np.uint64(56)
    high = np.uint64(size)
    for i in range(start, end):
        low = (low ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
        high = (high + np.uint64(data[i])) * np.uint64(0x9E3779B97F4A7C15)
        high ^= high >> np.uint64(29)
    return low, high | np.uint64(0xFF) << np.uint64(56)


@njit(inline="always", cache=True, nogil=True)
def _slot(low, high, data, start, end, slots, pool, offsets):  # type: ignore[no-untyped-def]
    """The slot that holds the key, or the free one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    at = _mix(low, high) & mask
    while slots[at, 2] != 0:
        if slots[at, 0] == low and slots[at, 1] == high:
            if end - start <= _SHORT:
                break
            entry = np.int64(slots[at, 2]) - 1
            begin = offsets[entry]
            same = offsets[entry + 1] - begin == end - start
            i = 0
            while same and i < end - start:
                same = pool[begin + i] == data[start + i]
                i += 1
            if same:
                break
        at = (at + np.uint64(1)) & mask
    return at


@njit(
    types.UniTuple(types.int64, 2)(
        _BYTES,
        types.int64,
        _OFFSETS,
        _SLOTS,
        types.uint8[::1],
        types.int64[::1],
        types.int64,
        types.int32[::1],
    ),
    cache=True,
    nogil=True,
)
def _intern(data, start, ends, slots, pool, offsets, count, numbers):  # type: ignore[no-untyped-def]
    """Numbers the pieces until something is full; `(pieces done, entries now)`."""
    for i in range(len(ends)):
        end = ends[i]
        low, high = _key(data, start, end)
        at = _slot(low, high, data, start, end, slots, pool, offsets)
        if slots[at, 2] == 0:
            begin = offsets[count]
            if count + 1 == len(offsets) or begin + end - start > len(pool):
                return i, count
            pool[begin : begin + end - start] = data[start:end]
            count += 1
            offsets[count] = begin + end - start
            slots[at, 0] = low
            slots[at, 1] = high
            slots[at, 2] = np.uint64(count)
        numbers[i] = np.int64(slots[at, 2]) - 1
        start = end
    return len(ends), count


@njit(types.int32[::1](_BYTES, _OFFSETS, _SLOTS, _BYTES, _OFFSETS), cache=True, nogil=True)
def _find(data, bounds, slots, pool, offsets):  # type: ignore[no-untyped-def]
    """Entry numbers, -1 where there is none."""
    numbers = np.empty(len(bounds) - 1, np.int32)
    for i in range(len(bounds) - 1):
        start, end = bounds[i], bounds[i + 1]
        low, high = _key(data, start, end)
        numbers[i] = np.int64(slots[_slot(low, high, data, start, end, slots, pool, offsets), 2]) - 1
    return numbers


@njit(types.uint64[::1](_BYTES, _OFFSETS), cache=True, nogil=True)
def _hashes(pool, offsets):  # type: ignore[no-untyped-def]
    """uint64 per entry."""
    result = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(result)):
        low, high = _key(pool, offsets[i], offsets[i + 1])
        result[i] = _mix(low, high)
    return result


@njit(types.void(_SLOTS, _SLOTS), cache=True, nogil=True)
def _rehash(old, new):  # type: ignore[no-untyped-def]
    """Moves every used slot; keys are distinct, so none is compared."""
    mask = np.uint64(len(new) - 1)
    for i in range(len(old)):
        if old[i, 2] != 0:
            at = _mix(old[i, 0], old[i, 1]) & mask
            while new[at, 2] != 0:
                at = (at + np.uint64(1)) & mask
            new[at] = old[i]
