"""The shape of a text: characters, lines, paragraphs. One pass, line by line.

Lines are pieces between line feeds, but for three numbers, which are about lines as `str.splitlines` cuts them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.rules.columns import (
    ALPHANUMERICS,
    BROKEN,
    BULLETS,
    CHARACTERS,
    DUP_LINE_CHARACTERS,
    DUP_LINES,
    DUP_PARAGRAPH_CHARACTERS,
    DUP_PARAGRAPHS,
    ELLIPSES,
    ELLIPSIS_LINES,
    FILLED,
    HASHES,
    LINES,
    LONGEST,
    PARAGRAPHS,
    REPEATED,
    SHORT,
    TERMINAL_LINES,
)
from stages.rules.hashing import SEED, absorb, add, close, hash_bytes
from stages.text.kernels import ALPHA, CLASS, SPACE, TERMINAL, WORD, decode
from stages.text.vectors import bits, lowest, shape_masks

#: Tells the hashes of paragraphs from those of lines in one set.
_PARAGRAPH = np.uint64(0xA0761D6478BD642F)
_ONE, _ONES = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_LAST, _LAST_BUT_ONE = np.uint64(1 << 63), np.uint64(1 << 62)


@njit(cache=True, nogil=True)
def count_newlines(data, start, end):
    """Line feeds in data[start:end]."""
    count = 0
    for byte in data[start:end]:
        count += byte == 0x0A
    return count


@njit(inline="always")
def _plain_bytes(data, i, end):
    """`(how many of the bytes from byte i on, 64 at most, are of a line and need no look at them, letters and digits, `#`)`.

    A look need line feeds, bytes beyond ASCII, other breaks, and full stops of which three or more stand in a row, or may.
    """
    feeds, alnums, hashes, dots, breaks, high = shape_masks(data, i)
    row = dots & (dots >> _ONE)
    odd = feeds | high | breaks | (row & (dots >> np.uint64(2))) | (row & _LAST_BUT_ONE) | (dots & _LAST)
    length = min(end - i, lowest(odd))
    below = _ONES if length == 64 else (_ONE << np.uint64(length)) - _ONE
    return length, bits(alnums & below), bits(hashes & below)


@njit(cache=True, nogil=True)
def _scan(data, i, end, classes, out):
    """`(end of the line, its characters, whether it holds a break other than a line feed)`; counts its characters into out."""
    start = i
    inside = alphanumerics = hashes = ellipses = 0
    breaks = False
    while i < end:
        if data[i] < 0x80:
            length, letters, marks = _plain_bytes(data, i, end)
            alphanumerics += letters
            hashes += marks
            i += length
            if i >= end:
                break
        byte = data[i]
        if byte >= 0x80:
            code, after = decode(data, i, end)
            inside += after - i - 1
            i = after
            value = np.int64(classes[code])
            alphanumerics += value & CLASS == WORD or value & ALPHA != 0
            ellipses += code == 0x2026
            breaks = breaks or code == 0x85 or code == 0x2028 or code == 0x2029
        elif byte == 0x0A:
            break
        elif byte == 0x2E:
            dots = i
            while i < end and data[i] == 0x2E:
                i += 1
            ellipses += (i - dots) // 3  # as str.count does: none overlapping another
        elif 0x0B <= byte <= 0x0D or 0x1C <= byte <= 0x1E:
            breaks = True
            i += 1
    characters = i - start - inside
    out[CHARACTERS] += characters
    out[ALPHANUMERICS] += alphanumerics
    out[HASHES] += hashes
    out[ELLIPSES] += ellipses
    return i, characters, breaks


@njit(inline="always")
def _last(data, start, end):
    """First byte of the last character of data[start:end], which is not empty."""
    at = end - 1
    while at > start and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


@njit(cache=True, nogil=True)
def stripped(data, start, end, classes):
    """`(first byte, end)` of the text without white space at its ends; both are `end` if there is nothing else."""
    while start < end and not 0x21 <= data[start] < 0x80:
        code, after = decode(data, start, end)
        if np.int64(classes[code]) & CLASS != SPACE:
            break
        start = after
    while end > start and not 0x21 <= data[end - 1] < 0x80:
        at = _last(data, start, end)
        code, _ = decode(data, at, end)
        if np.int64(classes[code]) & CLASS != SPACE:
            break
        end = at
    return start, end


@njit(cache=True, nogil=True)
def _ends(data, start, end, out):
    """Counts a line without white space at its ends: bullet in front, ellipsis behind."""
    if end > start:
        first, _ = decode(data, start, end)
        last, _ = decode(data, _last(data, start, end), end)
        out[BULLETS] += first == 0x2022 or first == 0x2D
        dots = end - start >= 3 and data[end - 1] == 0x2E and data[end - 2] == 0x2E and data[end - 3] == 0x2E
        out[ELLIPSIS_LINES] += dots or last == 0x2026


@njit(cache=True, nogil=True)
def _broken_line(data, start, end, classes, out):
    """Counts the lines as `str.splitlines` cuts them, in a line that holds breaks of other kinds."""
    while start < end:
        at = start
        stop = end
        while at < end:
            stop = at
            code, at = decode(data, at, end)
            if (
                0x0A <= code <= 0x0D
                or 0x1C <= code <= 0x1E
                or code == 0x85
                or code == 0x2028
                or code == 0x2029
            ):
                if code == 0x0D and at < end and data[at] == 0x0A:
                    at += 1
                break
            stop = end
        out[BROKEN] += 1
        first, last = stripped(data, start, stop, classes)
        _ends(data, first, last, out)
        start = at


@njit(cache=True, nogil=True)
def _characters(data, start, end):
    count = 0
    for byte in data[start:end]:
        count += byte & 0xC0 != 0x80
    return count


@njit(cache=True, nogil=True)
def _end_paragraph(state, length, table, keys, mask, used, out):
    """Counts a paragraph; the number of keys in the set."""
    _, there = add(table, keys, mask, used, close(state, _PARAGRAPH))
    out[PARAGRAPHS] += 1
    out[DUP_PARAGRAPHS] += there
    out[DUP_PARAGRAPH_CHARACTERS] += length if there else 0
    return used if there else used + 1


@njit(cache=True, nogil=True)
def measure_shape(data, start, end, classes, short, table, keys, mask, out):
    """Adds the numbers of one text to `out`, which is zero before; the set must be empty, with room for twice as many lines.
    `OVERREAD` bytes must be readable behind the text.

    Paragraphs are those of the text without white space at its ends: runs of lines that are not empty.
    """
    first, stop = stripped(data, start, end, classes)
    empties = used = 0
    paragraph, length, lines = SEED, 0, 0
    i = start
    while True:
        begin = i
        i, characters, breaks = _scan(data, i, end, classes, out)
        out[LONGEST] = max(out[LONGEST], characters)
        one, behind = stripped(data, begin, i, classes)
        if breaks:
            _broken_line(data, begin, min(i + 1, end), classes, out)
        elif i < end or i > begin:
            out[BROKEN] += 1
            _ends(data, one, behind, out)
        if characters == 0:
            # re.split("\n+") has an empty piece at each end of the text, none inside
            empties += i in (start, end)
            if lines:
                used = _end_paragraph(paragraph, length, table, keys, mask, used, out)
                paragraph, length, lines = SEED, 0, 0
        else:
            key = hash_bytes(data, begin, i)
            _, there = add(table, keys, mask, used, key)
            used += not there
            out[LINES] += 1
            out[DUP_LINES] += there
            out[DUP_LINE_CHARACTERS] += characters if there else 0
            if behind > one:
                last, _ = decode(data, _last(data, begin, i), i)
                out[FILLED] += 1
                out[TERMINAL_LINES] += np.int64(classes[last]) & TERMINAL != 0
                out[SHORT] += characters <= short
                out[REPEATED] += characters if there else 0
            inside, outside = max(begin, first), min(i, stop)
            if outside > inside:
                if inside > begin or outside < i:
                    key, characters = hash_bytes(data, inside, outside), _characters(data, inside, outside)
                paragraph = absorb(paragraph, key, 0)
                length += characters + (lines > 0)
                lines += 1
        if i >= end:
            break
        i += 1
    if lines or out[PARAGRAPHS] == 0:
        _end_paragraph(paragraph, length, table, keys, mask, used, out)
    edges = min(empties, 2)
    out[LINES] += edges
    out[DUP_LINES] += edges == 2
