"""Wide loads over UTF-8 bytes: 64 or 16 bytes to bit masks, 8 bytes to a number.

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
_SIXTEEN = ir.VectorType(ir.IntType(8), 16)
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


def _masks16(_typing: Any, data: Any, _index: Any) -> Any:
    """`(letters, capitals, digits, spaces, breaks, high)` of the 16 bytes at data[index]: u64, bit k is byte k.

    ASCII letters, those from A to Z, ASCII digits, white space, of which line feeds and carriage returns, bytes of 0x80
    and above. A mask that the caller does not look at costs nothing.
    """
    result = types.UniTuple(types.uint64, 6)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, arguments[0], data, arguments[1])
        block = builder.load(builder.bitcast(pointer, _SIXTEEN.as_pointer()), align=1)

        def splat(value: int) -> Any:
            return ir.Constant(_SIXTEEN, [value] * 16)

        def between(bytes_: Any, first: int, count: int) -> Any:
            return builder.icmp_unsigned("<", builder.sub(bytes_, splat(first)), splat(count))

        def equal(value: int) -> Any:
            return builder.icmp_unsigned("==", block, splat(value))

        found = [
            between(builder.or_(block, splat(0x20)), 0x61, 26),
            between(block, 0x41, 26),
            between(block, 0x30, 10),
            builder.or_(equal(0x20), between(block, 0x09, 5)),
            builder.or_(equal(0x0A), equal(0x0D)),
            builder.icmp_signed("<", block, splat(0)),
        ]
        masks = [builder.zext(builder.bitcast(condition, ir.IntType(16)), _MASK) for condition in found]
        return context.make_tuple(builder, result, masks)

    return result(data, types.int64), codegen


def _load8(_typing: Any, data: Any, _index: Any) -> Any:
    """The 8 bytes at data[index], the first one lowest, as u64; at any alignment."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, arguments[0], data, arguments[1])
        loaded = builder.load(builder.bitcast(pointer, _MASK.as_pointer()), align=1)
        return loaded if sys.byteorder == "little" else builder.bswap(loaded)

    return types.uint64(data, types.int64), codegen


def _highest(_typing: Any, _mask: Any) -> Any:
    """The number of the highest bit that is set, int64; -1 when there is none."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(_MASK, 63), zeros)

    return types.int64(types.uint64), codegen


def _lowest(_typing: Any, _mask: Any) -> Any:
    """The number of the lowest bit that is set, int64; 64 when there is none."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


#: Typed as anything, since they are called with the arguments behind the first one, and only by compiled code.
masks: Any = intrinsic(_masks)
masks16: Any = intrinsic(_masks16)
load8: Any = intrinsic(_load8)
lowest: Any = intrinsic(_lowest)
highest: Any = intrinsic(_highest)
