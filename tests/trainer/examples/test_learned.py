"""What buckets and scales learn from the first rows, however these are read, and where it is taken over."""

from __future__ import annotations

import io
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.spec.kinds import Number
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples import learned as module
from trainer.examples.learned import learn
from trainer.examples.open_log import Log, open_log
from trainer.formats.tables import table_of

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\n'
SPEC = HEAD + (
    'price = { kind = "number", bucket = "quantile:4" }\n'
    'size = { kind = "number", scale = "standard" }\n'
    'age = { kind = "number", scale = "minmax", clip = [18, 99] }\n'
)
FINITE = st.floats(-1e24, 1e24)


def field(options: dict[str, object]) -> FieldSpec:
    return FieldSpec.model_validate({"kind": "number", **options})


def learned(options: dict[str, object], numbers: Sequence[float]) -> tuple[float, ...]:
    return learn(field(options), np.array(numbers, np.float64)).numbers


@given(st.lists(FINITE, min_size=1), st.integers(2, 20), st.randoms())
def test_quantiles_divide_the_numbers_whatever_their_order(numbers, buckets, order):
    options = {"bucket": f"quantile:{buckets}"}
    edges = learned(options, numbers)
    assert list(edges) == sorted(set(edges)) and len(edges) < buckets
    found = Number(field({**options, "learned": edges})).buckets(np.array(numbers))
    assert set(found.tolist()) == set(range(len(edges) + 1))  # no bucket is empty
    if len(set(numbers)) == len(numbers):
        assert np.bincount(found).max() <= math.ceil(len(numbers) / buckets)
    order.shuffle(numbers)
    assert learned(options, numbers) == edges


@given(st.lists(FINITE, min_size=2), st.randoms())
def test_scales_learn_alike_whatever_the_order(numbers, order):
    for options in ({"scale": "standard"}, {"scale": "minmax"}):
        before = learned(options, numbers)
        order.shuffle(numbers)
        assert learned(options, numbers) == before
        field({**options, "learned": before})  # valid in a spec


QUARTERS, STANDARD, MINMAX = {"bucket": "quantile:4"}, {"scale": "standard"}, {"scale": "minmax"}


@pytest.mark.parametrize(
    ("options", "numbers", "expected", "remark"),
    [
        (STANDARD, [2, 4, 4, 4, 5, 5, 7, 9, math.nan], (5.0, 2.0), None),
        (MINMAX, [3, -1, math.nan, 7], (-1.0, 7.0), None),
        (MINMAX | {"clip": [0, 5]}, [3, -1, 7], (0.0, 5.0), None),
        (QUARTERS, range(1, 9), (3.0, 5.0, 7.0), None),
        (QUARTERS, [], (), "no number"),
        (QUARTERS, [7, 7, 7], (), "1 bucket instead of 4"),
        (QUARTERS, [0, 0, 0, 1], (1.0,), "2 buckets instead of 4"),
        (STANDARD, [math.nan], (0.0, 1.0), "no number"),
        (STANDARD, [0.1] * 10, (0.1, 1.0), "every number is 0.1"),
        (MINMAX, [-5.0], (-5.0, 0.0), "every number is -5.0"),
        (MINMAX, [], (0.0, 1.0), "no number"),
        (MINMAX, [1e300, 1, 3], (1.0, 3.0), None),
    ],
)
def test_the_textbook_numbers_are_learned_and_remarked_where_they_do_not_suffice(
    options, numbers, expected, remark
):
    found = learn(field(options), np.array(numbers, np.float64))
    assert found.numbers == expected
    assert found.remark is None if remark is None else remark in found.remark
    field({**options, "learned": found.numbers})


def write(path: Path, rows: int = 2000) -> Path:
    draw = random.Random(3)
    lines = [
        f"{n % 3 % 2},{draw.choice(['', round(draw.lognormvariate(3, 1), 2)])},{n},{draw.randint(0, 120)}"
        for n in range(rows)
    ]
    path.write_text("\n".join(["y,price,size,age", *lines]) + "\n")
    return path


def resolved(log: Log, spec: str = SPEC, *known: ModelSpec) -> tuple[ModelSpec, int]:
    """The spec as it was resolved, and the rows that were then read."""
    given = parse_spec(spec)
    before = given.sha256
    with open_log(log, given, known=known) as opened, opened.examples(2) as examples:
        assert opened.spec.sha256 != before == given.sha256  # of what has been learned too
        return opened.spec, sum(each.rows.size for each in examples)


def test_learning_does_not_depend_on_how_the_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LEARNED_ROWS", 1234)
    path = write(tmp_path / "log.csv")
    once, rows = resolved(Log([str(path)]))
    assert (once.has_to_learn, rows) == (False, 2000)
    assert once.fields["size"].learned == pytest.approx((1233 / 2, math.sqrt((1234**2 - 1) / 12)))
    assert once.fields["age"].learned == (18.0, 99.0)
    for batch_bytes in (1000, 17_000):
        assert resolved(Log([str(path)], batch_bytes=batch_bytes)) == (once, rows)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert resolved(Log(["-"])) == (once, rows)


COMPUTED = """
[model]
name = "m"
[input]
label = "y"
timestamp = "t"
cookie = "u"
item = "i"
request = "r"
[fields]
a = { kind = "number", side = "item" }
b = { kind = "number" }
part = { kind = "number", ratio = ["a", "b"], bucket = "quantile:5", side = "item" }
gap = { kind = "number", list = "gap", of = "a", scale = "standard", side = "item" }
seen = { kind = "number", history = "seen", measure = "count", bucket = "quantile:4", side = "item" }
ago = { kind = "number", history = "clicked", measure = "age", scale = "minmax", side = "user" }
"""


def test_numbers_of_derived_and_history_fields_are_learned_as_those_of_a_column(tmp_path):
    draw, lines = random.Random(5), ["y,t,u,i,r,a,b"]
    for request in range(300):
        b = draw.randint(1, 9)
        for item in draw.sample("pqrst", 3):
            y, a = int(draw.random() < 0.3), draw.randint(1, 999)
            lines.append(f"{y},{1_700_000_000 + request},u{request % 7},{item},{request},{a},{b}")
    log = tmp_path / "log.csv"
    log.write_text("\n".join(lines) + "\n")
    computed = parse_spec(COMPUTED)
    with open_log(Log([str(log)]), computed) as opened:
        batches = list(opened.rows())
        found = opened.spec
    for name in ("part", "gap", "seen", "ago"):
        cells = [value for batch in batches for value in batch.columns[name].to_pylist()]
        numbers = np.array([math.nan if cell is None else cell for cell in cells], np.float64)
        expected = learn(computed.fields[name], numbers).numbers
        assert found.fields[name].learned == expected and len(set(expected)) > 1


def test_what_is_given_or_known_is_kept(tmp_path):
    path = write(tmp_path / "log.csv")
    text = SPEC.replace('"quantile:4"', '"quantile:4", learned = [1, 2, 3]')
    first, _ = resolved(Log([str(path)]), text)
    assert first.fields["price"].learned == (1.0, 2.0, 3.0)
    path.write_text("y,price,size,age\n1,5,5,50\n0,6,6,60\n")
    again, _ = resolved(Log([str(path)]), SPEC, first)
    assert again == first
    rows = {"y": [1, 0], "price": [5, 6], "size": [5, 6], "age": [50, 60]}
    for log in (Log([str(path)]), Log([], table=table_of(pa.table(rows)))):
        changed, _ = resolved(log, SPEC.replace("quantile:4", "quantile:2"), first)
        assert changed.fields["price"].learned == (6.0,)
        assert changed.fields["size"] == first.fields["size"]
