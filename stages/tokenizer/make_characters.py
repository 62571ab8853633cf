"""Writes `characters.npz`, the character classes that the compiled splitter looks up.

The classes are asked of the regex engine inside the `tokenizers` package, one code point at a time, because the
exported tokenizer.json is run by that engine: a character that Unicode 16 calls a letter and the engine does not
know yet must be "no letter" here too. Run it again when that package moves to a newer Unicode:

    python -m stages.tokenizer.make_characters
"""

from __future__ import annotations

import unicodedata
from importlib.metadata import version

import numpy as np
from tokenizers import Regex, pre_tokenizers

from stages.tokenizer.characters import (
    CAPITAL,
    CODE_POINTS,
    HAN,
    LETTER,
    MARK,
    NUMBER,
    SIGN,
    SMALL,
    SPACE,
    TABLE,
)

#: Bit of the class byte -> what the engine is asked.
QUESTIONS: dict[int, str] = {
    LETTER: r"\p{L}",
    NUMBER: r"\p{N}",
    SPACE: r"\s",
    HAN: r"\p{Han}",
    CAPITAL: r"[\p{Lu}\p{Lt}]",
    MARK: r"\p{M}",
    SIGN: r"[\p{P}\p{S}]",
    SMALL: r"\p{Ll}",
}


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


def _runs(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Runs of equal values: int32 starts and uint8 values."""
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]).astype(np.int32)
    return {f"{name}_starts": starts, name: values[starts]}


def main() -> None:
    """Asks, then stores the answers with the Unicode version that NFC was asked of."""
    found = np.zeros(CODE_POINTS, np.uint8)
    for bit, pattern in QUESTIONS.items():
        found |= np.where(members(pattern), bit, 0).astype(np.uint8)
    columns = {**_runs("classes", found), **_runs("unstable", nfc_unsafe().astype(np.uint8))}
    columns |= {"tokenizers": np.array(version("tokenizers")), "nfc_unicode": np.array(unicodedata.unidata_version)}
    np.savez_compressed(TABLE, **columns)  # type: ignore[arg-type]
    print(f"{TABLE.name}: {len(columns['classes'])} runs, {TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
