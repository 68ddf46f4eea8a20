"""Ratios, differences and list features, against the definition in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import SpecError
from model_store.features.derived import Derivations, value_number
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import parse_spec
from model_store.spec.values import LARGEST_REAL
from trainer.events.columns import column_numbers, derive

ITEM = {"side": "item", "kind": "number"}
FIELDS = {
    "price": ITEM,
    "weight": ITEM,
    "budget": {"side": "user", "kind": "number"},
    "per_kg": {**ITEM, "ratio": ["price", "weight"]},
    "left": {**ITEM, "difference": ["budget", "price"]},
    "price_rank": {**ITEM, "list": "rank", "of": "price"},
    "best_rank": {**ITEM, "list": "rank", "of": "per_kg", "best": "max"},
    "least": {**ITEM, "list": "min", "of": "price"},
    "most": {**ITEM, "list": "max", "of": "left"},
    "gap": {**ITEM, "list": "gap", "of": "price"},
    "gap_to_most": {**ITEM, "list": "gap", "of": "per_kg", "best": "max"},
}
SPECS = {name: FieldSpec.model_validate(field) for name, field in reversed(FIELDS.items())}
DERIVED = Derivations.of(SPECS)
Number = float | None
Row = dict[str, Number]


def slow(requests: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows with all derived values, by the definition."""
    done = []
    for request in requests:
        rows = [dict(row) for row in request]
        for name in ("per_kg", "left", "price_rank", "best_rank", "least", "most", "gap", "gap_to_most"):
            for row, value in zip(rows, [_value(SPECS[name], row, rows) for row in rows], strict=True):
                if row.get(name) is None:
                    row[name] = value
        done += rows
    return done


def _value(field: FieldSpec, row: Mapping[str, Number], rows: Sequence[Mapping[str, Number]]) -> Number:
    inputs = [row.get(name) for name in field.inputs]
    if None in inputs:
        return None
    a, *rest = inputs
    assert a is not None
    if field.ratio:
        return None if not rest[0] else _bounded(a / rest[0])
    if field.difference:
        assert rest[0] is not None
        return _bounded(a - rest[0])
    others = [other for each in rows if (other := each.get(field.inputs[0])) is not None]
    best = min(others) if (field.best or "min") == "min" else max(others)
    if field.list == "rank":
        return 1.0 + sum(
            other < a if best == min(others) and field.best != "max" else other > a for other in others
        )
    return {"min": min(others), "max": max(others), "gap": min(abs(a - best), LARGEST_REAL)}[str(field.list)]


def _bounded(value: float) -> Number:
    return value if abs(value) <= LARGEST_REAL else None


NUMBERS = (
    st.none() | st.floats(-1e24, 1e24) | st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, 0.1, 1e-300, 5e-324])
)
ROW = st.fixed_dictionaries(
    dict.fromkeys(("price", "weight", "budget"), NUMBERS),
    optional=dict.fromkeys(("per_kg", "price_rank", "gap"), NUMBERS),
)
REQUESTS = st.lists(st.lists(ROW, max_size=6), max_size=5)


@given(requests=REQUESTS)
def test_values_are_those_of_the_definition_to_the_last_bit(requests: list[list[Row]]) -> None:
    rows = [row for request in requests for row in request]
    starts = np.cumsum([0, *map(len, requests)], dtype=np.int64)
    columns = {name: pa.array([row.get(name) for row in rows], pa.float64()) for name in SPECS}
    filled = derive(DERIVED, columns, starts)
    for name in SPECS:
        expected = [row.get(name) for row in slow(requests)]
        assert filled[name].to_pylist() == expected
        if columns[name].null_count == len(rows):  # no value of it was given: no -0.0 comes about
            values = [value for value in filled[name].to_pylist() if value is not None]
            assert not any(value == 0.0 and math.copysign(1, value) < 0 for value in values), name


@given(requests=REQUESTS)
def test_a_part_of_a_served_request_keeps_the_values_of_the_whole(requests: list[list[Row]]) -> None:
    for request in requests:
        columns = {name: pa.array([row.get(name) for row in request], pa.float64()) for name in SPECS}
        served = derive(DERIVED, columns, np.array([0, len(request)]))
        for first, stop in pairwise(range(len(request) + 1)):
            shown = {name: column.slice(first, stop - first) for name, column in served.items()}
            learned = derive(DERIVED, shown, np.array([0, stop - first]))
            assert {n: c.to_pylist() for n, c in learned.items()} == {
                n: c.to_pylist() for n, c in shown.items()
            }


def test_a_column_that_has_values_keeps_them() -> None:
    price = pa.array([1.0, 2.0, 2.0])
    derived = Derivations.of({name: SPECS[name] for name in ("price", "price_rank")})
    for column, expected in [
        (pa.nulls(3), [1, 2, 2]),
        (pa.array([b"", b"", b""], pa.binary()), [1, 2, 2]),
        (pa.array([None, 7, None], pa.int64()), [1, 7, 2]),
        (pa.array([b"", b"9.5", b""], pa.binary()), [b"1", b"9.5", b"2"]),
        (pa.array([b"", b"wrong", b""], pa.binary()), [b"1", b"wrong", b"2"]),
        (pa.array(["4", "5", "6"]), [b"4", b"5", b"6"]),
        (pa.array([None, True, None]), [b"1", b"true", b"2"]),
    ]:
        filled = derive(derived, {"price": price, "price_rank": column}, np.array([0, 3]))
        assert filled["price_rank"].to_pylist() == expected


def test_one_value_and_a_column_are_the_same_number() -> None:
    for text in ("1.5", " 2", "", "x", "1e25", "-1e24", "nan", "inf", "true", "1_0", "0x1", "-0"):
        (of_column,) = column_numbers(pa.array([text])).tolist()
        assert value_number(text) == pytest.approx(of_column, nan_ok=True, rel=0, abs=0), text


def test_a_spec_that_cannot_be_served_as_it_is_learned_is_refused() -> None:
    spec = '[model]\nname = "m"\n[input]\nlabel = "click"\nitem = "sku"\n[fields]\n'
    spec += 'price = { side = "item", kind = "number" }\nage = { side = "user", kind = "number" }\n'
    for options, message in {
        'ratio = ["age", "age"], side = "item"': "neither 'age' nor 'age' is a field of the",
        'ratio = ["age", "age"], column = "age"': "fields.age reads its column 'age' too",
        'ratio = ["age", "age"], column = "sku"': r"\[input\] reads its column 'sku' too",
        'ratio = ["age", "price"]': "'price' is a field of the item",
    }.items():
        with pytest.raises(SpecError, match=message):
            parse_spec(f'{spec}r = {{ kind = "number", {options} }}')
