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


def _load(builder: Any, address: Any, kind: Any = _VECTOR) -> Any:
    vector = builder.load(builder.inttoptr(address, kind.as_pointer()))
    vector.align = 8
    return vector


def _store(builder: Any, vector: Any, address: Any) -> None:
    builder.store(vector, builder.inttoptr(address, vector.type.as_pointer())).align = 8


def _spread(builder: Any, number: Any, kind: Any = _VECTOR) -> Any:
    """A vector with `number` in every lane."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, number, _INDEX(0))
    return builder.shuffle_vector(first, empty, _indices(range(kind.count), of=0))


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
def dot_of_roots(typing_context: Any, base: Any, factor: Any, numbers: Any, uses: Any) -> Any:
    """sum over the lanes of sqrt(base + factor * numbers[v]) * uses[v]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, factor, numbers, uses = arguments
        scaled = builder.fmul(_spread(builder, factor), _load(builder, numbers))
        roots = _square_root(builder, builder.fadd(_spread(builder, base), scaled))
        return _sum(builder, builder.fmul(roots, _load(builder, uses)))

    return _signature(types.float64, types.float64, types.float64, types.int64, types.int64), codegen


def _add_scaled(lanes: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    kind = ir.VectorType(ir.DoubleType(), lanes)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, factors, uses, width, classes, count = arguments
        held = cgutils.alloca_once_value(builder, _load(builder, sums, kind))
        with cgutils.for_range(builder, count) as loop:
            offset = builder.shl(loop.index, loop.index.type(3))
            factor = _load(builder, builder.add(factors, offset), ir.DoubleType())
            row = builder.mul(width, _load(builder, builder.add(classes, offset), ir.IntType(64)))
            used = _load(builder, builder.add(uses, row), kind)
            scaled = builder.fmul(_spread(builder, factor, kind), used)
            builder.store(builder.fadd(builder.load(held), scaled), held)
        _store(builder, builder.load(held), sums)
        return context.get_dummy_value()

    return _signature(types.none, *[types.int64] * 6), codegen


@intrinsic
def add_scaled(
    typing_context: Any, sums: Any, factors: Any, uses: Any, width: Any, classes: Any, count: Any
) -> Any:
    """sums[v] += factors[i] * (number v at uses + width * classes[i]), for each i < count in turn, in every lane."""
    return _add_scaled(LANES)


@intrinsic
def add_scaled_to_32(
    typing_context: Any, sums: Any, factors: Any, uses: Any, width: Any, classes: Any, count: Any
) -> Any:
    """`add_scaled` in 32 lanes, whose sums stay in registers side by side."""
    return _add_scaled(4 * LANES)


@intrinsic
def store_powers(typing_context: Any, out: Any, first: Any, number: Any) -> Any:
    """Store first, number, number^2 to number^7 at `out`, as one vector."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, first, number = arguments
        power, vector = number, builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), first, _INDEX(0))
        for lane in range(1, LANES):
            vector = builder.insert_element(vector, power, _INDEX(lane))
            power = builder.fmul(power, number)
        _store(builder, vector, out)
        return context.get_dummy_value()

    return _signature(types.none, types.int64, types.float64, types.float64), codegen


@intrinsic
def store_mean(
    typing_context: Any,
    out: Any,
    begin: Any,
    share: Any,
    rows: Any,
    members: Any,
    count: Any,
    sign: Any,
    by: Any,
) -> Any:
    """out = (share * begin + sign * (row m at `rows`, for each m of `count` members in turn)) / by, in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, begin, share, rows, members, count, sign, by = arguments
        held = cgutils.alloca_once(builder, _VECTOR)
        builder.store(builder.fmul(_spread(builder, share), _load(builder, begin)), held)
        signs = _spread(builder, sign)
        with cgutils.for_range(builder, count) as loop:
            place = builder.add(members, builder.shl(loop.index, loop.index.type(3)))
            row = builder.shl(_load(builder, place, ir.IntType(64)), loop.index.type(6))
            added = builder.fmul(signs, _load(builder, builder.add(rows, row)))
            builder.store(builder.fadd(builder.load(held), added), held)
        _store(builder, builder.fdiv(builder.load(held), _spread(builder, by)), out)
        return context.get_dummy_value()

    number, where = types.float64, types.int64
    return _signature(types.none, where, where, number, where, where, where, number, number), codegen


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """The address of the index-th float64 of a contiguous array."""
    return numbers.ctypes.data + 8 * index
