"""Writes `unicode_classes.npz`, the character classes that the compiled splitter looks up.

The classes are asked of the regex engine inside the `tokenizers` package, one code point at a time, because the
exported tokenizer.json is run by that engine: a character that Unicode 16 calls a letter and the engine does not
know yet must be "no letter" here too. Run it again when that package moves to a newer Unicode:

    python -m stages.tokenizer.make_unicode_classes
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
from tokenizers import Regex, pre_tokenizers

CODE_POINTS = 0x110000
PATH = Path(__file__).with_name("unicode_classes.npz")

#: Bit of the class byte -> what the engine is asked.
QUESTIONS: dict[int, str] = {
    1: r"\p{L}",
    2: r"\p{N}",
    4: r"\s",
    8: r"\p{Han}",
    32: r"\p{M}",
    64: r"[\p{P}\p{S}]",
}
#: Set where a code point could take part in a change by NFC.
NFC_UNSAFE = 16


def members(pattern: str) -> np.ndarray:
    """bool[0x110000]: which code points (no surrogates) `pattern` matches as a whole string of one."""
    found = np.zeros(CODE_POINTS, bool)
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    valid = np.r_[0:0xD800, 0xE000:CODE_POINTS]
    for first in range(0, len(valid), 4096):
        block = valid[first : first + 4096]
        matched = np.ones(len(block), bool)
        for _, (start, end) in split.pre_tokenize_str("".join(map(chr, block))):
            matched[start:end] = False
        found[block] = matched
    return found


def nfc_unsafe() -> np.ndarray:
    """bool[0x110000]: not a starter, changed by NFC, second half of a composition, or unknown to this Python.

    A text without any of these is its own NFC (UAX #15, section 9: quick check Yes and combining class 0).
    """
    unsafe = np.zeros(CODE_POINTS, bool)
    unsafe[0x1161:0x1176] = True  # Hangul vowels and trailing consonants compose with what stands before
    unsafe[0x11A8:0x11C3] = True
    for code in range(CODE_POINTS):
        char = chr(code)
        if unicodedata.category(char) == "Cn" or unicodedata.combining(char):
            unsafe[code] = True
        if unicodedata.normalize("NFC", char) != char:
            unsafe[code] = True
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            unsafe[int(parts[1], 16)] = True
    return unsafe


def main() -> None:
    """Ask, then store runs of equal class: int32 starts and uint8 classes."""
    classes = np.where(nfc_unsafe(), NFC_UNSAFE, 0).astype(np.uint8)
    for bit, pattern in QUESTIONS.items():
        classes |= np.where(members(pattern), bit, 0).astype(np.uint8)
    starts = np.flatnonzero(np.r_[True, classes[1:] != classes[:-1]]).astype(np.int32)
    np.savez_compressed(PATH, starts=starts, classes=classes[starts])
    print(f"{PATH.name}: {len(starts)} runs, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
