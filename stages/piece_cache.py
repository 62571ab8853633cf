"""Pieces to token ids: a bounded table of those seen before, exact merging of the others.

Words follow Zipf, so nearly every piece of a text is in the table. A full table is emptied, which costs time and changes
nothing else; pieces of more than `LONGEST` bytes hardly come twice and never enter it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numba import njit, types

from stages.merging import MERGES, ROOM, Merges, merge_piece
from stages.pieces import BLOCK, PieceTable, home_of, key_of, prefetch, slot_of
from stages.text.memory import copy_bytes

CACHE_PIECES = 1 << 18
CACHE_BYTES = 8 << 20
#: Longest piece that is kept, bytes.
LONGEST = 64

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_IDS = types.uint32[::1]
_SLOTS = types.uint64[:, ::1]
_NUMBERS = types.Array(types.int32, 1, "C", readonly=True)

#: The value of a slot: number of ids << 40, then the id if there is one, else where they stand in the list of ids.
_SHIFT = 40


class PieceCache:
    """The table of one thread.

    merges  how a piece is encoded
    whole   pieces that are one token whatever the merges say, with their ids; None if there are none
    """

    def __init__(self, merges: Merges, whole: tuple[PieceTable, np.ndarray] | None) -> None:
        self.table = PieceTable(CACHE_PIECES, CACHE_BYTES)
        self._ids = np.empty(CACHE_BYTES, np.uint32)
        self._merges = merges
        self._whole = whole or (PieceTable(1, 1), np.empty(0, np.int32))

    def encode(
        self, chunks: Iterable[tuple[int, np.ndarray]], data: np.ndarray, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, bounds)`: uint32 ids of all texts data[offsets[i]:offsets[i + 1]]; int64, where each text's ids begin.

        chunks: the pieces of these texts, as `pretokenize.pieces` gives them.
        """
        ids = np.empty(int(offsets[-1] - offsets[0]), np.uint32)  # a token has at least one byte
        bounds = np.zeros(len(offsets), np.int64)
        table, merges, (whole, whole_ids) = self.table, self._merges, self._whole
        filled, text = 0, 0
        for start, ends in chunks:
            done = 0
            while done < len(ends):
                first = start if done == 0 else int(ends[done - 1])
                more, table.count, filled, text = _encode(
                    data, first, ends[done:], offsets, text, bounds, ids, filled,
                    table.slots, table.pool, table.offsets, table.count, self._ids,
                    whole.slots, whole.pool, whole.offsets, whole_ids,
                    merges,
                )  # fmt: skip
                done += more
                if done < len(ends):
                    table.clear()
        bounds[text + 1 :] = filled
        return ids[:filled].copy(), bounds


@njit(
    types.UniTuple(types.int64, 4)(
        _BYTES, types.int64, types.int64[::1], _PLACES, types.int64, types.int64[::1], _IDS, types.int64,
        _SLOTS, types.uint8[::1], types.int64[::1], types.int64, _IDS,
        _SLOTS, types.uint8[::1], types.int64[::1], _NUMBERS,
        MERGES,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _encode(  # type: ignore[no-untyped-def]
    data, start, ends, texts, text, bounds, ids, filled,
    slots, pool, offsets, count, kept,
    whole_slots, whole_pool, whole_offsets, whole_ids,
    merges,
):  # fmt: skip
    """Encodes pieces until the table is full; `(pieces done, entries now, ids so far, open text)`."""
    keys = np.empty((BLOCK, 2), np.uint64)
    homes = np.empty(BLOCK, np.int64)
    token, order = np.empty(ROOM, np.int32), np.empty(ROOM, np.int32)
    after, before = np.empty(ROOM, np.int32), np.empty(ROOM, np.int32)
    byte_ids, byte_ranks, pairs, known, results, chars, levels, ahead, behind = merges
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
            while texts[text + 1] < end:  # a text that ended before this piece
                text += 1
                bounds[text] = filled
            low, high = keys[i, 0], keys[i, 1]
            at = slot_of(low, high, homes[i], data, start, end, slots, pool, offsets)
            if slots[at, 2] != 0:
                value = slots[at, 3]
                n = np.int64(value >> np.uint64(_SHIFT))
                if n == 1:
                    ids[filled] = np.uint32(value)
                else:
                    place = np.int64(value & np.uint64((1 << _SHIFT) - 1))
                    for k in range(n):
                        ids[filled + k] = kept[place + k]
                filled += n
                start = end
                continue
            size = end - start
            place = offsets[count]
            if size <= LONGEST and (count + 1 == len(offsets) or place + size > len(pool)):
                return first + i, count, filled, text
            found = slot_of(
                low,
                high,
                home_of(low, high, whole_slots),
                data,
                start,
                end,
                whole_slots,
                whole_pool,
                whole_offsets,
            )
            if whole_slots[found, 2] != 0:
                ids[filled] = whole_ids[np.int64(whole_slots[found, 2]) - 1]
                n = np.int64(1)
            else:
                n = merge_piece(
                    data, start, end, byte_ids, byte_ranks, pairs, known, results, chars, levels, ahead, behind,
                    token, order, after, before, ids, filled,
                )  # fmt: skip
            if size <= LONGEST:
                copy_bytes(pool, place, data, start, size)
                for k in range(n):
                    kept[place + k] = ids[filled + k]
                count += 1
                offsets[count] = place + size
                slots[at, 0] = low
                slots[at, 1] = high
                slots[at, 2] = np.uint64(count)
                slots[at, 3] = np.uint64(n) << np.uint64(_SHIFT) | np.uint64(ids[filled] if n == 1 else place)
            filled += n
            start = end
    return len(ends), count, filled, text
