"""The n-grams of bytes that a language model knows, found in one walk over a text (Aho and Corasick, 1975).

py3langid ships a full table of transitions, 256 for each state: 40 MB that a walk jumps about in, which is slower than
all arithmetic. Nearly all of these transitions only fall back; here the edges of the tree of n-grams alone are kept, in
a hash table, and for each state where to fall back to. States near the root have full rows: most falls end there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, types

_U4 = types.Array(types.uint32, 1, "C", readonly=True)
_U8 = types.Array(types.uint64, 1, "C", readonly=True)
_I4 = types.Array(types.int32, 1, "C", readonly=True)

_MIX = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Automaton:
    """States are numbered from the root outwards; state 0 is the root.

    rows     int32, 256 for each of the first states: where a byte leads from there
    edges    uint64, open addressing: the state and byte in the high half, where they lead in the low half
    state    int32, two for each state: where to fall back to, and the number of its n-gram (-1: none)
    """

    rows: np.ndarray
    edges: np.ndarray
    state: np.ndarray


@njit(inline="always")
def _slot(key, size):
    return np.int64((key * _MIX) >> np.uint64(40)) & (size - 1)


@njit(types.int32(types.int64, types.int64, _I4, _U8, _I4), cache=True, nogil=True)
def step(state, byte, rows, edges, states):
    """The state behind `state` and a byte."""
    full = len(rows) >> 8
    size = len(edges)
    while state >= full:
        key = np.uint64(state << 8 | byte)
        slot = _slot(key, size)
        while edges[slot] != _EMPTY:
            if edges[slot] >> _32 == key:
                return np.int32(edges[slot] & np.uint64(0xFFFFFFFF))
            slot = (slot + 1) & (size - 1)
        state = np.int64(states[2 * state])
    return rows[state << 8 | byte]


@njit(cache=True, nogil=True)
def _walk_tree(next_move, row_of, order, depth, number, edge_from, edge_byte, edge_to):
    """Numbers the states breadth first; returns how many edges the tree has (those to states one deeper)."""
    order[0], number[0], depth[0] = 0, 0, 0
    seen, edges = 1, 0
    for at in range(len(order)):
        if at >= seen:
            break
        old = order[at]
        for byte in range(256):
            to = np.int64(next_move[(np.int64(row_of[old]) << 8) + byte])
            if number[to] < 0:
                number[to] = seen
                depth[seen] = depth[at] + 1
                order[seen] = to
                edge_from[edges], edge_byte[edges], edge_to[edges] = at, byte, seen
                edges += 1
                seen += 1
    return edges


@njit(cache=True, nogil=True)
def _fill_edges(edge_from, edge_byte, edge_to, edges):
    for k in range(len(edge_to)):
        key = np.uint64(edge_from[k] << 8 | edge_byte[k])
        slot = _slot(key, len(edges))
        while edges[slot] != _EMPTY:
            slot = (slot + 1) & (len(edges) - 1)
        edges[slot] = key << _32 | np.uint64(edge_to[k])


def build(next_move: np.ndarray, row_of: np.ndarray, feature_of: np.ndarray) -> tuple[Automaton, np.ndarray]:
    """The automaton of a full table, and int64 [features]: the old number of each n-gram, in the order of the new ones.

    next_move   uint32, 256 for each row: the next state
    row_of      the row of each state
    feature_of  the n-gram of each state, or -1
    """
    count = len(row_of)
    order, depth, edge_from, edge_byte, edge_to = np.zeros((5, count), np.int64)
    number = np.full(count, -1, np.int64)
    used = _walk_tree(next_move, row_of.astype(np.int64), order, depth, number, edge_from, edge_byte, edge_to)
    reached = used + 1
    order = order[:reached]
    near = int(np.searchsorted(depth[:reached], 2))  # the root and its children
    table = next_move.reshape(-1, 256)
    rows = number[table[row_of[order[:near]]]].astype(np.int32).ravel()
    edges = np.full(1 << int(np.ceil(np.log2(3 * reached))), _EMPTY, np.uint64)
    _fill_edges(edge_from[:used], edge_byte[:used], edge_to[:used], edges)
    states = np.zeros(2 * reached, np.int32)
    _fall_back(rows, edges, states, edge_from[:used], edge_byte[:used], edge_to[:used])
    has = np.flatnonzero(feature_of[order] >= 0)
    old, first, inverse = np.unique(feature_of[order[has]], return_index=True, return_inverse=True)
    by_state = np.argsort(first)
    states[1::2] = -1
    states[1 + 2 * has] = np.argsort(by_state)[inverse]
    return Automaton(rows, edges, states), old[by_state].astype(np.int64)


@njit(types.void(_I4, _U8, types.int32[::1], *[types.Array(types.int64, 1, "C", readonly=True)] * 3), cache=True, nogil=True)
def _fall_back(rows, edges, states, edge_from, edge_byte, edge_to):
    """Where each state falls back to: the state of the longest n-gram that its own ends with, but for itself."""
    for k in range(len(edge_to)):  # parents come before their children
        if edge_from[k] > 0:
            behind = np.int64(states[2 * edge_from[k]])
            states[2 * edge_to[k]] = step(behind, edge_byte[k], rows, edges, states)
