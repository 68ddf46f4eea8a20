"""Examples of one row from Python values are those of a batch with that row, to the last bit, or left to the batch."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, spec_from_document
from tests.matrix import examples
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.one_row import OneRowMaker
from trainer.formats.batch import NotPlain, Position, RowBatch, plain
from trainer.formats.tables import python_array

SPEC = """
model = { name = "rows" }
input = { label = "y", weight = "w", request = "r" }
crosses = [{ fields = ["cat", "tags"] }, { fields = ["cat", "size", "lot"] }]
[fields]
cat = {}
tags = { kind = "set", side = "item" }
often = { kind = "set", column = "tags", scale = "log1p" }
size = { kind = "number", scale = "log1p" }
lot = { kind = "number", bucket = "log", missing = "key" }
hour = { kind = "time", part = "hour" }
words = { kind = "text" }
keys = { kind = "raw" }
other = { column = "o" }
[rules]
"other=ab*" = { l1 = 2.0 }
[learner]
l1 = 1.0
"""
STOP = Position("row", 1, 2)
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["ab=*%", "abc", "1", "1.5", "1e3", " 7", "NaN", "a,b,a", '["x"]']
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -0.0, 2**53, 2**63, 10**30, 1e16, 0.1])
MEMBERS = st.lists(TEXTS, max_size=4) | st.dictionaries(TEXTS, NUMBERS, max_size=3)
VALUES = st.none() | TEXTS | NUMBERS | st.booleans() | MEMBERS | st.binary(max_size=4)
TIMES = VALUES | st.sampled_from(["2026-11-23T08:00:00", "2026-11-23"])
ROWS = st.fixed_dictionaries(
    {},
    optional={
        name: TIMES if name == "hour" else VALUES
        for name in ("cat", "tags", "size", "lot", "hour", "words", "keys", "o", "r")
    },
)


@pytest.fixture(scope="module")
def maker() -> ExampleMaker:
    return ExampleMaker(resolved(SPEC))


def resolved(text: str) -> ModelSpec:
    spec = spec_from_document(tomllib.loads(text))
    return spec.resolve(spec.wanted_columns())


def by_batch(maker: ExampleMaker, row: dict[str, Any]) -> Examples | None:
    """The examples of the row as a batch, None if it is rejected."""
    try:
        columns = {name: plain(python_array([row.get(name)])) for name in maker.spec.wanted_columns()}
        found = maker.make(RowBatch(columns, np.ones(1, np.int64), "row", (), 1, STOP))
    except (NotPlain, SpecError, pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return None if found.rejects else found


def same(one: Examples, other: Examples) -> None:
    assert said(one) == said(other)


def said(made: Examples) -> list[object]:
    hashed, size = made.hashed, int(made.hashed.starts[-1])
    arrays = (
        hashed.labels,
        hashed.weights,
        hashed.starts,
        hashed.hashes[:size],
        hashed.features[:size],
        made.requests,
    )
    x = hashed.x[:size] if hashed.x.size else np.ones(size)
    texts = [each.to_pylist() for each in made.texts]
    return [*(array.tolist() for array in arrays), [each.hex() for each in x.tolist()], texts]


@examples(150)
@given(row=ROWS, label=st.sampled_from([0, 1, True, 0.0, 1.0, "1", -1, None, 7]), weight=NUMBERS)
@example(row={"tags": {"a": 1, "b": 0.0}, "r": 1}, label=1, weight=1.0)
@example(row={"cat": "x" * 2000, "tags": ["y" * 2100, "z"], "r": 1}, label=1, weight=1.0)
@example(row={"cat": "x" * 5000, "r": 1}, label=1, weight=1.0)
@example(row={"cat": "\ud800", "r": 1}, label=1, weight=1.0)
def test_a_row_is_a_batch_of_one(maker: ExampleMaker, row: dict[str, Any], label: Any, weight: Any) -> None:
    fast = OneRowMaker(maker)
    for _ in range(2):  # the second time from the tokens that it kept
        found = fast.make(row, STOP, label, weight)
        if found is not None:
            expected = by_batch(maker, {**row, "y": label, "w": weight})
            assert expected is not None
            same(found, expected)


def assert_fast(fast: OneRowMaker, maker: ExampleMaker, row: dict[str, Any]) -> None:
    found, expected = fast.make(row, STOP, 1, 0.5), by_batch(maker, {**row, "y": 1, "w": 0.5})
    assert found is not None and expected is not None
    same(found, expected)


SMALL = st.floats(-9, 9)
PLAIN = {
    "cat": st.none() | st.text(max_size=8) | st.integers(-9, 9) | st.booleans() | SMALL,
    "tags": st.lists(st.text(max_size=4), max_size=3) | st.dictionaries(st.text(), SMALL),
    "size": st.none() | st.floats(-1e9, 1e9) | st.integers(-9, 9) | st.just("2.5"),
    "lot": st.none() | st.floats(-1e9, 1e9),
    "hour": st.none() | st.just("2026-11-23T08:00:00"),
    "words": st.text(max_size=20),
    "r": st.integers(0, 9) | st.text("abc", min_size=1),
}


@given(row=st.fixed_dictionaries(PLAIN))
def test_plain_values_take_the_fast_path(maker: ExampleMaker, row: dict[str, Any]) -> None:
    assert_fast(OneRowMaker(maker), maker, row)


def test_it_forgets_tokens(maker: ExampleMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.examples.one_row._REMEMBERED", 5)
    fast = OneRowMaker(maker)
    for number in range(20):
        assert_fast(fast, maker, {"cat": f"v{number % 9}", "o": "abc", "r": 1})


@pytest.mark.parametrize(
    "more",
    [
        "learner = { ttl = '1d' }\ninput = { label = 'y', timestamp = 't' }",
        "learner = { subsample = { unclicked = 0.5 } }\ninput = { label = 'y' }",
        "input = { label = 'y', views = 'n' }",
    ],
)
def test_rows_that_need_more_are_left_to_the_batch(more: str) -> None:
    spec = resolved(f"model = {{ name = 'm' }}\nfields = {{ f = {{}} }}\n{more}\n")
    assert not OneRowMaker(ExampleMaker(spec)).usable
