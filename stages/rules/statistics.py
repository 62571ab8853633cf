"""Numbers about each document, by compiled kernels: what the Gopher, FineWeb and code rules compare.

The definitions are those of datatrove's filters (GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter) with
the words of `stages.text`, so that decisions can be compared one by one. Ratios are left to the caller.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
from numba import njit, types

from stages.rules.columns import CHARACTERS, COLUMN, NAMES, NEWLINES, UNITS, UNSPACED_FROM, WORDS
from stages.rules.hashing import clear, hash_text, room_for
from stages.rules.ngrams import collect_stop_words, count_words, measure_ngrams, new_scratch, read_words
from stages.rules.shape import count_newlines, measure_shape
from stages.text.kernels import BYTES, CLASSES, HASHES, OFFSETS, TABLE
from stages.text.vectors import with_room

Depth = Literal["lines", "words", "ngrams"]
_LINES, _WORDS, _NGRAMS = range(3)
_DEPTHS: dict[Depth, int] = {"lines": _LINES, "words": _WORDS, "ngrams": _NGRAMS}

_OUT = types.Array(types.int64, 2, "C")
_MASKS = types.Array(types.uint64, 2, "C")
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_STOP_WORDS = types.Tuple((HASHES, _NUMBERS, _NUMBERS))


@njit(
    types.void(BYTES, OFFSETS, TABLE, types.int64, types.int64, _STOP_WORDS, _OUT, _MASKS),
    cache=True,
    nogil=True,
)
def _statistics(data, offsets, classes, depth, short, stop_words, out, stop_masks):
    scratch = new_scratch()
    table, keys = np.empty(room_for(1024), np.uint64), np.empty(1024, np.uint64)
    repeats, ids = np.empty(1024, np.uint8), np.empty(1024, np.int32)
    firsts, times = np.empty(1024, np.int32), np.empty(1024, np.int32)
    stop_hashes = stop_words[0]
    seen = np.zeros(len(stop_hashes) + 1, np.int32)  # the last place is for all other words
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        numbers = out[row]
        if depth == _LINES:
            count_words(data, start, end, classes, numbers)
        else:
            scratch = read_words(
                data, start, end, classes, scratch, stop_hashes, seen, np.int32(row + 1), numbers
            )
            collect_stop_words(stop_words, seen, np.int32(row + 1), stop_masks[row])
        count = numbers[WORDS]
        unspaced = numbers[UNITS] * UNSPACED_FROM > count
        numbers[NEWLINES] = numbers[CHARACTERS] = count_newlines(data, start, end)
        pieces = 2 * (numbers[NEWLINES] + 1)  # lines and paragraphs
        most = max(count, pieces) if depth == _NGRAMS else pieces
        if most > len(keys):
            most *= 2
            table, keys = np.empty(room_for(most), np.uint64), np.empty(most, np.uint64)
            repeats, ids = np.empty(most, np.uint8), np.empty(most, np.int32)
            firsts, times = np.empty(most, np.int32), np.empty(most, np.int32)
        limit = short // 2 if unspaced else short
        measure_shape(data, start, end, classes, limit, table, keys, clear(table, pieces), numbers)
        if depth == _NGRAMS:
            measure_ngrams(scratch, count, unspaced, repeats, ids, firsts, times, table, keys, numbers)


def _slots(keys: list[int], size: int) -> dict[int, int] | None:
    """slot -> key, where each stands at its own slot or the next; None if the table is too small for that."""
    slots: dict[int, int] = {}
    for key in keys:
        slot = next((s for s in (key % size, key % size + 1) if s not in slots), None)
        if slot is None:
            return None
        slots[slot] = key
    return slots


@functools.lru_cache(maxsize=8)
def _stop_table(stop_words: tuple[tuple[str, ...], ...]) -> tuple[np.ndarray, ...]:
    """A hash table of stop words: `(hash or 0, where its words begin and end, language << 6 | bit)`.

    A word stands at the slot that the low bits of its hash name, or at the next one; there is one slot more than 2^k.
    """
    places: dict[int, list[int]] = {}
    for language, words in enumerate(stop_words):
        for bit, word in enumerate(dict.fromkeys(words)):
            places.setdefault(hash_text(word), []).append(language << 6 | bit)
    size = 64
    while (slots := _slots(sorted(places), size)) is None:
        size *= 2
    hashes = np.zeros(size + 1, np.uint64)
    hashes[list(slots)] = np.array(list(slots.values()), np.uint64)
    counts = [len(places[slots[slot]]) if slot in slots else 0 for slot in range(size + 1)]
    bits = [place for slot in sorted(slots) for place in places[slots[slot]]]
    return hashes, np.cumsum([0, *counts]).astype(np.int64), np.array(bits, np.int64)


def measure(
    data_U8: np.ndarray,
    offsets_N1: np.ndarray,
    depth: Depth,
    short_line: int,
    stop_words: dict[str, tuple[str, ...]],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """`(statistic -> int64 [N], distinct stop words found int64 [N, languages])`.

    depth        what is wanted; the rest is 0. lines: of characters and lines, and how many words there are; words: also what
                 words are like; ngrams: also what repeats, which takes half of the time
    short_line   characters up to which a line is short; half of it in scripts without spaces
    stop_words   at most 64 for each language
    """
    out_NS = np.zeros((len(offsets_N1) - 1, len(NAMES)), np.int64)
    masks_NL = np.zeros((len(out_NS), max(1, len(stop_words))), np.uint64)
    _statistics(
        with_room(data_U8, offsets_N1),
        offsets_N1,
        CLASSES,
        _DEPTHS[depth],
        short_line,
        _stop_table(tuple(stop_words.values())),
        out_NS,
        masks_NL,
    )
    found_NL = np.bitwise_count(masks_NL).astype(np.int64)
    return {name: out_NS[:, number] for name, number in COLUMN.items()}, found_NL
