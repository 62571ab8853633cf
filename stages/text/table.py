"""The character table: one byte of class and flags per code point, and simple lower-case forms.

The table is shipped as `unicode.npz`, so that words do not change with the Unicode version of the Python that runs.
`python stages/text/table.py` makes it again from `unicodedata` of the running Python, and takes the two sets of
punctuation that the Gopher and FineWeb rules are defined with from the installed `datatrove` (Apache-2.0).

Low four bits: the class, which decides where words begin and end.

    OTHER    punctuation, symbols, controls, unassigned
    SPACE    what `str.isspace` says
    WORD     letters and digits of scripts that put spaces between words; a run of them is one word
    UNIT     Han, kana, Bopomofo, Yi: each character is one word
    CLUSTER  base letters of Thai, Lao, Khmer, Myanmar, Tai scripts: each begins a word (close to a syllable)
    LEAD     Thai, Lao, Tai Viet vowels written before their consonant: begin a word and take the next CLUSTER in
    JOIN     Khmer coeng, Myanmar and Tai Tham stackers: belong to the word and take the next CLUSTER in
    MARK     combining marks and Thai/Lao vowel letters after the consonant: belong to the word before them
    IGNORE   soft hyphen, zero-width joiners, variation selectors: inside a word they are not seen at all

High four bits: ALPHA `str.isalpha`; PUNCT in datatrove's punctuation; TERMINAL ends a sentence; LATIN a Latin letter.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

OTHER, SPACE, WORD, UNIT, CLUSTER, LEAD, JOIN, MARK, IGNORE = range(9)
CLASS = 0x0F
ALPHA, PUNCT, TERMINAL, LATIN = 0x10, 0x20, 0x40, 0x80

CODE_POINTS = 0x110000
#: Code points from here on have no case.
CASED = 0x20000

FILE = Path(__file__).with_name("unicode.npz")

_UNIT_RANGES = (
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x3035), (0x3038, 0x303C), (0x3041, 0x3096),
    (0x309D, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x16FE0, 0x18DFF), (0x1AFF0, 0x1B2FF),
    (0x20000, 0x3FFFD),
)  # fmt: skip
_CLUSTER_RANGES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF),
)  # fmt: skip
_LEADS = (*range(0x0E40, 0x0E45), *range(0x0EC0, 0x0EC5), 0xAAB5, 0xAAB6, 0xAAB9, 0xAABB, 0xAABC)
_JOINS = (0x1039, 0x17D2, 0x1A60)
_TRAILING_VOWELS = (0x0E30, 0x0E32, 0x0E33, 0x0E45, 0x0EB0, 0x0EB2, 0x0EB3, 0xAAB1, 0xAABA, 0xAABD)
_IGNORED = (0x00AD, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))


def load() -> tuple[np.ndarray, np.ndarray, str]:
    """`(classes uint8 [0x110000], lower uint32 [0x20000], version)` of the shipped table, both arrays read-only.

    `version` is the Unicode version and the first hex digits of a digest, for the recipe of a stage.
    """
    with np.load(FILE, allow_pickle=False) as stored:
        classes, unicode_version = stored["classes"], str(stored["unicode"])
        lower = (np.arange(CASED, dtype=np.int64) + stored["lower_minus_code"]).astype(np.uint32)
    classes.setflags(write=False)
    lower.setflags(write=False)
    digest = hashlib.sha256(classes.tobytes() + lower.tobytes()).hexdigest()
    return classes, lower, f"unicode {unicode_version} {digest[:16]}"


def make() -> tuple[np.ndarray, np.ndarray]:
    """`(classes, lower)` as `load` gives them, computed from `unicodedata` and datatrove's sets."""
    import unicodedata

    from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION

    unit = _members(_UNIT_RANGES)
    cluster = _members(_CLUSTER_RANGES)
    classes = np.zeros(CODE_POINTS, np.uint8)
    lower = np.arange(CASED, dtype=np.uint32)
    for code in range(CODE_POINTS):
        character = chr(code)
        category = unicodedata.category(character)
        if character.isspace():
            kind = SPACE
        elif code in _IGNORED:
            kind = IGNORE
        elif code in _LEADS:
            kind = LEAD
        elif code in _JOINS:
            kind = JOIN
        elif category[0] == "M" or code in _TRAILING_VOWELS:
            kind = MARK
        elif unit[code] and category[0] in "LNS":  # S: the radicals are symbols to Unicode
            kind = UNIT
        elif category[0] in "LN":
            kind = CLUSTER if cluster[code] and category[0] == "L" else WORD
        else:
            kind = OTHER
        flags = ALPHA * character.isalpha() + PUNCT * (character in PUNCTUATION_SET)
        flags += TERMINAL * (character in TERMINAL_PUNCTUATION)
        flags += LATIN * (category[0] == "L" and unicodedata.name(character, "").startswith("LATIN "))
        classes[code] = kind + flags
        small = character.lower()
        if code < CASED and len(small) == 1:
            lower[code] = ord(small)
    return classes, lower


def _members(ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    mask = np.zeros(CODE_POINTS, bool)
    for first, last in ranges:
        mask[first : last + 1] = True
    return mask


def main() -> None:
    """Writes `unicode.npz`."""
    import unicodedata

    classes, lower = make()
    offset = (lower.astype(np.int64) - np.arange(CASED)).astype(np.int32)  # nearly all zero: packs well
    version = np.array(unicodedata.unidata_version)
    np.savez_compressed(FILE, classes=classes, lower_minus_code=offset, unicode=version)


if __name__ == "__main__":
    main()
