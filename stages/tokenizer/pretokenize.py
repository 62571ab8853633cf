"""Cuts text into the pieces inside which BPE merges, exactly as the regex in tokenizer.json would.

A pattern is a family of alternatives tried in order at each place, and the class of a character decides which of them
matches, so no search is needed. Buffers are Arrow's: `data` is UTF-8, text i is data[offsets[i]:offsets[i + 1]].

Most pieces are ASCII and shorter than sixteen bytes: `ascii_end` finds their ends in masks, sixteen bytes at a time.
The functions before it go character by character, and are the definition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit, types

from stages.text.memory import BORROWED
from stages.text.vectors import highest, lowest, masks16
from stages.tokenizer.characters import (
    BYTES,
    CAPITAL,
    HAN,
    LETTER,
    MARK,
    NUMBER,
    OFFSETS,
    SIGN,
    SMALL,
    SPACE,
    character,
    classes,
)
from stages.tokenizer.patterns import DEEPSEEK, GPT2, GPT4, O200K, Pattern

#: Pieces per kernel call: boundaries and indices of so many stay in the second-level cache.
CHUNK = 16_384

_LEADS = types.Array(types.uint64, 1, "C", readonly=True)


def pieces(pattern: Pattern, data: np.ndarray, offsets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields `(start, ends)`: byte positions in `data` where the first piece begins and where each piece ends.

    ends is int64, at most CHUNK of them, ascending, and is overwritten by the next step. Pieces follow each other
    without gaps from offsets[0] to offsets[-1] and never cross the border of a text.
    """
    table, before = classes(), leads(pattern)
    ends = np.empty(CHUNK, np.int64)
    position, text = int(offsets[0]), 0
    while position < offsets[-1]:
        count, text, end = _split(
            data, offsets, text, position, table, before, pattern.family, pattern.digits, pattern.split_han, ends
        )
        yield position, ends[:count]
        position = end


def cut_long(data: np.ndarray, start: int, ends: np.ndarray, limit: int) -> tuple[np.ndarray, int]:
    """`(ends, cut)`: the same pieces with those of more than `limit` code points cut every `limit`; how many were.

    For counting only: it bounds the work on text without spaces, and is not part of how text is encoded.
    """
    room = len(ends) + (int(ends[-1]) - start) // limit + 1
    result = np.empty(room, np.int64)
    count, cut = _cut(data, start, ends, limit, result)
    return result[:count], cut


def leads(pattern: Pattern) -> np.ndarray:
    """uint64 by byte, for `ascii_end`: 1 for ASCII that may stand before the letters of a piece, else 0."""
    found = np.zeros(256, np.uint64)
    if pattern.family == GPT2:
        found[32] = 1
        return found
    found[:128][classes()[:128] & (LETTER | NUMBER) == 0] = 1
    found[[10, 13]] = 0
    if pattern.family == GPT4:
        found[39] = 0  # an apostrophe may begin a contraction
    return found


@njit(inline="always", **BORROWED)
def _run(data, at, end, table, mask, wanted):  # type: ignore[no-untyped-def]
    """Where the run of characters with `class & mask == wanted` that begins at `at` ends."""
    while at < end:
        code, width = character(data, at, end)
        if table[code] & mask != wanted:
            break
        at += width
    return at


@njit(**BORROWED)
def _contraction(data, at, end, any_case):  # type: ignore[no-untyped-def]
    """Bytes of 's 't 're 've 'm 'll 'd at `at` (an apostrophe), or 0. Without regard to case, U+017F is an s."""
    if at + 1 >= end:
        return 0
    fold = np.uint8(0x20) if any_case else np.uint8(0)
    a = data[at + 1]
    a = a | fold if a < 0x80 else a
    if a == 115 or a == 116 or a == 109 or a == 100:  # s t m d
        return 2
    if any_case and a == 0xC5 and at + 2 < end and data[at + 2] == 0xBF:
        return 3
    if at + 2 >= end:
        return 0
    b = data[at + 2]
    b = b | fold if b < 0x80 else b
    if (b == 101 and (a == 114 or a == 118)) or (a == 108 and b == 108):  # re ve ll
        return 3
    return 0


