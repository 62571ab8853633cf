"""Text to token ids in one pass: cutting, a table of pieces seen before, exact merging of the others.

Words follow Zipf, so nearly every piece of a text is in the table. Most pieces of English and of code are up to 15
bytes of ASCII: a space or another sign and letters. A load and a few operations on eight bytes find where such a piece
ends, and the bytes with their number are its key. Every other piece is cut by `pretokenize.piece_end`.

Tables grow to a limit; full ones are emptied, which costs time and changes nothing else. Pieces of more than `LONGEST`
bytes hardly come twice and never enter.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.memory import copy_bytes
from stages.text.vectors import load8, lowest
from stages.tokenizer.merging import MERGES, ROOM, Merges, merge_piece
from stages.tokenizer.pieces import PieceTable, home_of, key_of, slot_of
from stages.tokenizer.pretokenize import GPT2, GPT4, LETTER, NUMBER, Pattern, classes, piece_end

#: Limits of what one thread keeps: pieces of up to seven bytes, longer ones, ids of pieces that are several tokens.
SHORT_PIECES, LONG_PIECES, KEPT_IDS = 1 << 18, 1 << 18, 1 << 21
#: Longest piece that is kept, bytes.
LONGEST = 32

_SHORT = 7  # bytes of a piece whose key is one word: them and their number
_TOPS = 0x8080808080808080  # the top bit of each byte of a word
_FIRST = 1 << 12  # pieces that a new table has room for

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_IDS = types.uint32[::1]
_GRID = types.uint64[:, ::1]

#: A value: number of ids << 40, then the id if there is one, else where they stand among the kept ids.
_SHIFT = 40
_TEXT, _AT, _FILLED, _SHORTS, _LONGS, _KEPT = range(6)  # where the kernel is, and how full the tables are
_DONE, _SHORT_FULL, _LONG_FULL, _KEPT_FULL = range(4)  # why it comes back


class PieceCache:
    """The tables of one thread.

    merges   how a piece is encoded
    whole    pieces that are one token whatever the merges say, with their ids; None if there are none
    pattern  how text is cut
    """

    def __init__(self, merges: Merges, whole: tuple[PieceTable, np.ndarray] | None, pattern: Pattern) -> None:
        self._merges = merges
        self._whole = whole or (PieceTable(1, 1), np.empty(0, np.int32))
        self._pattern = pattern
        self._leads = _leads(pattern)
        self._ids = np.empty(0, np.uint32)
        self._short = np.zeros((2 * _FIRST, 2), np.uint64)  # key, value
        self._long = PieceTable(_FIRST, 16 * _FIRST)
        self._kept = np.empty(4 * _FIRST, np.uint32)
        self._state = np.zeros(6, np.int64)

    def encode(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, bounds)`: uint32 ids of all texts data[offsets[i]:offsets[i + 1]]; int64, where each text's ids begin."""
        size = int(offsets[-1] - offsets[0])
        if len(self._ids) < size:  # a token has at least one byte
            self._ids = np.empty(size, np.uint32)
        bounds = np.zeros(len(offsets), np.int64)
        state, pattern, (whole, whole_ids) = self._state, self._pattern, self._whole
        state[[_TEXT, _AT, _FILLED]] = 0, offsets[0], 0
        while True:
            why = _encode(
                data, offsets, state, classes(), self._leads, pattern.family, pattern.digits, pattern.split_han,
                self._short, self._long.slots, self._long.pool, self._long.offsets, self._kept,
                whole.slots, whole.pool, whole.offsets, whole_ids, self._merges, self._ids, bounds,
            )  # fmt: skip
            if why == _DONE:
                return self._ids[: state[_FILLED]].copy(), bounds
            self._make_room(why)

    def _make_room(self, why: int) -> None:
        """Doubles what is full; empties everything when that is at its limit."""
        limit = {_SHORT_FULL: SHORT_PIECES, _LONG_FULL: LONG_PIECES, _KEPT_FULL: KEPT_IDS}[why]
        full = {
            _SHORT_FULL: len(self._short) // 2,
            _LONG_FULL: self._state[_LONGS],
            _KEPT_FULL: len(self._kept),
        }
        if full[why] >= limit:
            self._short.fill(0)
            self._long.clear()
            self._state[[_SHORTS, _LONGS, _KEPT]] = 0
        elif why == _SHORT_FULL:
            old, self._short = self._short, np.zeros((2 * len(self._short), 2), np.uint64)
            _move(old, self._short)
        elif why == _LONG_FULL:
            self._long.count = int(self._state[_LONGS])
            self._long.grow(LONGEST)
        else:
            self._kept = np.concatenate([self._kept, np.empty(len(self._kept), np.uint32)])


