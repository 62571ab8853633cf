"""Whether a text is whole: characters that were decoded wrongly, and pieces that it says again and again.

A classifier judges by words, and most words of a page that is spoilt in part are good ones. So its score counts only as far as
the text is sound. Words are garbled by what hardly stands in a text as its author wrote it:

    U+FFFD, characters of private use, C1 controls
    UTF-8 that was read as Latin-1 or windows-1252 ("Ã©", "â€™")
    Latin and Cyrillic letters in one word ("divulgaciГіn"); Greek ones stand in formulas
    锟斤拷, and Han characters of no national standard but GB 18030: what UTF-8 becomes in GBK
"""

from __future__ import annotations

import functools

import numpy as np
from numba import njit, types

from stages.rules.statistics import measure
from stages.text.kernels import ALPHA, BYTES, CLASS, CLASSES, IGNORE, MARK, OFFSETS, TABLE, WORD, decode

#: Shares of garbled words, and of characters that were there before, up to which a text is sound and from which it is worth nothing.
_GARBLED, _REPEATED = (0.01, 0.04), (0.2, 0.5)

_OTHER, _LATIN, _CYRILLIC = range(3)
#: What windows-1252 has where Latin-1 has C1 controls: bytes of UTF-8 behind the first become these, too.
_WINDOWS = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
#: Flags of characters: what such a byte becomes; Han characters of no national standard.
_TAIL, _RARE = 1, 2


@functools.lru_cache(maxsize=1)
def _signs() -> np.ndarray:
    """uint8 [65536], read-only: the flags of each code point."""
    flags = np.zeros(1 << 16, np.uint8)
    flags[0x80:0xC0] = _TAIL
    flags[0xA0] = 0  # a no-break space stands behind à and É in good texts
    flags[[ord(c) for c in _WINDOWS]] |= _TAIL
    for code in range(0x4E00, 0xA000):
        if not any(chr(code).encode(name, "ignore") for name in ("gb2312", "big5", "euc_jp", "euc_kr")):
            flags[code] |= _RARE
    flags.setflags(write=False)
    return flags


@njit(inline="always")
def _alphabet(code):
    return _LATIN if code < 0x250 else _CYRILLIC if 0x400 <= code < 0x530 else _OTHER


@njit(inline="always")
def _is_misread(code, before, two_before, flags):
    """Whether two or three characters are what is made of the UTF-8 of one. (ß stands before “ in German.)"""
    if code > 0xFFFF or before > 0xFFFF or flags[code] & _TAIL == 0:
        return False
    return (0xC2 <= before < 0xDF and before != 0xD7) or (flags[before] & _TAIL != 0 and 0xE0 <= two_before <= 0xEF)


@njit(inline="always")
def _is_garbled(code, before, two_before, flags):
    """Whether this character, with the two before it, is a sign of wrong decoding."""
    if code == 0xFFFD or 0xE000 <= code < 0xF900 or (0x80 <= code < 0xA0 and code != 0x85):
        return True
    if 0x4E00 <= code < 0xA000 and flags[code] & _RARE:
        return True
    if code == 0x62F7 and before == 0x65A4 and two_before == 0x951F:  # 锟斤拷
        return True
    return _is_misread(code, before, two_before, flags)


@njit(types.void(BYTES, OFFSETS, TABLE, TABLE, types.int64[::1]), cache=True, nogil=True)
def _count_garbled(data, offsets, classes, flags, found):
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        before = two_before = np.int64(0x20)
        alphabet = _OTHER
        garbled = False
        count = 0
        while i < end:
            code, i = decode(data, i, end)
            kind = np.int64(classes[code])
            if _is_garbled(code, before, two_before, flags):
                garbled = True
            elif kind & CLASS not in (WORD, MARK, IGNORE):
                count += garbled
                alphabet, garbled = _OTHER, False
            elif kind & ALPHA:
                own = _alphabet(code)
                garbled = garbled or (own != _OTHER and alphabet != _OTHER and own != alphabet)
                alphabet = own if own != _OTHER else alphabet
            two_before, before = before, code
        found[row] = count + garbled


def garbled_words(data_U8: np.ndarray, offsets_N1: np.ndarray) -> np.ndarray:
    """int64 [N]: how many words of each text are garbled; of scripts without spaces, runs of such characters."""
    found_N = np.zeros(len(offsets_N1) - 1, np.int64)
    _count_garbled(data_U8, offsets_N1, CLASSES, _signs(), found_N)
    return found_N


def soundness(data_U8: np.ndarray, offsets_N1: np.ndarray) -> np.ndarray:
    """float64 [N], 0 to 1: 1 for sound texts, falling in a straight line to 0 where more is garbled or repeated.

    Repeated are paragraphs or, whichever is more, runs of ten words (of 20 characters in scripts without spaces).
    """
    numbers, _ = measure(data_U8, offsets_N1, "ngrams", 0, {})
    garbled_N = garbled_words(data_U8, offsets_N1) / np.maximum(numbers["words"], 1)
    repeated_N = np.maximum(numbers["repeated_10"], numbers["duplicate_paragraph_characters"])
    repeated_N = repeated_N / np.maximum(numbers["characters"], 1)
    sound_N = np.ones(len(garbled_N))
    for share_N, (fine, worthless) in ((garbled_N, _GARBLED), (repeated_N, _REPEATED)):
        sound_N *= np.clip((worthless - share_N) / (worthless - fine), 0.0, 1.0)
    return sound_N
