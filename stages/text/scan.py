"""The hashes of the words of a text, at the speed of a few bytes per nanosecond where it is ASCII.

What a word is says `kernels.next_token`; this scanner finds the same words (a test compares them) without looking at
each character alone: 64 bytes become bit masks, words are runs of bits, and 8 bytes at a time go into a hash.

The hash of a word is that of its folded UTF-8: lower case, U+2019 as an apostrophe, without ignored characters. Its
bytes are taken as little-endian u64 blocks, the last one filled up with zeros, which no word holds:

    state = seed;  for each block:  state = (state ^ block) * step,  state ^= state >> 29;  hash = mix(state)

Each step is a bijection, so different words of up to 8 bytes never have the same hash.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.kernels import (
    ALPHA,
    BYTES,
    CASED,
    CLASS,
    CLUSTER,
    FOLD,
    IGNORE,
    JOIN,
    LEAD,
    MARK,
    OFFSETS,
    TABLE,
    UNIT,
    WORD,
    decode,
    mix,
)
from stages.text.vectors import OVERREAD, load8, lowest, masks

_SEED = np.uint64(0x243F6A8885A308D3)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_CASE = np.uint64(
    0x2020202020202020
)  # lower case of letters; digits, apostrophe, comma and stop have the bit already
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_1, _8, _29, _64 = np.uint64(1), np.uint64(8), np.uint64(29), np.uint64(64)


@njit(inline="always")
def _absorb(state, block):
    state = (state ^ block) * _STEP
    return state ^ (state >> _29)


@njit(inline="always")
def _ascii_hash(data, start, stop):
    """Hash of a word of ASCII characters; 8 bytes behind its last one must be readable."""
    state = _SEED
    while stop - start > 8:
        state = _absorb(state, load8(data, start) | _CASE)
        start += 8
    block = (load8(data, start) | _CASE) & (_ONES >> (_64 - _8 * np.uint64(stop - start)))
    return mix(_absorb(state, block))


@njit(inline="always")
def _push(state, block, filled, code):
    """`(state, block, filled)` with the UTF-8 of one more character; `filled` bits of the block are taken."""
    code = np.uint64(code)
    low = np.uint64(0x3F)
    if code < np.uint64(0x80):
        content, bits = code, _8
    elif code < np.uint64(0x800):
        content, bits = np.uint64(0x80C0) | code >> np.uint64(6) | (code & low) << _8, np.uint64(16)
    elif code < np.uint64(0x10000):
        content = np.uint64(0x8080E0) | code >> np.uint64(12) | (code >> np.uint64(6) & low) << _8
        content, bits = content | (code & low) << np.uint64(16), np.uint64(24)
    else:
        content = np.uint64(0x808080F0) | code >> np.uint64(18) | (code >> np.uint64(12) & low) << _8
        content |= (code >> np.uint64(6) & low) << np.uint64(16)
        content, bits = content | (code & low) << np.uint64(24), np.uint64(32)
    block |= content << filled
    if filled + bits < _64:
        return state, block, filled + bits
    state = _absorb(state, block)
    over = filled + bits - _64
    return state, content >> (bits - over) if over else np.uint64(0), over


@njit(inline="always")
def _close(state, block, filled):
    return mix(_absorb(state, block) if filled else state)


@njit(cache=True, nogil=True)
def _word(data, i, end, classes, lower):
    """`(hash, stop)` of the word that begins at byte i, whatever characters it has."""
    state, block, filled = _SEED, np.uint64(0), np.uint64(0)
    digit = False
    while i < end:
        code, after = decode(data, i, end)
        value = np.int64(classes[code])
        kind = value & CLASS
        if kind in (WORD, MARK, IGNORE):
            digit = kind == WORD and value & ALPHA == 0
        else:
            letter = code == 0x27 or code == 0x2019
            if not (after < end and (letter or (digit and (code == 0x2C or code == 0x2E)))):
                break
            following, _ = decode(data, after, end)
            value = np.int64(classes[following])
            if value & CLASS != WORD or (value & ALPHA != 0) != letter:
                break
            code = np.int64(0x27) if letter else code
        i = after
        if kind != IGNORE:
            if code < CASED:
                code = np.int64(lower[code])
            state, block, filled = _push(state, block, filled, code)
    return _close(state, block, filled), i


@njit(cache=True, nogil=True)
def _unit(data, i, end, classes, lower):
    """`(hash, stop)` of the unit that begins at byte i: `kernels._end_of_unit` says how far it goes."""
    state, block, filled = _SEED, np.uint64(0), np.uint64(0)
    code, after = decode(data, i, end)
    kind = np.int64(classes[code]) & CLASS
    joining = kind == LEAD
    while True:
        i = after
        if kind != IGNORE:
            if code < CASED:
                code = np.int64(lower[code])
            state, block, filled = _push(state, block, filled, code)
        if i >= end:
            break
        code, after = decode(data, i, end)
        kind = np.int64(classes[code]) & CLASS
        if kind == JOIN:
            joining = True
        elif kind == CLUSTER and joining:
            joining = False
        elif kind != MARK and kind != IGNORE:
            break
    return _close(state, block, filled), i


@njit(inline="always")
def _three(lead, middle, last):
    """The code point of three bytes of UTF-8."""
    return (np.int64(lead) & 0x0F) << 12 | (np.int64(middle) & 0x3F) << 6 | (np.int64(last) & 0x3F)


@njit(inline="always")
def _apart(data, i, end, classes):
    """Whether the character at byte i, which is not ASCII, begins something new."""
    if data[i] & 0xF0 == 0xE0 and i + 2 < end:
        code = _three(data[i], data[i + 1], data[i + 2])
    else:
        code, _ = decode(data, i, end)
    return np.int64(classes[code]) & CLASS < JOIN


@njit(cache=True, nogil=True)
def _beyond_ascii(data, i, end, classes, lower, hashes, at):
    """Words from byte i on, up to the first that begins with an ASCII byte; `(i, at)` behind them."""
    while i < end and data[i] >= 0x80:
        lead = data[i]
        if lead & 0xF0 == 0xE0 and i + 2 < end:
            middle, last, after = data[i + 1], data[i + 2], i + 3
            code = _three(lead, middle, last)
            kind = np.int64(classes[code]) & CLASS
            # A unit stands alone before ASCII, and before U+4000 to U+9FFF: neither goes on with it.
            if kind == UNIT and (after >= end or data[after] < 0x80 or 0xE4 <= data[after] <= 0xE9 or _apart(data, after, end, classes)):
                block = np.uint64(lead) | np.uint64(middle) << _8 | np.uint64(last) << np.uint64(16)
                hashes[at] = mix(_absorb(_SEED, block))
                at += 1
                i = after
                continue
        else:
            code, after = decode(data, i, end)
            kind = np.int64(classes[code]) & CLASS
        if kind == WORD:
            hashes[at], i = _word(data, i, end, classes, lower)
            at += 1
        elif kind in (UNIT, CLUSTER, LEAD):
            hashes[at], i = _unit(data, i, end, classes, lower)
            at += 1
        else:
            i = after
    return i, at


@njit(cache=True, nogil=True)
def _blocks(data, i, end, classes, lower, hashes, at):
    """Words from byte i on, as long as whole blocks can be read; `(i, at)` behind them.

    A block begins outside of a word, or where one begins. So all its words but one that touches its end, or the
    first byte beyond ASCII, are known from its masks alone.
    """
    while i < end and i + OVERREAD <= len(data):
        letters, digits, apostrophes, points, high = masks(data, i)
        if end - i < 64:
            inside = (_1 << np.uint64(end - i)) - _1
            letters, digits, high = letters & inside, digits & inside, high & inside
        word = letters | digits
        joins = apostrophes & (word << _1) & (letters >> _1) | points & (digits << _1) & (digits >> _1)
        word |= joins
        known = lowest(high)
        starts = word & ~(word << _1)
        if known < 64:
            starts &= (_1 << np.uint64(known)) - _1
        going_on = np.int64(-1)
        while starts:
            start = lowest(starts)
            stop = start + lowest(~(word >> np.uint64(start)))
            if stop >= known or (stop + 1 == known and (apostrophes | points) >> np.uint64(stop) & _1):
                going_on = start
                break
            hashes[at] = _ascii_hash(data, i + start, i + stop)
            at += 1
            starts &= starts - _1
        if going_on > 0 and known == 64:
            i += going_on
        elif going_on >= 0:
            hashes[at], i = _word(data, i + going_on, end, classes, lower)
            at += 1
        elif known == 64:
            i += 64
        else:
            i, at = _beyond_ascii(data, i + known, end, classes, lower, hashes, at)
    return i, at


@njit(types.int64(BYTES, types.int64, types.int64, TABLE, FOLD, types.uint64[::1]), cache=True, nogil=True)
def scan_words(data, start, end, classes, lower, hashes):
    """Fills `hashes` with those of the words of data[start:end]; returns how many there are.

    There must be room for (end - start + 1) // 2: words of one byte have another byte between them.
    """
    i, at = _blocks(data, start, end, classes, lower, hashes, np.int64(0))
    if i < end:  # fewer than OVERREAD bytes are left, and nothing may be read behind them
        tail = np.zeros(2 * OVERREAD, np.uint8)
        tail[: end - i] = data[i:end]
        _, at = _blocks(tail, np.int64(0), end - i, classes, lower, hashes, at)
    return at


@njit(types.int64(BYTES, OFFSETS, TABLE, FOLD, types.uint64[::1], types.int64[::1]), cache=True, nogil=True)
def hash_words(data, offsets, classes, lower, hashes, word_offsets):
    """The same, text after text; where each one ends in word_offsets[1:]. Returns the number of all words."""
    at = np.int64(0)
    for row in range(len(offsets) - 1):
        at += scan_words(data, offsets[row], offsets[row + 1], classes, lower, hashes[at:])
        word_offsets[row + 1] = at
    return at
