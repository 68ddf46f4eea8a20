"""The kernel that puts items together, beside a slow, obvious one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.model.columns import NO_FRAGMENTS, Catalogue, end_to_end
from server.model.event_form_kernels import AROUND_AN_ITEM, SKIPPED, room_for, write_items
from tests.server.events import whole_spec

EDGES = [0.0, 1.0, 0.1, 1e-15, 4e-16, 1 - 1e-16, 0.9999999999999996, 1e-300]
RATES = st.floats(0, 1) | st.sampled_from(EDGES)
Rates = list[float]
FORM = whole_spec.served().form
CATALOGUE = Catalogue.build(FORM.plan, whole_spec.ITEMS.items(), FORM)


def written(
    catalogue: Catalogue | None,
    more: list[bytes],
    rows: list[int],
    ctrs: Rates,
    chances: Rates,
    tails: list[bytes] | tuple[()] = (),
) -> Any:
    known = NO_FRAGMENTS if catalogue is None else catalogue.fragments
    assert known is not None
    arrays = (
        known.values,
        known.json,
        known.json_offsets,
        known.own,
        known.own_offsets,
        known.names,
        known.members,
    )
    places, (data, offsets) = np.array(rows, np.int32), end_to_end(more)
    out = np.empty(room_for(*arrays, offsets, places), np.uint8)
    ends, end_offsets = end_to_end(tails)
    out = np.empty(out.size + ends.size, np.uint8)
    arguments = np.array(ctrs), np.array(chances), ends, end_offsets
    used = write_items(*arrays, data, offsets, places, *arguments, out)
    assert used <= out.size
    assert known.written(more, places, *arguments[:2], tails) == out[:used].tobytes()
    return json.loads(b"[%b]" % out[:used].tobytes())


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4, -1, -2, SKIPPED]), RATES, RATES), max_size=130),
    st.booleans(),
    st.booleans(),
)
def test_items_are_their_features_with_position_and_numbers(
    shown: list[tuple[int, float, float]], with_chances: bool, with_models: bool
) -> None:
    known = [FORM.shown(item_id, fitting(record)).encode() for item_id, record in whole_spec.ITEMS.items()]
    more = [b'"id":"c"', b'"id":"d","features":{}']
    rows = [row for row, _, _ in shown]
    ctrs, chances = [ctr for _, ctr, _ in shown], [chance for _, _, chance in shown] if with_chances else []
    expected = []
    for place, row in enumerate(rows):
        if row != SKIPPED:
            item = json.loads(b"{%b}" % (known[row] if row >= 0 else more[-row - 1]))
            item |= {"position": place + 1, "ctr": ctrs[place]}
            item |= {"propensity": chances[place]} if chances else {}
            expected.append(item | ({"models": place} if with_models else {}))
    tails = [b',"models":%d' % place for place in range(len(rows))] if with_models else []
    found = written(CATALOGUE, more, rows, ctrs, chances, tails)
    for item, of in zip(found, expected, strict=True):
        for name in ("ctr", "propensity"):
            if name in of:
                assert abs(item.pop(name) - of.pop(name)) <= 0.6e-15
    assert [json.dumps(item) for item in found] == [json.dumps(item) for item in expected]


def fitting(record: dict[str, str]) -> dict[str, str]:
    """The values of a record that have tokens."""
    kept = {}
    for field in FORM.plan.item_fields:
        try:
            value = record.get(field.name)
            if value is not None and field.tokens(value):
                kept[field.name] = value
        except ValueError:
            continue
    return kept


def test_what_is_no_rate_is_null_and_there_is_room_for_the_longest_item() -> None:
    assert written(None, [b'"id":"a"'], [-1] * 3, [np.nan, -0.1, 1.1], []) == [
        {"id": "a", "position": place, "ctr": None} for place in (1, 2, 3)
    ]
    longest = (
        b'{"id":,"features":{},"position":2147483647,"ctr":0.123456789012345,"propensity":0.123456789012345},'
    )
    assert len(longest) <= AROUND_AN_ITEM
