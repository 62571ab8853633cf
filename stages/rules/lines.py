"""The line rules of C4: single lines go, and the sentences in the rest are counted.

The order of the checks is that of datatrove's C4QualityFilter. In a document mostly in a script without spaces the same
rules read: no limit on the longest word, units for words, the terminal marks and closing brackets of every script, and
clauses between full-width commas count as sentences (one Chinese sentence chains what English writes as several).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit, types

from stages.document import text_buffers
from stages.rules.shape import stripped
from stages.text.kernels import (
    BYTES,
    CLASS,
    CLASSES,
    END,
    OFFSETS,
    OTHER,
    SPACE,
    SYMBOL_TOKEN,
    TABLE,
    TERMINAL,
    decode,
    next_token,
)
from stages.text.memory import copy_bytes
from stages.text.vectors import (
    OVERREAD,
    bits,
    break_masks,
    highest,
    line_masks,
    lowest,
    sentence_masks,
    with_room,
)

_ONE, _ONES = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
#: Bytes that one mask is about.
_BLOCK = 64


def _phrases(*phrases: str) -> tuple[np.ndarray, np.ndarray]:
    content = [phrase.encode() for phrase in phrases]
    return np.frombuffer(b"".join(content), np.uint8), np.cumsum([0, *map(len, content)]).astype(np.int64)


_CITATIONS = _phrases("[edit]", "[citation needed]")
#: Phrase 0 drops the document, the others the line: 1 is asked before the bracket, the rest after it. Each holds one of the
#: hints of `vectors.line_masks`.
_PHRASES = _phrases(
    "lorem ipsum",
    "javascript",
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)

NONE, LOREM_IPSUM, CURLY_BRACKET = range(3)


@njit(cache=True, nogil=True)
def _is_phrase(data, i, end, phrases, ends, number):
    """Whether the ASCII phrase stands at byte i, in either case."""
    first, length = ends[number], ends[number + 1] - ends[number]
    if i + length > end:
        return False
    for k in range(length):
        byte = data[i + k]
        if 0x41 <= byte <= 0x5A:
            byte += 0x20
        if byte != phrases[first + k]:
            return False
    return True


@njit(cache=True, nogil=True)
def _citation(data, i, end, phrases, ends):
    """Where the citation mark at byte i ends ("[12]", "[]", "[edit]", "[citation needed]"); i if there is none."""
    k = i + 1
    while k < end and 0x30 <= data[k] <= 0x39:
        k += 1
    if k < end and data[k] == 0x5D:
        return k + 1
    for number in range(len(ends) - 1):
        length = ends[number + 1] - ends[number]
        same = i + length <= end
        for k in range(length):
            same = same and data[i + k] == phrases[ends[number] + k]
        if same:
            return i + length
    return i


@njit(inline="always")
def _below(length):
    """A mask of the bits below `length`, which is 0 to 64."""
    return _ONES if length >= 64 else (_ONE << np.uint64(length)) - _ONE


@njit(cache=True, nogil=True)
def count_sentences(data, i, end, classes, unspaced):
    """Pieces that end with terminal marks: ASCII ones before white space or the end, others anywhere; a rest counts too.

    `OVERREAD` bytes must be readable behind the text.
    """
    sentences = 0
    filled = False
    while i < end:
        if data[i] < 0x80:
            words, marks, low, high = sentence_masks(data, i)
            length = min(end - i, lowest(high), np.int64(64))
            below = _below(length)
            words &= below
            ends = low >> _ONE
            if length == 64:
                ends |= np.uint64(data[i + 64] <= 0x20) << np.uint64(63)
            if length == end - i:
                ends |= _ONE << np.uint64(length - 1)
            marks &= ends & below
            while marks:
                before = marks & (~marks + _ONE)  # the lowest bit
                filled = filled or words & (before - _ONE) != 0
                sentences += filled
                filled = False
                words &= ~(before - _ONE)
                marks ^= before
            filled = filled or words != 0
            i += length
            continue
        code, i = decode(data, i, end)
        value = np.int64(classes[code])
        if value & TERMINAL or (unspaced and (code == 0xFF0C or code == 0xFF1B or code == 0xFF1A)):
            sentences += filled
            filled = False
        else:
            filled = filled or (value & CLASS != SPACE and value & CLASS != OTHER)
    return sentences + filled


@njit(cache=True, nogil=True)
def _look_at(data, i, end, classes, words_too):
    """`(pieces between white space, bytes of the longest, a bracket, a curly one, a hint at a phrase)`: what data[i:end] has.

    Pieces are counted where they are wanted; the longest may be one of `_BLOCK` bytes that is not seen, where it is no
    longer than that. `OVERREAD` bytes must be readable behind the text.
    """
    words, longest, last = np.int64(0), np.int64(0), i
    bracket, curly, hints = np.uint64(0), np.uint64(0), np.uint64(0)
    outside = _ONE  # whether a space is in front of byte i
    while i < end:
        spaces, brackets, curlies, hinted, wide = line_masks(data, i)
        length = min(end - i, np.int64(64))
        if words_too:
            length = min(length, lowest(wide))
        below = _below(length)
        bracket, curly, hints = bracket | brackets & below, curly | curlies & below, hints | hinted & below
        if words_too and length:
            spaces &= below
            starts = ~spaces & (spaces << _ONE | outside) & below
            words += bits(starts)
            outside = spaces >> np.uint64(length - 1)
            if spaces:
                longest = max(longest, i + lowest(spaces) - last)
                last = i + highest(spaces) + 1
        i += length
        if words_too and length < 64 and i < end:  # a character that may be white space
            code, after = decode(data, i, end)
            if np.int64(classes[code]) & CLASS == SPACE:
                longest = max(longest, i - last)
                last, outside = after, _ONE
            else:
                words += np.int64(outside)
                outside = np.uint64(0)
            i = after
    return words, max(longest, end - last), bracket != 0, curly != 0, hints != 0


@njit(cache=True, nogil=True)
def _words_of_line(data, i, end, classes, unspaced):
    """`(words, characters of the longest)`: pieces between white space; or units, and 0, where the script has no spaces."""
    words = longest = length = 0
    if unspaced:
        while True:
            kind, _, i = next_token(data, i, end, classes)
            if kind == END:
                return words, 0
            words += kind != SYMBOL_TOKEN
    while i < end:
        if data[i] < 0x80:
            code, i = np.int64(data[i]), i + 1
        else:
            code, i = decode(data, i, end)
        if np.int64(classes[code]) & CLASS == SPACE:
            words += length > 0
            longest = max(longest, length)
            length = 0
        else:
            length += 1
    longest = max(longest, length)
    return words + (length > 0), longest


@njit(cache=True, nogil=True)
def _ends_sentence(data, start, end, classes, unspaced):
    """Whether the line ends with . ? ! " ' (no ellipsis), or what stands for them in scripts without spaces."""
    last = end - 1
    while last > start and data[last] & 0xC0 == 0x80:
        last -= 1
    if last < start:
        return False
    code, _ = decode(data, last, end)
    if unspaced and code >= 0x80:
        closing = (
            code == 0x201D
            or code == 0x2019
            or code == 0x300D
            or code == 0x300F
            or code == 0xFF09
            or code == 0x300B
        )
        return np.int64(classes[code]) & TERMINAL != 0 or closing
    if code == 0x2E and end - start >= 3 and data[end - 2] == 0x2E and data[end - 3] == 0x2E:
        return False
    return code == 0x2E or code == 0x3F or code == 0x21 or code == 0x22 or code == 0x27


