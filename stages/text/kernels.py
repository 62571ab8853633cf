"""Compiled building blocks over UTF-8 bytes: decoding, what a word is, hashes of shingles.

All kernels take the buffers of an Arrow `large_string` array (`document.text_buffers`): bytes_U8 and offsets_N1.
Hashes are 64-bit, those of words defined in `scan.py`, and never change without a new `version` in the stages that store them.
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
    """`(code point, index behind it)` at byte i < end. The bytes are UTF-8, as Arrow strings are; from
    broken ones comes some code point, and no read behind `end`."""
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
        if data[i] < 0x80 and np.int64(classes[data[i]]) & CLASS == WORD:
            digit = data[i] <= 0x39
            i += 1
            continue
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


@njit(types.void(BYTES, OFFSETS, TABLE, FOLD, types.uint64, types.uint64[::1]), cache=True, nogil=True)
def hash_folded(data, offsets, classes, lower, key, hashes):
    """Hash of each text in lower case, runs of white space as one space, none at its ends."""
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        state = _SEED ^ mix(key)
        begun = space = False
        while i < end:
            code, i = decode(data, i, end)
            if np.int64(classes[code]) & CLASS == SPACE:
                space = begun
                continue
            if space:
                state = absorb(state, np.int64(0x20))
                space = False
            state = absorb(state, np.int64(lower[code]) if code < CASED else code)
            begun = True
        hashes[row] = mix(state)
