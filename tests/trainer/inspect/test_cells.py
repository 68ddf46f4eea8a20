"""Cells of every plain type against the slow, obvious reading of the same values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.inspect.columns import ABSENT, CheckedRows, ColumnCounts, cells_of

TEXTS = st.sampled_from(
    [b"", b"a", b"1", b"-2.5", b"1e3", b"null", b"inf", b"\xff", "Ã©".encode(), "é".encode()]
)
CELLS = {
    pa.binary(): TEXTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats() | st.integers(-5, 5).map(float),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.sampled_from("abc"), max_size=3),
    pa.map_(pa.string(), pa.float64()): st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0, 1)), max_size=2, unique_by=lambda pair: pair[0]
    ),
}


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(list(CELLS)))
    values = draw(st.lists(st.none() | CELLS[kind], max_size=12))
    return pa.array(values, kind)[draw(st.integers(0, 2)) :]


def is_absent(value: Any) -> bool:
    return value is None or value in (b"", [])


@given(arrays())
def test_values_and_counts_are_those_of_the_cells(array: pa.Array) -> None:
    cells, values = cells_of(array), array.to_pylist()
    assert (cells.row_hashes == ABSENT).tolist() == [is_absent(value) for value in values]
    for i, one in enumerate(values):
        for j, other in enumerate(values):
            if isinstance(one, list) and isinstance(other, list):  # a set has no order
                one, other = sorted(one, key=repr), sorted(other, key=repr)
            same = repr(one) == repr(other) or (is_absent(one) and is_absent(other)) or one == other
            assert (cells.row_hashes[i] == cells.row_hashes[j]) == same or (one != one and other != other)
    assert cells.per_value.sum() == cells.codes.size
    for code in np.unique(cells.codes).tolist():
        rows = np.arange(cells.codes.size) if cells.row is None else cells.row
        assert cells.first_rows[code] == rows[cells.codes == code].min()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"1", 1.0),
        (b"-2.5", -2.5),
        (b"+5", 5.0),
        (b" 7", 7.0),
        (b"1e3", 1000.0),
        (b"0x1", None),
        (b"a", None),
    ],
)
def test_texts_are_numbers_or_not(text: bytes, number: float | None) -> None:
    for among in ([], [b"word"], ["é".encode()]):
        got = cells_of(pa.array([*among, text], pa.binary())).numbers[len(among)]
        assert math.isnan(got) if number is None else got == number


def test_a_whole_number_is_the_same_in_every_type_but_text() -> None:
    hashes = [cells_of(array).row_hashes[0] for array in (pa.array([7]), pa.array([7.0]))]
    assert hashes[0] == hashes[1] != cells_of(pa.array([7.5])).row_hashes[0]


@given(st.lists(arrays(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_column_counts_views_and_clicks_of_each_value(parts: list[pa.Array], seed: int) -> None:
    """However a column is cut into batches, and whatever types they have."""
    random = np.random.default_rng(seed)
    counts, first = ColumnCounts("c"), 0
    views = clicks = filled = 0.0
    for part in parts:
        if not len(part):
            continue
        clicked = random.integers(0, 2, len(part)).astype(float)
        other = random.integers(0, 2, len(part)).astype(bool)
        rows = CheckedRows(
            len(part), first, np.arange(first, first + len(part)), np.ones(len(part)), clicked, other
        )
        if not first:
            counts.look(part)
        counts.add(part, rows)
        first += len(part)
        views, clicks = views + len(part), clicks + clicked.sum()
        filled += sum(not is_absent(value) for value in part.to_pylist())
    total = counts.total
    assert total[1] + total[3] == views and total[2] + total[4] == clicks
    assert counts.filled == filled and counts.absent_sums[0] == views - filled
    if not counts.is_several:
        assert counts.sample.sums.sum(axis=0).tolist() == total.tolist()
    if counts.edges is not None and not counts.is_several:
        assert counts.bins.sum(axis=0).tolist() == total.tolist()
