"""Keyed permutations of 0 … n - 1 that are computed, not stored: one position at a time, and backwards too.

A Feistel network over a grid of a x b cells (a = ceil(sqrt n), b = ceil(n / a)), with addition modulo a and b
instead of XOR, so that the grid has at most a - 1 cells more than n; a value that lands on one of those is sent
through again (cycle walking: Black and Rogaway 2002). Eight rounds. Everything is elementwise on arrays in
64-bit integers with wrap-around, so it gives the same numbers on every machine; n and key may differ by element.
"""

from __future__ import annotations

import hashlib

import numpy as np

ROUNDS = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key_of(*parts: str | int) -> np.uint64:
    """A 64-bit key for these words: the start of a SHA-256."""
    data = "\0".join(str(part) for part in parts).encode()
    return np.uint64(int.from_bytes(hashlib.sha256(data).digest()[:8], "little"))


def scramble(x: np.ndarray) -> np.ndarray:
    """A bijection of uint64 in which every input bit reaches every output bit (splitmix64: Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def derive(key: np.ndarray, number: np.ndarray | int) -> np.ndarray:
    """The key for `number` under `key`, elementwise; uint64 arrays of the joint shape."""
    salted = np.atleast_1d(np.asarray(number)).astype(np.uint64) * _GOLDEN + _GOLDEN
    return scramble(np.atleast_1d(np.asarray(key, np.uint64)) ^ scramble(salted))


def permute(x: np.ndarray, n: np.ndarray | int, key: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Where the permutation `key` of 0 … n - 1 sends x; with `inverse`, what it sends to x.

    x    int64 of shape (S,), 0 <= x < n
    n    int64, one or (S,);  key  uint64, one or (S,)
    Returns int64 of shape (S,).
    """
    x = np.asarray(x, np.int64)
    size = np.broadcast_to(np.asarray(n, np.int64), x.shape)
    keys = np.broadcast_to(np.asarray(key, np.uint64), x.shape)
    rows = np.floor(np.sqrt((size - 1).astype(np.float64))).astype(np.int64) + 1
    columns = (size + rows - 1) // rows
    result = _rounds(x, rows, columns, keys, inverse)
    outside = np.flatnonzero(result >= size)
    while len(outside):
        result[outside] = _rounds(result[outside], rows[outside], columns[outside], keys[outside], inverse)
        outside = outside[result[outside] >= size[outside]]
    return result


def _rounds(
    x: np.ndarray, rows: np.ndarray, columns: np.ndarray, key: np.ndarray, inverse: bool
) -> np.ndarray:
    """The network on the whole grid: row += F(column) mod rows, then column += F(row) mod columns, and so on."""
    row, column = np.divmod(x, columns)
    for number in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
        round_key = derive(key, number)
        if number % 2 == 0:
            row = _turn(row, rows, column, round_key, inverse)
        else:
            column = _turn(column, columns, row, round_key, inverse)
    return row * columns + column


def _turn(
    half: np.ndarray, size: np.ndarray, other: np.ndarray, key: np.ndarray, inverse: bool
) -> np.ndarray:
    shift = (scramble(other.astype(np.uint64) + key) % size.astype(np.uint64)).astype(np.int64)
    return (half - shift if inverse else half + shift) % size
