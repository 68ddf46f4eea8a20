"""What buckets and scales learn from the first rows of a log: quantiles, mean and deviation, or minimum and maximum.

In: the first rows, as batches. Out: the spec with `learned` in every field that had none. The result depends on the
rows alone, not on the size of batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import SpecError, counted
from model_store.spec.kinds import Number
from model_store.spec.sections import FieldSpec, quantiles_of
from model_store.spec.spec import ModelSpec
from model_store.spec.values import LARGEST_REAL
from trainer.formats.cells import number_column, plain

LEARNED_ROWS = 100_000
"""The rows at the beginning of a log that fields learn from."""

Columns = Mapping[str, Any]
"""The columns of a batch by name; arrays of one length."""


class Learned(NamedTuple):
    """What a field has learned, and a remark if its numbers do not suffice."""

    numbers: tuple[float, ...]
    remark: str | None = None


def with_learned(
    specs: Sequence[ModelSpec],
    batches: Iterable[tuple[Columns, int]],
    on_note: Callable[[str], None],
    least: int = 0,
) -> tuple[ModelSpec, ...]:
    """The resolved specs, whose fields have learned from the first LEARNED_ROWS rows; none if there are not `least`.

    batches: the columns of each, and how many rows it has; read as far as needed. Empty values, and values that do not
    fit, are left out. Raises SpecError for unusable columns.
    """
    first, rows = list[Columns](), 0
    for columns, size in batches if any(spec.has_to_learn for spec in specs) else ():
        take = min(size, LEARNED_ROWS - rows)
        first.append({name: column[:take] for name, column in columns.items()})
        rows += take
        if rows == LEARNED_ROWS:
            break
    return tuple(_with_learned(spec, first, rows, on_note) for spec in specs) if rows >= least else ()


def _with_learned(
    spec: ModelSpec, first: Sequence[Columns], rows: int, on_note: Callable[[str], None]
) -> ModelSpec:
    fields = dict(spec.fields)
    for name, field in spec.fields.items():
        if not field.has_to_learn:
            continue
        found = [_numbers(name, columns[field.column or name]) for columns in first]
        learned = learn(field, np.concatenate([np.empty(0), *found]))
        if learned.remark is not None:
            on_note(f"fields.{name}: {learned.remark} in the first {counted(rows, 'row')}")
        fields[name] = field.model_copy(update={"learned": learned.numbers})
    return spec.model_copy(update={"fields": fields})


def learn(field: FieldSpec, numbers: npt.NDArray[np.float64]) -> Learned:
    """What a field learns from numbers, NaN where there is none. Numbers are clipped first."""
    present = Number(field).clipped(numbers[~np.isnan(numbers)]) + 0.0
    buckets = quantiles_of(field.bucket)
    if buckets is not None:
        return _edges(present, buckets)
    present = present[np.abs(present) <= LARGEST_REAL]
    if not present.size:
        return Learned((0.0, 1.0), "no number, so numbers are taken as they are,")
    low, high = float(present.min()), float(present.max())
    if low == high:
        span = 1.0 if field.scale == "standard" else low + max(1.0, abs(low))
        return Learned((low, span), f"every number is {low!r}, so scale only subtracts that,")
    if field.scale == "minmax":
        return Learned((low, high))
    mean = math.fsum(present) / present.size  # correctly rounded, so the order of the rows does not matter
    deviation = math.sqrt(math.fsum((present - mean) ** 2) / present.size)
    return Learned((mean, deviation or 1.0))  # 0 where squares of tiny numbers are 0


def _edges(numbers: npt.NDArray[np.float64], buckets: int) -> Learned:
    """Edges between `buckets` buckets of about as many numbers each; equal ones are merged."""
    if not numbers.size:
        return Learned((), "no number, so all numbers to come share one bucket,")
    ordered = np.sort(numbers)
    edges = np.unique(ordered[np.arange(1, buckets) * ordered.size // buckets])
    edges = edges[edges > ordered[0]]  # an edge at the least number would leave the bucket below it empty
    if edges.size == buckets - 1:
        return Learned(tuple(edges.tolist()))
    return Learned(
        tuple(edges.tolist()),
        f"{counted(edges.size + 1, 'bucket')} instead of {buckets}, since single values fill several of them",
    )


def _numbers(name: str, array: Any) -> npt.NDArray[np.float64]:
    try:
        return number_column(plain(array))[0]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise SpecError(f"fields.{name}: a column of type {array.type} cannot be of kind 'number'") from None
