"""SIMD arithmetic on eight float64s at a time, as LLVM vectors: a loop is not certain to be vectorized.

Every operation is IEEE and every sum is taken by halving, so a machine with narrower vectors gets the same bits.
Arguments that are addresses point at `LANES` consecutive float64s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
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


def _indices(lanes: Iterable[int], of: int | None = None) -> Any:
    numbers = [_INDEX(lane if of is None else of) for lane in lanes]
    return ir.Constant(ir.VectorType(_INDEX, len(numbers)), numbers)


def _reduced(builder: Any, vector: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """All lanes merged into one: the upper half into the lower until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        lower = builder.shuffle_vector(vector, vector, _indices(range(width)))
        upper = builder.shuffle_vector(vector, vector, _indices(range(width, 2 * width)))
        vector = merge(lower, upper)
    return builder.extract_element(vector, _INDEX(0))


def _chosen(builder: Any, order: str, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(order, one, other), one, other)


def _transposed(builder: Any, rows: Sequence[Any]) -> Sequence[Any]:
    """Eight vectors' lanes as eight vectors: blocks of 1, 2 and 4 lanes are exchanged between pairs of rows."""
    for block in (1, 2, 4):
        lanes = range(LANES)
        lower = [lane if not lane & block else lane - block + LANES for lane in lanes]
        upper = [lane + block if not lane & block else lane + LANES for lane in lanes]
        exchanged = list(rows)
        for row in lanes:
            if not row & block:
                pair = rows[row], rows[row + block]
                exchanged[row] = builder.shuffle_vector(*pair, _indices(lower))
                exchanged[row + block] = builder.shuffle_vector(*pair, _indices(upper))
        rows = exchanged
    return rows


def _store_rows(builder: Any, rows: Sequence[Any], address: Any, width: Any) -> None:
    for row in rows:
        _store(builder, row, address)
        address = builder.add(address, width)


def _called(builder: Any, name: str, *vectors: Any) -> Any:
    """An LLVM intrinsic of eight lanes: "sqrt" or "fma"."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(vectors))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f64")
    return builder.call(function, vectors)


def _quotient(builder: Any, vector: Any, by: Any, inverse: Any) -> Any:
    """vector / by, rounded as a division unless it is subnormal, in a third of its time (Markstein 1990).

    The product is within two units in the last place, so its remainder is exact; a quotient by so small a whole number
    is never so near to the middle of two floats that the corrected product is rounded to the other one.
    """
    factor, inverse = _spread(builder, by), _spread(builder, inverse)
    nearly = builder.fmul(vector, inverse)
    rest = _called(builder, "fma", builder.fneg(nearly), factor, vector)
    return _called(builder, "fma", rest, inverse, nearly)


def _signature(result: Any, *arguments: Any) -> Callable[..., Any]:
    return result(*arguments)  # type: ignore[no-any-return]


@intrinsic
def dot_of_roots(typing_context: Any, base: Any, factor: Any, numbers: Any, uses: Any) -> Any:
    """sum over the lanes of sqrt(base + factor * numbers[v]) * uses[v]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, factor, numbers, uses = arguments
        scaled = builder.fmul(_spread(builder, factor), _load(builder, numbers))
        roots = _called(builder, "sqrt", builder.fadd(_spread(builder, base), scaled))
        return _reduced(builder, builder.fmul(roots, _load(builder, uses)), builder.fadd)

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
def store_powers(typing_context: Any, out: Any, firsts: Any, numbers: Any, middle: Any, scale: Any) -> Any:
    """Store rows of eight at `out`, one for each lane: first, u, u^2 to u^7, where u = (number - middle) * scale."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, firsts, numbers, middle, scale = arguments
        apart = builder.fsub(_load(builder, numbers), _spread(builder, middle))
        number = power = builder.fmul(apart, _spread(builder, scale))
        columns = [_load(builder, firsts), number]
        while len(columns) < LANES:
            power = builder.fmul(power, number)
            columns.append(power)
        _store_rows(builder, _transposed(builder, columns), out, out.type(8 * LANES))
        return context.get_dummy_value()

    where, number = types.int64, types.float64
    return _signature(types.none, where, where, where, number, number, number), codegen


@intrinsic
def store_columns(typing_context: Any, out: Any, width: Any, rows: Any, numbers: Any) -> Any:
    """Store the columns of eight rows of eight, the rows at `rows` with these int64 numbers, `width` bytes apart."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, width, rows, numbers = arguments
        loaded = []
        for lane in range(LANES):
            number = _load(builder, builder.add(numbers, numbers.type(8 * lane)), ir.IntType(64))
            loaded.append(_load(builder, builder.add(rows, builder.shl(number, number.type(6)))))
        _store_rows(builder, _transposed(builder, loaded), out, width)
        return context.get_dummy_value()

    return _signature(types.none, *[types.int64] * 4), codegen