@njit(inline="always")
def _may_begin(byte):
    """Whether a phrase begins with this ASCII letter: c j l p t u, in either case."""
    byte |= 0x20
    return byte == 0x63 or byte == 0x6A or byte == 0x6C or byte == 0x70 or byte == 0x74 or byte == 0x75


@njit(cache=True, nogil=True)
def _marks(data, i, end, phrases, ends):
    """Whether the line holds: lorem ipsum, javascript, a phrase of a cookie notice."""
    lorem = javascript = policy = False
    while i < end:
        byte = data[i]
        if 0x41 <= byte <= 0x7A and _may_begin(byte):
            lorem = lorem or _is_phrase(data, i, end, phrases, ends, 0)
            javascript = javascript or _is_phrase(data, i, end, phrases, ends, 1)
            for number in range(2, len(ends) - 1):
                policy = policy or _is_phrase(data, i, end, phrases, ends, number)
        i += 1
    return lorem, javascript, policy


@njit(cache=True, nogil=True)
def _end_of_line(data, i, end):
    """`(end of the line that begins at byte i, as str.splitlines cuts it, where the next one begins)`.

    `OVERREAD` bytes must be readable behind the text.
    """
    while i < end:
        (found,) = break_masks(data, i)
        while found:
            at = i + lowest(found)
            found &= found - _ONE
            if at >= end:
                break
            byte = data[at]
            if byte < 0x80:
                return at, at + 2 if byte == 0x0D and at + 1 < end and data[at + 1] == 0x0A else at + 1
            if byte == 0xC2 and at + 1 < end and data[at + 1] == 0x85:
                return at, at + 2
            if byte == 0xE2 and at + 2 < end and data[at + 1] == 0x80 and 0xA8 <= data[at + 2] <= 0xA9:
                return at, at + 3
        i += 64
    return end, end


