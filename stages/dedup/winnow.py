"""Kernels of repeated spans: fingerprints chosen by winnowing, and how far two texts agree around one.

Winnowing (Schleimer, Wilkerson, Aiken 2003): of every `window` successive hashes of k words the smallest is chosen, the
last of equals. Two texts that share a run of window + k - 1 words choose a common one inside of it; about 2 in window + 1
hashes are chosen.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from stages.dedup.signature import I64_1, U64_1
from stages.text.kernels import mix

_BASE = np.uint64(0x9E3779B97F4A7C15)


@njit(
    types.Tuple((types.uint64[::1], types.uint32[::1], types.int64[::1]))(U64_1, I64_1, types.int64, types.int64),
    cache=True,
    nogil=True,
)
def winnow(words, offsets, k, window):
    """`(hashes, places, chosen_offsets)`: what is chosen of each text, and the number of the word where it begins.

    words, offsets  hashes of the words of all texts, as `text.word_hashes` gives them
    A text with fewer than window + k - 1 words has nothing.
    """
    room = 0
    for text in range(len(offsets) - 1):
        room += max(offsets[text + 1] - offsets[text] - k + 1, 0)
    hashes, places = np.empty(room, np.uint64), np.empty(room, np.uint32)
    chosen_offsets = np.zeros(len(offsets), np.int64)
    leaving = np.uint64(1)
    for _ in range(k):
        leaving *= _BASE
    at = 0
    longest = 1
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    grams = np.empty(longest, np.uint64)
    for text in range(len(offsets) - 1):
        start, count = offsets[text], offsets[text + 1] - offsets[text] - k + 1
        if count >= window:
            value = np.uint64(0)
            for i in range(count + k - 1):
                value = value * _BASE + words[start + i]
                if i >= k:
                    value -= words[start + i - k] * leaving
                if i >= k - 1:
                    grams[i - k + 1] = mix(value)
            best = -1
            for stop in range(window, count + 1):
                first = stop - window
                if best < first:  # the last choice has left: look again at the whole window
                    best = first
                    for i in range(first + 1, stop):
                        if grams[i] <= grams[best]:
                            best = i
                elif grams[stop - 1] <= grams[best]:
                    best = stop - 1
                else:
                    continue
                hashes[at], places[at] = grams[best], best
                at += 1
        chosen_offsets[text + 1] = at
    return hashes[:at].copy(), places[:at].copy(), chosen_offsets


@njit(types.UniTuple(types.int64, 2)(U64_1, types.int64, U64_1, types.int64), cache=True, nogil=True)
def agreement(left, i, right, j):
    """`(before, behind)`: how many words before left[i] and right[j], and from there on, are the same."""
    before = 0
    while before < i and before < j and left[i - before - 1] == right[j - before - 1]:
        before += 1
    behind = 0
    while i + behind < len(left) and j + behind < len(right) and left[i + behind] == right[j + behind]:
        behind += 1
    return before, behind
