"""One run of `ftrie simulate`: connects store, servers, visitors and feedback, and prints its windows and summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ftrie.api.access import Access
from ftrie.api.messages import Exploration
from ftrie.demo.figures import Freshness, Statistics, Tally, counts_text, rate_text, through_of
from ftrie.demo.market import Market, Schedule, load_records
from ftrie.demo.settings import SimulateOptions
from ftrie.demo.traffic import (
    Callers,
    Reporter,
    RequestOptions,
    Service,
    Sink,
    Stream,
    Traffic,
    Window,
    freshness_of,
)
from ftrie.terminal import json_output, print_json, print_table, warn
from model_store.errors import StoreUnavailable
from model_store.store import Store
from model_store.waiting import Backoff, SignalHandler

# Finite, since it becomes a timeout of threads, which take no infinity.
FOREVER_S = 1e9
STORE_WAIT_S = 1.0
"""Timeout of store calls: callers read manifests, and a stalled store must not hold them up for long."""
STORE_BACK_WITHIN_S = 30.0
"""How long to wait at the start for a store that is unavailable."""
COLUMNS = (
    "model", "visits", "shown", "clicks", "CTR", "expected", "best", "log-loss", "truth", "version",
)  # fmt: skip


def run(options: SimulateOptions, access: Access, exploration: Exploration | None) -> None:
    """Make visits until the seconds are over or a signal comes. Raises StoreError, at the start only."""
    model, market = options.rankers.model, Market(options.seed, options.tastes, options.sizes)
    with _open_store(options.store) as store:
        if options.load:
            load_records(market, store)
        statistics = Statistics()
        freshness = Freshness(len(options.addresses), through_of(store.model(model)))
        sink: Sink = Stream(store) if options.feedback == "stream" else Service(options.addresses, access)
        # Request ids are not seeded: a second run's visits must differ from the first's for the same servers.
        run_id = f"s{time.time_ns() // 1000:x}"
        requests = RequestOptions(run_id, options.habits.shown, exploration)
        traffic = Traffic(
            Schedule(market, options.habits, options.start_s),
            options.start_s,
            options.rankers,
            Callers(options.addresses, requests, statistics.failed, access),
            Reporter(sink, freshness_of(freshness, model)),
            freshness,
            statistics,
        )
        with StoppedBySignals(traffic.stop):
            seconds = FOREVER_S if options.seconds is None else options.seconds
            summary = traffic.run(
                seconds, options.callers, options.every_s, lambda window: _print_window(window, model)
            )
        sink.close()
    _print_summary(summary, len(options.addresses))


def _open_store(url: str) -> Store:
    """Open the store; wait if it is unavailable."""
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


class StoppedBySignals(SignalHandler):
    """While entered, the first signal calls `stop`, in the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def on_signal(self, number: int) -> None:
        """Handle the signal."""
        self._stop()


def _print_window(window: Window, model: str) -> None:
    if json_output():
        print_json({"event": "window", **window.as_json()})
    else:
        print(_line(window, model), flush=True)


def _print_summary(window: Window, addresses: int) -> None:
    if json_output():
        print_json({"event": "summary", "servers": addresses, **window.as_json()})
        return
    figures, sent = window.figures, window.sent
    print(f"\n{figures.visits:,} visits in {window.seconds:.0f} s of {addresses} servers.")
    print_table(COLUMNS, [_row(name, window, tally) for name, tally in sorted(figures.models.items())])
    print(
        f"feedback: {sent.clicks:,} clicks and {sent.conversions:,} conversions acknowledged, "
        f"{sent.duplicates:,} of them twice, {sent.rejected:,} rejected, {sent.unsent:,} not sent, "
        f"{sent.to_come:,} still to come"
    )
    print(f"click to weight: {_freshness(window.freshness)}")
    print(
        f"failed calls: {counts_text(figures.failures)}; feedback: {counts_text(sent.failures)}; "
        f"lost visits {figures.lost:,}; degraded answers {figures.degraded:,}"
    )


def _line(window: Window, model: str) -> str:
    """A window on one line; zero counts of problems are left out."""
    figures = window.figures
    rates = figures.models.get(model, Tally()).rates()
    parts = [
        f"{window.second:6.0f} s",
        f"{figures.visits / window.seconds:4.0f} visits/s" if window.seconds else "",
        f"CTR {rate_text(rates['ctr'])} (expected {rate_text(rates['expected_ctr'])}, "
        f"best {rate_text(rates['best_ctr'])})",
        *(
            f"{name} {rate_text(other.rates()['expected_ctr'])}"
            for name, other in sorted(figures.models.items())
            if name != model
        ),
        f"log-loss {_decimal(rates['logloss'])} (truth {_decimal(rates['truth_logloss'])})",
        f"version {figures.versions.get(model, '—')}",
        f"click to weight {_freshness(window.freshness)}" if window.freshness["n"] else "",
        f"degraded {figures.degraded:,}" if figures.degraded else "",
        f"failed {counts_text(figures.failures)}" if figures.failures else "",
        f"lost {figures.lost:,}" if figures.lost else "",
    ]
    return " · ".join(part for part in parts if part)


def _row(name: str, window: Window, tally: Tally) -> tuple[Any, ...]:
    rates = tally.rates()
    percents = (rate_text(rates[key]) for key in ("ctr", "expected_ctr", "best_ctr"))
    losses = (rates["logloss"], rates["truth_logloss"])
    return (
        name,
        tally.visits,
        tally.shown,
        tally.clicks,
        *percents,
        *losses,
        window.figures.versions.get(name),
    )


def _decimal(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _freshness(quantiles: Mapping[str, float | int | None]) -> str:
    if not quantiles["n"]:
        return "not measured"
    return (
        f"p50 {quantiles['p50']:.2f} s, p95 {quantiles['p95']:.2f} s, max {quantiles['max']:.2f} s "
        f"of {quantiles['n']:,}"
    )
