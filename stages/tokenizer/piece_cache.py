"""Text to token ids in one pass: cutting, a table of pieces seen before, exact merging of the others.

Words follow Zipf, so nearly every piece of a text is in the table. A block of pieces is cut, their keys are made and
their slots asked for; then they are looked up, when what the tables have of them is on its way. A piece of up to 15
bytes is its own key; with its first three ids it fills half a cache line. What is longer, or has more ids, is in a
second table of whole lines. Pieces that fall apart (`segments`) are looked up in parts.

Tables grow to a limit; full ones are emptied, which costs time and changes nothing else. What has more than 31 bytes
or 7 ids hardly comes twice and never enters.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.memory import BORROWED, copy_bytes
from stages.text.vectors import load8, masks16
from stages.tokenizer.characters import BYTES, OFFSETS, classes
from stages.tokenizer.merging import MERGES, ROOM, Merges, merge_piece, working_memory
from stages.tokenizer.patterns import Pattern
from stages.tokenizer.pieces import PieceTable, free_slots, home_of, key_of, mix, prefetch, slot_of
from stages.tokenizer.pretokenize import ascii_size, leads, piece_end
from stages.tokenizer.segments import segment_end

#: Limits of what one thread keeps: entries of each of the two tables.
NARROW_LIMIT, WIDE_LIMIT = 1 << 18, 1 << 16

_FIRST = 1 << 12  # entries that a new table has room for
_BLOCK = 64  # pieces that are cut before they are looked up
_SHORT, _LONG = 15, 31  # bytes of a key in either table; its number of bytes is the top byte behind them
_FEW, _MANY = 3, 7  # ids of an entry; their number stands behind them

#: What to keep of the two words of a short key, by its bytes.
_LOW = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(16)], np.uint64)
_HIGH = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(16)], np.uint64)

_IDS = types.uint32[::1]
_SLOTS = types.uint64[:, ::1]
_TEXT, _AT, _STOP, _FILLED, _NARROW, _WIDE = range(6)  # where the kernel is, and entries of the tables
_DONE, _NARROW_FULL, _WIDE_FULL, _TOO_LONG = range(4)  # why it comes back


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
        self._leads = leads(pattern)
        self._ids = np.empty(0, np.uint32)
        self._narrow, self._wide = free_slots(_FIRST), free_slots(_FIRST, 8)
        self._state = np.zeros(6, np.int64)
        self._merging = working_memory(ROOM)
        self._block = (
            np.empty((_BLOCK, 2), np.uint64),
            np.empty(_BLOCK, np.uint64),
            np.empty(_BLOCK + 1, np.int64),
            np.empty(_BLOCK + 1, np.int64),
        )

    def encode(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, bounds)`: uint32 ids of all texts data[offsets[i]:offsets[i + 1]]; int64, where each text's ids begin."""
        size = int(offsets[-1] - offsets[0]) + _FEW + 1  # a token has at least one byte; entries are copied whole
        if len(self._ids) < size:
            self._ids = np.empty(size, np.uint32)
        bounds = np.zeros(len(offsets), np.int64)
        state, pattern, (whole, whole_ids) = self._state, self._pattern, self._whole
        state[[_TEXT, _AT, _STOP, _FILLED]] = 0, offsets[0], 0, 0
        while True:
            narrow, wide = self._narrow, self._wide
            why = _encode(
                data, offsets, state, classes(), self._leads, pattern.family, pattern.digits, pattern.split_han,
                narrow, narrow.view(np.uint32).reshape(-1), wide, wide.view(np.uint32).reshape(-1),
                whole.slots, whole.pool, whole.offsets, whole_ids, self._merges, self._ids, bounds,
                *self._merging, *self._block,
            )  # fmt: skip
            if why == _DONE:
                return self._ids[: state[_FILLED]].copy(), bounds
            self._make_room(why)

    def _make_room(self, why: int) -> None:
        """Doubles what is full; empties both tables when one of them is at its limit."""
        if why == _TOO_LONG:
            self._merging = working_memory(2 * self._merging[0].shape[1])
            return
        table, limit = (self._narrow, NARROW_LIMIT) if why == _NARROW_FULL else (self._wide, WIDE_LIMIT)
        if len(table) >= 2 * limit:
            self._narrow.fill(0)
            self._wide.fill(0)
            self._state[[_NARROW, _WIDE]] = 0
        elif why == _NARROW_FULL:
            self._narrow = free_slots(len(table))
            _move_narrow(table, self._narrow)
        else:
            self._wide = free_slots(len(table), 8)
            _move_wide(table, self._wide)