@njit(**BORROWED)
def _space_end(data, at, end, table, breaks):  # type: ignore[no-untyped-def]
    r"""End of the piece of white space at `at`: `\s*[\r\n]+` (if `breaks`), else `\s+(?!\S)`, else `\s+`."""
    first, after_break, last = at, at, at
    while at < end:
        code, width = character(data, at, end)
        if table[code] & SPACE == 0:
            break
        last = at
        at += width
        if code == 10 or code == 13:
            after_break = at
    if breaks and after_break > first:
        return after_break
    return last if at < end and last > first else at


@njit(inline="always", **BORROWED)
def _digits_end(data, at, end, table, digits):  # type: ignore[no-untyped-def]
    """Where the first `digits` characters of the run of numbers at `at` end."""
    for _ in range(digits):
        if at >= end:
            break
        code, width = character(data, at, end)
        if table[code] & NUMBER == 0:
            break
        at += width
    return at


@njit(inline="always", **BORROWED)
def _gpt2_end(data, at, end, table):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the gpt2 pattern."""
    if data[at] == 39:
        width = _contraction(data, at, end, False)
        if width > 0:
            return at + width
    body = at + 1 if data[at] == 32 and at + 1 < end else at
    code, width = character(data, body, end)
    kind = table[code] & (LETTER | NUMBER | SPACE)
    if kind & SPACE:
        return _space_end(data, at, end, table, False)
    return _run(data, body + width, end, table, LETTER | NUMBER | SPACE, kind)


@njit(inline="always", **BORROWED)
def _gpt4_end(data, at, end, table, digits, split_han):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the gpt4 family."""
    first = data[at]
    if first == 39:
        width = _contraction(data, at, end, True)
        if width > 0:
            return at + width
    code, width = character(data, at, end)
    kind = table[code]
    letter = np.uint8(LETTER | HAN) if split_han else np.uint8(LETTER)
    if split_han and kind & HAN:
        return _run(data, at + width, end, table, HAN, HAN)
    if kind & letter == LETTER:
        return _run(data, at + width, end, table, letter, LETTER)
    if kind & NUMBER:
        return _digits_end(data, at, end, table, digits)
    body = at + width
    if body < end and kind & LETTER == 0 and first != 10 and first != 13:
        code, width = character(data, body, end)
        following = table[code]
        if following & letter == LETTER:
            return _run(data, body + width, end, table, letter, LETTER)
        if first == 32 and following & (LETTER | NUMBER | SPACE) == 0:
            kind = following
    if kind & SPACE:
        return _space_end(data, at, end, table, True)
    at = _run(data, body, end, table, LETTER | NUMBER | SPACE, 0)
    while at < end and (data[at] == 10 or data[at] == 13):
        at += 1
    return at


@njit(inline="always", **BORROWED)
def _word_end(data, at, end, table):  # type: ignore[no-untyped-def]
    """End of the word of o200k at `at`, contraction included, or `at` where no word begins.

    Its two alternatives are `before? capitals* small+` and `before? capitals+ small*`, where letters without case and
    marks are both. A run of capitals that no small letter follows gives back all behind its last one that is both.
    """
    code, width = character(data, at, end)
    kind = table[code]
    start = at + width if kind & (LETTER | NUMBER) == 0 and code != 10 and code != 13 else at
    stop, both = start, at
    following = np.uint8(0)
    while stop < end:
        code, width = character(data, stop, end)
        following = table[code]
        if following & (LETTER | MARK) == 0 or following & SMALL:
            break
        stop += width
        if following & CAPITAL == 0:
            both = stop
    if stop < end and following & SMALL:
        while stop < end:
            code, width = character(data, stop, end)
            if table[code] & (LETTER | MARK) == 0 or table[code] & CAPITAL:
                break
            stop += width
    elif both > at:
        stop = both
    elif stop == start or kind & MARK:
        stop = start if kind & MARK else at
    if stop > at and stop < end and data[stop] == 39:
        stop += _contraction(data, stop, end, True)
    return stop


