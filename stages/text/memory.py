"""Memory in compiled kernels: copying bytes at the speed of memory, and kernels that do not count references.

Numba counts a reference whenever an array is given a name, also that of an argument of an inlined function: two atomic
operations, each as slow as ten others. `BORROWED` are options for kernels that work on arrays of their caller only,
which lives longer than the call: nothing is counted, and nothing can be allocated.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Options for `numba.njit`.
BORROWED: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}


def _copy_bytes(_typing: Any, out: Any, _at: Any, data: Any, _start: Any, _count: Any) -> Any:
    """`count` bytes from data[start] on to out[at], for two arrays that share no memory; no bounds are checked."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        def address(array: Any, kind: Any, index: Any) -> Any:
            return cgutils.gep_inbounds(
                builder, context.make_array(kind)(context, builder, array).data, index
            )

        target = address(arguments[0], out, arguments[1])
        source = address(arguments[2], data, arguments[3])
        cgutils.raw_memcpy(builder, target, source, arguments[4], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), codegen


#: Typed as anything, since it is called without the first argument, and only by compiled code.
copy_bytes: Any = intrinsic(_copy_bytes)


def _prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Asks for the cache line of array[index], which will be written soon; nothing is checked, and nothing changes."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        made = context.make_array(array)(context, builder, arguments[0])
        address = builder.bitcast(
            cgutils.gep_inbounds(builder, made.data, arguments[1]), ir.IntType(8).as_pointer()
        )
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(
            function, [address, ir.Constant(number, 1), ir.Constant(number, 3), ir.Constant(number, 1)]
        )
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


prefetch: Any = intrinsic(_prefetch)
