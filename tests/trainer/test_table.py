"""The value table: its layout, and that growing never loses a key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.spec import parse_spec
from tests.trainer.logs import batch_of, model_of
from trainer.table import SLOT, ValueTable

SPEC = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nf = {}\n'


def test_a_slot_is_32_bytes_and_never_spans_two_cache_lines():
    assert SLOT.itemsize == 32
    assert {name: SLOT.fields[name][1] for name in SLOT.names} == {
        "key": 0,
        "z": 8,
        "n": 16,
        "variants": 24,
        "count": 28,
    }
    for capacity in (2, 1 << 10, 1 << 20):
        assert ValueTable(capacity).slots.ctypes.data % 32 == 0


def test_a_capacity_must_be_a_power_of_two():
    with pytest.raises(ValueError, match="power of two"):
        ValueTable(100)


@given(st.lists(st.text("abc", min_size=1, max_size=6).map(str.encode), max_size=300))
def test_every_key_is_kept_once_with_its_count(values):
    model = model_of(parse_spec(SPEC), ["click", "f"])
    model.table = ValueTable(capacity=4)
    for start in range(0, len(values), 7):
        rows = [{"click": b"0", "f": value} for value in values[start : start + 7]]
        model.learn(model.maker.make(batch_of(rows)))
    model.table._check()
    keys = model.table.keys()
    data = keys.data.tobytes()
    found = [data[a:b] for a, b in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]
    first_seen = list(dict.fromkeys(b"f=" + value for value in values))
    assert found == ([b"bias", *first_seen] if values else [])
    counts = dict(zip(found, model.table.slots["count"][keys.slots].tolist(), strict=True))
    assert all(counts[b"f=" + value] == values.count(value) for value in values)


def test_room_shrinks_and_growth_doubles():
    table = ValueTable(capacity=16)
    assert table.room == 11
    table.grow()
    assert (table.slots.size, table.room) == (32, 22)


def test_a_long_arena_is_widened_without_loss():
    model = model_of(parse_spec(SPEC), ["click", "f"])
    model.table.arena = np.empty(64, np.uint8)
    values = [b"%060d" % number for number in range(50)]
    model.learn(model.maker.make(batch_of([{"click": b"1", "f": value} for value in values])))
    keys = model.table.keys()
    assert keys.data.tobytes() == b"bias" + b"".join(b"f=" + value for value in values)
