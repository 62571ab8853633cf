"""Compiled loops of the loader: which documents a window holds, and rows from tokens.

    N windows or rows, S spans (stretches of one document in one row), L length of a row
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: A position that predicts nothing.
IGNORE = -100

#: Document starts that are kept in memory: every so many.
STRIDE = 64

_WORDS = 5  # of 32 bits in a record of `.idx`; the first is the length


def walk(index_W: np.ndarray, coarse_C: np.ndarray, first_N: np.ndarray, size_N: np.ndarray) -> tuple[np.ndarray, ...]:
    """The documents that windows of one shard hold: `(which, document, start, count)`, int64 (S,), window by window.

    index_W   uint32, the records of `.idx` as words
    coarse_C  int64, where every STRIDE-th document begins
    first_N, size_N  int64, token in the shard that each window begins at, and its tokens; all in the shard
    `which` is the window, `start` the token in the shard, `count` the tokens of the document in the window.
    """
    counts_N, document_N, begin_N = _enter(index_W, coarse_C, first_N, size_N)
    total = int(counts_N.sum())
    which_S = np.repeat(np.arange(len(first_N)), counts_N)
    document_S, start_S, count_S = (np.empty(total, np.int64) for _ in range(3))
    _fill(index_W, first_N, size_N, document_N, begin_N, document_S, start_S, count_S)
    return which_S, document_S, start_S, count_S


@njit(cache=True, nogil=True)
def _enter(index_W, coarse_C, first_N, size_N):
    """`(documents in each window, number of the first, where that begins)`."""
    counts_N = np.zeros(len(first_N), np.int64)
    document_N = np.empty(len(first_N), np.int64)
    begin_N = np.empty(len(first_N), np.int64)
    for n in range(len(first_N)):
        coarse = np.searchsorted(coarse_C, first_N[n], side="right") - 1
        document, begin = coarse * STRIDE, coarse_C[coarse]
        while begin + np.int64(index_W[document * _WORDS]) <= first_N[n]:
            begin += np.int64(index_W[document * _WORDS])
            document += 1
        document_N[n], begin_N[n] = document, begin
        while begin < first_N[n] + size_N[n]:
            begin += np.int64(index_W[document * _WORDS])
            document += 1
            counts_N[n] += 1
    return counts_N, document_N, begin_N


@njit(cache=True, nogil=True)
def _fill(index_W, first_N, size_N, document_N, begin_N, document_S, start_S, count_S):
    s = 0
    for n in range(len(first_N)):
        document, begin = document_N[n], begin_N[n]
        last = first_N[n] + size_N[n]
        while begin < last:
            end = begin + np.int64(index_W[document * _WORDS])
            document_S[s] = document
            start_S[s] = max(begin, first_N[n])
            count_S[s] = min(end, last) - start_S[s]
            begin = end
            document += 1
            s += 1


@njit(cache=True, nogil=True)
def fill_rows(tokens_T, at_S, row_S, place_S, count_S, eos, masked, input_NL, label_NL, position_NL):
    """Writes rows from their spans; rows come in order, the spans of a row from its start on without a gap.

    tokens_T  the dtype of the files;  at_S  where the tokens of each span stand in it
    row_S, place_S, count_S  row, position in it and tokens of each span. A span may reach one token past the end of
              its row: that is only the label of the last position
    masked    no label leads from one span to the next
    input_NL, label_NL, position_NL  int64 (N, L), every element of which is written. Behind its spans a row holds EOS
              that predict nothing and count their positions from 0
    Positions count from the start of each span, or if not masked, of the row.
    """
    rows, length = input_NL.shape
    s = 0
    for row in range(rows):
        done = 0
        while s < len(row_S) and row_S[s] == row:
            place, source = place_S[s], at_S[s]
            real = min(count_S[s], length - place)
            first = 0 if masked else place
            for i in range(real):
                input_NL[row, place + i] = tokens_T[source + i]
                position_NL[row, place + i] = first + i
            for i in range(real - 1):
                label_NL[row, place + i] = tokens_T[source + i + 1]
            if real > 0:
                label_NL[row, place + real - 1] = tokens_T[source + real] if count_S[s] > real else IGNORE
            if not masked and place > 0:
                label_NL[row, place - 1] = tokens_T[source]
            done = place + real
            s += 1
        for i in range(done, length):
            input_NL[row, i] = eos
            label_NL[row, i] = IGNORE
            position_NL[row, i] = i - done
