"""Characters to the regex engine: the class of each code point, and which of them NFC might change.

Text is cut exactly as the regex in tokenizer.json would cut it, so classes are what the engine inside of `tokenizers`
answers (`make_characters.py`), whatever Unicode version it has. What a word is to the stages is another question,
with another table: `stages/text/table.py`.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numba import njit, types

from stages.text.memory import BORROWED
from stages.text.vectors import load8

#: Bits of a class: \\p{L}, \\p{N}, \\s, \\p{Han}, \\p{Lu} and \\p{Lt}, \\p{M}, \\p{P} and \\p{S}, \\p{Ll}.
LETTER, NUMBER, SPACE, HAN, CAPITAL, MARK, SIGN, SMALL = 1, 2, 4, 8, 16, 32, 64, 128

CODE_POINTS = 0x110000
TABLE = Path(__file__).with_name("characters.npz")

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
OFFSETS = types.Array(types.int64, 1, "C", readonly=True)


@functools.cache
def classes() -> np.ndarray:
    """uint8[0x110000], read-only: the class bits of every code point."""
    return _by_code_point("classes")


@functools.cache
def _unstable() -> np.ndarray:
    """uint8[0x110000], read-only: 1 where a code point could take part in a change by NFC."""
    return _by_code_point("unstable")


def _by_code_point(name: str) -> np.ndarray:
    with np.load(TABLE, allow_pickle=False) as stored:
        starts, values = stored[f"{name}_starts"], stored[name]
    table = np.repeat(values, np.diff(np.r_[starts, CODE_POINTS]))
    table.flags.writeable = False
    return table


def nfc_unsafe(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """bool per text: whether it holds a character that NFC might change. False means: it is its own NFC."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    _any_of(data, offsets, _unstable(), found)
    return found


@njit(inline="always", **BORROWED)
def character(data, at, end):  # type: ignore[no-untyped-def]
    """`(code point, bytes)` at data[at]; a malformed sequence is one byte of no class, never a read past `end`."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first >= 0xF0 and at + 3 < end:
        code = (
            (first & 7) << 18
            | (data[at + 1] & 0x3F) << 12
            | (data[at + 2] & 0x3F) << 6
            | (data[at + 3] & 0x3F)
        )
        return (code, 4) if code < 0x110000 else (np.int64(0xFFFF), 4)
    if first >= 0xE0 and first < 0xF0 and at + 2 < end:
        return (first & 15) << 12 | (data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F), 3
    if first >= 0xC0 and first < 0xE0 and at + 1 < end:
        return (first & 31) << 6 | (data[at + 1] & 0x3F), 2
    return np.int64(0xFFFF), 1


@njit(types.void(BYTES, OFFSETS, BYTES, types.boolean[::1]), **BORROWED)
def _any_of(data, offsets, table, found):  # type: ignore[no-untyped-def]
    """Sets `found` for each text in which the table, which is 0 for ASCII, is not 0 for some character."""
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        while at < end:
            if at + 8 <= end and load8(data, at) & np.uint64(0x8080808080808080) == 0:
                at += 8
                continue
            code, width = character(data, at, end)
            if table[code]:
                found[text] = True
                break
            at += width
