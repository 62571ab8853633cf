"""The inner loop of MinHash: the smallest value of each permutation over all shingles of a document.

Row k is the minimum of multipliers[k] * h + additions[k] mod 2**32 over the upper halves h of the shingle hashes.
A vector of 8 rows and its constants stay in registers while all shingles go by, 4 vectors at a time; written as
LLVM vector instructions, because a loop that the compiler finds by itself stores the rows again and again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # rows are padded to a multiple of it

_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_INT, LANES)
_U32 = types.Array(types.uint32, 1, "C", readonly=True)


def _taking(vectors: int) -> Any:
    """The loop for `vectors` * LANES rows from number `first` on."""

    def loop(
        _typing: Any, shingles: Any, _count: Any, multipliers: Any, additions: Any, rows: Any, _first: Any
    ) -> Any:
        signature = types.void(shingles, types.int64, multipliers, additions, rows, types.int64)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def data(number: int) -> Any:
                return context.make_array(signature.args[number])(context, builder, arguments[number]).data

            def place(number: int, vector: int) -> Any:
                index = builder.add(arguments[5], ir.Constant(arguments[5].type, vector * LANES))
                pointer = cgutils.gep_inbounds(builder, data(number), index)
                return builder.bitcast(pointer, _VECTOR.as_pointer())

            factors = [builder.load(place(2, v), align=4) for v in range(vectors)]
            offsets = [builder.load(place(3, v), align=4) for v in range(vectors)]
            smallest = [cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)]
            for slot in smallest:
                builder.store(ir.Constant(_VECTOR, [0xFFFFFFFF] * LANES), slot)
            hashes = data(0)
            with cgutils.for_range(builder, arguments[1]) as step:
                value = builder.load(cgutils.gep_inbounds(builder, hashes, step.index))
                half = builder.trunc(builder.lshr(value, ir.Constant(value.type, 32)), _INT)
                lane = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), half, ir.Constant(_INT, 0))
                spread = builder.shuffle_vector(lane, lane, ir.Constant(_VECTOR, [0] * LANES))
                for factor, offset, slot in zip(factors, offsets, smallest, strict=True):
                    fresh, kept = builder.add(builder.mul(spread, factor), offset), builder.load(slot)
                    builder.store(builder.select(builder.icmp_unsigned("<", fresh, kept), fresh, kept), slot)
            for vector, slot in enumerate(smallest):
                builder.store(builder.load(slot), place(4, vector), align=4)
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(loop)


_one, _two, _four = _taking(1), _taking(2), _taking(4)


@njit(types.void(types.uint64[::1], types.int64, _U32, _U32, types.uint32[::1]), cache=True, nogil=True)
def minima(shingles, count, multipliers, additions, rows):
    """Fills `rows`, a multiple of LANES long as the constants are, from shingles[:count]."""
    first = np.int64(0)
    while first + 4 * LANES <= len(rows):
        _four(shingles, count, multipliers, additions, rows, first)
        first += 4 * LANES
    if first + 2 * LANES <= len(rows):
        _two(shingles, count, multipliers, additions, rows, first)
        first += 2 * LANES
    if first < len(rows):
        _one(shingles, count, multipliers, additions, rows, first)