@njit(cache=True, nogil=True)
def _without_citations(data, start, stop, citations, ends, out, at):
    """Writes data[start:stop] without citation marks to out[at:]; returns the index behind it."""
    while start < stop:
        plain = start
        while start < stop and data[start] != 0x5B:
            start += 1
        copy_bytes(out, at, data, plain, start - plain)
        at += start - plain
        if start < stop:  # a bracket
            behind = _citation(data, start, stop, citations, ends)
            if behind == start:
                out[at] = 0x5B
                at, behind = at + 1, start + 1
            start = behind
    return at


_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(
    types.void(
        BYTES, OFFSETS, TABLE, _FLAGS, _FLAGS, types.boolean, types.int64, types.int64, types.boolean, types.boolean,
        BYTES, OFFSETS, BYTES, OFFSETS, types.uint8[::1], types.int64[::1], types.int64[:, ::1],
    ),
    cache=True, nogil=True,
)  # fmt: skip
def _clean(
    data, offsets, classes, skip, unspaced, punctuation, min_words, max_length, lorem, curly,
    citations, citation_ends, phrases, phrase_ends, out, out_offsets, found,
):  # fmt: skip
    at = 0
    for row in range(len(offsets) - 1):
        begin = at
        i, end = offsets[row], offsets[row + 1]
        if skip[row]:
            i = end
        dense = unspaced[row]
        sentences = verdict = 0
        while i < end and verdict == NONE:
            start = i
            stop, i = _end_of_line(data, i, end)
            start, stop = stripped(data, start, stop, classes)
            words, longest, bracket, opens, hint = _look_at(data, start, stop, classes, not dense)
            if dense:
                words, longest = _words_of_line(data, start, stop, classes, True)
            elif max_length and (longest > max_length or max_length < _BLOCK):  # bytes: it may have fewer characters
                words, longest = _words_of_line(data, start, stop, classes, False)
            if max_length and longest > max_length:
                continue
            line = at + (at > begin)
            if bracket:
                size = _without_citations(data, start, stop, citations, citation_ends, out, line)
                hint = hint or size - line < stop - start
            else:
                copy_bytes(out, line, data, start, stop - start)
                size = line + stop - start
            if words < min_words or (punctuation and not _ends_sentence(out, line, size, classes, dense)):
                continue
            if hint:
                first_phrase, javascript, policy = _marks(out, line, size, phrases, phrase_ends)
            else:
                first_phrase = javascript = policy = False
            if lorem and first_phrase:
                verdict = LOREM_IPSUM
            elif javascript:
                continue
            elif curly and opens:
                verdict = CURLY_BRACKET
            if verdict != NONE or policy:
                continue
            if line > at:
                out[at] = 0x0A
            at = size
            sentences += count_sentences(out, line, size, classes, dense)
        first, stop = stripped(out, begin, at, classes)
        if first > begin:
            for k in range(first, stop):
                out[begin + k - first] = out[k]
        at = begin + stop - first
        out_offsets[row + 1] = at
        found[row, 0], found[row, 1] = verdict, sentences


def clean_lines(
    texts: pa.Array,
    skip_N: np.ndarray,
    unspaced_N: np.ndarray,
    *,
    end_punctuation: bool,
    min_words: int,
    max_word_length: int,
    lorem_ipsum: bool,
    curly_brackets: bool,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """`(bytes, offsets, numbers)`: the buffers of the texts of the lines that stay, with room behind as `with_room` makes it;
    numbers: `lorem_ipsum`, `curly_bracket` (0 or 1) and `sentences`.

    skip_N      bool: texts that are not looked at; they come out empty
    unspaced_N  bool: documents mostly in scripts without spaces
    A document stops at the first line that drops it as a whole, so at most one of the two marks is set.
    """
    data_U8, offsets_N1 = text_buffers(texts)
    room = int(offsets_N1[-1] - offsets_N1[0]) + len(texts) + OVERREAD
    out_U8, out_offsets_N1 = np.empty(room, np.uint8), np.zeros(len(offsets_N1), np.int64)
    found_N2 = np.zeros((len(texts), 2), np.int64)
    _clean(
        with_room(data_U8, offsets_N1), offsets_N1, CLASSES, skip_N, unspaced_N, end_punctuation, min_words, max_word_length,
        lorem_ipsum, curly_brackets, *_CITATIONS, *_PHRASES, out_U8, out_offsets_N1, found_N2,
    )  # fmt: skip
    verdict_N = found_N2[:, 0]
    return out_U8, out_offsets_N1, {
        "lorem_ipsum": (verdict_N == LOREM_IPSUM).astype(np.int64),
        "curly_bracket": (verdict_N == CURLY_BRACKET).astype(np.int64),
        "sentences": found_N2[:, 1],
    }
