"""The pieces of texts that finders look at: around each hit as much as its finder may see, joined where they overlap.

A finder finds in a window what it would find in the whole text, as far as that touches a hit of the window: so windows
can be looked at alone, and the rest of the text not at all (a test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, types

from stages.pii.hits import (
    BEHIND,
    COLUMNS,
    FIRST,
    FROM,
    FRONT,
    KINDS,
    LAST,
    ROW,
    START,
    STOP,
    TABLE,
    TO,
    find_hits,
)
from stages.text.kernels import BYTES, OFFSETS

_HITS = types.Array(types.int64, 2, "C", readonly=True)


@njit(cache=True, nogil=True)
def _back(data, begin, i, characters):
    """The byte so many characters before byte i."""
    while i > begin and characters > 0:
        i -= 1
        characters -= data[i] & 0xC0 != 0x80
    return i


@njit(cache=True, nogil=True)
def _on(data, i, end, characters):
    """The byte so many characters behind byte i."""
    while i < end:
        if data[i] & 0xC0 != 0x80:
            if characters == 0:
                break
            characters -= 1
        i += 1
    return i


@njit(types.Tuple((TABLE, types.int64))(BYTES, OFFSETS, _HITS), cache=True, nogil=True)
def _windows(data, offsets, hits):
    """`(table, how many)`: what the hits may look at, overlapping pieces joined; START and STOP are bytes of the piece."""
    windows = np.empty((len(hits), COLUMNS), np.int64)
    used = 0
    for number in range(len(hits)):
        windows[used] = hits[number]
        window = windows[used]
        window[FIRST], window[LAST] = number, number + 1
        while used and windows[used - 1, ROW] == window[ROW] and windows[used - 1, TO] >= window[FROM]:
            used -= 1
            later, window = window, windows[used]
            window[KINDS] |= later[KINDS]
            if later[FROM] < window[FROM]:
                window[FROM], window[START], window[FRONT] = later[FROM], later[START], later[FRONT]
            if later[TO] > window[TO]:
                window[TO], window[STOP], window[BEHIND] = later[TO], later[STOP], later[BEHIND]
            window[LAST] = later[LAST]
        used += 1
    for number in range(used):
        window = windows[number]
        begin, end = offsets[window[ROW]], offsets[window[ROW] + 1]
        window[START] = _back(data, begin, window[START], window[FRONT])
        window[STOP] = _on(data, window[STOP], end, window[BEHIND])
    return windows, used


@dataclass(frozen=True)
class Window:
    """A piece of a text that finders look at.

    kinds        bits of the kinds that have a hit in it
    start, stop  bytes of the piece, counted in the buffer of all texts
    hits         `(kinds, first byte, end)` of each hit
    """

    row: int
    kinds: int
    start: int
    stop: int
    hits: list[tuple[int, int, int]]


def find_windows(data_U8: np.ndarray, offsets_N1: np.ndarray, kinds: int) -> list[Window]:
    """The windows of all texts, in order, none overlapping another. `kinds` are the bits of the kinds that are wanted."""
    hits = find_hits(data_U8, offsets_N1, kinds)
    windows, used = _windows(data_U8, offsets_N1, hits)
    rows = hits[:, [KINDS, START, STOP]].tolist()
    return [
        Window(w[ROW], w[KINDS], w[START], w[STOP], [tuple(hit) for hit in rows[w[FIRST] : w[LAST]]])
        for w in windows[:used].tolist()
    ]
