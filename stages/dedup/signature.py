"""MinHash bands and the verification sketch of documents, compiled.

The shingles of a document are its runs of n consecutive words, each a 64-bit hash that depends on their order
(cyclic polynomial over the word hashes, Cohen 1997, times an odd constant). From them come

    band keys   rows of MinHash (Broder 1997): row k is the minimum of a_k * h + b_k mod 2**32 over the upper
                half h of the shingle hashes, a_k odd; the rows of a band are folded into one u64
    sketch      one-permutation hash (Li, Owen, Zhang 2012) of 256 bins: the smallest value of each bin, cut to
                one byte 1 to 255, 0 = nothing fell into the bin. It is independent of the bands, so the
                similarity of two documents that met in a band is estimated without the bias of having met
    twin        128-bit hash of keys and sketch: equal twins are equal in all that deduplication looks at

Similarity from two sketches: with m equal non-empty bins and z bins empty in both, q = m / (256 - z) is the
share that agrees and J = (q - 1/255) / (254/255), because different minima share a byte once in 255 times.
Standard error at J = 0.8: 0.0175 (20 shingles) to 0.023 (3,000). Decisions compare integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit, types

from stages.dedup.minima import LANES, minima
from stages.exchange import words_of
from stages.text.kernels import BYTES, CLASSES, FOLD, LOWER, OFFSETS, TABLE, mix
from stages.text.scan import scan_words

BINS = 256
SKETCH_WORDS = BINS // 8

U64_1 = types.Array(types.uint64, 1, "C", readonly=True)
U64_2 = types.Array(types.uint64, 2, "C", readonly=True)
U32_1 = types.Array(types.uint32, 1, "C", readonly=True)
I64_1 = types.Array(types.int64, 1, "C", readonly=True)

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, bits well spread, as the next one
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_TURN = np.uint64(13)

_EMPTY = np.uint32(0xFFFFFFFF)  # more than any value of 31 bits
_LOW31 = np.uint32(0x7FFFFFFF)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)  # of MurmurHash3's 32-bit finalizer
_15, _16 = np.uint32(15), np.uint32(16)

_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH = np.uint64(0x8080808080808080)


@dataclass(frozen=True)
class Permutations:
    """The random constants of one seed: `multipliers` (odd), `offsets`, uint32; u64 `salt` of keys and sketch."""

    multipliers: np.ndarray
    offsets: np.ndarray
    salt: np.uint64

    @classmethod
    def make(cls, seed: int, count: int) -> Permutations:
        """Constants from a counter and a mixer, so they depend on no library's random generator."""
        counter = np.arange(2 * count + 1, dtype=np.uint64) + np.uint64(seed * int(_SPREAD) % 2**64)
        numbers = _mix_all((counter + np.uint64(1)) * _BASE)
        halves = (numbers >> np.uint64(32)).astype(np.uint32)
        return cls(halves[:count] | np.uint32(1), halves[count : 2 * count], numbers[-1])


@dataclass(frozen=True)
class Signatures:
    """Of N documents: `keys` u64, `sketches` u64 words of 256 bytes, `twins` u64, `counts` u32.

    counts is the number of shingles, repeats included. A document without shingles has zeros everywhere.
    """

    keys: np.ndarray
    sketches: np.ndarray
    twins: np.ndarray
    counts: np.ndarray


def sign(
    words: np.ndarray, offsets_N1: np.ndarray, ngram: int, bands: int, rows: int, permutations: Permutations
) -> Signatures:
    """Signatures of documents given as word hashes: document i is words[offsets[i]:offsets[i + 1]]."""
    made = _room(len(offsets_N1) - 1, bands)
    _sign(words, offsets_N1, ngram, *_constants(permutations, bands, rows), *_columns(made))
    return made


def sign_texts(
    data_U8: np.ndarray, offsets_N1: np.ndarray, ngram: int, bands: int, rows: int, permutations: Permutations
) -> Signatures:
    """Signatures of texts, given as buffers: those of `sign` over `text.word_hashes`, without storing the words."""
    made = _room(len(offsets_N1) - 1, bands)
    constants = _constants(permutations, bands, rows)
    _sign_texts(data_U8, offsets_N1, CLASSES, LOWER, ngram, *constants, *_columns(made))
    return made


