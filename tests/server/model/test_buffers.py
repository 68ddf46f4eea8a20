"""Buffers in turns: what is being read never changes, and what is served is right whatever was released when."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.model.shared_memory import SharedBlock
from server.model.values import Buffers, Values

SLOTS = 40
WRITES = st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=6)
STEPS = st.lists(st.one_of(WRITES, st.integers(0, 5)), max_size=30)


def numbers(value: int, count: int) -> Values:
    some = np.full((2, count), value, np.float32)
    return Values(some, np.full((1, count), value, np.uint8), some + 1)


def first() -> Buffers:
    return Buffers(SharedBlock.write({}, numbers(0, SLOTS).by_name()))


def write(buffers: Buffers, slots: list[int], value: int) -> None:
    buffers.prepare(np.array(slots, np.int64), numbers(value, len(slots)))
    buffers.serve()


@given(STEPS)
def test_a_buffer_that_is_read_is_never_written(steps: list[list[int] | int]) -> None:
    buffers, expected = first(), np.zeros(SLOTS, np.uint32)
    reading = {buffers.served.uid: (buffers.values, expected.copy())}
    for value, step in enumerate(steps, start=1):
        if isinstance(step, list):
            write(buffers, step, value)
            expected[step] = value
            reading[buffers.served.uid] = buffers.values, expected.copy()
        elif step < len(reading):
            uid = list(reading)[step]
            if uid != buffers.served.uid:
                del reading[uid]
                buffers.released(uid)
        for values, was in reading.values():
            assert values.bits.tolist() == was.tolist()
            assert (values.weights[1] == was).all()


def test_a_reader_that_lags_behind_costs_a_third_buffer_until_it_lets_go() -> None:
    buffers = first()
    for value in range(1, 5):  # readers that keep up need two
        before = buffers.served.uid
        write(buffers, [value, 0], value)
        buffers.released(before)
        assert len(buffers) == 2
    lagging = buffers.served.uid
    for value in range(5, 9):
        before = buffers.served.uid
        write(buffers, [value], value)
        if before != lagging:
            buffers.released(before)
    assert len(buffers) == 3
    buffers.released(lagging)
    write(buffers, [9], 9)
    assert len(buffers) == 2
    assert buffers.values.bits.tolist()[:10] == [4, *range(1, 10)]


def test_a_uid_of_an_earlier_turn_releases_nothing() -> None:
    buffers = first()
    uids = []
    for value in range(1, 4):
        uids.append(buffers.served.uid)
        write(buffers, [0], value)
        if value == 1:
            buffers.released(uids[0])
    assert buffers.served.uid not in uids
    served = buffers.values
    for uid in uids:
        buffers.released(uid)
        buffers.released(uid)
    write(buffers, [0], 7)
    assert served.bits[0] == 3


def test_what_was_prepared_and_given_up_leaves_no_trace() -> None:
    buffers = first()
    write(buffers, [1], 1)
    buffers.released(buffers.served.uid)
    buffers.prepare(np.array([2, 3]), numbers(5, 2))
    write(buffers, [4], 2)
    assert buffers.values.bits.tolist()[:6] == [0, 1, 0, 0, 2, 0]