@njit(inline="always", **BORROWED)
def _word(data, at, size):  # type: ignore[no-untyped-def]
    """The first `size` bytes of up to eight at `at`, 0 where there are none."""
    word = np.uint64(0)
    if size >= 8 and at + 8 <= len(data):
        return load8(data, at)
    for i in range(min(size, 8)):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(inline="always", **BORROWED)
def _wide_key(data, at, size, part):  # type: ignore[no-untyped-def]
    """The four words of a key of up to 31 bytes."""
    last = _word(data, at + 24, size - 24) | np.uint64(size) << np.uint64(56) | part
    return _word(data, at, size), _word(data, at + 8, size - 8), _word(data, at + 16, size - 16), last


@njit(inline="always", **BORROWED)
def _wide_place(key, wide):  # type: ignore[no-untyped-def]
    """The slot of such a key, or the free one where it belongs."""
    a, b, c, d = key
    mask = np.uint64(len(wide) - 1)
    at = mix(a ^ mix(c, d), b) & mask
    while wide[at, 3] != 0 and (wide[at, 0] != a or wide[at, 1] != b or wide[at, 2] != c or wide[at, 3] != d):
        at = (at + np.uint64(1)) & mask
    return at


@njit(inline="always", **BORROWED)
def _keep_wide(key, n, ids, filled, wide, wide_ids):  # type: ignore[no-untyped-def]
    """Adds an entry of the n ids from ids[filled] on."""
    slot = _wide_place(key, wide)
    wide[slot, 0], wide[slot, 1], wide[slot, 2], wide[slot, 3] = key
    place = np.int64(slot << np.uint64(4)) + 8
    for k in range(n):
        wide_ids[place + k] = ids[filled + k]
    wide_ids[place + _MANY] = n


@njit(types.void(_SLOTS, _SLOTS), cache=True, nogil=True)
def _move_narrow(old, new):  # type: ignore[no-untyped-def]
    """Moves all entries to a larger table."""
    mask = np.uint64(len(new) - 1)
    for i in range(len(old)):
        if old[i, 1] != 0:
            at = mix(old[i, 0], old[i, 1]) & mask
            while new[at, 1] != 0:
                at = (at + np.uint64(1)) & mask
            new[at] = old[i]


@njit(types.void(_SLOTS, _SLOTS), cache=True, nogil=True)
def _move_wide(old, new):  # type: ignore[no-untyped-def]
    """The same."""
    for i in range(len(old)):
        if old[i, 3] != 0:
            new[_wide_place((old[i, 0], old[i, 1], old[i, 2], old[i, 3]), new)] = old[i]


@njit(**BORROWED)
def _look_further(  # type: ignore[no-untyped-def]
    data, at, end, part, low, high, slot, state, narrow, narrow_ids, wide, wide_ids,
    whole_slots, whole_pool, whole_offsets, whole_ids, merges, lists, heap, ids, filled,
):  # fmt: skip
    """Encodes what the narrow table has no ids of, and keeps them; how many ids, -1 - why if there is no room for them.

    part: what is not a whole piece, as the bit that tells its key from one that is. slot: the place in `narrow`.
    """
    size = end - at
    fits = size <= _LONG
    if fits and (size > _SHORT or narrow[slot, 1] != 0):
        found = _wide_place(_wide_key(data, at, size, part), wide)
        if wide[found, 3] != 0:
            place = np.int64(found << np.uint64(4)) + 8
            n = np.int64(wide_ids[place + _MANY])
            for k in range(n):
                ids[filled + k] = wide_ids[place + k]
            return n
    if 2 * state[_NARROW] >= len(narrow):
        return -1 - _NARROW_FULL
    if 2 * state[_WIDE] >= len(wide):
        return -1 - _WIDE_FULL
    if size > lists.shape[1]:
        return -1 - _TOO_LONG
    whole = whole_id(data, at, end, whole_slots, whole_pool, whole_offsets, whole_ids) if part == 0 else np.int64(-1)
    if whole >= 0:
        n = np.int64(1)
        ids[filled] = whole
    else:
        n = merge_piece(data, at, end, merges, lists, heap, ids, filled)
    if n > _MANY:
        return n
    if size <= _SHORT:
        narrow[slot, 0], narrow[slot, 1] = low, high
        place = np.int64(slot << np.uint64(3)) + 4
        for k in range(n if n <= _FEW else 0):
            narrow_ids[place + k] = ids[filled + k]
        narrow_ids[place + _FEW] = n if n <= _FEW else 0
        state[_NARROW] += 1
    if fits and (size > _SHORT or n > _FEW):
        _keep_wide(_wide_key(data, at, size, part), n, ids, filled, wide, wide_ids)
        state[_WIDE] += 1
    return n


