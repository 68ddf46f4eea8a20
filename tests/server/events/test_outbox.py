"""Lines that wait for a sink, and the background writer below: bounded, in order, tried again, counted, drained."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from threading import Event, Semaphore

import pytest
from structlog.testing import capture_logs

from model_store.errors import StoreUnavailable
from model_store.metrics import Family
from server.events import log as log_module
from server.events.log import ATTEMPTS_FAILED, DROPPED, LOGGED, Outbox
from server.events.writer import BackgroundWriter
from server.telemetry.meter import FAMILIES, Meter
from tests.waiting import eventually


class Slow:
    """A sink that takes a batch for each permit, or fails by its `fault`."""

    kind, shown = "slow", "nowhere"

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.batches: list[int] = []
        self.fault: Exception | None = None
        self.closed = Event()
        self.permits = Semaphore(0)
        self.asked = Semaphore(0)

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        self.asked.release()
        self.permits.acquire()
        if self.fault is not None:
            raise self.fault
        self.taken += [(model, line) for line in lines]
        self.batches.append(len(lines))

    def close(self) -> None:
        self.closed.set()


class Counted(Meter):
    """A meter whose counts can be read at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[Family | str, ...]] = Counter()

    def read(self) -> Counter[tuple[Family | str, ...]]:
        for name, labels, number in self.take()["counts"]:
            self.seen[FAMILIES[name], *labels] += int(number)
        return self.seen


@pytest.fixture
def sink() -> Slow:
    return Slow()


@pytest.fixture
def meter() -> Counted:
    return Counted()


def lines(first: int, stop: int, model: str = "ads") -> list[tuple[str, bytes]]:
    return [(model, b"%d" % n) for n in range(first, stop)]


def test_lines_come_in_order_in_batches_of_one_model(sink: Slow, meter: Counted) -> None:
    waiting = Outbox(sink, "slow", 10_000, meter)
    waiting.put([*lines(0, 2), *lines(2, 3, "shop"), *lines(3, 200)])
    sink.permits.release(100)
    waiting.close(time.monotonic() + 20)
    assert [line for _, line in sink.taken] == [b"%d" % n for n in range(200)]
    assert sink.batches == [2, 1, 64, 64, 64, 5]
    assert sink.closed.is_set()
    assert meter.read() == {(LOGGED, "ads", "slow"): 199, (LOGGED, "shop", "slow"): 1}


def test_what_has_no_room_is_dropped_counted_and_told_once_for_a_change(sink: Slow, meter: Counted) -> None:
    waiting = Outbox(sink, "slow", 3, meter)
    waiting.put(lines(0, 1))
    sink.asked.acquire()  # the sink has it in hand, and it still counts as waiting
    with capture_logs() as told:
        for first in (1, 5, 9):
            waiting.put(lines(first, first + 4))
        assert meter.read() == {(DROPPED, "ads", "slow", "sink"): 10}
        sink.permits.release(100)
        eventually(lambda: meter.read()[LOGGED, "ads", "slow"] == 3)
        waiting.put(lines(20, 21))
        waiting.close(time.monotonic() + 20)
    assert sink.taken == [*lines(0, 3), *lines(20, 21)]
    dropped = "impressions dropped: too many wait for the sink"
    assert [line["event"] for line in told] == [dropped, "impressions are kept again"]


def test_long_lines_are_bounded_by_bytes(sink: Slow, meter: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SINK_MOST_BYTES", 100)
    waiting = Outbox(sink, "slow", 1000, meter)
    waiting.put([("ads", b"x" * 60), ("ads", b"x" * 60)])
    assert meter.read() == {(DROPPED, "ads", "slow", "sink"): 1}
    sink.permits.release(1)
    waiting.close(time.monotonic() + 20)


@pytest.mark.parametrize("fault", [StoreUnavailable("nobody there"), ValueError("a fault")])
def test_a_sink_that_fails_is_tried_again_with_no_loss(sink: Slow, meter: Counted, fault: Exception) -> None:
    sink.fault = fault
    sink.permits.release(2)
    with capture_logs() as told:
        waiting = Outbox(sink, "slow", 100, meter)
        waiting.put(lines(0, 2))
        eventually(lambda: meter.read()[ATTEMPTS_FAILED, "slow"] == 2)
        waiting.put(lines(2, 4))
        sink.asked.acquire()
        sink.fault = None
        sink.permits.release(100)
        eventually(partial(sink.taken.__eq__, lines(0, 4)))
        waiting.close(time.monotonic() + 20)
    assert meter.read()[LOGGED, "ads", "slow"] == 4
    assert [line["event"] for line in told] == [
        "the sink of impressions fails, trying again",
        "the sink of impressions takes them again",
    ]


def test_what_is_not_taken_in_time_is_counted_once_even_if_taken_later(sink: Slow, meter: Counted) -> None:
    waiting = Outbox(sink, "slow", 100, meter)
    waiting.put(lines(0, 5))
    sink.asked.acquire()  # the sink has them in hand, and answers only when they were given up
    waiting.close(time.monotonic())
    sink.permits.release(1)
    eventually(sink.closed.is_set)
    assert meter.read() == {(DROPPED, "ads", "slow", "closed"): 5}
    away = Slow()
    away.fault = StoreUnavailable("nobody there")
    away.permits.release(10_000)
    waiting = Outbox(away, "slow", 100, meter)
    waiting.put(lines(0, 5))
    waiting.close(time.monotonic() + 0.2)
    assert meter.read()[DROPPED, "ads", "slow", "closed"] == 10
    assert away.taken == []


class Gate:
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
    counted: list[int] = []

    def write(batch: Sequence[int]) -> bool:
        if 1 in batch:
            raise ValueError("a fault")
        written.extend(batch)
        return True

    with capture_logs() as logs:
        writer = BackgroundWriter("test", write, most=9, on_written=counted.extend)
        writer.offer_all([(n, 0) for n in range(3)])
        assert writer.close(time.monotonic() + 20) == []
    assert written == counted == [0, 2]
    assert [line["event"] for line in logs] == ["a batch could not be written"]
