"""Hashed rows carry the x of weighted sets and numbers, into crosses too: the same keys and x as the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from model_store.spec.spec import parse_spec
from tests.trainer.learn.pairs import hash_of
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch

SPEC = """
[model]
name = "m"
[input]
label = "y"
[fields]
user = {}
topics = { kind = "set" }
words = { kind = "set", side = "item" }
price = { kind = "number", side = "item" }
[[crosses]]
fields = ["topics", "words"]
[[crosses]]
fields = ["user", "topics", "price"]
"""
MAKER = ExampleMaker(parse_spec(SPEC).resolve(["y", "user", "topics", "words", "price"]))
WEIGHTED = st.one_of(
    st.none(), st.dictionaries(st.sampled_from("abcdefghijkl"), st.sampled_from([1.0, -0.5, 3.25]))
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["", "u1", "u2"]),
            "topics": WEIGHTED,
            "words": st.lists(st.sampled_from("vwxyz"), unique=True),
            "price": st.one_of(st.none(), st.sampled_from([0.0, 2.0, 10.5])),
        }
    ),
    min_size=1,
    max_size=6,
)


def batch_of(rows: list[dict[str, Any]]) -> RowBatch:
    types = {
        "user": pa.binary(),
        "topics": pa.map_(pa.string(), pa.float64()),
        "words": pa.list_(pa.string()),
        "price": pa.float64(),
    }
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    columns["y"] = pa.array([1] * len(rows))
    return RowBatch(columns, np.arange(len(rows)) + 1, "log", (), len(rows), Position("log"))


@given(ROWS)
def test_a_batch_has_the_keys_and_x_of_its_rows(rows):
    hashed = MAKER.make(batch_of(rows)).hashed
    for index, row in enumerate(rows):
        part = slice(int(hashed.starts[index]), int(hashed.starts[index + 1]))
        x = hashed.x[part] if hashed.x.size else np.ones(part.stop - part.start)
        expected = [(hash_of(key), each) for key, each, _ in MAKER.plan.keys(row)]
        assert list(zip(hashed.hashes[part].tolist(), x.tolist(), strict=True)) == expected
