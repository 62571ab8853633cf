"""Which script a text is written in, counted in bytes of letters.

Bytes, because they weigh scripts fairly: a Han character (three bytes) says about as much as half an English word.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.text.kernels import ALPHA, BYTES, CLASSES, OFFSETS, TABLE, decode

#: Scripts by their ranges of code points (Unicode blocks that hold letters of one script; `Other` is what is left).
RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0x24F), (0x250, 0x2AF), (0x1D00, 0x1DBF),
              (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB6F), (0xFB00, 0xFB06), (0xFF21, 0xFF5A)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE)),
    "Devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
    "Bengali": ((0x980, 0x9FF),),
    "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "Ethiopic": ((0x1200, 0x139F), (0x2D80, 0x2DDF), (0xAB00, 0xAB2F)),
    "Tibetan": ((0xF00, 0xFFF),),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Han": ((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
            (0x20000, 0x323AF), (0x3100, 0x312F), (0x31A0, 0x31BF)),
    "Kana": ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F)),
    "Hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "Thai": ((0xE00, 0xE7F),),
    "Lao": ((0xE80, 0xEFF),),
    "Khmer": ((0x1780, 0x17FF),),
    "Myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
    "Armenian": ((0x530, 0x58F), (0xFB13, 0xFB17)),
    "Gurmukhi": ((0xA00, 0xA7F),),
    "Gujarati": ((0xA80, 0xAFF),),
    "Odia": ((0xB00, 0xB7F),),
    "Tamil": ((0xB80, 0xBFF),),
    "Telugu": ((0xC00, 0xC7F),),
    "Kannada": ((0xC80, 0xCFF),),
    "Malayalam": ((0xD00, 0xD7F),),
    "Sinhala": ((0xD80, 0xDFF),),
    "Thaana": ((0x780, 0x7BF),),
    "Syriac": ((0x700, 0x74F), (0x860, 0x86F)),
    "NKo": ((0x7C0, 0x7FF),),
    "Cherokee": ((0x13A0, 0x13FF), (0xAB70, 0xABBF)),
    "Mongolian": ((0x1800, 0x18AF),),
    "Tifinagh": ((0x2D30, 0x2D7F),),
    "Yi": ((0xA000, 0xA4CF),),
    "Vai": ((0xA500, 0xA63F),),
    "Ol Chiki": ((0x1C50, 0x1C7F),),
    "Javanese": ((0xA980, 0xA9DF),),
    "Meetei": ((0xABC0, 0xABFF), (0xAAE0, 0xAAFF)),
    "Adlam": ((0x1E900, 0x1E95F),),
    "Grantha": ((0x11300, 0x1137F),),
    "Chakma": ((0x11100, 0x1114F),),
}  # fmt: skip
SCRIPTS = ("Other", *RANGES)


def _table() -> np.ndarray:
    """Index into SCRIPTS of each code point below 0x33000."""
    table = np.zeros(0x33000, np.uint8)
    for number, ranges in enumerate(RANGES.values(), start=1):
        for first, last in ranges:
            table[first : last + 1] = number
    table.setflags(write=False)
    return table


SCRIPT_OF = _table()
_OUT = types.Array(types.int64, 2, "C")


@njit(types.void(BYTES, OFFSETS, TABLE, TABLE, _OUT), cache=True, nogil=True)
def _letter_bytes(data, offsets, classes, script_of, out):
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while i < end:
            if data[i] < 0x80:
                letter = data[i] | 0x20
                out[row, 1] += 0x61 <= letter <= 0x7A  # Latin
                i += 1
                continue
            code, after = decode(data, i, end)
            if classes[code] & ALPHA:
                script = np.int64(script_of[code]) if code < len(script_of) else 0
                out[row, script] += after - i
            i = after


def letter_bytes(data_U8: np.ndarray, offsets_N1: np.ndarray) -> np.ndarray:
    """int64 [N, len(SCRIPTS)]: bytes of letters of each script in each text. Digits, marks and punctuation do not count."""
    out_NS = np.zeros((len(offsets_N1) - 1, len(SCRIPTS)), np.int64)
    _letter_bytes(data_U8, offsets_N1, CLASSES, SCRIPT_OF, out_NS)
    return out_NS