def _leads(pattern: Pattern) -> np.ndarray:
    """uint64 by byte: 0x80 for ASCII that may stand before the letters of a piece, else 0."""
    kinds = classes()[:128]
    leads = np.zeros(256, np.uint64)
    if pattern.family == GPT2:
        leads[32] = 0x80
    else:
        leads[:128][kinds & (LETTER | NUMBER) == 0] = 0x80
        leads[[10, 13]] = 0
    if pattern.family == GPT4:
        leads[39] = 0  # an apostrophe may begin a contraction
    return leads


@njit(inline="always", cache=True, nogil=True)
def _letters(word):  # type: ignore[no-untyped-def]
    """The top bit of each of the eight bytes that is an ASCII letter."""
    low = (word | np.uint64(0x2020202020202020)) & np.uint64(0x7F7F7F7F7F7F7F7F)
    from_a = low + np.uint64(0x1F1F1F1F1F1F1F1F)
    beyond_z = low + np.uint64(0x0505050505050505)
    return from_a & ~beyond_z & ~word & np.uint64(_TOPS)


@njit(inline="always", cache=True, nogil=True)
def _home(key, short):  # type: ignore[no-untyped-def]
    """Where the search for a short key begins."""
    h = key * np.uint64(0x9E3779B97F4A7C15)
    return (h ^ (h >> np.uint64(32))) & np.uint64(len(short) - 1)


@njit(inline="always", cache=True, nogil=True)
def _find(key, short):  # type: ignore[no-untyped-def]
    """The place of a short key, or the free one where it belongs."""
    at = _home(key, short)
    while short[at, 0] != key and short[at, 0] != 0:
        at = (at + np.uint64(1)) & np.uint64(len(short) - 1)
    return at


@njit(types.void(_GRID, _GRID), cache=True, nogil=True)
def _move(old, new):  # type: ignore[no-untyped-def]
    """Moves all keys with their values to a larger table."""
    for i in range(len(old)):
        if old[i, 0] != 0:
            new[_find(old[i, 0], new)] = old[i]


@njit(inline="always", cache=True, nogil=True)
def _short_key(data, at, size):  # type: ignore[no-untyped-def]
    """The key of up to seven bytes."""
    key = np.uint64(size) << np.uint64(56)
    if at + 8 <= len(data):
        return key | load8(data, at) & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1))
    for i in range(size):
        key |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return key


@njit(inline="always", cache=True, nogil=True)
def _write(value, kept, ids, filled):  # type: ignore[no-untyped-def]
    """Writes the ids of a value; how many."""
    n = np.int64(value >> np.uint64(_SHIFT))
    if n == 1:
        ids[filled] = np.uint32(value)
    else:
        place = np.int64(value & np.uint64((1 << _SHIFT) - 1))
        for k in range(n):
            ids[filled + k] = kept[place + k]
    return n


@njit(inline="always", cache=True, nogil=True)
def _keep(n, ids, filled, kept, used):  # type: ignore[no-untyped-def]
    """`(value, kept ids)` of the n ids from ids[filled] on."""
    if n == 1:
        return np.uint64(1) << np.uint64(_SHIFT) | np.uint64(ids[filled]), used
    for k in range(n):
        kept[used + k] = ids[filled + k]
    return np.uint64(n) << np.uint64(_SHIFT) | np.uint64(used), used + n


