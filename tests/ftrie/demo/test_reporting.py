"""Reports: each click at its time, again and again until it is taken, in order, whatever the sink does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ftrie.demo.clicks import Feedback, NotTaken, Receipt, Reporter, Stream
from ftrie.demo.figures import Reported
from model_store.store import Store


class Refusing:
    """A sink that fails some times before it takes anything; what it is given then is kept."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.taken: list[Feedback] = []
        self.early = 0

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        if self.failures:
            self.failures -= 1
            raise NotTaken("UNAVAILABLE")
        self.taken += events
        self.early += sum(time.time() < event.at for event in events)
        return Receipt(len(events))

    def close(self) -> None: ...


class Told:
    """What a reporter tells."""

    def __init__(self, wanted: int) -> None:
        self.reports: list[tuple[str, Reported, int]] = []
        self._missing = threading.Semaphore(0)
        self._wanted = wanted

    def __call__(self, model: str, times: Reported, events: int) -> None:
        self.reports.append((model, times, events))
        for _ in range(events):
            self._missing.release()

    def wait(self) -> None:
        for _ in range(self._wanted):
            assert self._missing.acquire(timeout=30)


def click(number: int, at: float, model: str = "market") -> Feedback:
    return Feedback(model, f"r{number}", "books-1", "click", at, 0.0)


def test_a_click_that_was_not_taken_is_sent_again_until_it_is() -> None:
    sink, told = Refusing(failures=3), Told(2)
    reporter = Reporter(sink, told)
    reporter.start()
    reporter.expect([click(1, time.time()), click(2, time.time())])
    told.wait()
    sent = reporter.finish(10.0)
    assert [each.request_id for each in sink.taken] == ["r1", "r2"]
    assert sent.clicks == 2 and sent.failures == {"UNAVAILABLE": 3} and sent.unsent == 0


def test_clicks_are_reported_in_the_order_of_their_times_and_not_before_them() -> None:
    sink, told = Refusing(0), Told(3)
    reporter = Reporter(sink, told)
    reporter.start()
    now = time.time()
    reporter.expect([click(3, now + 0.2), click(1, now), click(2, now + 0.1)])
    told.wait()
    reporter.finish(10.0)
    assert [each.request_id for each in sink.taken] == ["r1", "r2", "r3"]
    assert sink.early == 0


def test_what_is_still_to_come_at_the_end_does_not_happen() -> None:
    sink = Refusing(0)
    reporter = Reporter(sink, Told(0))
    reporter.start()
    reporter.expect([click(1, time.time() + 3600)])
    sent = reporter.finish(10.0)
    assert sink.taken == [] and sent.to_come == 1


def test_a_sink_that_never_takes_anything_does_not_hold_up_the_end() -> None:
    reporter = Reporter(Refusing(10**9), Told(0))
    reporter.start()
    reporter.expect([click(1, time.time() - 1)])
    sent = reporter.finish(0.05)
    assert sent.unsent == 1 and sent.clicks == 0


def test_the_stream_gets_what_is_told_apart_by_model(store: Store) -> None:
    told = Told(2)
    reporter = Reporter(Stream(store), told)
    reporter.start()
    reporter.expect([click(1, time.time()), click(2, time.time(), "other")])
    told.wait()
    reporter.finish(10.0)
    assert store.clicks("market").info().length == store.clicks("other").info().length == 1
    (payload,) = store.clicks("market").read((0, 0), 10).payloads
    assert b'"request_id": "r1"' in payload and b'"event_id": "r1/books-1/click"' in payload
