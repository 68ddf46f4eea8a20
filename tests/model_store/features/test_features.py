"""Keys: the grammar, one value at a time, whole columns, and that both ways agree."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import FieldValueError, SpecError
from model_store.hash_kernels import hash_keys
from model_store.spec.keys import escape, parse_key, prefix_of, unescape
from model_store.spec.values import LARGEST_REAL, category_text, log_bucket, text_of
from tests.model_store.features.fields import column_of, field_of, plan_of, tokens_of


@given(st.binary())
def test_escape_is_undone_by_unescape(text):
    assert unescape(escape(text)) == text
    assert not set(escape(text).replace(b"%25", b"").replace(b"%2A", b"").replace(b"%3D", b"")) & set(b"*=%")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3), st.lists(st.binary(), min_size=1, max_size=3))
def test_a_key_is_read_back(names, values):
    if len(names) == len(values):
        key = prefix_of(names) + b"*".join(escape(value) for value in values)
        assert parse_key(key) == (tuple(names), tuple(values))


def test_other_keys_are_raw():
    for key in (b"bias", b"P_N_T_1_20631", b"a*b=c", b"a=b=c", b"50%=x", b"a=100%", b"=x", b""):
        assert parse_key(key) is None


def test_keys_of_an_example():
    plan = plan_of(
        'age = { side = "user" }\nbrand = { side = "item" }\n'
        'price = { side = "item", kind = "number", bucket = "log" }\nsize = { kind = "number" }\n'
        'tags = { kind = "set" }\n[[crosses]]\nfields = ["brand", "age"]\n'
        "[variants]\na = { share = 0.5 }\nb = { share = 0.5, without = ['brand*age'] }\n"
    )
    example = {"age": "25", "brand": "ni*ke", "price": 100, "size": -1.5, "tags": ["x", "y", "x"]}
    assert plan.keys(example) == [
        (b"bias", 1.0, 3),
        (b"age=25", 1.0, 3),
        (b"brand=ni%2Ake", 1.0, 3),
        (b"price=26", 1.0, 3),
        (b"size=", -1.5, 3),
        (b"tags=x", 1.0, 3),
        (b"tags=y", 1.0, 3),
        (b"age*brand=25*ni%2Ake", 1.0, 1),
    ]


def test_a_variant_without_a_field_is_without_its_crosses():
    variants = "[variants]\nx = { share = 1 }\ny = { share = 0, without = ['a'] }\n"
    plan = plan_of(f"a = {{}}\nb = {{}}\n[[crosses]]\nfields = ['a', 'b']\n{variants}")
    assert [field.mask for field in plan.fields] == [0b01, 0b11]
    assert plan.crosses[0].mask == 0b01
    # A cross of a field with a star in its name can be left out.
    for name in ("a*b*c", "c*a*b"):
        plan = plan_of(
            '"a*b" = {}\nc = {}\n[[crosses]]\nfields = ["a*b", "c"]\n'
            f"[variants]\nwhole = {{}}\nless = {{ without = ['{name}'] }}\n"
        )
        assert [cross.mask for cross in plan.crosses] == [0b01]
        assert [field.mask for field in plan.fields] == [0b11, 0b11]


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_log_buckets_are_monotone_and_four_to_an_octave(a, b):
    low, high = sorted((a, b))
    assert log_bucket(low) <= log_bucket(high)
    buckets = {0: 0, 0.25: 1, 1: 4, 3: 8, 100: 26, -1: -4, 1e300: 3985}
    assert {value: log_bucket(value) for value in buckets} == buckets


def test_text_of_a_value_does_not_depend_on_its_type():
    values = [77, 77.0, -0.0, 1.5, 1e20, True, "ü"]
    texts = [b"77", b"77", b"0", b"1.5", b"1e+20", b"true", b"\xc3\xbc"]
    assert [text_of(value) for value in values] == texts
    field = field_of('kind = "category"')
    for kind in (pa.int64(), pa.float64(), pa.string()):
        column = column_of(field, pa.array([7, None, 12], pa.int64()).cast(kind))
        assert column.text.to_pylist() == [b"7", b"", b"12"]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (30.0, ["30.0", "30.00", "30"]),
        (-0.0, ["-0.0", "-0", "0", "0.0"]),
        (True, ["True", "TRUE", "true"]),
        (False, ["False", "FALSE", "false"]),
        (2.0**53 - 1, ["9007199254740991.0", "9007199254740991"]),
        (-1.5, ["-1.5"]),
    ],
)
def test_a_text_is_the_category_of_the_value_that_it_spells(value, texts):
    for options in ('kind = "category"', 'kind = "set", separator = "|"'):
        field = field_of(options)
        typed = field.tokens(value)
        assert [field.tokens(text) for text in texts] == [typed] * len(texts)
        several = [pa.array(texts), pa.array(texts).dictionary_encode(), pa.array([value])]
        several += [pa.array([[text] for text in texts])] * ("set" in options)
        for array in several:
            column = column_of(field, array)
            assert [tokens_of(column, row) for row in range(len(array))] == [typed] * len(array)
    assert field.tokens(["True", True, "x"]) == field.tokens("True|true|x") == field.tokens(["true", "x"])
    assert tokens_of(column_of(field, pa.array([["True", "true", "x"]])), 0) == field.tokens(["true", "x"])


@pytest.mark.parametrize(
    "text", ["007", "1.50", "1.10", "+1", ".0", "1e16", "00.0", "9007199254740993.0", "tRue", "5-0", "Style"]
)
def test_another_text_stays_as_it_is_written(text):
    assert category_text(text.encode()) == text.encode()
    assert column_of(field_of('kind = "category"'), pa.array([text])).text.to_pylist() == [text.encode()]


def test_a_value_that_does_not_fit_is_named():
    for options, value, message in [
        ('kind = "number"', "abc", "f: got 'abc', expected a number"),
        ('kind = "number"', "1_000", "expected a number"),
        ('kind = "number"', True, "f: got True, expected a number"),
        ('kind = "number"', "-1e25", "f: got -1e+25, expected a number from -1e+24 to 1e+24"),
        ('kind = "number"', float("nan"), "f: got nan, expected a finite number"),
        ('kind = "time", part = "hour"', "noon", "f: got 'noon', expected a time like ISO-8601"),
        ('kind = "category"', b"\xff", "not UTF-8"),
        ('kind = "category"', ["a"], "expected one value"),
        ('kind = "category"', "x" * 4095, "the limit is 4096"),
        ('kind = "set"', "[1, 2", "JSON array"),
    ]:
        with pytest.raises(FieldValueError, match=re.escape(message)):
            field_of(options).tokens(value)
    with pytest.raises(SpecError, match=r"fields\.f: a column of type"):
        column_of(field_of('kind = "number"'), pa.array([{"a": 1}]))


SPELLINGS = st.sampled_from(["True", "FALSE", "30.0", "-0", "-0.0", "a|True|true|7.00|7"])
TEXTS = st.one_of(st.just(""), st.text(alphabet="ab*=%ü|\x00", max_size=12), st.text(max_size=5), SPELLINGS)
NUMBERS = st.one_of(
    st.just(""),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str).filter(lambda t: len(t) < 300),
)
REALS = st.one_of(st.just(""), st.floats(-LARGEST_REAL, LARGEST_REAL).map(repr))
TIMES = st.one_of(st.just(""), st.integers(0, 2 * 10**9).map(str))


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ('kind = "category"', TEXTS),
        ('kind = "set", separator = "|"', TEXTS.filter(lambda t: not t.startswith(("[", "{")))),
        ('kind = "raw", separator = "|"', TEXTS.filter(lambda t: not t.startswith(("[", "{")))),
        ('kind = "number"', REALS),
        ('kind = "number", bucket = "log"', NUMBERS),
        ('kind = "time", part = "weekday", format = "epoch_s"', TIMES),
    ],
)
def test_a_column_has_the_tokens_of_its_values(options, values):
    field = field_of(options)

    @given(st.lists(values, min_size=1, max_size=8))
    def check(texts):
        column = column_of(field, pa.array([text.encode() for text in texts], pa.binary()))
        assert not column.bad
        found = [tokens_of(column, row) for row in range(len(texts))]
        assert found == [field.tokens(text) for text in texts]

    check()


@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXTS), max_size=5)), min_size=1, max_size=6)
)
def test_a_list_column_has_the_tokens_of_its_lists(lists):
    field = field_of('kind = "set"')
    column = column_of(field, pa.array(lists, pa.list_(pa.string())))
    expected = [field.tokens([m for m in value if m is not None] if value else None) for value in lists]
    assert [tokens_of(column, row) for row in range(len(lists))] == expected


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30, unique=True))
def test_different_keys_have_different_hashes(keys):
    data = np.frombuffer(b"".join(keys) + b"\x00", np.uint8).copy()
    offsets = np.cumsum([0, *(len(key) for key in keys)])
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(data, offsets, hashes)
    assert len(set(hashes.tolist())) == len(keys)
    assert (hashes != 0).all()
