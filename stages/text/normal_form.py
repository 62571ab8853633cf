"""The normal form of a text, compiled: what `normalize` does to characters, but for the composition of NFC.

One pass over the bytes says which texts are not in the form; a second one rewrites those. Composing (NFC) is left to
`unicodedata`, for the few texts that hold a character which could compose: nothing here joins or parts with that.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable

import numpy as np
from numba import njit, types

from stages.text.kernels import BYTES, OFFSETS, TABLE, decode
from stages.text.memory import copy_bytes

#: What a character is to the form; UNSPACED ones are plain, but a ZERO WIDTH SPACE between two of them stays.
PLAIN, BREAK, JUNK, ZERO_WIDTH, SPACE, NO_BREAK, UNSPACED = range(7)
KIND = 0x0F
#: Flag: the character can compose with another, or has another canonical form.
COMPOSES = 0x10
#: What the first pass says of a text.
DIRTY, MAY_COMPOSE = 1, 2

_TABLE_END = 0x30000
_BREAKS = (0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0x2028, 0x2029)
_JUNK = (
    (0x00, 0x08), (0x0E, 0x1F), (0x7F, 0x84), (0x86, 0x9F), (0xAD, 0xAD), (0x2060, 0x2060), (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB), (0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF), (0x1FFFE, 0x1FFFF), (0x2FFFE, 0x2FFFF),
)  # fmt: skip
_SPACES = (0x20, 0x09, 0x1680, *range(0x2000, 0x2007), 0x2008, 0x2009, 0x200A, 0x205F, 0x3000)
_NO_BREAK_SPACES = (0xA0, 0x2007, 0x202F)
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1A20, 0x1AAF))

_JAMO_VOWELS, _JAMO_FINALS = range(0x1161, 0x1176), range(0x11A8, 0x11C3)


@functools.lru_cache(maxsize=1)
def character_kinds() -> np.ndarray:
    """uint8 [0x30000], read-only: kind and flag of each code point; above, only noncharacters are not plain."""
    kinds = np.zeros(_TABLE_END, np.uint8)
    kinds[list(_BREAKS)] = BREAK
    for first, last in _JUNK:
        kinds[first : last + 1] = JUNK
    kinds[0x200B] = ZERO_WIDTH
    kinds[list(_SPACES)] = SPACE
    kinds[list(_NO_BREAK_SPACES)] = NO_BREAK
    for first, last in _UNSPACED:
        kinds[first : last + 1] = UNSPACED
    kinds[list(composing())] |= COMPOSES
    kinds.setflags(write=False)
    return kinds


def composing() -> Iterable[int]:
    """The code points below 0x30000 without which every text is its own NFC (a few more than `NFC_Quick_Check` says)."""
    yield from _JAMO_VOWELS
    yield from _JAMO_FINALS
    for code in (*range(0x300, 0xAC00), *range(0xF900, 0x20000), *range(0x2F800, 0x2FA20)):
        character = chr(code)
        form = unicodedata.decomposition(character)
        if unicodedata.combining(character):
            yield code
        elif form and form[0] != "<":
            yield from (int(part, 16) for part in form.split()[1:])
            if unicodedata.normalize("NFC", character) != character:
                yield code


@njit(cache=True, nogil=True)
def _kind(kinds, code):
    """Kind and flag of a code point."""
    if code < _TABLE_END:
        return np.int64(kinds[code])
    return np.int64(JUNK if code & 0xFFFE == 0xFFFE else PLAIN)


@njit(types.void(BYTES, OFFSETS, TABLE, types.boolean, types.int64, types.uint8[::1]), cache=True, nogil=True)
def find_dirty(data, offsets, kinds, no_break, gap, found):
    """Fills found[N] with DIRTY for texts that are not in the form, and MAY_COMPOSE, where the text is clean so far.

    no_break  whether no-break spaces become plain ones
    gap       line feeds that may stand in a row
    """
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        flags = np.int64(0)
        wide_space = start  # behind the last space that is not ASCII; a line feed at the beginning is dirty in any case
        feeds, last_feed = 0, start - 1
        i = start
        while i < end and flags & DIRTY == 0:
            byte = data[i]
            if 0x20 <= byte < 0x7F or byte == 0x09:
                i += 1
            elif 0xE4 <= byte <= 0xE9 and i + 3 <= end:  # U+4000 to U+9FFF
                i += 3
            elif byte == 0x0A:
                feeds = feeds + 1 if last_feed == i - 1 else 1
                last_feed = i
                if i == start or feeds > gap or wide_space == i or data[i - 1] == 0x20 or data[i - 1] == 0x09:
                    flags |= DIRTY
                i += 1
            else:
                code, i = decode(data, i, end)
                kind = _kind(kinds, code)
                if kind & COMPOSES:
                    flags |= MAY_COMPOSE
                kind &= KIND
                if kind == SPACE or (kind == NO_BREAK and not no_break):
                    wide_space = i
                elif kind != PLAIN and kind != UNSPACED:
                    flags |= DIRTY
        if end > start:
            last = data[end - 1]
            if last == 0x0A or last == 0x20 or last == 0x09 or wide_space == end:
                flags |= DIRTY
        found[row] = flags


@njit(cache=True, nogil=True)
def _behind_zero_width(data, i, end, kinds):
    """`(index, whether an UNSPACED character stands there)` behind zero-width spaces and junk."""
    while i < end:
        code, after = decode(data, i, end)
        kind = _kind(kinds, code) & KIND
        if kind != ZERO_WIDTH and kind != JUNK:
            return i, kind == UNSPACED
        i = after
    return i, False


@njit(cache=True, nogil=True)
def _end_of_run(data, i, end):
    """Behind the characters from byte i on that are plain or a space for certain, without the spaces at their end."""
    start = i
    while i < end:
        byte = data[i]
        if 0x20 <= byte < 0x7F:
            i += 1
        elif 0xE4 <= byte <= 0xE9 and i + 3 <= end:  # U+4000 to U+9FFF
            i += 3
        else:
            break
    while i > start and data[i - 1] == 0x20:
        i -= 1
    return i


@njit(cache=True, nogil=True)
def _rewrite(data, i, end, kinds, no_break, gap, out, at):
    """Writes the form of data[i:end] to out[at:]; `(index behind it, whether a character may compose)`.

    solid   index behind the last character that is not a space or line feed: where a line is cut
    feeds   line feeds since then; they are written in front of the next character that comes
    """
    begin = solid = at
    feeds = 0
    fresh = composes = unspaced = False
    while i < end:
        after = i
        while after < end and data[after] == 0x20:
            after += 1
        run = _end_of_run(data, i, end) if after == i else i
        if after > i:
            kind = np.int64(SPACE)
        elif run > i:
            kind, after = np.int64(PLAIN), run
        else:
            code, after = decode(data, i, end)
            kind = _kind(kinds, code)
            composes = composes or kind & COMPOSES != 0
            kind &= KIND
            if kind == BREAK:
                i = after + 1 if code == 0x0D and after < end and data[after] == 0x0A else after
                at = solid
                feeds += 1
                fresh, unspaced = True, False
                continue
            if kind == JUNK:
                i = after
                continue
            if kind == ZERO_WIDTH:
                after, follows = _behind_zero_width(data, after, end, kinds)
                if not (unspaced and follows):
                    i, unspaced = after, False
                    continue
        if fresh:
            fresh = False
            if solid > begin:
                for _ in range(min(feeds, gap)):
                    out[at] = 0x0A
                    at += 1
        if kind == NO_BREAK and no_break:
            out[at] = 0x20
            at += 1
        else:  # of zero-width spaces in a row the first one
            size = 3 if kind == ZERO_WIDTH else after - i
            copy_bytes(out, at, data, i, size)
            at += size
        i = after
        unspaced = kind == UNSPACED
        if kind != SPACE and kind != NO_BREAK:
            solid, feeds = at, 0
    return solid, composes


@njit(
    types.int64(BYTES, OFFSETS, TABLE, types.boolean, types.int64, types.uint8[::1], types.uint8[::1], types.int64[::1]),
    cache=True, nogil=True,
)  # fmt: skip
def write_forms(data, offsets, kinds, no_break, gap, found, out, out_offsets):
    """Writes every text to `out`, those that `found` calls DIRTY in the form; out_offsets[1:] are their ends.

    Sets MAY_COMPOSE for these too. No form is longer than its text. Returns the number of bytes written.
    """
    at = 0
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        if found[row] & DIRTY:
            at, composes = _rewrite(data, start, end, kinds, no_break, gap, out, at)
            found[row] = DIRTY | MAY_COMPOSE if composes else DIRTY
        else:
            copy_bytes(out, at, data, start, end - start)
            at += end - start
        out_offsets[row + 1] = at
    return at