@njit(inline="always", **BORROWED)
def whole_id(data, at, end, slots, pool, offsets, numbers):  # type: ignore[no-untyped-def]
    """The id of a piece that is one token whatever the merges say, else -1."""
    if len(numbers) == 0:
        return np.int64(-1)
    low, high = key_of(data, at, end)
    found = slot_of(low, high, home_of(low, high, slots), data, at, end, slots, pool, offsets)
    return np.int64(numbers[np.int64(slots[found, 2]) - 1]) if slots[found, 2] != 0 else np.int64(-1)


@njit(
    types.int64(
        BYTES, OFFSETS, types.int64[::1], BYTES, types.Array(types.uint64, 1, "C", readonly=True), types.int64,
        types.int64, types.boolean, _SLOTS, _IDS, _SLOTS, _IDS,
        _SLOTS, types.uint8[::1], types.int64[::1], types.int32[::1], MERGES, _IDS, types.int64[::1],
        types.int32[:, ::1], types.uint64[::1], _SLOTS, types.uint64[::1], types.int64[::1], types.int64[::1],
    ),
    **BORROWED,
)  # fmt: skip
def _encode(  # type: ignore[no-untyped-def]
    data, texts, state, kinds, leads, family, digits, split_han, narrow, narrow_ids, wide, wide_ids,
    whole_slots, whole_pool, whole_offsets, whole_ids, merges, ids, bounds, lists, heap, keys, slots, starts, stops,
):  # fmt: skip
    """Goes on from where `state` says until all is done or a table is full; why it stopped.

    One function, because what it keeps in registers is what makes it fast.
    """
    _ids, _ranks, _pairs, _known, _results, chars, levels, ahead, behind, joined = merges
    text, at, stop, filled = state[_TEXT], state[_AT], state[_STOP], state[_FILLED]
    part_bit = np.uint64(1 << 63) if len(whole_ids) > 0 else np.uint64(0)
    mask = np.uint64(len(narrow) - 1)
    last = len(data) - 16
    n = np.int64(0)
    while text < len(texts) - 1:
        end = texts[text + 1]
        while at < end:
            count = 0
            while count < _BLOCK and at < end:
                starts[count], stops[count] = at, stop
                part = at < stop
                size = np.int64(0)
                if at <= last and not part:
                    size = ascii_size(masks16(data, at), data, at, end, leads, family, digits)
                if size == 0:
                    if not part:
                        stop = piece_end(data, at, end, kinds, family, digits, split_han)
                    if part or whole_id(data, at, stop, whole_slots, whole_pool, whole_offsets, whole_ids) < 0:
                        size = segment_end(data, at, stop, part, joined, chars, levels, ahead, behind) - at
                        part |= at + size < stop
                    else:
                        size = stop - at
                low = high = np.uint64(0)
                if size <= _SHORT:
                    if at <= last:
                        low = load8(data, at) & _LOW[size]
                        high = load8(data, at + 8) & _HIGH[size]
                    else:
                        low, high = _word(data, at, size), _word(data, at + 8, size - 8)
                    high |= np.uint64(size) << np.uint64(56)
                    if part:
                        high |= part_bit
                slot = mix(low, high) & mask
                keys[count, 0], keys[count, 1], slots[count] = low, high, slot
                prefetch(narrow, np.int64(slot << np.uint64(2)))
                count += 1
                at += size
            starts[count], stops[count] = at, stop
            for i in range(count):
                low, high, slot = keys[i, 0], keys[i, 1], slots[i]
                while narrow[slot, 1] != 0 and (narrow[slot, 0] != low or narrow[slot, 1] != high):
                    slot = (slot + np.uint64(1)) & mask
                place = np.int64(slot << np.uint64(3)) + 4
                copy_bytes(ids, filled, narrow_ids, place, 16)
                n = np.int64(narrow_ids[place + _FEW])
                if n == 0:
                    part = starts[i] < stops[i] or starts[i + 1] < stops[i + 1]
                    n = _look_further(
                        data, starts[i], starts[i + 1], part_bit if part else np.uint64(0), low, high, slot, state,
                        narrow, narrow_ids, wide, wide_ids,
                        whole_slots, whole_pool, whole_offsets, whole_ids, merges, lists, heap, ids, filled,
                    )  # fmt: skip
                    if n < 0:
                        at, stop = starts[i], stops[i]
                        break
                filled += n
            if n < 0:
                break
        if n < 0:
            break
        text += 1
        bounds[text] = filled
    state[_TEXT], state[_AT], state[_STOP], state[_FILLED] = text, at, stop, filled
    return -1 - n if n < 0 else np.int64(_DONE)
