"""One run of traffic from its parts: the store, the connections, the clicks' way; and how it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftrie.client.access import Access
from ftrie.client.messages import Exploration
from ftrie.demo.clicks import Reporter, Service, Sink, Stream
from ftrie.demo.figures import Book, Freshness, through_of
from ftrie.demo.market import Market, load_records
from ftrie.demo.simulate_output import tell_whole, tell_window
from ftrie.demo.traffic import Asked as AskedOfServers
from ftrie.demo.traffic import Callers, Share, Traffic, fresh_only
from ftrie.demo.visitors import Habits, Schedule
from ftrie.terminal import warn
from model_store.backoff import Backoff
from model_store.errors import StoreUnavailable
from model_store.store import Store
from trainer.runs.signals import SignalHandler

FOREVER_S = 1e9
STORE_WAIT_S = 1.0
"""Callers ask the store for manifests: one that stalls must not hold them up for long."""
STORE_BACK_WITHIN_S = 30.0
"""So long a store that is away is waited for at the beginning."""


@dataclass(frozen=True)
class Asked:
    """The flags of one run. from_s, seconds (None: no end), every_s: seconds; callers: visits at the same time."""

    addresses: Sequence[str]
    access: Access
    store: str
    market: Market
    habits: Habits
    share: Share
    exploration: Exploration | None
    by_stream: bool
    load: bool
    from_s: float
    seconds: float | None
    callers: int
    every_s: float


def run(asked: Asked) -> None:
    """Be the visitors until the seconds are over or a signal comes, and tell of it. Raises StoreError at first only."""
    model = asked.share.model
    with _opened(asked.store) as store:
        if asked.load:
            load_records(asked.market, store)
        sink: Sink = Stream(store) if asked.by_stream else Service(asked.addresses, asked.access)
        traffic = _traffic(asked, store, sink)
        with StoppedBySignals(traffic.stop):
            seconds = FOREVER_S if asked.seconds is None else asked.seconds
            whole = traffic.run(
                seconds, asked.callers, asked.every_s, lambda window: tell_window(window, model)
            )
        sink.close()
    tell_whole(whole, model, len(asked.addresses))


def _opened(url: str) -> Store:
    """The store, which is waited for: a market does not close because the store is about to come back."""
    backoff, began = Backoff(), time.monotonic()
    while True:
        try:
            return Store.open(url, STORE_WAIT_S)
        except StoreUnavailable as error:
            if time.monotonic() - began > STORE_BACK_WITHIN_S:
                raise
            if not backoff.failures:
                warn(f"{error}; waiting for it")
            time.sleep(backoff.failed())


def _traffic(asked: Asked, store: Store, sink: Sink) -> Traffic:
    book = Book()
    freshness = Freshness(len(asked.addresses), through_of(store.model(asked.share.model)))
    # Not seeded: a second run is other visits to the same servers, and its clicks are not those of the first.
    run_id = f"s{time.time_ns() // 1000:x}"
    of_servers = AskedOfServers(run_id, asked.habits.shown, asked.exploration)
    return Traffic(
        Schedule(asked.market, asked.habits, asked.from_s),
        asked.from_s,
        asked.share,
        Callers(asked.addresses, of_servers, book.failed, asked.access),
        Reporter(sink, fresh_only(freshness, asked.share.model)),
        freshness,
        book,
    )


class StoppedBySignals(SignalHandler):
    """While entered, the first signal calls `stop`, in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def on_signal(self, number: int) -> None:
        """A signal has come."""
        self._stop()
