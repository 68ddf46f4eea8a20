"""The value table: its layout, and that growing never loses a key."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.worlds import learn, model_of
from trainer.learn import table_kernels as kernels
from trainer.learn.slots_kernels import (
    Compact,
    CompactCounts,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)
from trainer.learn.table import ValueTable

SPEC = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nf = {}\n'


LAYOUTS = [Full, FullCounts, Compact, CompactCounts, Own, OwnCounts, OwnCompact, OwnCompactCounts]


def keys_of(names):
    offsets = np.cumsum([0, *(len(name) for name in names)]).astype(np.int64)
    return np.frombuffer(b"".join(names), np.uint8), offsets, np.arange(len(names)).astype(np.uint16)


def names_in(table):
    keys = table.keys()
    data = keys.data.tobytes()
    return [data[a:b] for a, b in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]


@pytest.mark.parametrize(
    ("layout", "seen", "size"),
    [(Full, False, 32), (FullCounts, False, 32), (CompactCounts, False, 16), (Compact, True, 24)],
)
def test_a_shared_slot_has_its_size_and_begins_a_cache_line(layout, seen, size):
    for capacity in (1 << 10, 1 << 16):
        table = ValueTable(layout, keep_seen=seen, capacity=capacity)
        assert table.slots.dtype.itemsize == size and table.slots.ctypes.data % 64 == 0


@pytest.mark.parametrize("layout", slow_except((Full, CompactCounts, OwnCompactCounts), LAYOUTS))
def test_keys_keep_their_state_while_a_table_grows_evicts_and_is_restored(layout):
    table = ValueTable(layout, variants=3, keep_seen=True, capacity=64)
    names = [b"f=%d" % number for number in range(3000)]
    for start in range(0, 3000, 500):
        table.add(*keys_of(names[start : start + 500]))
        table.slots["seen"][table.keys().slots[start:]] = np.arange(start, start + 500)
    table._check()
    keys = table.keys()
    assert names_in(table) == names
    assert table.slots["seen"][keys.slots].tolist() == list(range(3000))
    assert keys.features.tolist() == list(range(500)) * 6

    before = table.nbytes
    assert table.evict(2700) == 2700
    table._check()
    assert names_in(table) == names[2700:]
    assert table.slots["seen"][table.keys().slots].tolist() == list(range(2700, 3000))
    assert table.nbytes <= before
    table.add(*keys_of(names[:10]))
    table._check()

    for array in (getattr(table.layout, name) for name in table._own_names()):
        array.view(np.uint8).reshape(-1)[::11] |= 1
    other = ValueTable(layout, variants=3, keep_seen=True)
    other.restore({name: array.copy() for name, array in table.state().items()})
    other._check()
    for name, array in table.state().items():
        assert array.tobytes() == other.state()[name].tobytes()


@pytest.mark.parametrize(
    ("layout", "is_viewed"),
    [
        (Full, False),
        (OwnCompactCounts, True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((FullCounts, True), (Own, False), (OwnCounts, True), (OwnCompact, False))
        ),
    ],
)
def test_doubling_keeps_every_key_with_all_its_state(layout, is_viewed):
    """In place, and by a copy where something has a view: which, no layout knows."""
    for seed, count in enumerate((20, 28, 36, 43, 44)):
        draw = np.random.default_rng(seed)
        table = ValueTable(layout, variants=3, keep_seen=True, capacity=64)
        slots = table.add(*keys_of([b"f=%d" % number for number in draw.choice(5_000, count, replace=False)]))
        names = ["slots", *table._own_names()]
        for name in names:
            array = getattr(table.layout, name)
            filled = draw.integers(1, 255, array[slots].nbytes).astype(np.uint8).view(array.dtype)
            kept = filled.reshape(array[slots].shape).copy()
            if name == "slots":
                kept["key"], kept["seen"] = table.slots["key"][slots], draw.integers(1, 1_000, slots.size)
            array[slots] = kept
        before = {name: getattr(table.layout, name)[slots].tobytes() for name in names}
        viewed = table.slots[:1] if is_viewed else None
        del array
        table.grow()
        assert table.slots.size == 128
        table._check()
        slots = table.keys().slots
        assert {name: getattr(table.layout, name)[slots].tobytes() for name in names} == before
        free = np.setdiff1d(np.arange(128), slots)
        assert not any(getattr(table.layout, name)[free].view(np.uint8).any() for name in names)
        del viewed


@pytest.mark.parametrize("layout", [Compact, CompactCounts])
def test_a_compact_table_needs_at_most_20_bytes_a_key_at_any_size(layout):
    table = ValueTable(layout)
    worst = 0.0
    for start in range(0, 100_000, 500):
        table.add(*keys_of([b"f=%d" % number for number in range(start, start + 500)]))
        if start > 2000:
            worst = max(worst, table.table_bytes / table.used)
    assert worst <= 20.2  # the 20 of 16 bytes at eight tenths, and a row's worth of room


@pytest.mark.slow
def test_slots_beyond_2_to_27_are_found():
    """Pages that nothing touches take no memory, so a table of this size costs what its few keys cost."""
    for layout in (Full, CompactCounts):
        table = ValueTable(layout, capacity=1 << 28)
        slots = table.add(*keys_of([b"f=%d" % number for number in range(2000)]))
        assert slots.max() > 1 << 27 and table.keys().slots.tolist() == slots.tolist()


@pytest.mark.slow
def test_an_arena_beyond_2_to_31_bytes_keeps_every_key():
    table = ValueTable(capacity=1 << 20)
    long = [(b"f=%08d" % number).ljust(4096, b"x") for number in range(1000)]
    data, offsets, features = keys_of(long)
    table._arena.resize((1 << 31) + (1 << 26))
    for block in range(525):
        data = data.copy()
        data.reshape(1000, 4096)[:, 2:5] = np.frombuffer(b"%03d" % block, np.uint8)
        table.add(data, offsets, features)
    assert table.arena_bytes > 1 << 31
    table.add(*keys_of([b"last=one"]))
    lengths, numbers = np.empty(table.used, np.int64), np.empty(table.used, np.uint16)
    kernels.arena_entries(table.arena, lengths, numbers)
    assert lengths[-1] == 8
    assert int(lengths.sum()) + kernels.ENTRY_HEAD * table.used == table.arena_bytes
    assert table.arena[table.arena_bytes - 8 : table.arena_bytes].tobytes() == b"last=one"


@pytest.mark.parametrize("seed", range(10))
def test_every_key_is_kept_once_with_its_last_example(seed):
    random = np.random.default_rng(seed)
    values = [b"%d" % number for number in random.integers(0, 5 + 40 * seed, 30 * seed)]
    model = model_of(parse_spec(SPEC), ["click", "f"])
    model.coordinates.table = ValueTable(capacity=4)
    learn(model, [{"click": b"0", "f": value} for value in values], 7)
    model.table._check()
    found = names_in(model.table)
    first_seen = list(dict.fromkeys(b"f=" + value for value in values))
    assert found == ([b"bias", *first_seen] if values else [])
    seen = dict(zip(found, model.table.slots["seen"][model.table.keys().slots].tolist(), strict=True))
    last = {b"f=" + value: number for number, value in enumerate(values, start=1)}
    assert all(seen[key] == number for key, number in last.items())


def test_a_capacity_is_a_power_of_two_and_growth_doubles():
    with pytest.raises(ValueError, match="power of two"):
        ValueTable(capacity=100)
    table = ValueTable(capacity=16)
    assert table.room == 11
    table.grow()
    assert (table.slots.size, table.room) == (32, 22)
