"""Reports: each click at its time, again and again until it is taken, in order, whatever the sink does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ftrie.demo.traffic import FutureFeedback, NotTaken, Receipt, Reporter, Stream
from model_store.store import Store


class Refusing:
    """A sink that fails some times before it takes anything; what it is given then is kept."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.taken: list[FutureFeedback] = []
        self.early = 0

    def send(self, model: str, events: Sequence[FutureFeedback]) -> Receipt:
        if self.failures:
            self.failures -= 1
            raise NotTaken("UNAVAILABLE")
        self.taken += events
        self.early += sum(time.time() < event.at for event in events)
        return Receipt(len(events))

    def close(self) -> None: ...


@contextmanager
def reporting(sink: Any, wanted: int, give_up_s: float = 10.0) -> Iterator[tuple[Reporter, list[Any]]]:
    """A reporter that runs until it has reported so many events; what it sent is in the list at the end."""
    missing, sent = threading.Semaphore(0), list[Any]()
    reporter = Reporter(sink, lambda model, times, events: [missing.release() for _ in range(events)])
    reporter.start()
    yield reporter, sent
    for _ in range(wanted):
        assert missing.acquire(timeout=30)
    sent.append(reporter.finish(give_up_s))


def click(number: int, at: float, model: str = "market") -> FutureFeedback:
    return FutureFeedback(model, f"r{number}", "books-1", "click", at, 0.0)


def test_a_click_is_sent_again_until_it_is_taken_and_a_sink_that_takes_none_holds_nothing_up() -> None:
    sink = Refusing(failures=3)
    with reporting(sink, 2) as (reporter, sent):
        reporter.expect([click(1, time.time()), click(2, time.time())])
    assert [each.request_id for each in sink.taken] == ["r1", "r2"]
    assert (sent[0].clicks, sent[0].failures, sent[0].unsent) == (2, {"UNAVAILABLE": 3}, 0)
    with reporting(Refusing(10**9), 0, give_up_s=0.05) as (reporter, sent):
        reporter.expect([click(1, time.time() - 1)])
    assert (sent[0].unsent, sent[0].clicks) == (1, 0)


def test_clicks_are_reported_in_the_order_of_their_times_and_not_before_them() -> None:
    sink, now = Refusing(0), time.time()
    with reporting(sink, 3) as (reporter, sent):
        reporter.expect([click(3, now + 0.2), click(1, now), click(2, now + 0.1), click(4, now + 3600)])
    assert [each.request_id for each in sink.taken] == ["r1", "r2", "r3"]
    assert sink.early == 0
    assert sent[0].to_come == 1  # what is still to come at the end does not happen


def test_the_stream_gets_what_is_told_apart_by_model(store: Store) -> None:
    with reporting(Stream(store), 2) as (reporter, _):
        reporter.expect([click(1, time.time()), click(2, time.time(), "other")])
    assert store.clicks("market").info().length == store.clicks("other").info().length == 1
    (payload,) = store.clicks("market").read((0, 0), 10).payloads
    assert b'"request_id": "r1"' in payload and b'"event_id": "r1/books-1/click"' in payload
