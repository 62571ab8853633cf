"""Compiled building blocks over UTF-8 bytes: decoding, the word scanner, word hashes.

All kernels take the buffers of an Arrow `large_string` array (`document.text_buffers`): bytes_U8 and offsets_N1.
Hashes are 64-bit, defined here alone, and never change without a new `version` in the stages that store them.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text import table

CLASSES, LOWER, VERSION = table.load()

#: Argument types: read-only arrays accept writable ones too, so there is one compiled version of each kernel.
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
TABLE = types.Array(types.uint8, 1, "C", readonly=True)
FOLD = types.Array(types.uint32, 1, "C", readonly=True)
HASHES = types.Array(types.uint64, 1, "C", readonly=True)

OTHER, SPACE, WORD, UNIT, CLUSTER, LEAD, JOIN, MARK, IGNORE = range(9)
CLASS, ALPHA, PUNCT, TERMINAL, LATIN = table.CLASS, table.ALPHA, table.PUNCT, table.TERMINAL, table.LATIN
CASED = table.CASED

#: Kinds of token: see `next_token`.
END, SYMBOL_TOKEN, WORD_TOKEN, UNIT_TOKEN = range(4)

_SEED = np.uint64(0x243F6A8885A308D3)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)


@njit(cache=True, nogil=True)
def decode(data, i, end):
    """`(code point, index behind it)` at byte i < end. Bytes that are not UTF-8 count one by one as U+FFFD."""
    lead = np.int64(data[i])
    if lead < 0x80:
        return lead, i + 1
    if 0xC2 <= lead < 0xE0 and i + 1 < end:
        return (lead & 0x1F) << 6 | (np.int64(data[i + 1]) & 0x3F), i + 2
    if 0xE0 <= lead < 0xF0 and i + 2 < end:
        return (lead & 0x0F) << 12 | (np.int64(data[i + 1]) & 0x3F) << 6 | (
            np.int64(data[i + 2]) & 0x3F
        ), i + 3
    if 0xF0 <= lead < 0xF5 and i + 3 < end:
        code = (lead & 0x07) << 18 | (np.int64(data[i + 1]) & 0x3F) << 12
        code |= (np.int64(data[i + 2]) & 0x3F) << 6 | (np.int64(data[i + 3]) & 0x3F)
        return min(code, np.int64(0x10FFFF)), i + 4
    return np.int64(0xFFFD), i + 1


@njit(cache=True, nogil=True)
def mix(value):
    """Finalizer of MurmurHash3 (Appleby, 2011) for 64 bits: every input bit reaches every output bit."""
    value ^= value >> np.uint64(33)
    value *= _MIX_1
    value ^= value >> np.uint64(33)
    value *= _MIX_2
    return value ^ (value >> np.uint64(33))


@njit(cache=True, nogil=True)
def absorb(state, code):
    """The hash state with one more code point (or token hash) in it."""
    state = (state ^ np.uint64(code)) * _STEP
    return state ^ (state >> np.uint64(29))


@njit(cache=True, nogil=True)
def next_token(data, i, end, classes):
    """`(kind, start, stop)` of the first token at or behind byte i; kind END when there is none.

    WORD_TOKEN    a run of letters, digits and marks, with an apostrophe (' or U+2019) before a letter and a
                  point or comma between two digits
    UNIT_TOKEN    one unit of a script without spaces: a Han character, a kana, a Thai consonant with its vowels …
    SYMBOL_TOKEN  a run of one and the same other character ("...", "----")
    White space, and zero-width joiners outside of words, are no tokens.
    """
    start = i
    first = np.int64(0)
    kind = np.int64(IGNORE)
    while i < end:
        first, after = decode(data, i, end)
        kind = np.int64(classes[first]) & CLASS
        start, i = i, after
        if kind != SPACE and kind != IGNORE:
            break
        kind = np.int64(IGNORE)
    if kind == IGNORE:
        return END, end, end
    if kind in (OTHER, MARK, JOIN):
        return SYMBOL_TOKEN, start, _end_of_run(data, i, end, first)
    if kind == WORD:
        return WORD_TOKEN, start, _end_of_word(data, i, end, classes, np.int64(classes[first]) & ALPHA == 0)
    return UNIT_TOKEN, start, _end_of_unit(data, i, end, classes, kind == LEAD)


@njit(cache=True, nogil=True)
def _end_of_run(data, i, end, first):
    while i < end:
        code, after = decode(data, i, end)
        if code != first:
            break
        i = after
    return i


@njit(cache=True, nogil=True)
def _end_of_word(data, i, end, classes, digit):
    while i < end:
        code, after = decode(data, i, end)
        kind = np.int64(classes[code]) & CLASS
        if kind in (WORD, MARK, IGNORE):
            i = after
            digit = kind == WORD and np.int64(classes[code]) & ALPHA == 0
            continue
        if after < end and (code == 0x27 or code == 0x2019 or ((code == 0x2C or code == 0x2E) and digit)):
            letter = code == 0x27 or code == 0x2019
            code, behind = decode(data, after, end)
            value = np.int64(classes[code])
            if value & CLASS == WORD and (value & ALPHA != 0) == letter:
                i, digit = behind, not letter
                continue
        break
    return i


@njit(cache=True, nogil=True)
def _end_of_unit(data, i, end, classes, joining):
    while i < end:
        code, after = decode(data, i, end)
        kind = np.int64(classes[code]) & CLASS
        if kind == JOIN:
            joining = True
        elif kind == CLUSTER and joining:
            joining = False
        elif kind != MARK and kind != IGNORE:
            break
        i = after
    return i


@njit(cache=True, nogil=True)
def word_hash(data, start, stop, classes, lower):
    """Hash of a token in lower case: U+2019 counts as an apostrophe, ignored characters do not count."""
    state = _SEED
    while start < stop:
        code, start = decode(data, start, stop)
        if code < 0x80:
            if 0x41 <= code <= 0x5A:
                code += 0x20
        elif code == 0x2019:
            code = np.int64(0x27)
        elif code < CASED:
            if np.int64(classes[code]) & CLASS == IGNORE:
                continue
            code = np.int64(lower[code])
        state = absorb(state, code)
    return mix(state)


@njit(cache=True, nogil=True)
def _ascii_word(data, i, end, classes):
    """`(hash state, stop)` of the ASCII word at byte i; stop is i when `next_token` has to look at it."""
    start = i
    state = _SEED
    while i < end:
        code = np.int64(data[i])
        if code >= 0x80 or code == 0x27 or code == 0x2C or code == 0x2E:
            if code >= 0x80 or (i + 1 < end and np.int64(classes[data[i + 1]]) & CLASS != SPACE):
                return state, start  # an accent, an apostrophe or a decimal point: may go on
            break
        if np.int64(classes[code]) & CLASS != WORD:
            break
        if 0x41 <= code <= 0x5A:
            code += 0x20
        state = absorb(state, code)
        i += 1
    return state, i


@njit(cache=True, nogil=True)
def _stands_alone(data, i, end, classes):
    """Whether the character at byte i begins something new, or there is none."""
    if i >= end:
        return True
    code, _ = decode(data, i, end)
    return np.int64(classes[code]) & CLASS < JOIN


@njit(types.int64(BYTES, OFFSETS, TABLE, FOLD, types.uint64[::1], types.int64[::1]), cache=True, nogil=True)
def hash_words(data, offsets, classes, lower, hashes, word_offsets):
    """Hash of each word and unit, text after text; where each text ends in word_offsets[1:]. Returns their number.

    `hashes` needs room for (bytes + 1) // 2 of each text: words of one byte have another byte between them.
    """
    at = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while i < end:
            if data[i] < 0x80:
                if np.int64(classes[data[i]]) & CLASS != WORD:
                    i += 1
                    continue
                state, stop = _ascii_word(data, i, end, classes)
                if stop > i:
                    hashes[at] = mix(state)
                    at += 1
                    i = stop
                    continue
            else:
                code, after = decode(data, i, end)
                kind = np.int64(classes[code]) & CLASS
                if kind in (OTHER, SPACE):
                    i = after
                    continue
                if kind == UNIT and _stands_alone(data, after, end, classes):
                    hashes[at] = mix(absorb(_SEED, code))
                    at += 1
                    i = after
                    continue
            kind, start, i = next_token(data, i, end, classes)
            if kind != END and kind != SYMBOL_TOKEN:
                hashes[at] = word_hash(data, start, i, classes, lower)
                at += 1
        word_offsets[row + 1] = at
    return at


@njit(types.void(HASHES, OFFSETS, OFFSETS, types.int64, types.uint64[::1]), cache=True, nogil=True)
def combine_shingles(words, word_offsets, shingle_offsets, n, hashes):
    """Hash of each run of n words; a text with fewer words has one shingle of them all."""
    for row in range(len(word_offsets) - 1):
        first = word_offsets[row]
        length = min(n, word_offsets[row + 1] - first)
        at = shingle_offsets[row]
        for k in range(shingle_offsets[row + 1] - at):
            state = _SEED
            for j in range(length):
                state = absorb(state, words[first + k + j])
            hashes[at + k] = mix(state)


@njit(types.int64(BYTES, OFFSETS, TABLE, types.int64[::1], types.int64[::1]), cache=True, nogil=True)
def word_spans(data, offsets, classes, starts, stops):
    """First and last byte of each word and unit, text after text; returns how many there are. Room as for `hash_words`."""
    at = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while True:
            kind, start, i = next_token(data, i, end, classes)
            if kind == END:
                break
            if kind != SYMBOL_TOKEN:
                starts[at], stops[at] = start, i
                at += 1
    return at
