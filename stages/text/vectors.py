"""Wide loads over UTF-8 bytes: 64 or 16 bytes to bit masks, 8 bytes to a number.

Written as LLVM vector instructions without a target in mind: LLVM makes of them what the machine has (AVX2, NEON ...),
and the results are the same everywhere. Nothing here checks bounds: callers keep `OVERREAD` bytes behind an index.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Bytes that must be readable at an index that is given to one that makes masks or, up to 72 behind it, to `load8`.
OVERREAD = 80

#: Sums that `add_product` adds to at once.
PRODUCTS = 32

_MASK = ir.IntType(64)


def _address(context: Any, builder: Any, array: Any, kind: Any, index: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    return cgutils.gep_inbounds(builder, made.data, index)


class _Lanes:
    """Comparisons of the `width` bytes at an address, or a few bytes behind it, with constants: vectors of so many bits."""

    def __init__(self, builder: Any, pointer: Any, width: int) -> None:
        self._builder = builder
        self._pointer = pointer
        self._type = ir.VectorType(ir.IntType(8), width)
        self._loaded: dict[tuple[int, bool], Any] = {}

    def _block(self, shift: int, fold: bool) -> Any:
        if (shift, fold) not in self._loaded:
            if fold:
                block = self._builder.or_(self._block(shift, False), self._splat(0x20))
            else:
                place = self._builder.gep(self._pointer, [ir.Constant(_MASK, shift)])
                block = self._builder.load(self._builder.bitcast(place, self._type.as_pointer()), align=1)
            self._loaded[shift, fold] = block
        return self._loaded[shift, fold]

    def range(self, first: int, last: int, fold: bool = False) -> Any:
        """Bytes from first to last; with fold, capital letters count as small ones."""
        block = self._builder.sub(self._block(0, fold), self._splat(first))
        return self._builder.icmp_unsigned("<", block, self._splat(last - first + 1))

    def one_of(self, characters: str, shift: int = 0, fold: bool = False) -> Any:
        """Bytes that are one of these."""
        block = self._block(shift, fold)
        return self.any(*(self._builder.icmp_unsigned("==", block, self._splat(ord(c))) for c in characters))

    def high(self) -> Any:
        """Bytes of 0x80 and above."""
        return self._builder.icmp_signed("<", self._block(0, False), self._splat(0))

    def word(self, letters: str) -> Any:
        """Where these letters begin, in either case."""
        return self.all(*(self.one_of(c, shift, True) for shift, c in enumerate(letters)))

    def any(self, *found: Any) -> Any:
        return functools.reduce(self._builder.or_, found)

    def all(self, *found: Any) -> Any:
        return functools.reduce(self._builder.and_, found)

    def mask(self, found: Any) -> Any:
        """The bits as a number of 64."""
        bits = self._builder.bitcast(found, ir.IntType(self._type.count))
        return bits if self._type.count == 64 else self._builder.zext(bits, _MASK)

    def _splat(self, value: int) -> Any:
        return ir.Constant(self._type, [value] * self._type.count)


def _masks_of(description: str, *tests: Callable[[_Lanes], Any], width: int = 64) -> Any:
    """An intrinsic `(data, index) -> (u64, …)`: the answer of each test about the `width` bytes at data[index], bit k is byte
    k. An answer that the caller does not look at costs nothing."""

    def typed(_typing: Any, data: Any, _index: Any) -> Any:
        result = types.UniTuple(types.uint64, len(tests))

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, _address(context, builder, arguments[0], data, arguments[1]), width)
            found = [lanes.mask(test(lanes)) for test in tests]
            return context.make_tuple(builder, result, found)

        return result(data, types.int64), codegen

    typed.__doc__ = description
    return intrinsic(typed)


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


def _bits(_typing: Any, _mask: Any) -> Any:
    """How many bits are set, int64."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


