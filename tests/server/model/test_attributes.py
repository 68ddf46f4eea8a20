"""Attributes of catalogue items and spelled-out ones, and the conditions on them, against plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import parse_spec
from server.model.attributes import MAX_NAMES, MAX_TEXT_BYTES, Attributes, AttributeWriter
from server.model.catalogue import Catalogue
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


def written(*records: Record) -> Attributes:
    writer = AttributeWriter(PLAN)
    for row, record in enumerate(records):
        writer.add(row, record)
    return writer.finish()


def candidates(*records: Record) -> CandidateColumns:
    rows = np.arange(len(records), dtype=np.int32)
    return CandidateColumns(written(*records), [f"i{row}" for row in rows], rows, [])


def nan_is_none(numbers: Any) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def test_any_field_of_a_record_has_numbers_and_texts() -> None:
    found = candidates({"bid": "1.5", "brand": "nike"}, {"brand": "puma", "bid": "cheap"}, {"bid": "2"})
    assert nan_is_none(found.numbers("bid")) == [1.5, None, 2.0]
    assert AnyOf("brand", frozenset([b"nike", b"adidas"])).passes(found).tolist() == [True, False, False]
    assert NoneOf("brand", frozenset([b"nike", b"adidas"])).passes(found).tolist() == [False, True, True]
    assert InRange("bid", least=1.5, most=1.9).passes(found).tolist() == [True, False, False]


def test_a_set_field_of_the_model_has_members_and_no_number() -> None:
    found = candidates({"tags": "red|7"}, {"tags": '["red", "blue"]'}, {}, {"tags": '{"blue": 2, "red": 0}'})
    assert AnyOf("tags", frozenset([b"red"])).passes(found).tolist() == [True, True, False, False]
    assert NoneOf("tags", frozenset([b"blue"])).passes(found).tolist() == [True, False, True, False]
    assert nan_is_none(found.numbers("tags")) == [None] * 4


def test_another_field_with_commas_is_one_text() -> None:
    found = candidates({"note": "a,b"}, {"note": "a"})
    assert AnyOf("note", frozenset([b"a"])).passes(found).tolist() == [False, True]


def test_the_candidates_own_id_can_be_asked_for() -> None:
    found = candidates({}, {}, {})
    assert NoneOf("id", frozenset([b"i1"])).passes(found).tolist() == [True, False, True]
    assert AnyOf("id", frozenset([b"i1"])).passes(candidates({"id": "x"}, {})).tolist() == [False, False]


def test_a_field_that_nobody_has_fails_what_asks_for_a_value() -> None:
    found = candidates({"bid": "1"})
    assert not AnyOf("gone", frozenset([b"a"])).passes(found).any()
    assert not InRange("gone").passes(found).any()
    assert NoneOf("gone", frozenset([b"a"])).passes(found).all()


def test_items_spelled_out_and_unknown_ones_stand_among_the_catalogues() -> None:
    attributes = written({"bid": "1", "brand": "nike", "tags": "red"}, {"bid": "2", "brand": "puma"})
    spelled: list[tuple[str, Record]] = [
        ("s0", {"bid": 3.5, "brand": "puma", "colours": ["red", "blue"]}),
        ("s1", {"bid": "4", "brand": "other", "tags": {"green": 2.0}}),
    ]
    rows = np.array([1, FIRST_INLINE, NO_ITEM, FIRST_INLINE - 1, 0], np.int32)
    found = CandidateColumns(attributes, ["b", "s0", "u", "s1", "a"], rows, spelled)
    assert nan_is_none(found.numbers("bid")) == [2.0, 3.5, None, 4.0, 1.0]
    assert AnyOf("brand", frozenset([b"puma"])).passes(found).tolist() == [True, True, False, False, False]
    assert AnyOf("brand", frozenset([b"other"])).passes(found).tolist() == [False, False, False, True, False]
    assert AnyOf("tags", frozenset([b"green"])).passes(found).tolist() == [False, False, False, True, False]
    assert AnyOf("colours", frozenset([b"blue"])).passes(found).tolist() == [False, True, False, False, False]
    texts = found.texts("brand")
    assert texts.owner.tolist() == [0, 1, 3, 4]
    assert texts.code[0] == texts.code[1] != texts.code[2]


def test_the_last_record_of_a_row_counts_and_leaves_nothing_of_the_first() -> None:
    writer = AttributeWriter(PLAN)
    writer.add(0, {"bid": "1", "tags": "red", "brand": "nike"})
    writer.add(1, {"bid": "2"})
    writer.add(0, {"brand": "puma"})
    found = CandidateColumns(writer.finish(), ["a", "b"], np.arange(2, dtype=np.int32), [])
    assert nan_is_none(found.numbers("bid")) == [None, 2.0]
    assert not AnyOf("tags", frozenset([b"red"])).passes(found).any()
    assert AnyOf("brand", frozenset([b"puma"])).passes(found).tolist() == [True, False]


def test_of_too_many_fields_the_models_come_first_and_then_the_names() -> None:
    names = [f"n{number:03}" for number in range(MAX_NAMES + 20)]
    found = written(dict.fromkeys(reversed(names), "1") | {"brand": "nike", "tags": "red"})
    assert list(found.columns) == ["brand", *names[: MAX_NAMES - 2], "tags"]
    assert found.problems == (
        f"items have 22 fields more than the {MAX_NAMES} that are kept: n062, n063, n064…",
    )
    assert (
        written(dict.fromkeys(names, "1") | {"brand": "a", "tags": "b"}).columns.keys()
        == found.columns.keys()
    )


def test_a_long_text_a_raw_field_and_an_empty_value_are_no_attributes() -> None:
    found = written({"blob": "x" * (MAX_TEXT_BYTES + 1), "keys": "P_1", "brand": ""})
    assert list(found.columns) == []


def test_a_catalogue_carries_the_attributes_of_its_rows() -> None:
    catalogue = Catalogue.build(PLAN, [("a", {"bid": "1"}), ("b", {"bid": "2"}), ("a", {"bid": "3"})])
    found = CandidateColumns(catalogue.attributes, ["b", "a"], catalogue.rows.rows(["b", "a"])[0], [])
    assert found.numbers("bid").tolist() == [2.0, 3.0]


TEXTS = st.sampled_from(["", "1", "2.5", "-3", "a", "é", "x|y", '["a"]', "[bad", "nan", "1_0"])
NAMES = st.sampled_from(["bid", "brand", "tags", "note"])
RECORDS = st.dictionaries(NAMES, TEXTS)


@given(st.lists(RECORDS, max_size=8), st.data())
def test_columns_equal_a_slow_reading_of_the_records(records: list[Record], data: st.DataObject) -> None:
    packed = written(*records)
    head, arrays = packed.pack()
    attributes = Attributes.unpack(head, {**arrays, "others": np.zeros(1)})
    chosen = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=8)) if records else []
    spelled = data.draw(st.lists(RECORDS, max_size=3))
    rows = np.array([*chosen, *(FIRST_INLINE - r for r in range(len(spelled)))], np.int32)
    ids = [str(at) for at in range(len(rows))]
    found = CandidateColumns(attributes, ids, rows, [("", record) for record in spelled])
    all_records = [*(records[row] for row in chosen), *spelled]
    for name in ("bid", "brand", "tags", "note"):
        texts = found.texts(name)
        for at, record in enumerate(all_records):
            members = attributes.members(name, record.get(name))
            mine = texts.code[texts.owner == at].tolist()
            assert sorted(mine) == sorted(texts.code_of(text) for text in members)
        wanted = data.draw(st.frozensets(TEXTS.filter(bool), min_size=1))
        with (
            pytest.MonkeyPatch.context() as few
        ):  # both ways of finding the wanted texts, against a slow reading
            for most in (0, candidates_module.FEW):
                few.setattr(candidates_module, "FEW", most)
                passed = AnyOf(name, tuple(wanted)).passes(found).tolist()
                assert passed == [
                    bool({text.encode() for text in wanted} & set(attributes.members(name, record.get(name))))
                    for record in all_records
                ]
                assert NoneOf(name, tuple(wanted)).passes(found).tolist() == [not one for one in passed]
        if name != "tags":
            assert nan_is_none(found.numbers(name)) == [
                slow_number(record.get(name)) for record in all_records
            ]
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
    spelled = CandidateColumns(Attributes(), ["a"], np.array([FIRST_INLINE], np.int32), [("a", odd)])
    assert nan_is_none(spelled.numbers("bid")) == [None]
