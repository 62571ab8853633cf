"""Numbers about each document, by compiled kernels: what the Gopher, FineWeb and code rules compare.

The definitions are those of datatrove's filters (GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter) with
the words of `stages.text`, so that decisions can be compared one by one. Ratios are left to the caller.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.kernels import (
    ALPHA,
    BYTES,
    CLASS,
    CLASSES,
    END,
    HASHES,
    OFFSETS,
    PUNCT,
    SPACE,
    SYMBOL_TOKEN,
    TABLE,
    TERMINAL,
    UNIT_TOKEN,
    WORD,
    absorb,
    decode,
    mix,
    next_token,
)

#: Lengths of n-grams, in words. Documents in scripts without spaces use twice as many units: a Chinese word has about two
#: characters, and 5 characters are repeated in any good text about one subject.
TOP_SIZES = (2, 3, 4)
REPEATED_SIZES = (5, 6, 7, 8, 9, 10)
UNITS_PER_WORD = 2
#: A document counts as written without spaces if more than one word in so many is a unit: Chinese about technical
#: matters is full of English words.
UNSPACED_FROM = 3

#: The columns of the table.
NAMES = (
    "characters", "words", "plain_words", "plain_word_characters", "alphabetic_words", "hashes", "ellipses",
    "units", "alphanumerics",
    "broken_lines", "bullet_lines", "ellipsis_lines",
    "filled_lines", "terminal_lines", "short_lines", "repeated_line_characters", "newlines",
    "lines", "duplicate_lines", "duplicate_line_characters", "longest_line",
    "paragraphs", "duplicate_paragraphs", "duplicate_paragraph_characters",
    *(f"top_{n}" for n in TOP_SIZES),
    *(f"repeated_{n}" for n in REPEATED_SIZES),
)  # fmt: skip
COLUMN = {name: number for number, name in enumerate(NAMES)}

# Numba takes globals as constants: one for each column.
(
    _CHARACTERS, _WORDS, _PLAIN, _PLAIN_CHARACTERS, _ALPHABETIC, _HASHES, _ELLIPSES, _UNITS, _ALPHANUMERICS,
    _BROKEN, _BULLETS, _ELLIPSIS_LINES, _FILLED, _TERMINAL, _SHORT, _REPEATED, _NEWLINES, _LINES, _DUP_LINES,
    _DUP_LINE_CHARACTERS, _LONGEST, _PARAGRAPHS, _DUP_PARAGRAPHS, _DUP_PARAGRAPH_CHARACTERS, _TOP, *_,
) = range(len(NAMES))  # fmt: skip
_REPEATED_FIRST = COLUMN[f"repeated_{REPEATED_SIZES[0]}"]
_TOP_FIRST, _TOP_COUNT = TOP_SIZES[0], len(TOP_SIZES)
_REPEATED_SMALLEST, _REPEATED_COUNT = REPEATED_SIZES[0], len(REPEATED_SIZES)

_SEED = np.uint64(0x13198A2E03707344)
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def _add(keys, stamps, stamp, mask, key):
    """`(slot, whether the key was there)` in a hash set; a slot is taken if it has the stamp of this use."""
    slot = np.int64(key & np.uint64(mask))
    while stamps[slot] == stamp:
        if keys[slot] == key:
            return slot, True
        slot = (slot + 1) & mask
    stamps[slot] = stamp
    keys[slot] = key
    return slot, False


@njit(cache=True, nogil=True)
def _characters(data, start, end, classes, out):
    """Counts of characters."""
    characters = alphanumerics = hashes = dots = ellipses = newlines = 0
    while start < end:
        code, start = decode(data, start, end)
        characters += 1
        value = np.int64(classes[code])
        alphanumerics += value & CLASS == WORD or value & ALPHA != 0
        hashes += code == 0x23
        newlines += code == 0x0A
        ellipses += code == 0x2026
        dots = dots + 1 if code == 0x2E else 0
        if dots == 3:  # as str.count does: none overlapping another
            ellipses += 1
            dots = 0
    out[_CHARACTERS], out[_ALPHANUMERICS] = characters, alphanumerics
    out[_HASHES], out[_ELLIPSES], out[_NEWLINES] = hashes, ellipses, newlines


@njit(cache=True, nogil=True)
def _broken_lines(data, start, end, classes, out):
    """Lines as `str.splitlines` cuts them: how many, with a bullet in front, with an ellipsis at the end."""
    lines = bullets = ellipses = 0
    while start < end:
        first = last = dots = 0
        spaced = False
        lines += 1
        while start < end:
            code, start = decode(data, start, end)
            if (
                0x0A <= code <= 0x0D
                or 0x1C <= code <= 0x1E
                or code == 0x85
                or code == 0x2028
                or code == 0x2029
            ):
                if code == 0x0D and start < end and data[start] == 0x0A:
                    start += 1
                break
            if np.int64(classes[code]) & CLASS == SPACE:
                spaced = True
                continue
            dots = (1 if spaced else dots + 1) if code == 0x2E else 0
            first = first if first else code
            last = code
            spaced = False
        bullets += first == 0x2022 or first == 0x2D
        ellipses += dots >= 3 or last == 0x2026
    out[_BROKEN], out[_BULLETS], out[_ELLIPSIS_LINES] = lines, bullets, ellipses


@njit(cache=True, nogil=True)
def _lines(data, start, end, classes, short, keys, stamps, stamp, mask, out):
    """Lines between line feeds: filled, with a terminal mark, short, and repeated; both ways to count repeated ones."""
    filled = terminal = shorts = repeated = lines = duplicates = duplicate_characters = longest = 0
    empties = 0
    i = start
    while True:
        state = _SEED
        length = 0
        blank = True
        value = np.int64(0)
        while i < end and data[i] != 0x0A:
            code, i = decode(data, i, end)
            state = absorb(state, code)
            length += 1
            value = np.int64(classes[code])
            blank = blank and value & CLASS == SPACE
        longest = max(longest, length)
        if length == 0:
            empties += i in (
                start,
                end,
            )  # re.split("\n+") has an empty piece at each end of the text, none inside
        else:
            _, there = _add(keys, stamps, stamp, mask, mix(state))
            lines += 1
            duplicates += there
            duplicate_characters += length if there else 0
            if not blank:
                filled += 1
                terminal += value & TERMINAL != 0
                shorts += length <= short
                repeated += length if there else 0
        if i >= end:
            break
        i += 1
    edges = min(empties, 2)
    out[_FILLED], out[_TERMINAL], out[_SHORT], out[_REPEATED] = filled, terminal, shorts, repeated
    out[_LINES], out[_DUP_LINES], out[_DUP_LINE_CHARACTERS] = (
        lines + edges,
        duplicates + (edges == 2),
        duplicate_characters,
    )
    out[_LONGEST] = longest


@njit(cache=True, nogil=True)
def _paragraphs(data, start, end, classes, keys, stamps, stamp, mask, out):
    """Pieces between two and more line feeds of the stripped text: how many, and how many were there before."""
    first, stop = end, start
    i = start
    while i < end:  # the ends of str.strip
        code, after = decode(data, i, end)
        if np.int64(classes[code]) & CLASS != SPACE:
            first = min(first, i)
            stop = after
        i = after
    count = duplicates = characters = 0
    i = first
    while i < stop or count == 0:
        state = _SEED
        length = 0
        while i < stop and not (data[i] == 0x0A and i + 1 < stop and data[i + 1] == 0x0A):
            code, i = decode(data, i, stop)
            state = absorb(state, code)
            length += 1
        while i < stop and data[i] == 0x0A:
            i += 1
        count += 1
        _, there = _add(keys, stamps, stamp, mask, mix(state))
        duplicates += there
        characters += length if there else 0
    out[_PARAGRAPHS], out[_DUP_PARAGRAPHS], out[_DUP_PARAGRAPH_CHARACTERS] = count, duplicates, characters


@njit(cache=True, nogil=True)
def _grown(array):
    longer = np.empty(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


@njit(cache=True, nogil=True)
def _top_ngram(words, ends, count, n, spaced, keys, stamps, stamp, mask, counts, order):
    """Characters that the most frequent n-gram takes (the first of them, if several), joined by spaces where spaced."""
    distinct = 0
    for i in range(count - n + 1):
        state = _SEED
        for j in range(n):
            state = absorb(state, words[i + j])
        slot, there = _add(keys, stamps, stamp, mask, mix(state))
        if there:
            counts[slot] += 1
        else:
            counts[slot] = 1
            order[distinct] = slot << 32 | i
            distinct += 1
    best = at = 0
    for k in range(distinct):
        if counts[order[k] >> 32] > best:
            best = counts[order[k] >> 32]
            at = order[k] & 0xFFFFFFFF
    return best * (ends[at + n] - ends[at] + (n - 1) * spaced) if best else 0


@njit(cache=True, nogil=True)
def _repeated_ngrams(prefix, inverse, ends, count, n, keys, stamps, stamp, mask):
    """Characters in n-grams that were there before, none overlapping another; n-grams are equal if their letters are."""
    characters = 0
    i = 0
    while i <= count - n:
        key = mix((prefix[i + n] - prefix[i]) * inverse[i] + np.uint64(ends[i + n] - ends[i]))
        _, there = _add(keys, stamps, stamp, mask, key)
        if there:
            characters += ends[i + n] - ends[i]
            i += n
        else:
            i += 1
    return characters


_OUT = types.Array(types.int64, 2, "C")
_MASKS = types.Array(types.uint64, 2, "C")
_KEYS = types.Array(types.int64, 1, "C", readonly=True)


@njit(cache=True, nogil=True)
def _words(data, start, end, classes, scratch, stop_hashes, stop_bits, stop_masks, out):
    """Reads the words of a text into the scratch arrays, which it returns (grown if they were too short).

    words    hash of each word; case counts
    prefix   sum of (byte value + 1) * base^position over the code points of the words before, put end to end
    inverse  base^-position of the first code point of the word, so that a difference of prefixes can be brought home
    ends     code points before the word
    """
    words, prefix, inverse, ends = scratch
    count = units = plain_words = plain_characters = alphabetic = 0
    state, power, back = np.uint64(0), _ONE, _ONE
    prefix[0], inverse[0], ends[0] = state, back, 0
    while start < end:
        if data[start] < 0x80 and np.int64(classes[data[start]]) & CLASS != WORD:
            start += 1  # next_token would see the same, more slowly
            continue
        kind, at, start = next_token(data, start, end, classes)
        if kind == END:
            break
        if kind == SYMBOL_TOKEN:
            continue
        if count == len(words):
            words, prefix, inverse, ends = _grown(words), _grown(prefix), _grown(inverse), _grown(ends)
        word = _SEED
        length = 0
        letter = plain = False
        while at < start:
            code, at = decode(data, at, start)
            value = np.int64(classes[code])
            letter = letter or value & ALPHA != 0
            plain = plain or value & PUNCT == 0
            length += 1
            word = absorb(word, code)
            state += np.uint64(code + 1) * power
            power *= _BASE
            back *= _INVERSE
        words[count] = mix(word)
        count += 1
        prefix[count], inverse[count], ends[count] = state, back, ends[count - 1] + length
        units += kind == UNIT_TOKEN
        plain_words += plain
        plain_characters += length if plain else 0
        alphabetic += letter
        if len(stop_hashes):
            found = np.searchsorted(stop_hashes, words[count - 1])
            while found < len(stop_hashes) and stop_hashes[found] == words[count - 1]:
                stop_masks[stop_bits[found] >> 6] |= _ONE << np.uint64(stop_bits[found] & 63)
                found += 1
    out[_WORDS], out[_PLAIN], out[_PLAIN_CHARACTERS] = count, plain_words, plain_characters
    out[_ALPHABETIC], out[_UNITS] = alphabetic, units
    return words, prefix, inverse, ends


@njit(cache=True, nogil=True)
def _ngrams(scratch, count, unspaced, keys, stamps, stamp, mask, counts, order, out):
    """The statistics of n-grams; returns the last stamp used."""
    words, prefix, inverse, ends = scratch
    factor = UNITS_PER_WORD if unspaced else 1
    for k in range(_TOP_COUNT):
        n = factor * (_TOP_FIRST + k)
        stamp += np.uint32(1)
        out[_TOP + k] = _top_ngram(
            words, ends, count, n, not unspaced, keys, stamps, stamp, mask, counts, order
        )
    for k in range(_REPEATED_COUNT):
        n = factor * (_REPEATED_SMALLEST + k)
        stamp += np.uint32(1)
        out[_REPEATED_FIRST + k] = _repeated_ngrams(
            prefix, inverse, ends, count, n, keys, stamps, stamp, mask
        )
    return stamp


@njit(
    types.void(BYTES, OFFSETS, TABLE, types.boolean, types.int64, HASHES, _KEYS, _OUT, _MASKS),
    cache=True, nogil=True,
)  # fmt: skip
def _statistics(data, offsets, classes, ngrams, short, stop_hashes, stop_bits, out, stop_masks):
    scratch = (
        np.empty(1024, np.uint64),
        np.empty(1025, np.uint64),
        np.empty(1025, np.uint64),
        np.empty(1025, np.int64),
    )
    keys, stamps = np.empty(4096, np.uint64), np.zeros(4096, np.uint32)
    counts, order = np.empty(4096, np.int64), np.empty(4096, np.int64)
    stamp = np.uint32(0)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        numbers = out[row]
        _characters(data, start, end, classes, numbers)
        _broken_lines(data, start, end, classes, numbers)
        scratch = _words(data, start, end, classes, scratch, stop_hashes, stop_bits, stop_masks[row], numbers)
        count = numbers[_WORDS]
        unspaced = numbers[_UNITS] * UNSPACED_FROM > count

        need = 2 * max(count, numbers[_NEWLINES] + 1)
        while len(keys) < need:
            keys, stamps = np.empty(2 * len(keys), np.uint64), np.zeros(2 * len(keys), np.uint32)
            counts, order = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        mask = 1023
        while mask < need:
            mask = 2 * mask + 1
        mask = min(mask, len(keys) - 1)
        limit = short // 2 if unspaced else short
        _lines(data, start, end, classes, limit, keys, stamps, stamp + np.uint32(1), mask, numbers)
        _paragraphs(data, start, end, classes, keys, stamps, stamp + np.uint32(2), mask, numbers)
        stamp += np.uint32(2)
        if ngrams:
            stamp = _ngrams(scratch, count, unspaced, keys, stamps, stamp, mask, counts, order, numbers)


def word_hash(word: str) -> int:
    """The hash of a word as the kernel makes it (case counts)."""
    mask = 2**64 - 1
    state: int = int(_SEED)
    for character in word:
        state = (state ^ ord(character)) * 0x9E3779B97F4A7C15 & mask
        state ^= state >> 29
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> 33) * factor & mask
    return state ^ state >> 33


def measure(
    data_U8: np.ndarray,
    offsets_N1: np.ndarray,
    ngrams: bool,
    short_line: int,
    stop_words: dict[str, tuple[str, ...]],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """`(statistic -> int64 [N], distinct stop words found int64 [N, languages])`.

    ngrams       whether the n-gram statistics are wanted (they take most of the time); else they are 0
    short_line   characters up to which a line is short; half of it in scripts without spaces
    stop_words   at most 64 for each language
    """
    pairs = sorted(
        (word_hash(word), language << 6 | bit)
        for language, words in enumerate(stop_words.values())
        for bit, word in enumerate(dict.fromkeys(words))
    )
    hashes = np.array([pair[0] for pair in pairs], np.uint64)
    bits = np.array([pair[1] for pair in pairs], np.int64)
    out_NS = np.zeros((len(offsets_N1) - 1, len(NAMES)), np.int64)
    masks_NL = np.zeros((len(out_NS), max(1, len(stop_words))), np.uint64)
    _statistics(data_U8, offsets_N1, CLASSES, ngrams, short_line, hashes, bits, out_NS, masks_NL)
    return {name: out_NS[:, number] for name, number in COLUMN.items()}, np.bitwise_count(masks_NL).astype(
        np.int64
    )
