"""The one definition of a word, for every script, and what is counted with it.

A word is a run of letters, digits and marks in scripts that separate words by spaces; an apostrophe before a letter and
a point or comma between two digits belong to it. In scripts that do not, each unit is a word: one Han character or kana;
one Thai, Lao, Khmer or Myanmar consonant with its vowels and marks. So a 5-gram of words is a 5-gram of characters in
Chinese.
`table.py` has the classes of characters, `kernels.py` the definition, compiled, `scan.py` the fast way to the hashes.
"""

from __future__ import annotations

import numpy as np

from stages.text import kernels, scan

#: Unicode version and digest of the character table: part of the recipe of each stage that counts words.
VERSION = kernels.VERSION

Buffers = tuple[np.ndarray, np.ndarray]


def word_hashes(data_U8: np.ndarray, offsets_N1: np.ndarray) -> Buffers:
    """`(hashes uint64 flat, word_offsets int64 [N + 1])`: the words of text i are hashes[word_offsets[i]:word_offsets[i + 1]].

    data_U8, offsets_N1  the buffers of N texts, as `document.text_buffers` gives them
    Words are hashed in lower case (simple case mapping); punctuation and white space are skipped. Equal words have equal
    hashes on every machine; different ones differ but for 64-bit chance.
    """
    word_offsets_N1 = np.zeros(len(offsets_N1), np.int64)
    room = np.empty(int(((np.diff(offsets_N1) + 1) // 2).sum()), np.uint64)
    total = scan.hash_words(data_U8, offsets_N1, kernels.CLASSES, kernels.LOWER, room, word_offsets_N1)
    return room[:total].copy(), word_offsets_N1


def shingle_hashes(data_U8: np.ndarray, offsets_N1: np.ndarray, n: int) -> Buffers:
    """`(hashes uint64 flat, shingle_offsets int64 [N + 1])` of the n-grams of words of each text, repeats included.

    A text of 1 to n - 1 words has one shingle, of all its words; a text without words has none.
    """
    if n < 1:
        raise ValueError(f"shingles need at least one word, not {n}")
    words, word_offsets_N1 = word_hashes(data_U8, offsets_N1)
    counts_N = np.diff(word_offsets_N1)
    shingle_offsets_N1 = np.zeros(len(word_offsets_N1), np.int64)
    np.cumsum(np.where(counts_N > 0, np.maximum(counts_N - n + 1, 1), 0), out=shingle_offsets_N1[1:])
    hashes = np.empty(shingle_offsets_N1[-1], np.uint64)
    kernels.combine_shingles(words, word_offsets_N1, shingle_offsets_N1, n, hashes)
    return hashes, shingle_offsets_N1


def folded_hashes(data_U8: np.ndarray, offsets_N1: np.ndarray, seed: int) -> np.ndarray:
    """uint64 [N]: a keyed hash of each text, equal for texts that differ in case and in the amount of white space alone."""
    hashes = np.empty(len(offsets_N1) - 1, np.uint64)
    kernels.hash_folded(data_U8, offsets_N1, kernels.CLASSES, kernels.LOWER, np.uint64(seed % 2**64), hashes)
    return hashes


def words(text: str) -> list[str]:
    """The words and units of one text, in order. Slow: for people, messages and tests."""
    content = text.encode("utf-8", "replace")
    data_U8 = np.frombuffer(content, np.uint8)
    starts, stops = np.empty((2, (len(content) + 1) // 2), np.int64)
    found = kernels.word_spans(data_U8, np.array([0, len(content)]), kernels.CLASSES, starts, stops)
    return [
        content[a:b].decode() for a, b in zip(starts[:found].tolist(), stops[:found].tolist(), strict=True)
    ]
