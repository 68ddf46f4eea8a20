"""Arithmetic on eight variants at a time, as LLVM vectors: what a loop over variants would say, but certain to be wide.

Every operation is IEEE and every sum is taken by halving, so a machine with narrower vectors gets the same bits.
Addresses point at float64s; `LANES` of them are read. Nothing here knows what a variant is.
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
    """A vector that holds `number` in every lane."""
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


# --- Sums over the variants that use a key, eight at a time. `lanes.py` has the vectors ---


@bare_inline
def add_to_users(sums: Any, share: Any, uses: Any, c: Any) -> None:
    """Add `share` to the sum of every variant that uses class c."""
    for lane in range(0, sums.size, LANES):
        add_scaled(address(sums, lane), share, address(uses, c * sums.size + lane))


@bare_inline
def sum_over_users(numbers: Any, uses: Any, c: Any) -> Any:
    """The sum of numbers[v] over the variants that use class c."""
    total = 0.0
    for lane in range(0, numbers.size, LANES):
        total += dot(address(numbers, lane), address(uses, c * numbers.size + lane))
    return total


@bare_inline
def sum_of_roots(n: Any, factor: Any, squared: Any, uses: Any, c: Any) -> Any:
    """The sum of sqrt(n + factor * squared[v]) over the variants that use class c: their new sqrt(n)."""
    total = 0.0
    for lane in range(0, squared.size, LANES):
        total += dot_of_roots(n, factor, address(squared, lane), address(uses, c * squared.size + lane))
    return total


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """Where the index-th float64 of a contiguous array lies."""
    return numbers.ctypes.data + 8 * index
