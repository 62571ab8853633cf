"""Where a piece falls apart: between two characters that no merge can join.

A run of Han is one piece, as long as a sentence, and hardly comes twice; its parts do. If no merge has a left part that
ends with one character and a right part that begins with the next, then nothing is ever merged across the border
between the two, so what is before and what is behind it can be encoded, and remembered, each by itself.

That holds where both characters begin as one token (see `merging`), for then every token beside the border ends or
begins with a whole character.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.memory import BORROWED
from stages.tokenizer.characters import BYTES, OFFSETS, character

_BITS = 1 << 20
_WORDS = types.uint64[::1]


@njit(inline="always", **BORROWED)
def _bit(before, behind):  # type: ignore[no-untyped-def]
    """The number of the bit of two code points; two pairs may share one, which only joins more."""
    h = (np.uint64(before) << np.uint64(21) | np.uint64(behind)) * np.uint64(0x9E3779B97F4A7C15)
    return h >> np.uint64(44)


def joints(flat: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """uint64[16384], a bit per hash of two characters: 0 where no merge joins them. flat, bounds: see `compile_merges`."""
    found = np.zeros(_BITS >> 6, np.uint64)
    _mark(flat, bounds, found)
    return found


@njit(types.void(BYTES, OFFSETS, _WORDS), **BORROWED)
def _mark(flat, bounds, found):  # type: ignore[no-untyped-def]
    """Sets the bits of all merges."""
    for rank in range(len(bounds) >> 1):
        start, middle, end = bounds[2 * rank], bounds[2 * rank + 1], bounds[2 * rank + 2]
        last = middle - 1
        while last > start and flat[last] & 0xC0 == 0x80:
            last -= 1
        before, width = character(flat, last, middle)
        behind, _ = character(flat, middle, end)
        if last + width == middle:
            bit = _bit(before, behind)
            found[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


@njit(inline="always", **BORROWED)
def _is_whole(code, width, data, at, start, end, chars, levels, ahead, behind):  # type: ignore[no-untyped-def]
    """Whether the character at data[at], in a piece from `start` to `end`, begins as one token."""
    if width == 1:
        return code < 0x80
    if width > 3 or chars[code] < 0:
        return False
    level = levels[code]
    if at > start and ahead[np.int64(data[at - 1]), np.int64(data[at] & 63)] <= level:
        return False
    stop = at + width
    return stop == end or behind[np.int64(data[stop - 1] & 63), np.int64(data[stop])] > level


@njit(inline="always", **BORROWED)
def segment_end(data, at, end, inside, joined, chars, levels, ahead, behind):  # type: ignore[no-untyped-def]
    """The first border behind `at` in a piece that ends at `end`, `end` if there is none.

    inside: whether `at` is such a border itself, else the piece begins there. joined: `joints()`; the rest: `Merges`.
    """
    code, width = character(data, at, end)
    whole = inside or _is_whole(code, width, data, at, at, end, chars, levels, ahead, behind)
    border = at + width
    while border < end:
        following, width = character(data, border, end)
        follows_whole = _is_whole(following, width, data, border, at, end, chars, levels, ahead, behind)
        if whole and follows_whole:
            bit = _bit(code, following)
            if joined[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1) == 0:
                return border
        code, whole = following, follows_whole
        border += width
    return end