def _room(documents: int, bands: int) -> Signatures:
    return Signatures(
        np.zeros((documents, bands), np.uint64),
        np.zeros((documents, SKETCH_WORDS), np.uint64),
        np.zeros((documents, 2), np.uint64),
        np.zeros(documents, np.uint32),
    )


def _constants(permutations: Permutations, bands: int, rows: int) -> tuple[Any, ...]:
    """Rows of a band, and multipliers and offsets for all of them, filled up to whole vectors."""
    fill = (0, -bands * rows % LANES)
    used = [np.pad(c[: bands * rows], fill) for c in (permutations.multipliers, permutations.offsets)]
    return rows, *used, permutations.salt


def _columns(made: Signatures) -> tuple[np.ndarray, ...]:
    return made.keys, made.sketches.view(np.uint8), made.sketches, made.twins, made.counts


def sketches_of(table: pa.Table, rows: np.ndarray) -> np.ndarray:
    """The sketches, u64 (len(rows), 32), of these rows of an emission; only their pages of the file are read."""
    chunks = table.column("sketch").chunks
    ends = np.cumsum([len(chunk) for chunk in chunks])
    result = np.empty((len(rows), SKETCH_WORDS), np.uint64)
    owner = np.searchsorted(ends, rows, side="right")
    for number, chunk in enumerate(chunks):
        mine = np.flatnonzero(owner == number)
        result[mine] = words_of(chunk)[rows[mine] - (ends[number] - len(chunk))]
    return result


def needed(threshold: float) -> int:
    """The integer that `agree` compares with: 255 times the share of bins that agree at this similarity."""
    return math.ceil(255 * (threshold * 254 / 255 + 1 / 255) - 1e-9)


def similarity(agreement_N: np.ndarray) -> np.ndarray:
    """J, float32 to three decimals, of the stored bytes 255 * q."""
    q = np.asarray(agreement_N, np.float64) / 255
    return np.round(np.clip((q - 1 / 255) / (254 / 255), 0, 1), 3).astype(np.float32)


@njit(cache=True)
def _mix_all(values):
    result = np.empty_like(values)
    for i in range(len(values)):
        result[i] = mix(values[i])
    return result


@njit(inline="always")
def _rotated(value, bits):
    return value << bits | value >> (np.uint64(64) - bits)


@njit(inline="always")
def _shingle(words, start, stop, n, shingles):
    """Fills shingles[: count] and returns count, 0 when there are fewer than n words.

    A shingle is the exclusive or of its words, each rotated by _TURN bits for every word behind it: 64 words at
    most, and _TURN is odd, so no two places have the same rotation.
    """
    count = stop - start - n + 1
    if count <= 0:
        return np.int64(0)
    value = np.uint64(0)
    for i in range(n):
        value = _rotated(value, _TURN) ^ words[start + i]
    shingles[0] = _spread(value)
    out = np.uint64((n * 13) % 64)  # how far the word that leaves has been turned
    for i in range(1, count):
        leaving = words[start + i - 1]
        if out:
            leaving = _rotated(leaving, out)
        value = _rotated(value, _TURN) ^ leaving ^ words[start + n - 1 + i]
        shingles[i] = _spread(value)
    return count


@njit(inline="always")
def _spread(value):
    value *= _BASE
    return value ^ (value >> np.uint64(32))


@njit(inline="always")
def _fold_bands(rows, per_band, salt, keys):
    for band in range(len(keys)):
        key = salt + np.uint64(band) * _SPREAD
        for r in range(band * per_band, (band + 1) * per_band):
            key = (key ^ np.uint64(rows[r])) * _BASE
            key ^= key >> np.uint64(29)
        keys[band] = mix(key)


@njit(inline="always")
def _sketch(shingles, count, salt, bins, sketch):
    for b in range(BINS):
        bins[b] = _EMPTY
    for i in range(count):
        # Hashed anew, so that bins do not follow the bits that MinHash orders by.
        value = (shingles[i] ^ salt) * _SPREAD
        chosen = np.int64(value >> np.uint64(56))
        bins[chosen] = min(bins[chosen], np.uint32(value >> np.uint64(25)) & _LOW31)
    for b in range(BINS):  # minima have small high bits, so they are mixed before a byte is cut from them
        x = bins[b] * _MIX_A
        x = (x ^ x >> _15) * _MIX_B
        byte = np.uint32(1) + ((x >> _16) * np.uint32(255) >> _16)
        sketch[b] = np.uint8(0) if bins[b] == _EMPTY else np.uint8(byte)


