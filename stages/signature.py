"""MinHash bands and the verification sketch of documents, compiled.

The shingles of a document are its runs of n consecutive words, each a 64-bit hash that depends on their order
(polynomial over the word hashes, finished by MurmurHash3's mixer). From them come

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

import numpy as np
from numba import njit, types

from stages.text.kernels import mix

BINS = 256
SKETCH_WORDS = BINS // 8

U64_1 = types.Array(types.uint64, 1, "C", readonly=True)
U64_2 = types.Array(types.uint64, 2, "C", readonly=True)
U32_1 = types.Array(types.uint32, 1, "C", readonly=True)
I64_1 = types.Array(types.int64, 1, "C", readonly=True)

_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial: odd, bits well spread
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_BLOCK = 8  # shingles that are taken together through all permutations

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
    n = len(offsets_N1) - 1
    made = Signatures(
        np.zeros((n, bands), np.uint64),
        np.zeros((n, SKETCH_WORDS), np.uint64),
        np.zeros((n, 2), np.uint64),
        np.maximum(np.diff(offsets_N1) - (ngram - 1), 0).astype(np.uint32),
    )
    used = bands * rows
    _sign(
        words,
        offsets_N1,
        ngram,
        permutations.multipliers[:used],
        permutations.offsets[:used],
        permutations.salt,
        made.keys,
        made.sketches.view(np.uint8),
        made.sketches,
        made.twins,
    )
    return made


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
def _shingle(words, start, stop, n, shingles):
    """Fills shingles[: count] and pads with the last one to a whole block, which changes no minimum."""
    count = stop - start - n + 1
    if count <= 0:
        return np.int64(0)
    value = np.uint64(0)
    leaving = np.uint64(1)  # _BASE ** n: the weight of the word that leaves
    for i in range(n):
        value = value * _BASE + words[start + i]
        leaving *= _BASE
    shingles[0] = mix(value)
    for i in range(1, count):
        value = value * _BASE + words[start + n - 1 + i] - words[start + i - 1] * leaving
        shingles[i] = mix(value)
    for i in range(count, count + _BLOCK):
        shingles[i] = shingles[count - 1]
    return count


@njit(types.void(types.uint64[::1], types.int64, U32_1, U32_1, types.uint32[::1]), cache=True, nogil=True)
def _minima(shingles, count, multipliers, additions, rows):
    """MinHash rows. Eight shingles go through each row at once: the row stays in a register in between."""
    for k in range(len(rows)):
        rows[k] = np.uint32(0xFFFFFFFF)
    half = np.uint64(32)
    for i in range(0, count, _BLOCK):
        h0, h1 = np.uint32(shingles[i] >> half), np.uint32(shingles[i + 1] >> half)
        h2, h3 = np.uint32(shingles[i + 2] >> half), np.uint32(shingles[i + 3] >> half)
        h4, h5 = np.uint32(shingles[i + 4] >> half), np.uint32(shingles[i + 5] >> half)
        h6, h7 = np.uint32(shingles[i + 6] >> half), np.uint32(shingles[i + 7] >> half)
        for k in range(len(rows)):
            a, b = multipliers[k], additions[k]
            x = min(np.uint32(h0 * a + b), np.uint32(h1 * a + b))
            y = min(np.uint32(h2 * a + b), np.uint32(h3 * a + b))
            z = min(np.uint32(h4 * a + b), np.uint32(h5 * a + b))
            w = min(np.uint32(h6 * a + b), np.uint32(h7 * a + b))
            rows[k] = min(rows[k], min(min(x, y), min(z, w)))


@njit(inline="always")
def _fold_bands(rows, salt, keys):
    per_band = len(rows) // len(keys)
    for band in range(len(keys)):
        key = salt + np.uint64(band) * _SPREAD
        for r in range(band * per_band, (band + 1) * per_band):
            key = (key ^ np.uint64(rows[r])) * _BASE
            key ^= key >> np.uint64(29)
        keys[band] = mix(key)


@njit(inline="always")
def _sketch(shingles, count, salt, bins, sketch):
    for b in range(BINS):
        bins[b] = np.uint64(0xFFFFFFFFFFFFFFFF)
    for i in range(count):
        # Hashed anew, so that bins do not follow the bits that MinHash orders by.
        value = (shingles[i] ^ salt) * _SPREAD
        value = (value ^ (value >> np.uint64(32))) * _BASE
        chosen = np.int64(value >> np.uint64(56))
        bins[chosen] = min(bins[chosen], value << np.uint64(8))
    for b in range(BINS):
        # A value of all ones cannot be a minimum: its low byte is 0 after the shift.
        if bins[b] == np.uint64(0xFFFFFFFFFFFFFFFF):
            sketch[b] = np.uint8(0)
        else:  # minima have small high bits, so they are mixed before a byte is cut from them
            sketch[b] = np.uint8(np.uint64(1) + mix(bins[b]) % np.uint64(255))


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


@njit(
    types.void(
        U64_1, I64_1, types.int64, U32_1, U32_1, types.uint64,
        types.uint64[:, ::1], types.uint8[:, ::1], types.uint64[:, ::1], types.uint64[:, ::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def _sign(words, offsets, n, multipliers, additions, salt, keys, sketch_bytes, sketch_words, twins):
    longest = np.int64(0)
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i] - n + 1)
    shingles = np.empty(longest + _BLOCK, np.uint64)
    rows = np.empty(len(multipliers), np.uint32)
    bins = np.empty(BINS, np.uint64)
    for i in range(len(offsets) - 1):
        count = _shingle(words, offsets[i], offsets[i + 1], n, shingles)
        if count == 0:
            continue
        _minima(shingles, count, multipliers, additions, rows)
        _fold_bands(rows, salt, keys[i])
        _sketch(shingles, count, salt, bins, sketch_bytes[i])
        _twin(keys[i], sketch_words[i], twins[i])


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