@njit(
    types.int64(
        _BYTES, _PLACES, types.int64[::1], _BYTES, types.uint64[::1], types.int64, types.int64, types.boolean,
        _GRID, _GRID, types.uint8[::1], types.int64[::1], _IDS,
        _GRID, types.uint8[::1], types.int64[::1], types.int32[::1], MERGES, _IDS, types.int64[::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _encode(  # type: ignore[no-untyped-def]
    data, texts, state, kinds, leads, family, digits, split_han,
    short, slots, pool, offsets, kept, whole_slots, whole_pool, whole_offsets, whole_ids, merges, ids, bounds,
):  # fmt: skip
    """Goes on from where `state` says until all is done or something is full; why it stopped.

    One function, because what it keeps in registers is what makes it fast.
    """
    token, order = np.empty(ROOM, np.int32), np.empty(ROOM, np.int32)
    after, before = np.empty(ROOM, np.int32), np.empty(ROOM, np.int32)
    byte_ids, byte_ranks, pairs, known, results, chars, levels, ahead, behind = merges
    text, at, filled = state[_TEXT], state[_AT], state[_FILLED]
    shorts, longs, used = state[_SHORTS], state[_LONGS], state[_KEPT]
    wide = len(data) - 16
    why = _DONE
    while text < len(texts) - 1:
        end = texts[text + 1]
        while at < end:
            size = np.int64(0)
            key, low, high = np.uint64(0), np.uint64(0), np.uint64(0)
            if at <= wide:
                low = load8(data, at)
                first = np.int64(low & np.uint64(0xFF))
                lead = leads[first]
                size = lowest(~(_letters(low) | lead) & np.uint64(_TOPS)) >> 3
                if size < 8:
                    shift = np.uint64(8 * size)
                    behind_it = low >> shift
                    key = low & ((np.uint64(1) << shift) - np.uint64(1)) | np.uint64(size) << np.uint64(56)
                else:
                    high = load8(data, at + 8)
                    more = lowest(~_letters(high) & np.uint64(_TOPS)) >> 3
                    size += more
                    shift = np.uint64(8 * more) & np.uint64(63)
                    behind_it = high >> shift
                    high = high & ((np.uint64(1) << shift) - np.uint64(1)) | np.uint64(size) << np.uint64(56)
                # a letter beyond ASCII may follow; a lead alone is another kind of piece; 16 and more are rare
                if behind_it & np.uint64(0x80) != 0 or size < 1 + (lead != 0) or size > 15 or at + size > end:
                    size = np.int64(0)
            if size == 0:
                size = piece_end(data, at, end, kinds, family, digits, split_han) - at
                if size <= _SHORT:
                    key = _short_key(data, at, size)
                else:
                    low, high = key_of(data, at, at + size)
            if size <= _SHORT:
                slot = _find(key, short)
                if short[slot, 0] != 0:
                    filled += _write(short[slot, 1], kept, ids, filled)
                    at += size
                    continue
                low, high = key_of(data, at, at + size)
                if 2 * shorts >= len(short):
                    why = _SHORT_FULL
                    break
            elif size <= LONGEST:
                place = slot_of(
                    low, high, home_of(low, high, slots), data, at, at + size, slots, pool, offsets
                )
                if slots[place, 2] != 0:
                    filled += _write(slots[place, 3], kept, ids, filled)
                    at += size
                    continue
                if longs + 1 == len(offsets) or offsets[longs] + size > len(pool):
                    why = _LONG_FULL
                    break
            if used + LONGEST > len(kept):
                why = _KEPT_FULL
                break
            home = home_of(low, high, whole_slots)
            found = slot_of(low, high, home, data, at, at + size, whole_slots, whole_pool, whole_offsets)
            if whole_slots[found, 2] != 0:
                ids[filled] = whole_ids[np.int64(whole_slots[found, 2]) - 1]
                n = np.int64(1)
            else:
                n = merge_piece(
                    data, at, at + size, byte_ids, byte_ranks, pairs, known, results, chars, levels, ahead, behind,
                    token, order, after, before, ids, filled,
                )  # fmt: skip
            if size <= _SHORT:
                short[slot, 0] = key
                short[slot, 1], used = _keep(n, ids, filled, kept, used)
                shorts += 1
            elif size <= LONGEST:
                slots[place, 0] = low
                slots[place, 1] = high
                slots[place, 3], used = _keep(n, ids, filled, kept, used)
                copy_bytes(pool, offsets[longs], data, at, size)
                longs += 1
                offsets[longs] = offsets[longs - 1] + size
                slots[place, 2] = np.uint64(longs)
            filled += n
            at += size
        if at < end:
            break
        text += 1
        bounds[text] = filled
    state[_TEXT], state[_AT], state[_FILLED] = text, at, filled
    state[_SHORTS], state[_LONGS], state[_KEPT] = shorts, longs, used
    return why