@intrinsic
def store_mean_roots(
    typing_context: Any, roots: Any, parts: Any, n: Any, x: Any, middle: Any, reach: Any, columns: Any, width: Any,
    coefficients: Any,
) -> Any:  # fmt: skip
    """Of eight keys: part = x^2 reach / b, root = sqrt(b) (1 + sum over k >= 1 of coefficients[k] part^k columns[k]).

    b = n + x^2 middle; columns: the address of row 0, the rows `width` bytes apart; coefficients: a tuple.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        roots, parts, n, x, middle, reach, columns, width, coefficients = arguments
        square = builder.fmul(_load(builder, x), _load(builder, x))
        base = builder.fadd(_load(builder, n), builder.fmul(square, _spread(builder, middle)))
        part = builder.fdiv(builder.fmul(square, _spread(builder, reach)), base)
        series = None
        for power in reversed(range(1, len(signature.args[-1]))):
            coefficient = _spread(builder, builder.extract_value(coefficients, power))
            column = builder.add(columns, builder.mul(width, width.type(power)))
            term = builder.fmul(coefficient, _load(builder, column))
            series = term if series is None else builder.fadd(builder.fmul(series, part), term)
        root = _called(builder, "sqrt", base)
        _store(builder, part, parts)
        _store(builder, builder.fadd(root, builder.fmul(root, builder.fmul(series, part))), roots)
        return context.get_dummy_value()

    where, number = types.int64, types.float64
    return _signature(types.none, *[where] * 4, number, number, where, where, coefficients), codegen


@intrinsic
def bounds_of(typing_context: Any, numbers: Any, count: Any) -> Any:
    """The least and the greatest of `count` numbers, a multiple of eight."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, count = arguments
        held = [cgutils.alloca_once_value(builder, _load(builder, numbers)) for _ in "<>"]
        with cgutils.for_range_slice(builder, count.type(LANES), count, count.type(LANES)) as (index, _):
            more = _load(builder, builder.add(numbers, builder.shl(index, index.type(3))))
            for order, bound in zip("<>", held, strict=True):
                builder.store(_chosen(builder, order, more, builder.load(bound)), bound)
        bounds = [
            _reduced(builder, builder.load(bound), partial(_chosen, builder, order))
            for order, bound in zip("<>", held, strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, bounds)

    return _signature(types.UniTuple(types.float64, 2), types.int64, types.int64), codegen


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
    inverse: Any,
) -> Any:
    """out = (share * begin + sign * (row m at `rows`, for each m of `count` members in turn)) / by, in every lane.

    by: a whole number up to 2^20; inverse: 1 / by.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, begin, share, rows, members, count, sign, by, inverse = arguments
        held = cgutils.alloca_once(builder, _VECTOR)
        builder.store(builder.fmul(_spread(builder, share), _load(builder, begin)), held)
        signs = _spread(builder, sign)
        with cgutils.for_range(builder, count) as loop:
            number = builder.add(members, builder.shl(loop.index, loop.index.type(3)))
            row = builder.shl(_load(builder, number, ir.IntType(64)), loop.index.type(6))
            added = builder.fmul(signs, _load(builder, builder.add(rows, row)))
            builder.store(builder.fadd(builder.load(held), added), held)
        _store(builder, _quotient(builder, builder.load(held), by, inverse), out)
        return context.get_dummy_value()

    number, where = types.float64, types.int64
    return _signature(types.none, where, where, number, where, where, where, number, number, number), codegen


@bare_inline
def address(numbers: Any, index: Any) -> Any:
    """The address of the index-th float64 of a contiguous array."""
    return numbers.ctypes.data + 8 * index
