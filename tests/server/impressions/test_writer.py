"""The background writer: bounded, in order, drained at the end, and lasting through faults of its owner."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from structlog.testing import capture_logs

from server.impressions.writer import BackgroundWriter


class Gate:
    """Writes batches once it is open."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []

    def write(self, batch: Sequence[int]) -> bool:
        self.entered.set()
        self.open.wait(20)
        self.batches.append(list(batch))
        return True


def test_items_are_written_in_order_and_those_without_room_are_refused() -> None:
    gate, full = Gate(), list[bool]()
    writer = BackgroundWriter("test", gate.write, most=3, on_full=full.append)
    assert [writer.offer(n) for n in range(5)] == [True, True, True, False, False]
    assert (writer.waiting, full) == (3, [True])
    gate.open.set()
    assert writer.close(time.monotonic() + 20) == []
    assert gate.batches == [[0], [1], [2]]
    assert full == [True, False]
    assert not writer.offer(9)


def test_what_waits_and_batches_are_bounded_by_items_bytes_and_group() -> None:
    gate = Gate()
    writer = BackgroundWriter("test", gate.write, most=100, most_bytes=10)
    assert writer.offer_all([(1, 6), (2, 4), (3, 1)]) == 2
    gate.open.set()
    assert writer.close(time.monotonic() + 20) == []
    gate.batches.clear()
    writer = BackgroundWriter(
        "test", gate.write, most=100, batch=3, batch_bytes=10, group=lambda n: n >= 6, linger_s=0.05
    )
    writer.offer_all([(n, 1) for n in range(1, 8)] + [(8, 9), (9, 99)])
    writer.close(time.monotonic() + 20)
    assert gate.batches == [[1, 2, 3], [4, 5], [6, 7], [8], [9]]


def test_what_is_not_written_in_time_is_returned_and_not_counted_as_written() -> None:
    gate, written, ended = Gate(), list[int](), threading.Event()
    writer = BackgroundWriter("test", gate.write, most=9, on_written=written.extend, on_end=ended.set)
    writer.offer_all([(1, 0), (2, 0)])
    assert gate.entered.wait(20)
    assert writer.close(time.monotonic()) == [1, 2]
    gate.open.set()
    assert ended.wait(20)
    assert written == []


def test_a_fault_of_the_owner_costs_its_batch_only() -> None:
    written: list[int] = []

    def write(batch: Sequence[int]) -> bool:
        if 1 in batch:
            raise ValueError("a fault")
        written.extend(batch)
        return True

    with capture_logs() as logs:
        writer = BackgroundWriter("test", write, most=9)
        writer.offer_all([(n, 0) for n in range(3)])
        writer.close(time.monotonic() + 20)
    assert written == [0, 2]
    assert [line["event"] for line in logs] == ["a batch could not be written"]