@njit(inline="always")
def _absorb(state, value, multiplier):
    state = (state ^ value) * multiplier
    return state ^ (state >> np.uint64(31))


@njit(inline="always")
def _twin(keys, sketch, twin):
    high, low = np.uint64(1), np.uint64(2)
    for value in keys:
        high, low = _absorb(high, value, _BASE), _absorb(low, value, _SPREAD)
    for value in sketch:
        high, low = _absorb(high, value, _BASE), _absorb(low, value, _SPREAD)
    twin[0], twin[1] = mix(high), mix(low)


_CONSTANTS = (types.int64, types.int64, U32_1, U32_1, types.uint64)
_COLUMNS = (
    types.uint64[:, ::1], types.uint8[:, ::1], types.uint64[:, ::1], types.uint64[:, ::1], types.uint32[::1],
)  # fmt: skip


@njit(inline="always")
def _sign_one(
    words, start, stop, n, per_band, multipliers, additions, salt, shingles, lowest, bins,
    keys, sketch_bytes, sketch_words, twins, counts, i,
):  # fmt: skip
    count = _shingle(words, start, stop, n, shingles)
    if count == 0:
        return
    minima(shingles, count, multipliers, additions, lowest)
    _fold_bands(lowest, per_band, salt, keys[i])
    _sketch(shingles, count, salt, bins, sketch_bytes[i])
    _twin(keys[i], sketch_words[i], twins[i])
    counts[i] = count


@njit(types.void(U64_1, I64_1, *_CONSTANTS, *_COLUMNS), cache=True, nogil=True)
def _sign(
    words, offsets, n, per_band, multipliers, additions, salt, keys, sketch_bytes, sketch_words, twins, counts
):
    longest = np.int64(0)
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    shingles = np.empty(longest, np.uint64)
    lowest = np.empty(len(multipliers), np.uint32)
    bins = np.empty(BINS, np.uint32)
    for i in range(len(offsets) - 1):
        _sign_one(
            words, offsets[i], offsets[i + 1], n, per_band, multipliers, additions, salt, shingles, lowest, bins,
            keys, sketch_bytes, sketch_words, twins, counts, i,
        )  # fmt: skip


@njit(types.void(BYTES, OFFSETS, TABLE, FOLD, *_CONSTANTS, *_COLUMNS), cache=True, nogil=True)
def _sign_texts(
    data, offsets, classes, lower, n, per_band, multipliers, additions, salt,
    keys, sketch_bytes, sketch_words, twins, counts,
):  # fmt: skip
    longest = np.int64(0)
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    words = np.empty((longest + 1) // 2, np.uint64)
    shingles = np.empty_like(words)
    lowest = np.empty(len(multipliers), np.uint32)
    bins = np.empty(BINS, np.uint32)
    for i in range(len(offsets) - 1):
        found = scan_words(data, offsets[i], offsets[i + 1], classes, lower, words)
        _sign_one(
            words, np.int64(0), found, n, per_band, multipliers, additions, salt, shingles, lowest, bins,
            keys, sketch_bytes, sketch_words, twins, counts, i,
        )  # fmt: skip


@njit(inline="always")
def _zero_bytes(word):
    """How many of the eight bytes are 0. Without the classic trick's false hits above a zero byte."""
    marked = ~(((word & _LOW7) + _LOW7) | word | _LOW7)  # 0x80 where the byte is 0
    return (marked >> np.uint64(7)) * np.uint64(0x0101010101010101) >> np.uint64(56)


@njit(inline="always", nogil=True)
def agree(left, right, need):
    """`(m, z)` of two sketches (32 words each), or (0, 0) as soon as they cannot be similar enough.

    Similar means m * 255 >= need * (256 - z). After half of the bins the bound is exact: all others equal.
    """
    equal, empty = np.uint64(0), np.uint64(0)
    for w in range(SKETCH_WORDS // 2):
        equal += _zero_bytes(left[w] ^ right[w])
        empty += _zero_bytes(left[w] | right[w])
    if (np.int64(equal - empty) + BINS // 2) * 255 < need * (BINS - np.int64(empty)):
        return np.int64(0), np.int64(0)
    for w in range(SKETCH_WORDS // 2, SKETCH_WORDS):
        equal += _zero_bytes(left[w] ^ right[w])
        empty += _zero_bytes(left[w] | right[w])
    return np.int64(equal - empty), np.int64(empty)
