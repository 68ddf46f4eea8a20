"""Records of histories: their bytes, and values at a time."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import SpecError, UnreadableValue
from model_store.features.history import (
    CLICKED,
    ITEM,
    KEPT_US,
    SEEN,
    HistoryField,
    HistoryPlan,
    UserHistory,
    check_record,
)
from model_store.spec.sections import MOST_HISTORY
from model_store.spec.spec import ModelSpec, parse_spec
from tests.matrix import examples

PLAN = HistoryPlan((SEEN, CLICKED), (ITEM, "brand"), (), KEPT_US)
TEXTS = st.binary(max_size=12)
EVENTS = st.lists(st.tuples(st.sampled_from(PLAN.kinds), st.integers(0, 30), TEXTS, TEXTS), max_size=40)


def history(events: list[tuple[int, int, bytes, bytes]]) -> UserHistory:
    user = UserHistory()
    for kind, time_us, *texts in events:
        user.add(kind, time_us, [[text] for text in texts])
    return user


@given(EVENTS)
@examples(200)
def test_a_record_is_read_as_it_was_written(events: list[tuple[int, int, bytes, bytes]]):
    record = history(events).encode(PLAN)
    assert UserHistory.decode(record, PLAN).encode(PLAN) == record
    assert check_record(record) == len(events)


@given(EVENTS, st.data())
@examples(300)
def test_a_changed_record_is_refused_with_a_reason(
    events: list[tuple[int, int, bytes, bytes]], data: st.DataObject
):
    record = bytearray(history(events).encode(PLAN))
    record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnreadableValue, match="history"):
        UserHistory.decode(bytes(record), PLAN)


@given(st.binary(max_size=200), st.booleans())
@examples(300)
def test_junk_with_a_right_checksum_is_refused_too(junk: bytes, begins_well: bool):
    body = (b"\x01\x00\x00" if begins_well else b"") + junk
    record = b"fh\x01" + crc32(body).to_bytes(4, "little") + body
    try:
        check_record(record)
    except UnreadableValue:
        return
    assert UserHistory.decode(record, PLAN) is not None


@given(EVENTS)
@examples(100)
def test_events_are_kept_by_time_and_in_order_of_arrival_where_times_are_equal(
    events: list[tuple[int, int, bytes, bytes]],
):
    user = history(events * 5)
    for kind in PLAN.kinds:
        expected = sorted((each for each in events * 5 if each[0] == kind), key=lambda each: each[1])
        kept = user.events.get(kind)
        found = list(zip(kept.times, *kept.texts, strict=True)) if kept is not None else []
        assert found == [each[1:] for each in expected[-MOST_HISTORY:]]


def test_a_column_that_a_record_lacks_has_empty_texts_and_a_window_has_its_begin_and_not_its_end():
    user = history([(SEEN, 5, b"i1", b"b1"), (CLICKED, 6, b"i2", b"b2")])
    other = HistoryPlan((CLICKED,), (ITEM, "city"), (), KEPT_US)
    found = UserHistory.decode(user.encode(PLAN), other)
    assert {kind: events.texts for kind, events in found.events.items()} == {CLICKED: [[b"i2"], [b""]]}
    user = history([(CLICKED, 10, b"i1", b""), (CLICKED, 20, b"i2", b"")])
    count = HistoryField("n", "n", CLICKED, "count", 0, 10, 10, False)
    assert [user.of_user(count, now) for now in (10, 11, 20, 21, 30, 31)] == [0, 1, 1, 1, 1, 0]


def spec(field: str) -> ModelSpec:
    return parse_spec(f"""
        [model]
        name = "m"
        [input]
        label = "click"
        timestamp = "ts"
        cookie = "cookie"
        item = "id"
        [fields]
        brand = {{side = "item"}}
        price = {{side = "item", kind = "number"}}
        last = {field}
        """)


def test_a_field_that_makes_no_sense_is_refused_and_a_plan_has_what_its_fields_name():
    for field, wrong in {
        'kind = "number", history = "seen", measure = "count", of = "brand"': 'set side = "item"',
        'kind = "set", history = "seen", measure = "last", of = "price"': "keeps categories",
    }.items():
        with pytest.raises(SpecError, match=wrong):
            spec(f'{{side = "user", {field}}}')
    last = 'kind = "set", history = "clicked", measure = "last", of = "brand", within = "40d"'
    plan = HistoryPlan.of(spec(f'{{side = "user", {last}}}'))
    assert plan is not None
    assert (plan.kinds, plan.columns, plan.kept_us) == ((CLICKED,), (ITEM, "brand"), 40 * 86_400_000_000)