@njit(inline="always", **BORROWED)
def _o200k_end(data, at, end, table, digits):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the o200k pattern."""
    stop = _word_end(data, at, end, table)
    if stop > at:
        return stop
    code, _ = character(data, at, end)
    kind = table[code]
    if kind & NUMBER:
        return _digits_end(data, at, end, table, digits)
    if data[at] == 32 and at + 1 < end:
        code, _width = character(data, at + 1, end)
        following = table[code]
        if following & (LETTER | NUMBER | SPACE) == 0:
            kind = following
            at += 1
    if kind & SPACE:
        return _space_end(data, at, end, table, True)
    at = _run(data, at, end, table, LETTER | NUMBER | SPACE, 0)
    while at < end and (data[at] == 10 or data[at] == 13 or data[at] == 47):
        at += 1
    return at


@njit(inline="always", **BORROWED)
def _apart(code, kind):  # type: ignore[no-untyped-def]
    """Whether the first two deepseek patterns take the character, so that the third never sees it or past it."""
    return kind & NUMBER != 0 or (0x4E00 <= code <= 0x9FA5) or (0x3040 <= code <= 0x30FF)


@njit(inline="always", **BORROWED)
def _run_left(data, at, end, table, wanted):  # type: ignore[no-untyped-def]
    """Where the run of characters of a class in `wanted`, none of them apart, that begins at `at` ends."""
    while at < end:
        code, width = character(data, at, end)
        if table[code] & wanted == 0 or _apart(code, table[code]):
            break
        at += width
    return at


@njit(**BORROWED)
def _matches_nothing(data, at, end, table):  # type: ignore[no-untyped-def]
    """Width of the character at `at` if no deepseek pattern matches there, else 0: a sign of no class before no letter."""
    code, width = character(data, at, end)
    kind = table[code]
    if kind & (LETTER | MARK | SIGN | SPACE) or _apart(code, kind):
        return 0
    return 0 if _run_left(data, at + width, min(at + width + 4, end), table, LETTER | MARK) > at + width else width


@njit(**BORROWED)
def _deepseek_end(data, at, end, table):  # type: ignore[no-untyped-def]
    """End of the piece that begins at `at` under the deepseek patterns."""
    code, width = character(data, at, end)
    kind, body = table[code], at + width
    if kind & NUMBER:
        for _ in range(2):
            if body < end:
                code, width = character(data, body, end)
                body += width if table[code] & NUMBER else 0
        return body
    if _apart(code, kind):
        while body < end:
            code, width = character(data, body, end)
            if not _apart(code, table[code]) or table[code] & NUMBER:
                break
            body += width
        return body
    if kind & SIGN and code < 0x80 and body < end and 97 <= (data[body] | 0x20) <= 122:
        while body < end and data[body] < 0x80 and 97 <= (data[body] | 0x20) <= 122:
            body += 1
        return body
    if kind & LETTER or (kind & SIGN == 0 and code != 10 and code != 13):
        stop = _run_left(data, body, end, table, LETTER | MARK)
        if stop > body or kind & (LETTER | MARK):
            return stop
    signs = _run_left(data, body, end, table, SIGN) if kind & SIGN or code == 32 else body
    if kind & SIGN or signs > body:
        while signs < end and (data[signs] == 10 or data[signs] == 13):
            signs += 1
        return signs
    if kind & SPACE:
        stop = _run(data, at, end, table, SPACE, SPACE)
        if stop < end:
            code, width = character(data, stop, end)
            if _apart(code, table[code]):
                end = stop  # the third pattern sees the end of what is left there
        return _space_end(data, at, end, table, True)
    while body < end:
        width = _matches_nothing(data, body, end, table)
        if width == 0:
            break
        body += width
    return body


@njit(**BORROWED)
def piece_end(data, at, end, table, family, digits, split_han):  # type: ignore[no-untyped-def]
    """Where the piece that begins at `at` in a text that ends at `end` is over. table: `classes()`; the rest: `Pattern`."""
    if family == GPT2:
        return _gpt2_end(data, at, end, table)
    if family == O200K:
        return _o200k_end(data, at, end, table, digits)
    if family == DEEPSEEK:
        return _deepseek_end(data, at, end, table)
    return _gpt4_end(data, at, end, table, digits, split_han)


@njit(inline="always", **BORROWED)
def _ascii_rest(letters, numbers, spaces, breaks, high, data, at, room, family, digits):  # type: ignore[no-untyped-def]
    """`ascii_size` where no word begins; the masks end with the text, which has `room` bytes of them."""
    one = np.uint64(1)
    first = data[at]
    if first == 39 and family != O200K and (letters | high) & np.uint64(2):
        return np.int64(0)  # perhaps a contraction
    blank = np.uint64(first == 32)
    if numbers >> (blank if family == GPT2 else np.uint64(0)) & one:
        if family == GPT2:
            size = np.int64(blank) + lowest(~(numbers >> blank))
        else:
            size = min(lowest(~numbers), digits)
        return np.int64(0) if size >= 16 or high >> np.uint64(size) & one else size
    signs = ((one << np.uint64(room)) - one) & ~(letters | numbers | spaces | high)
    if signs >> blank & one:
        size = np.int64(blank) + lowest(~(signs >> blank))
        if size >= 16 or high >> np.uint64(size) & one:
            return np.int64(0)
        if family != GPT2:
            size += lowest(~(breaks >> np.uint64(size)))
            if size >= 16 or (family == O200K and size < room and data[at + size] == 47):
                return np.int64(0)
        return size
    if spaces & one == 0:
        return np.int64(0)
    size = lowest(~spaces)
    if size >= 16 or high >> np.uint64(size) & one:
        return np.int64(0)
    last_break = highest(breaks & ((one << np.uint64(size)) - one))
    if family != GPT2 and last_break >= 0:
        return last_break + 1
    return size if size == room or size == 1 else size - 1


@njit(inline="always", **BORROWED)
def ascii_size(masks, data, at, end, leads, family, digits):  # type: ignore[no-untyped-def]
    """Bytes of the piece that begins at `at`, 0 where sixteen bytes of ASCII do not tell.

    masks: `masks16` of the bytes at `at`; leads: `leads()` of the pattern.
    """
    letters, capitals, numbers, spaces, breaks, high = masks
    room = min(end - at, np.int64(16))
    inside = np.uint64(0xFFFF) >> np.uint64(16 - room)
    letters, high = letters & inside, high & inside
    lead = leads[data[at]]
    if family == O200K:
        capitals &= inside
        size = np.int64(lead) + lowest(~(capitals >> lead))
        size += lowest(~((letters & ~capitals) >> np.uint64(size)))
    else:
        size = lowest(~(letters | lead))
    if size > np.int64(lead):
        known = size < 16 and high >> np.uint64(size) & np.uint64(1) == 0
        if family == O200K:
            known = known and (size == room or data[at + size] != 39)
        return size if known else np.int64(0)
    if family == DEEPSEEK:
        return np.int64(0)
    return _ascii_rest(
        letters, numbers & inside, spaces & inside, breaks & inside, high, data, at, room, family, digits
    )


@njit(
    types.UniTuple(types.int64, 3)(
        BYTES,
        OFFSETS,
        types.int64,
        types.int64,
        BYTES,
        _LEADS,
        types.int64,
        types.int64,
        types.boolean,
        types.int64[::1],
    ),
    **BORROWED,
)
def _split(data, offsets, text, at, table, leads, family, digits, split_han, ends):  # type: ignore[no-untyped-def]
    """Fills `ends` from position `at` of text number `text` on; `(filled, text, position)` where it stopped."""
    count = 0
    texts = len(offsets) - 1
    wide = len(data) - 16
    while text < texts:
        end = offsets[text + 1]
        while at < end:
            if count == len(ends):
                return count, text, at
            size = np.int64(0)
            if at <= wide:
                size = ascii_size(masks16(data, at), data, at, end, leads, family, digits)
            at = at + size if size else piece_end(data, at, end, table, family, digits, split_han)
            ends[count] = at
            count += 1
        text += 1
    return count, text, at


@njit(
    types.UniTuple(types.int64, 2)(BYTES, types.int64, OFFSETS, types.int64, types.int64[::1]),
    **BORROWED,
)
def _cut(data, start, ends, limit, result):  # type: ignore[no-untyped-def]
    """Fills `result`; `(filled, pieces that were cut)`."""
    count = 0
    cut = 0
    for i in range(len(ends)):
        end = ends[i]
        if end - start > limit:
            characters = 0
            was_cut = False
            for at in range(start, end):
                if data[at] & 0xC0 != 0x80:
                    if characters == limit:
                        result[count] = at
                        count += 1
                        characters = 0
                        was_cut = True
                    characters += 1
            cut += was_cut
        result[count] = end
        count += 1
        start = end
    return count, cut
