"""Weighted sets: members with an x, from mappings, JSON text and Arrow maps, one at a time and by column."""

from __future__ import annotations

import json
import math
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import FieldValueError, SpecError
from model_store.spec.kinds import Token
from model_store.spec.values import LARGEST_REAL
from tests.model_store.features.fields import column_of, field_of, plan_of, tokens_of
from trainer.examples.sets_kernels import FEW

WEIGHTED = pa.map_(pa.string(), pa.float64())


SET, RAW = field_of('kind = "set"'), field_of('kind = "raw"')


def all_tokens(array: pa.Array) -> list[tuple[Token, ...]]:
    """The tokens that a column gives to each row, which must all be good."""
    column = column_of(SET, array)
    assert column.bad == []
    return [tokens_of(column, row) for row in range(len(array))]


def test_each_member_of_a_mapping_carries_its_x_into_fields_and_crosses():
    plan = plan_of(
        'topics = { kind = "set", side = "user" }\nprice = { kind = "number", side = "item" }\n'
        '[[crosses]]\nfields = ["topics", "price"]\n'
    )
    assert plan.keys({"topics": {"art": 0.5, "sp*rt": -2}, "price": 3.0}) == [
        (b"bias", 1.0, 1),
        (b"topics=art", 0.5, 1),
        (b"topics=sp%2Art", -2.0, 1),
        (b"price=", 3.0, 1),
        (b"topics*price=art*", 1.5, 1),
        (b"topics*price=sp%2Art*", -6.0, 1),
    ]


def test_members_without_text_without_x_or_with_x_of_0_are_absent():
    assert SET.tokens({"a": 0, "": 2.0, "b": -0.0, "c": 1}) == (Token(b"c", 1.0),)
    assert SET.tokens('{"a": null, "b": 2}') == (Token(b"b", 2.0),)
    assert SET.tokens("{}") == ()
    absent = [("a", 0.0), ("b", None), ("", 3.0), ("c", 1.0)]
    assert all_tokens(pa.array([absent], WEIGHTED)) == [(Token(b"c", 1.0),)]
    assert RAW.tokens({"P_N_T_1": 0.25}) == (Token(b"P_N_T_1", 0.25),)


def test_repeats_add_up_in_a_mapping_and_count_once_in_a_list_whatever_the_batch_around_is():
    repeats = [("a", 0.1), ("b", 1.0), ("a", 0.2), ("c", 5.0), ("a", 0.3), ("c", -5.0)]
    assert all_tokens(pa.array([repeats], WEIGHTED)) == [(Token(b"a", 0.1 + 0.2 + 0.3), Token(b"b", 1.0))]
    assert all_tokens(pa.array([["b", "a", "b"]])) == [(Token(b"b", 1.0), Token(b"a", 1.0))]
    rows = [[("a", 1.0), ("a", 1.0)], [("b", 1.0)], [("c", 7.5)]]
    alone, among = all_tokens(pa.array(rows[:2], WEIGHTED)), all_tokens(pa.array(rows, WEIGHTED))
    assert among[:2] == alone == [(Token(b"a", 2.0),), (Token(b"b", 1.0),)]


MEMBERS = st.text(alphabet="abc*=%ü", max_size=2)
REALS = st.floats(-LARGEST_REAL / 100, LARGEST_REAL / 100)
ENTRIES = st.lists(st.tuples(MEMBERS, st.one_of(st.none(), REALS, st.just(1.0))), max_size=3 * FEW)


def added_up(entries: list[tuple[str, float | None]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for member, x in entries:
        if x:
            sums[member] = sums[member] + x if member in sums else x
    return sums


@given(st.lists(st.one_of(st.none(), ENTRIES), min_size=1, max_size=5), st.integers(0, 2))
def test_a_map_column_has_the_tokens_of_its_mappings(rows, skipped):
    expected = [SET.tokens(added_up(entries)) if entries is not None else () for entries in rows]
    assert all_tokens(pa.array(rows, WEIGHTED).slice(skipped)) == expected[skipped:]


@given(st.lists(st.dictionaries(MEMBERS, REALS, max_size=4), min_size=1, max_size=4))
def test_json_objects_in_text_are_weighted_sets(mappings):
    texts = pa.array([json.dumps(mapping).encode() for mapping in mappings], pa.binary())
    assert all_tokens(texts) == [SET.tokens(mapping) for mapping in mappings]


def test_a_map_to_any_type_of_number_is_a_weighted_set_and_one_to_text_is_none():
    for kind in (pa.int64(), pa.float32(), pa.uint8()):
        column = pa.array([[("a", 2)], None], pa.map_(pa.string(), kind))
        assert all_tokens(column) == [(Token(b"a", 2.0),), ()]
    assert all_tokens(pa.array([[(7, 0.5)]], pa.map_(pa.int64(), pa.float64()))) == [(Token(b"7", 0.5),)]
    with pytest.raises(SpecError, match=r"fields\.f: a column of type map<string, string>"):
        column_of(SET, pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())))


