"""Derived numbers: ratios, differences and list features, computed from the numbers of other fields.

Trainer and server call the same function over the candidates of requests: a served value and a learned one are equal
to the last bit. A value that the log, a record or a request gives is never replaced.

Inputs are numbers as they are written, before clip, bucket and scale. A number that is missing, does not parse or is
beyond LARGEST_REAL counts as absent, and so does a result that divides by 0, or that is beyond it or has an x that is.
Candidates without the number that a list compares have no value of the list field, and the others are compared without
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.spec.kinds import Number
from model_store.spec.sections import FieldSpec
from model_store.spec.values import LARGEST_REAL, Value, one_scalar, parse_real

Numbers = npt.NDArray[np.float64]
Starts = npt.NDArray[np.int64]
ABSENT = float("nan")


@dataclass(frozen=True)
class Derived:
    """One derived field: its name, the side it belongs to, the fields it reads, and how it is computed from these.

    rule: of a field whose x is scaled, so that it may be beyond LARGEST_REAL where the number is not.
    """

    name: str
    side: str
    inputs: tuple[str, ...]
    compares: bool
    """True if a candidate's value depends on the other candidates of the request."""
    of: Callable[..., Numbers]
    rule: Number | None

    def fitting(self, numbers: Numbers) -> Numbers:
        """The numbers, with NaN for those whose x a model does not take."""
        if self.rule is None:
            return numbers
        # A number of the log that is too large costs its row; a computed one only counts as absent.
        return np.where(np.abs(self.rule.xs(numbers)) <= LARGEST_REAL, numbers, np.nan)


@dataclass(frozen=True)
class Derivations:
    """Derived fields in an order in which each comes after the fields that it reads.

    columns: the log column of each field that is read or computed, by the field's name.
    """

    fields: tuple[Derived, ...]
    columns: Mapping[str, str]

    @classmethod
    def of(cls, specs: Mapping[str, FieldSpec]) -> Derivations:
        """Those of a resolved spec's fields. Histories are derived elsewhere."""
        made = [_derived(name, spec) for name, spec in specs.items() if spec.is_derived and not spec.history]
        made.sort(key=lambda field: field.compares)  # only lists read what is derived
        return cls(*_ordered(made, lambda name: specs[name].column or name))

    def only(self, wanted: Callable[[Derived], bool]) -> Derivations:
        """Some of the fields, with the columns that they need."""
        return Derivations(
            *_ordered([field for field in self.fields if wanted(field)], self.columns.__getitem__)
        )

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def compares(self) -> bool:
        """True if a field compares the candidates of a request."""
        return any(field.compares for field in self.fields)

    def computed(self, given: Mapping[str, Numbers], starts: Starts) -> dict[str, Numbers]:
        """The numbers of the derived fields: those given, and where none is given those computed.

        given: float64[rows] for each of `columns`, by field, NaN where absent. starts: int64[requests + 1]; the rows of
        request r are starts[r] … starts[r + 1] - 1. O(rows log rows).
        """
        numbers, found = dict(given), dict[str, Numbers]()
        for field in self.fields:
            inputs = [numbers[name] for name in field.inputs]
            made = field.of(*inputs, starts) if field.compares else field.of(*inputs)
            # Without numbers that are not finite or too large for an x; -0.0 is 0.0, as in events.
            made = field.fitting(np.where(np.abs(made) <= LARGEST_REAL, made + 0.0, np.nan))
            # A given value is never replaced: it may be what a server has computed and logged (ADR 0008).
            own = numbers[field.name]
            found[field.name] = numbers[field.name] = np.where(np.isnan(own), made, own)
        return found


def value_number(value: Value) -> float:
    """A value as the number that is computed with, NaN if it is absent."""
    try:
        return ABSENT if value is None or is_absent(value) else parse_real(one_scalar(value))
    except FieldValueError:
        return ABSENT


def is_absent(value: Value) -> bool:
    """True for a value that counts as absent, as a log's empty cell does."""
    return value is None or value == "" or value == b""


def _derived(name: str, spec: FieldSpec) -> Derived:
    of: Callable[..., Numbers] = _ratio if spec.ratio is not None else operator.sub
    if spec.list in ("min", "max"):
        of = partial(_extreme, best=spec.list)
    elif spec.list is not None:
        of = partial(_rank if spec.list == "rank" else _gap, best=spec.best or "min")
    rule = Number(spec)
    scaled = rule.has_x and not rule.is_unscaled
    return Derived(name, spec.side, spec.inputs, spec.list is not None, of, rule if scaled else None)


def _ordered(
    fields: Sequence[Derived], column: Callable[[str], str]
) -> tuple[tuple[Derived, ...], dict[str, str]]:
    names: Iterable[str] = (name for field in fields for name in (*field.inputs, field.name))
    return tuple(fields), {name: column(name) for name in names}


def _ratio(a: Numbers, b: Numbers) -> Numbers:
    # What is not finite becomes absent in `computed`; numpy would warn of each.
    with np.errstate(all="ignore"):
        return np.where(b == 0.0, np.nan, a / b)


def _rank(numbers: Numbers, starts: Starts, *, best: str) -> Numbers:
    """1 for the best of a request; equal numbers share the lower rank."""
    rows = np.flatnonzero(~np.isnan(numbers))
    request = np.searchsorted(starts, rows, "right")
    value = numbers[rows] if best == "min" else -numbers[rows]
    # lexsort sorts by its last key first: by request, then by value.
    order = np.lexsort((value, request))
    request, value = request[order], value[order]
    place = np.arange(rows.size)
    # The leading True is cut off again where there are no rows.
    begins = np.concatenate([[True], request[1:] != request[:-1]])[: rows.size]
    differs = begins | np.concatenate([[True], value[1:] != value[:-1]])[: rows.size]
    first = np.maximum.accumulate(np.where(begins, place, 0))
    same = np.maximum.accumulate(np.where(differs, place, 0))
    ranks = np.full(numbers.size, np.nan)
    ranks[rows[order]] = same - first + 1
    return ranks


def _extreme(numbers: Numbers, starts: Starts, *, best: str) -> Numbers:
    """The least or greatest number of its request, for every row that has a number."""
    sizes = np.diff(starts)
    # Of an empty range reduceat would give the number at its beginning, which is of the next request.
    filled = np.flatnonzero(sizes)
    if not filled.size:
        return np.full(numbers.size, np.nan)
    # fmin and fmax skip NaN, as candidates without a number are left out of the comparison.
    reduce: Any = np.fmin if best == "min" else np.fmax
    found = np.repeat(reduce.reduceat(numbers, starts[filled]), sizes[filled])
    return np.where(np.isnan(numbers), np.nan, found)


def _gap(numbers: Numbers, starts: Starts, *, best: str) -> Numbers:
    gaps = np.abs(numbers - _extreme(numbers, starts, best=best))
    return np.minimum(gaps, LARGEST_REAL)  # never absent: a part of the request would have another