def _fold_product(_typing: Any, _a: Any, _b: Any) -> Any:
    """The two halves of the 128-bit product of two u64, one xor the other: every input bit reaches every output bit."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _MASK)
        return builder.xor(upper, builder.trunc(product, _MASK))

    return types.uint64(types.uint64, types.uint64), codegen


def _add_product(_typing: Any, sums: Any, _at: Any, weights: Any, _index: Any, _factor: Any) -> Any:
    """`sums[at:at + 32] += factor * weights[index:index + 32]` of int32 sums, uint8 weights and an int32 factor."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.VectorType(ir.IntType(32), PRODUCTS)
        narrow = ir.VectorType(ir.IntType(8), PRODUCTS)
        place = builder.bitcast(
            _address(context, builder, arguments[0], sums, arguments[1]), wide.as_pointer()
        )
        source = _address(context, builder, arguments[2], weights, arguments[3])
        row = builder.zext(builder.load(builder.bitcast(source, narrow.as_pointer()), align=1), wide)
        factors = builder.insert_element(ir.Constant(wide, ir.Undefined), arguments[4], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(wide, [0] * PRODUCTS)
        factors = builder.shuffle_vector(factors, ir.Constant(wide, ir.Undefined), zeros)
        total = builder.add(builder.load(place, align=4), builder.mul(row, factors))
        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(sums, types.int64, weights, types.int64, types.int32), codegen


#: Typed as anything, since they are called with the arguments behind the first one, and only by compiled code.
load8: Any = intrinsic(_load8)
lowest: Any = intrinsic(_lowest)
highest: Any = intrinsic(_highest)
bits: Any = intrinsic(_bits)
fold_product: Any = intrinsic(_fold_product)
add_product: Any = intrinsic(_add_product)

masks = _masks_of(
    "ASCII letters; ASCII digits; apostrophes; commas and full stops; bytes of 0x80 and above.",
    lambda lanes: lanes.range(0x61, 0x7A, fold=True),
    lambda lanes: lanes.range(0x30, 0x39),
    lambda lanes: lanes.one_of("'"),
    lambda lanes: lanes.one_of(",."),
    _Lanes.high,
)
masks16 = _masks_of(
    "ASCII letters; those from A to Z; ASCII digits; white space; line feeds and carriage returns; bytes of 0x80 and above.",
    lambda lanes: lanes.range(0x61, 0x7A, fold=True),
    lambda lanes: lanes.range(0x41, 0x5A),
    lambda lanes: lanes.range(0x30, 0x39),
    lambda lanes: lanes.any(lanes.one_of(" "), lanes.range(0x09, 0x0D)),
    lambda lanes: lanes.one_of("\n\r"),
    _Lanes.high,
    width=16,
)
shape_masks = _masks_of(
    "Line feeds; ASCII letters and digits; `#`; full stops; other bytes that `str.splitlines` may cut at; 0x80 and above.",
    lambda lanes: lanes.one_of("\n"),
    lambda lanes: lanes.any(lanes.range(0x61, 0x7A, fold=True), lanes.range(0x30, 0x39)),
    lambda lanes: lanes.one_of("#"),
    lambda lanes: lanes.one_of("."),
    lambda lanes: lanes.any(lanes.range(0x0B, 0x0D), lanes.range(0x1C, 0x1E)),
    _Lanes.high,
)
break_masks = _masks_of(
    "ASCII bytes that `str.splitlines` cuts at, and first bytes of other such characters (U+0085, U+2028, U+2029) and of more.",
    lambda lanes: lanes.any(lanes.range(0x0A, 0x0D), lanes.range(0x1C, 0x1E), lanes.one_of("\xc2\xe2")),
)
line_masks = _masks_of(
    "ASCII white space; opening brackets; opening curly brackets; what begins a hint at a phrase; first bytes of white space"
    " beyond ASCII, and of more.",
    lambda lanes: lanes.any(lanes.range(0x09, 0x0D), lanes.range(0x1C, 0x20)),
    lambda lanes: lanes.one_of("["),
    lambda lanes: lanes.one_of("{"),
    lambda lanes: lanes.any(*(lanes.word(hint) for hint in ("ipsu", "java", "erms", "vacy", "okie"))),
    lambda lanes: lanes.one_of("\xc2\xe1\xe2\xe3"),
)
number_masks = _masks_of(
    "ASCII digits, colons, `@`, and bytes of 0x80 and above.",
    lambda lanes: lanes.any(lanes.range(0x30, 0x3A), lanes.one_of("@"), lanes.high()),
)
sentence_masks = _masks_of(
    "ASCII letters and digits; `.`, `!` and `?`; bytes up to a space; bytes of 0x80 and above.",
    lambda lanes: lanes.any(lanes.range(0x61, 0x7A, fold=True), lanes.range(0x30, 0x39)),
    lambda lanes: lanes.one_of(".!?"),
    lambda lanes: lanes.range(0x00, 0x20),
    _Lanes.high,
)


def with_room(data_U8: np.ndarray, offsets_N1: np.ndarray) -> np.ndarray:
    """The buffer itself if `OVERREAD` bytes can be read behind its last text, else a longer copy."""
    end = int(offsets_N1[-1])
    if end + OVERREAD <= len(data_U8):
        return data_U8
    longer = np.zeros(end + OVERREAD, np.uint8)
    longer[:end] = data_U8[:end]
    return longer
