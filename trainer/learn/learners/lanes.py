"""SIMD arithmetic on eight float64s at a time, as LLVM vectors: a loop is not certain to be vectorized.

Every operation is IEEE and every sum is taken by halving, so a machine with narrower vectors gets the same bits.
Arguments that are addresses point at `LANES` consecutive float64s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from model_store.jit import bare_inline, intrinsic

LANES = 8

_INDEX = ir.IntType(32)
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _VECTOR.as_pointer())


def _load(builder: Any, address: Any) -> Any:
    vector = builder.load(_pointer(builder, address))
    vector.align = 8
    return vector


def _store(builder: Any, vector: Any, address: Any) -> None:
    builder.store(vector, _pointer(builder, address)).align = 8


def _spread(builder: Any, number: Any) -> Any:
    """A vector with `number` in every lane."""
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, number, _INDEX(0))
    return builder.shuffle_vector(first, empty, _indices(range(LANES), of=0))


def _indices(lanes: range, of: int | None = None) -> Any:
    numbers = [_INDEX(lane if of is None else of) for lane in lanes]
    return ir.Constant(ir.VectorType(_INDEX, len(numbers)), numbers)


def _sum(builder: Any, vector: Any) -> Any:
    """The sum of all lanes: the upper half is added to the lower until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        lower = builder.shuffle_vector(vector, vector, _indices(range(width)))
        upper = builder.shuffle_vector(vector, vector, _indices(range(width, 2 * width)))
        vector = builder.fadd(lower, upper)
    return builder.extract_element(vector, _INDEX(0))


def _square_root(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f64")
    return builder.call(function, [vector])


def _signature(result: Any, *arguments: Any) -> Callable[..., Any]:
    return result(*arguments)  # type: ignore[no-any-return]


@intrinsic
def dot(typing_context: Any, numbers: Any, uses: Any) -> Any:
    """sum over the lanes of numbers[v] * uses[v]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right = (_load(builder, address) for address in arguments)
        return _sum(builder, builder.fmul(left, right))

    return _signature(types.float64, types.int64, types.int64), codegen


@intrinsic
def dot_of_roots(typing_context: Any, base: Any, factor: Any, numbers: Any, uses: Any) -> Any:
    """sum over the lanes of sqrt(base + factor * numbers[v]) * uses[v]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, factor, numbers, uses = arguments
        scaled = builder.fmul(_spread(builder, factor), _load(builder, numbers))
        roots = _square_root(builder, builder.fadd(_spread(builder, base), scaled))
        return _sum(builder, builder.fmul(roots, _load(builder, uses)))

    return _signature(types.float64, types.float64, types.float64, types.int64, types.int64), codegen


@intrinsic
def add_scaled(typing_context: Any, sums: Any, factor: Any, uses: Any) -> Any:
    """sums[v] += factor * uses[v] in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, factor, uses = arguments
        scaled = builder.fmul(_spread(builder, factor), _load(builder, uses))
        _store(builder, builder.fadd(_load(builder, sums), scaled), sums)
        return context.get_dummy_value()

    return _signature(types.none, types.int64, types.float64, types.int64), codegen


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """The address of the index-th float64 of a contiguous array."""
    return numbers.ctypes.data + 8 * index
