"""What a bag of words cannot see of a text, as words: how it repeats itself, how its lines are, how wordy it is.

A classifier of words and word pairs takes a page of one line a hundred times for that line. So each ratio of the rules is
put in one of a few classes, and its name and class stand as a made-up word behind the text, once for every so many words.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.rules.statistics import measure
from stages.text.kernels import BYTES, OFFSETS

#: Begins no word of any text: private use.
_MARK = "\ue0d0"
#: Ratios of the numbers of the rules, and where their classes end.
_SHARES = (0.01, 0.03, 0.1, 0.2, 0.4, 0.7)
_RATIOS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("duplicate_line_characters", "characters", _SHARES),
    ("duplicate_paragraph_characters", "characters", _SHARES),
    ("top_2", "characters", _SHARES),
    ("repeated_5", "characters", _SHARES),
    ("repeated_10", "characters", _SHARES),
    ("newlines", "words", (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)),
    ("characters", "filled_lines", (10, 20, 40, 80, 160, 320, 640)),
    ("terminal_lines", "filled_lines", (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)),
    ("short_lines", "filled_lines", (0.05, 0.25, 0.5, 0.75, 0.95)),
    ("alphabetic_words", "words", (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)),
    ("plain_word_characters", "plain_words", (2, 3, 4, 4.5, 5, 6, 8, 12)),
    ("alphanumerics", "characters", (0.3, 0.5, 0.65, 0.75, 0.85, 0.95)),
    ("latin_1", "characters", (0.002, 0.01, 0.03, 0.06, 0.1, 0.2)),  # decoded wrongly, UTF-8 is full of them
)
_SHORT_LINE = 30
#: The words of the shape come once, and once more for each so many words of the text.
_EVERY = 30


@njit(types.int64[::1](BYTES, OFFSETS), cache=True, nogil=True)
def _lead_bytes(data, offsets):
    """Characters from U+0080 to U+00FF in each text."""
    found = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(found)):
        for i in range(offsets[row], offsets[row + 1]):
            found[row] += (data[i] & 0xFE) == 0xC2
    return found


def shape_words(data_U8: np.ndarray, offsets_N1: np.ndarray) -> list[str]:
    """The words that say what each text is like, with a space before each."""
    numbers, _ = measure(data_U8, offsets_N1, "ngrams", _SHORT_LINE, {})
    numbers["latin_1"] = _lead_bytes(data_U8, offsets_N1)
    names = [f" {_MARK}{chr(0x61 + number)}" for number in range(len(_RATIOS))]
    classes_RN = [
        np.searchsorted(ends, numbers[above] / np.maximum(numbers[below], 1), side="right").tolist()
        for above, below, ends in _RATIOS
    ]
    times_N = (1 + numbers["words"] // _EVERY).tolist()
    return [
        "".join(f"{name}{one}" for name, one in zip(names, classes, strict=True)) * times
        for classes, times in zip(zip(*classes_RN, strict=True), times_N, strict=True)
    ]