def test_a_weight_that_is_no_real_number_is_named():
    for value, message in [
        ({"a": True}, "f: got True for 'a', expected a number"),
        ({"a": "0.5"}, "f: got '0.5' for 'a', expected a number"),
        ({"a": 1e25}, "f: got 1e+25, expected a number from -1e+24 to 1e+24"),
        ('{"a": NaN}', "f: got nan, expected a finite number"),
        ('{"a": [1]}', "f: got [1] for 'a', expected a number"),
        ('{"a": 1', "which begins like a JSON object but is not valid"),
        ({"\ud800": 1.0}, "not UTF-8"),
    ]:
        with pytest.raises(FieldValueError, match=re.escape(message)):
            SET.tokens(value)


def test_a_map_with_such_a_weight_costs_its_row_only():
    for entries, reason in [
        ([("a", 1.0), ("b", float("nan"))], "got nan, expected a finite number"),
        ([("a", float("-inf"))], "got -inf, expected a finite number"),
        ([("a", -1e25)], "got -1e+25, expected a number from -1e+24 to 1e+24"),
        ([("a", 1e24), ("a", 1e24)], "got 2e+24, expected a number from -1e+24 to 1e+24"),
    ]:
        column = column_of(SET, pa.array([[("a", 1.0)], entries, [], [("b", 2.0)]], WEIGHTED))
        assert column.bad == [(1, reason)]


def test_a_scale_or_a_bucket_is_of_each_member_and_a_list_then_counts_its_repeats():
    roots, buckets = field_of('kind = "set", scale = "sqrt"'), field_of('kind = "set", bucket = [2, 5]')
    logs, log_buckets = field_of('kind = "set", scale = "log1p"'), field_of('kind = "set", bucket = "log"')
    often = {"a": 4, "b*c": 1, "d": 0, "": 3, "e": -9}
    assert roots.tokens(often) == (Token(b"a", 2.0), Token(b"b%2Ac", 1.0), Token(b"e", -3.0))
    assert logs.tokens({"a": 3}) == (Token(b"a", math.log1p(3.0)),)
    assert buckets.tokens(often) == (Token(b"a:1", 1.0), Token(b"b%2Ac:0", 1.0), Token(b"e:0", 1.0))
    assert log_buckets.tokens({"a": 100}) == (Token(b"a:26", 1.0),)
    assert buckets.tokens(["b", "a", "b"]) == (Token(b"b:1", 1.0), Token(b"a:0", 1.0))
    assert (
        roots.tokens("a,b,a,a,a")
        == roots.tokens('["a", "b", "a", "a", "a"]')
        == roots.tokens({"a": 4, "b": 1})
    )
    # Two spellings of one member are one.
    assert roots.tokens(["7", "7.0", 7, "7.00"]) == (Token(b"7", 2.0),)


@given(
    st.sampled_from(['scale = "sqrt"', 'scale = "log1p"', 'bucket = "log"', "bucket = [-1, 0.5, 2]"]),
    st.lists(st.one_of(st.none(), st.dictionaries(MEMBERS, REALS, max_size=4)), min_size=1, max_size=4),
    st.lists(st.one_of(st.none(), st.lists(MEMBERS, max_size=6)), min_size=1, max_size=4),
)
def test_columns_of_scaled_and_bucketed_sets_have_the_tokens_of_their_values(way, mappings, lists):
    field = field_of(f'kind = "set", {way}')
    texts = [json.dumps(each).encode() if each is not None else None for each in mappings]
    for array, values in (
        (pa.array([each and list(each.items()) for each in mappings], WEIGHTED), mappings),
        (pa.array(lists, pa.list_(pa.string())), lists),
        (pa.array(texts, pa.binary()), mappings),
    ):
        column = column_of(field, array)
        assert column.bad == []
        assert [tokens_of(column, row) for row in range(len(array))] == [
            field.tokens(each) for each in values
        ]


def test_a_set_does_not_learn_its_scale_nor_take_two_ways():
    for options, wrong in {
        'scale = "standard"': 'scale = "standard" belongs to kind = "number"; a set takes scale = "log1p" or "sqrt"',
        'bucket = "quantile:4"': 'bucket = "quantile:4" belongs to kind = "number"',
        'scale = "sqrt", bucket = "log"': "leave one of them out",
        "clip = [0, 5]": 'clip belongs to kind = "number"',
    }.items():
        with pytest.raises(SpecError, match=re.escape(wrong)):
            field_of(f'kind = "set", {options}')
