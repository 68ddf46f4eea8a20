"""The page of the system: trainers, servers, how fresh what is served is, and what went wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from ftrie.dashboard.pages.layout import (
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    duration,
    percent,
    tiles,
    warning,
)
from ftrie.dashboard.queries import system
from ftrie.draw.charts import Names, histogram, lines

MOST_POINTS = 1_200
LETTERS = 20
LETTERS_EVERY = 5
"""Dead letters are read at every fifth refresh."""
SERVERS = [
    "server",
    "state",
    "versions",
    "calls/s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "errors/s",
    "degraded/s",
    "dropped/s",
]
TRAINERS = [
    "trainer",
    "state",
    "examples/s",
    "lag",
    "open requests",
    "versions",
    "dead letters",
    "rollbacks",
    "log-loss",
]


def build(view: View) -> Refresh:
    """Put the page together."""
    summary, wrong = Text(), Text()
    with card("Servers"):
        servers = Table("Servers")
    with card("Calls per second").classes("half"):
        calls = Picture("Give --server HOST:PORT, the address of a server's --metrics-port.")
    with card("Latency in the server").classes("half"):
        latency = Picture("no calls yet")
    with card("Trainers"):
        trainers = Table("Trainers")
    with card("Lag of the trainer").classes("half"):
        lag = Picture("Give --trainer HOST:PORT, the address of a trainer's --metrics-port.")
    with card(
        "Freshness",
        "How old the newest click in a version is once its weights are served, since the servers have started. "
        "A click also waits for the next version: half the time between two in the mean.",
    ).classes("half"):
        fresh = Picture("no version that was learned from clicks is served yet")
    with card("Degraded, refused, dropped").classes("half"):
        reasons = Table("What servers refused, dropped, or answered without")
    with card("Join").classes("half"):
        join = Table("Outcomes of events in the join")
    with card("Dead letters", "Events that could not be learned from, the latest first."):
        letters = Table("Dead letters")
    turns = 0

    async def refresh() -> None:
        nonlocal turns
        feed, state = view.feed, view.state
        rows, p50, p95 = system.freshness(feed.servers, view.model)
        summary.show(_tiles(view, p50, p95))
        wrong.show("".join(warning(text) for text in system.problems(feed, state)))
        servers.show(
            SERVERS,
            system.server_lines(feed.servers),
            "No server was given: --server HOST:PORT of its metrics.",
        )
        trainers.show(
            TRAINERS,
            system.trainer_lines(feed.trainers),
            "No trainer was given: --trainer HOST:PORT of its metrics.",
        )
        addresses = [server.address for server in feed.servers]
        calls.show(_lines(system.call_rows(feed.servers, MOST_POINTS), addresses, "calls per second"))
        found = system.latency_rows(feed.servers, MOST_POINTS)
        latency.show(_lines(found, system.latency_colours(feed.servers), "milliseconds"))
        lag.show(
            _lines(
                system.lag_rows(feed.trainers, MOST_POINTS),
                [each.address for each in feed.trainers],
                "seconds",
            )
        )
        fresh.show(histogram(rows, x_title="seconds", y_title="versions", log=True))
        reasons.show(["what", "why", "total", "per second"], system.reasons(feed.servers), "nothing")
        join.show(
            ["outcome", "total", "per second"], system.parts_of_join(feed.trainers), "no trainer was given"
        )
        if turns % LETTERS_EVERY == 0:
            shown = (
                await asyncio.to_thread(system.dead_letters, feed, view.model, LETTERS)
                if state.dead_letters
                else []
            )
            letters.show(["number", "reason", "source", "place", "event"], shown, "none")
        turns += 1

    return refresh


def _tiles(view: View, p50: float | None, p95: float | None) -> str:
    feed, state = view.feed, view.state
    unknown = system.unknown_users(feed.servers, view.model)
    ready = sum(bool(server.health.get("ready")) and not server.problem for server in feed.servers)
    rate = sum(server.moments[-1].calls for server in feed.servers if server.moments and not server.problem)
    lag = max(
        (each for t in feed.trainers if (each := t.highest("ftrie_trainer_lag_seconds")) is not None),
        default=None,
    )
    return tiles(
        [
            (
                "Servers ready",
                f"{ready} of {len(feed.servers)}" if feed.servers else "—",
                "none is watched"
                if not feed.servers
                else ""
                if ready == len(feed.servers)
                else "!not all are ready",
            ),
            ("Calls per second", f"{rate:,.1f}", ""),
            ("Freshness, median", duration(p50), f"p95 {duration(p95)}" if p95 is not None else ""),
            ("Trainer's lag", duration(lag), ""),
            ("Users without a weight", percent(unknown, 1), "of the answers now"),
            ("Dead letters", f"{state.dead_letters:,}", ""),
            ("Events in the store", f"{state.impressions:,}", f"impressions; {state.clicks:,} clicks"),
        ]
    )


def _lines(rows: list[dict[str, Any]], names: Names, title: str) -> Any:
    return lines(
        rows, x="time", y="value", x_title="time", y_title=title, series=names, x_axis="time", zero=True
    )
