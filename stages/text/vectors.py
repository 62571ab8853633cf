"""Wide loads over UTF-8 bytes: 64 bytes to bit masks, 8 bytes to a number.

Written as LLVM vector instructions without a target in mind: LLVM makes of them what the machine has (AVX2, NEON ...),
and the results are the same everywhere. Nothing here checks bounds: callers keep `OVERREAD` bytes behind an index.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Bytes that must be readable at an index that is given to `masks` or, up to 62 behind it, to `load8`.
OVERREAD = 72

_BYTES = ir.VectorType(ir.IntType(8), 64)
_MASK = ir.IntType(64)


def _address(context: Any, builder: Any, array: Any, kind: Any, index: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    return cgutils.gep_inbounds(builder, made.data, index)


def _masks(_typing: Any, data: Any, _index: Any) -> Any:
    """`(letters, digits, apostrophes, points, high)` of the 64 bytes at data[index]: u64, bit k is byte k.

    ASCII letters, ASCII digits, ', comma or full stop, bytes of 0x80 and above.
    """
    result = types.UniTuple(types.uint64, 5)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, arguments[0], data, arguments[1])
        block = builder.load(builder.bitcast(pointer, _BYTES.as_pointer()), align=1)

        def splat(value: int) -> Any:
            return ir.Constant(_BYTES, [value] * 64)

        def bits(condition: Any) -> Any:
            return builder.bitcast(condition, _MASK)

        folded = builder.or_(block, splat(0x20))
        comma = builder.icmp_unsigned("==", block, splat(0x2C))
        stop = builder.icmp_unsigned("==", block, splat(0x2E))
        found = [
            builder.icmp_unsigned("<", builder.sub(folded, splat(0x61)), splat(26)),
            builder.icmp_unsigned("<", builder.sub(block, splat(0x30)), splat(10)),
            builder.icmp_unsigned("==", block, splat(0x27)),
            builder.or_(comma, stop),
            builder.icmp_signed("<", block, splat(0)),
        ]
        return context.make_tuple(builder, result, [bits(condition) for condition in found])

    return result(data, types.int64), codegen


def _load8(_typing: Any, data: Any, _index: Any) -> Any:
    """The 8 bytes at data[index], the first one lowest, as u64; at any alignment."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, arguments[0], data, arguments[1])
        loaded = builder.load(builder.bitcast(pointer, _MASK.as_pointer()), align=1)
        return loaded if sys.byteorder == "little" else builder.bswap(loaded)

    return types.uint64(data, types.int64), codegen


def _lowest(_typing: Any, _mask: Any) -> Any:
    """The number of the lowest bit that is set, int64; 64 when there is none."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


#: Typed as anything, since they are called with the arguments behind the first one, and only by compiled code.
masks: Any = intrinsic(_masks)
load8: Any = intrinsic(_load8)
lowest: Any = intrinsic(_lowest)
