"""The kernel that puts items together, beside a slow, obvious one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.model.event_form import Fragments
from server.model.event_form_kernels import AROUND_AN_ITEM, SKIPPED, room_for, write_items

EDGES = [0.0, 1.0, 0.1, 1e-15, 4e-16, 1 - 1e-16, 0.9999999999999996, 1e-300]
RATES = st.floats(0, 1) | st.sampled_from(EDGES)
Rates = list[float]


def written(known: list[bytes], more: list[bytes], rows: list[int], ctrs: Rates, chances: Rates) -> Any:
    ours, theirs = Fragments.of(known), Fragments.of(more)
    places = np.array(rows, np.int32)
    out = np.empty(room_for(places, ours.offsets, theirs.offsets), np.uint8)
    numbers = np.array(ctrs), np.array(chances)
    used = write_items(ours.data, ours.offsets, theirs.data, theirs.offsets, places, *numbers, out)
    assert used <= out.size
    return json.loads(b"[%b]" % out[:used].tobytes())


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, -1, -2, SKIPPED]), RATES, RATES), max_size=130),
    st.booleans(),
)
def test_items_are_fragments_with_position_and_numbers(
    shown: list[tuple[int, float, float]], with_chances: bool
) -> None:
    known, more = [b'"id":"a"', b'"id":"bb"', b'"id":""'], [b'"id":"c"', b'"id":"d","features":{}']
    rows = [row for row, _, _ in shown]
    ctrs, chances = [ctr for _, ctr, _ in shown], [chance for _, _, chance in shown] if with_chances else []
    expected = []
    for place, row in enumerate(rows):
        if row != SKIPPED:
            item = json.loads(b"{%b}" % (known[row] if row >= 0 else more[-row - 1]))
            item |= {"position": place + 1, "ctr": ctrs[place]}
            expected.append(item | ({"propensity": chances[place]} if chances else {}))
    found = written(known, more, rows, ctrs, chances)
    for item, of in zip(found, expected, strict=True):
        for name in ("ctr", "propensity"):
            if name in of:
                assert abs(item.pop(name) - of.pop(name)) <= 0.6e-15
    assert found == expected


def test_what_is_no_rate_is_null_and_there_is_room_for_the_longest_item() -> None:
    assert written([b'"id":"a"'], [], [0] * 3, [np.nan, -0.1, 1.1], []) == [
        {"id": "a", "position": place, "ctr": None} for place in (1, 2, 3)
    ]
    longest = b'{,"position":2147483647,"ctr":0.123456789012345,"propensity":0.123456789012345},'
    assert len(longest) <= AROUND_AN_ITEM
