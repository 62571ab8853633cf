"""Where the lines of texts begin and end, texts without some of them, and one array of two. Compiled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit, types

from stages.document import text_array, text_buffers
from stages.text.kernels import BYTES, OFFSETS
from stages.text.memory import copy_bytes


@njit(
    types.int64(BYTES, OFFSETS, types.boolean, types.int64[::1], types.int64[::1], types.int64[::1]),
    cache=True, nogil=True,
)  # fmt: skip
def _find_lines(data, offsets, paragraphs, bounds, starts, stops):
    count = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while i < end:
            start = i
            while i < end and (
                data[i] != 0x0A or (paragraphs and start < i < end - 1 and data[i + 1] != 0x0A)
            ):
                i += 1
            starts[count], stops[count] = start, i
            count += 1
            i += 1
        bounds[row + 1] = count
    return count


def line_bounds(
    data_U8: np.ndarray, offsets_N1: np.ndarray, paragraphs: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(bounds int64 [N + 1], first bytes, ends int64 [L])`: the lines of text i are bounds[i] to bounds[i + 1].

    Lines end at line feeds; with `paragraphs`, only at those before an empty line.
    """
    room = int((data_U8[offsets_N1[0] : offsets_N1[-1]] == 0x0A).sum()) + len(offsets_N1)
    bounds_N1 = np.zeros(len(offsets_N1), np.int64)
    starts, stops = np.empty((2, room), np.int64)
    used = _find_lines(data_U8, offsets_N1, paragraphs, bounds_N1, starts, stops)
    return bounds_N1, starts[:used], stops[:used]


_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(
    types.int64(BYTES, OFFSETS, OFFSETS, OFFSETS, OFFSETS, _FLAGS, types.uint8[::1], types.int64[::1]),
    cache=True, nogil=True,
)  # fmt: skip
def _without(data, offsets, line_offsets, starts, stops, gone, out, out_offsets):
    """Writes the texts without the lines that go; blank lines around a cut become one run, none at the ends of a cut text."""
    at = np.int64(0)
    for row in range(len(offsets) - 1):
        begin = at
        low, high = line_offsets[row], line_offsets[row + 1]
        cuts = 0
        for k in range(low, high):
            cuts += gone[k]
        if cuts == 0:
            copy_bytes(out, at, data, offsets[row], offsets[row + 1] - offsets[row])
            at += offsets[row + 1] - offsets[row]
            out_offsets[row + 1] = at
            continue
        behind_cut = True  # so are the beginning, and blank lines since
        blank = True
        first = True
        for k in range(low, high):
            if gone[k]:
                behind_cut = True
                continue
            empty = stops[k] == starts[k]
            if empty and behind_cut and blank:
                continue
            if not first:
                out[at] = 0x0A
                at += 1
            copy_bytes(out, at, data, starts[k], stops[k] - starts[k])
            at += stops[k] - starts[k]
            first = False
            blank = empty
            behind_cut = behind_cut and empty
        while at > begin and out[at - 1] == 0x0A:
            at -= 1
        out_offsets[row + 1] = at
    return at


def cut_lines(
    data_U8: np.ndarray,
    offsets_N1: np.ndarray,
    bounds_N1: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    gone: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Buffers of the texts without the lines of `gone` (bool [L])."""
    out_U8 = np.empty(int(offsets_N1[-1] - offsets_N1[0]), np.uint8)
    out_offsets_N1 = np.zeros(len(offsets_N1), np.int64)
    used = _without(data_U8, offsets_N1, bounds_N1, starts, stops, gone, out_U8, out_offsets_N1)
    return out_U8[:used], out_offsets_N1


_THEIRS = types.Array(types.boolean, 1, "C", readonly=True)


@njit(types.void(BYTES, OFFSETS, BYTES, OFFSETS, _THEIRS, types.uint8[::1], types.int64[::1]), cache=True, nogil=True)
def _choose(ours, our_offsets, others, other_offsets, other, out, out_offsets):
    at = np.int64(0)
    for row in range(len(other)):
        if other[row]:
            start, size = other_offsets[row], other_offsets[row + 1] - other_offsets[row]
            copy_bytes(out, at, others, start, size)
        else:
            start, size = our_offsets[row], our_offsets[row + 1] - our_offsets[row]
            copy_bytes(out, at, ours, start, size)
        at += size
        out_offsets[row + 1] = at


def chosen(
    data_U8: np.ndarray, offsets_N1: np.ndarray, texts: pa.Array, theirs_N: np.ndarray
) -> pa.Array:
    """The texts in the buffers; where theirs_N (bool) says so, those of `texts`."""
    others_U8, other_offsets_N1 = text_buffers(texts)
    sizes_N = np.where(theirs_N, np.diff(other_offsets_N1), np.diff(offsets_N1))
    out_U8, out_offsets_N1 = np.empty(int(sizes_N.sum()), np.uint8), np.zeros(len(offsets_N1), np.int64)
    _choose(data_U8, offsets_N1, others_U8, other_offsets_N1, theirs_N, out_U8, out_offsets_N1)
    return text_array(out_U8, out_offsets_N1)
