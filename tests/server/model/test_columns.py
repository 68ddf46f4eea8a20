"""Columns of catalogue items and spelled-out ones, and the conditions on them, against plain Python."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.spec.values import Value
from server.model.columns import MAX_NAMES, MAX_TEXT_BYTES, Catalogue
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM
from server.ranking.select import filters as candidates_module
from server.ranking.select.filters import AnyOf, CandidateColumns, InRange, NoneOf

PLAN = FeaturePlan.of(
    parse_spec(
        """
        model = { name = "m" }
        input = { label = "click" }
        [fields]
        brand = { side = "item" }
        tags = { side = "item", kind = "set", separator = "|" }
        keys = { side = "item", kind = "raw" }
        """
    )
)
Record = Mapping[str, Value]


def written(*records: Record) -> Catalogue:
    return Catalogue.build(PLAN, [(f"i{row}", record) for row, record in enumerate(records)])


def candidates(*records: Record) -> CandidateColumns:
    rows = np.arange(len(records), dtype=np.int32)
    return CandidateColumns(written(*records), [f"i{row}" for row in rows], rows, [])


def nan_is_none(numbers: Any) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def test_conditions_on_ranges_on_ids_and_on_fields_that_nobody_has() -> None:
    some: list[Record] = [{"bid": "1.5"}, {"brand": "puma", "bid": "cheap"}, {"bid": "2"}]
    for records, condition, passes in (
        (some, InRange("bid", least=1.5, most=1.9), [1, 0, 0]),
        (some, NoneOf("id", {b"i1"}), [1, 0, 1]),
        ([{"id": "x"}, {}], AnyOf("id", {b"i1"}), [0, 0]),  # a field is called so
        (some, AnyOf("gone", {b"a"}), [0, 0, 0]),
        (some, InRange("gone"), [0, 0, 0]),
        (some, NoneOf("gone", {b"a"}), [1, 1, 1]),
        ([{"tags": "red|7"}, {"tags": '{"blue": 2, "red": 0}'}], AnyOf("tags", {b"red"}), [1, 0]),
        ([{"note": "a,b"}, {"note": "a"}], AnyOf("note", {b"a"}), [0, 1]),  # one text, commas and all
    ):
        assert condition.passes(candidates(*records)).tolist() == passes
    assert nan_is_none(candidates({"tags": "7"}).numbers("tags")) == [None], "a set has no number"


def test_items_spelled_out_and_unknown_ones_stand_among_the_catalogues() -> None:
    catalogue = written({"bid": "1", "brand": "nike", "tags": "red"}, {"bid": "2", "brand": "puma"})
    spelled: list[tuple[str, Record]] = [
        ("s0", {"bid": 3.5, "brand": "puma", "colours": ["red", "blue"]}),
        ("s1", {"bid": "4", "brand": "other", "tags": {"green": 2.0}}),
    ]
    rows = np.array([1, FIRST_INLINE, NO_ITEM, FIRST_INLINE - 1, 0], np.int32)
    found = CandidateColumns(catalogue, ["b", "s0", "u", "s1", "a"], rows, spelled)
    assert nan_is_none(found.numbers("bid")) == [2.0, 3.5, None, 4.0, 1.0]
    for condition, passes in (
        (AnyOf("brand", {b"puma"}), [1, 1, 0, 0, 0]),
        (AnyOf("brand", {b"other"}), [0, 0, 0, 1, 0]),
        (AnyOf("tags", {b"green"}), [0, 0, 0, 1, 0]),
        (AnyOf("colours", {b"blue"}), [0, 1, 0, 0, 0]),
    ):
        assert condition.passes(found).tolist() == passes
    texts = found.texts("brand")
    assert texts.owner.tolist() == [0, 1, 3, 4]
    assert texts.code[0] == texts.code[1] != texts.code[2]


def test_a_catalogue_carries_the_values_of_the_last_record_and_nothing_of_the_first() -> None:
    first = ("a", {"bid": "1", "tags": "red", "brand": "nike"})
    catalogue = Catalogue.build(PLAN, [first, ("b", {"bid": "2"}), ("a", {"brand": "puma"})])
    found = CandidateColumns(catalogue, ["a", "b"], catalogue.rows.rows(["a", "b"])[0], [])
    assert nan_is_none(found.numbers("bid")) == [None, 2.0]
    assert not AnyOf("tags", {b"red"}).passes(found).any()
    assert AnyOf("brand", {b"puma"}).passes(found).tolist() == [True, False]


def test_of_too_many_fields_the_models_come_first_and_then_the_names() -> None:
    names = [f"n{number:03}" for number in range(MAX_NAMES + 20)]
    found = written(dict.fromkeys(reversed(names), "1") | {"brand": "nike", "tags": "red"})
    assert list(found.columns) == ["brand", *names[: MAX_NAMES - 2], "tags"]
    more = "n062, n063, n064…"
    assert found.problems == (f"items have 22 fields more than the {MAX_NAMES} that are kept: {more}",)
    other = written(dict.fromkeys(names, "1") | {"brand": "a", "tags": "b"})
    assert other.columns.keys() == found.columns.keys()
    # A long text, a raw field and an empty value have no text.
    assert not written({"blob": "x" * (MAX_TEXT_BYTES + 1), "keys": "P_1", "brand": ""}).columns


TEXTS = st.sampled_from(["", "1", "2.5", "-3", "a", "é", "x|y", '["a"]', "[bad", "nan", "1_0"])
NAMES = st.sampled_from(["bid", "brand", "tags", "note"])
RECORDS = st.dictionaries(NAMES, TEXTS)


@given(st.lists(RECORDS, max_size=8), st.data())
def test_columns_equal_a_slow_reading_of_the_records(records: list[Record], data: st.DataObject) -> None:
    head, arrays = written(*records).pack()
    catalogue = Catalogue.unpack(PLAN, json.loads(json.dumps(head)), {**arrays, "others": np.zeros(1)})
    chosen = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=8)) if records else []
    spelled = data.draw(st.lists(RECORDS, max_size=3))
    rows = np.array([*chosen, *(FIRST_INLINE - r for r in range(len(spelled)))], np.int32)
    ids = [str(at) for at in range(len(rows))]
    found = CandidateColumns(catalogue, ids, rows, [("", record) for record in spelled])
    all_records = [*(records[row] for row in chosen), *spelled]
    for name in ("bid", "brand", "tags", "note"):
        texts = found.texts(name)
        for at, record in enumerate(all_records):
            members = catalogue.members(name, record.get(name))
            mine = texts.code[texts.owner == at].tolist()
            assert sorted(mine) == sorted(texts.code_of(text) for text in members)
        wanted = data.draw(st.frozensets(TEXTS.filter(bool), min_size=1))
        # Both ways of finding the wanted texts, against a slow reading.
        with pytest.MonkeyPatch.context() as few:
            for most in (0, candidates_module.FEW):
                few.setattr(candidates_module, "FEW", most)
                passed = AnyOf(name, tuple(wanted)).passes(found).tolist()
                has = [set(catalogue.members(name, record.get(name))) for record in all_records]
                assert passed == [bool({text.encode() for text in wanted} & each) for each in has]
                assert NoneOf(name, tuple(wanted)).passes(found).tolist() == [not one for one in passed]
        if name != "tags":
            slow = [slow_number(record.get(name)) for record in all_records]
            assert nan_is_none(found.numbers(name)) == slow
    wanted = data.draw(st.frozensets(TEXTS.map(str.encode), max_size=3))
    passes = AnyOf("note", wanted).passes(found).tolist()
    assert passes == [str(record.get("note", "")).encode() in wanted - {b""} for record in all_records]


def slow_number(text: Value) -> float | None:
    try:
        number = float(text) if isinstance(text, str) and "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@pytest.mark.parametrize(
    "odd", [{"bid": ["1", "2"]}, {"bid": {"a": 1.0}}, {"bid": None}, {"bid": True}, {"bid": "\ud800"}]
)
def test_odd_values_have_no_number(odd: Record) -> None:
    assert nan_is_none(candidates(odd).numbers("bid")) == [None]
    spelled = CandidateColumns(written(), ["a"], np.array([FIRST_INLINE], np.int32), [("a", odd)])
    assert nan_is_none(spelled.numbers("bid")) == [None]
