"""Unaligned loads and prefetches for compiled kernels: one machine instruction each.

NumPy views cannot read a big-endian number at an odd offset, and assembling it from bytes costs the
packet parser a third of its time. None of the loads checks its bounds: the caller has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _byte_pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    struct = cgutils.create_struct_proxy(array_type)(context, builder, value=array)
    base = builder.bitcast(struct.data, ir.IntType(8).as_pointer())
    return builder.gep(base, [offset])


def _load(bits: int, swap: bool) -> Any:
    result = {16: types.uint16, 32: types.uint32, 64: types.uint64}[bits]

    def typer(_typing: Any, data: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            position = context.cast(builder, args[1], signature.args[1], types.int64)
            pointer = _byte_pointer(context, builder, signature.args[0], args[0], position)
            word = ir.IntType(bits)
            value = builder.load(builder.bitcast(pointer, word.as_pointer()))
            value.align = 1
            return builder.bswap(value) if swap else value

        return result(data, offset), codegen

    return typer


be16 = intrinsic(_load(16, swap=True))
be32 = intrinsic(_load(32, swap=True))
be64 = intrinsic(_load(64, swap=True))
le16 = intrinsic(_load(16, swap=False))
le32 = intrinsic(_load(32, swap=False))


def _prefetch(_typing: Any, data: Any, offset: Any) -> Any:
    """Ask for the cache line that holds byte `offset` of `data` (llvm.prefetch: read, keep in all levels)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        position = context.cast(builder, args[1], signature.args[1], types.int64)
        pointer = _byte_pointer(context, builder, signature.args[0], args[0], position)
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(data, offset), codegen


prefetch = intrinsic(_prefetch)
