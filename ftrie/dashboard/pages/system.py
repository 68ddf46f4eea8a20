"""The page of the system: trainers, servers, how fresh what is served is, and what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.pages.layout import (
    Page,
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
from ftrie.dashboard.scrape import (
    PERCENTILES,
    ServerState,
    TrainerState,
    added,
    labels_of,
    per_bucket,
    percentile,
)
from ftrie.dashboard.scrape import histogram as buckets_of
from ftrie.draw.charts import SERIES, Names, Row, Spec, histogram, over_time

CALLS = "ftrie_call_seconds_count"
FRESHNESS = "ftrie_freshness_seconds"
VERSIONS = "ftrie_trainer_versions_total"
UNKNOWN_USERS = "ftrie_unknown_users_total"
LAG = "ftrie_trainer_lag_seconds"
JOIN = "ftrie_trainer_join_total"
REASONS = (
    ("ftrie_degraded_total", "degraded answers", ("part",)),
    ("ftrie_errors_total", "failed calls", ("method", "status")),
    ("ftrie_refused_total", "refused calls", ("method", "reason")),
    ("ftrie_refused_versions_total", "refused versions", ("reason",)),
    ("ftrie_impressions_dropped_total", "dropped impressions", ("sink", "reason")),
    ("ftrie_impressions_failed_total", "failed deliveries of impressions", ("sink",)),
)
"""Metrics of what servers refused, dropped, or answered without; its name; the labels that say why."""
MOST_POINTS = 1_200
DRAWN = (0.5, 0.99)
"""The percentiles of the latency that are drawn."""
LETTERS = 20
LETTERS_EVERY = 5
"""Dead letters are read at every fifth refresh."""
LONGEST_TEXT = 160
SERVERS = (
    *("server", "state", "versions", "calls/s", "p50 ms", "p95 ms", "p99 ms"),
    *("errors/s", "degraded/s", "dropped/s"),
)
TRAINERS = (
    *("trainer", "state", "examples/s", "lag", "open requests"),
    *("versions", "dead letters", "rollbacks", "log-loss"),
)


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
        refused = Table("What servers refused, dropped, or answered without")
    with card("Join").classes("half"):
        join = Table("Outcomes of events in the join")
    with card("Dead letters", "Events that could not be learned from, the latest first."):
        letters = Table("Dead letters")
    turns = 0

    async def refresh() -> None:
        nonlocal turns
        feed, state = view.feed, view.state
        rows, p50, p95 = freshness(feed.servers, view.model)
        summary.show(_tiles(view, p50, p95))
        wrong.show("".join(warning(text) for text in problems(feed, state)))
        servers.show(
            SERVERS,
            server_lines(feed.servers),
            "No server was given: --server HOST:PORT of its metrics.",
        )
        trainers.show(
            TRAINERS,
            trainer_lines(feed.trainers),
            "No trainer was given: --trainer HOST:PORT of its metrics.",
        )
        calls.show(_lines(call_rows(feed.servers, MOST_POINTS), _addresses(feed.servers), "calls per second"))
        found = latency_rows(feed.servers, MOST_POINTS)
        latency.show(_lines(found, latency_colours(feed.servers), "milliseconds"))
        lag.show(_lines(lag_rows(feed.trainers, MOST_POINTS), _addresses(feed.trainers), "seconds"))
        fresh.show(histogram(rows, x_title="seconds", y_title="versions", log=True))
        refused.show(["what", "why", "total", "per second"], reasons(feed.servers), "nothing")
        join.show(["outcome", "total", "per second"], parts_of_join(feed.trainers), "no trainer was given")
        if turns % LETTERS_EVERY == 0:
            shown: list[list[Any]] = []
            if state.dead_letters:
                shown = await asyncio.to_thread(dead_letters, feed, view.model, LETTERS)
            letters.show(["number", "reason", "source", "place", "event"], shown)
        turns += 1

    return refresh


def _tiles(view: View, p50: float | None, p95: float | None) -> str:
    feed, state = view.feed, view.state
    unknown = unknown_users(feed.servers, view.model)
    ready = sum(bool(server.health.get("ready")) and not server.problem for server in feed.servers)
    rate = sum(server.moments[-1].calls for server in feed.servers if server.moments and not server.problem)
    lag = max(
        (each for t in feed.trainers if (each := t.highest(LAG)) is not None),
        default=None,
    )
    remark = "none is watched" if not feed.servers else "!not all are ready" * (ready < len(feed.servers))
    return tiles(
        [
            ("Servers ready", f"{ready} of {len(feed.servers)}" if feed.servers else "—", remark),
            ("Calls per second", f"{rate:,.1f}", ""),
            ("Freshness, median", duration(p50), f"p95 {duration(p95)}" if p95 is not None else ""),
            ("Trainer's lag", duration(lag), ""),
            ("Users without a weight", percent(unknown, 1), "of the answers now"),
            ("Dead letters", f"{state.dead_letters:,}", ""),
            ("Events in the store", f"{state.impressions:,}", f"impressions; {state.clicks:,} clicks"),
        ]
    )


def _lines(rows: list[Row], names: Names, title: str) -> Spec:
    return over_time(rows, title, names, zero=True)


def _addresses(peers: Sequence[ServerState | TrainerState]) -> list[str]:
    return [peer.address for peer in peers]


# -- what it shows


def server_lines(servers: Sequence[ServerState]) -> list[list[Any]]:
    """A line a server: address, state, versions, calls/s, p50, p95, p99 in ms, errors/s, degraded/s, drops/s."""
    rows: list[list[Any]] = []
    for server in servers:
        versions = ", ".join(f"{each.get('name')} {each.get('version')}" for each in server.models)
        state = server.problem or (
            "ready" if server.health.get("ready") else str(server.health.get("not_ready", ""))
        )
        last = server.moments[-1] if server.moments and not server.problem else None
        rows.append(
            [
                server.address,
                state,
                versions,
                f"{last.calls:,.1f}" if last else "—",
                *(
                    "—" if each is None else f"{1000.0 * each:.2f}"
                    for each in (last.percentiles if last else (None,) * len(PERCENTILES))
                ),
                f"{server.rate('ftrie_errors_total'):,.2f}",
                f"{server.rate('ftrie_degraded_total'):,.2f}",
                f"{server.rate('ftrie_impressions_dropped_total'):,.2f}",
            ]
        )
    return rows


def reasons(servers: Sequence[ServerState]) -> list[list[Any]]:
    """What servers refused, dropped, or answered without: what, why, in total, per second."""
    found = []
    for name, title, labels in REASONS:
        sums: dict[str, list[float]] = {}
        for server in servers:
            for place, samples in enumerate((server.totals, server.rates)):
                for key, value in samples.get(name, {}).items():
                    why = ", ".join(dict(key).get(label, "") for label in labels)
                    sums.setdefault(why, [0.0, 0.0])[place] += value
        found += [
            [title, why, f"{total:,.0f}", f"{rate:,.2f}"]
            for why, (total, rate) in sorted(sums.items())
            if total
        ]
    return found


def problems(feed: Feed, state: ModelState) -> list[str]:
    """What is wrong now, in words."""
    peers: tuple[ServerState | TrainerState, ...] = (*feed.servers, *feed.trainers)
    found = [peer.problem for peer in peers if peer.problem]
    for server in feed.servers:
        found += [
            f"server {server.address}, model {each.get('name')}: {each['problem']}"
            for each in server.models
            if each.get("problem")
        ]
    if state.experiment_problem:
        found.append(state.experiment_problem)
    for trainer in feed.trainers:
        if trainer.highest("ftrie_trainer_store_away"):
            found.append(f"trainer {trainer.address} cannot reach the store, or may not write to it")
        if trainer.highest("ftrie_trainer_withheld"):
            found.append(f"trainer {trainer.address} publishes nothing: too many rows were rejected")
    return found


def latency_rows(servers: Sequence[ServerState], most: int) -> list[Row]:
    """p50 and p99 over time: time (milliseconds since 1970), series, value in milliseconds."""
    rows = []
    for server in servers:
        # Two rows a moment.
        for moment in server.moments[-(most // max(1, 2 * len(servers))) :]:
            for share, value in zip(PERCENTILES, moment.percentiles, strict=True):
                if value is not None and share in DRAWN:
                    name = _latency(server, share, servers)
                    rows.append({"time": moment.at * 1000.0, "series": name, "value": value * 1000.0})
    return rows


def latency_colours(servers: Sequence[ServerState]) -> dict[str, int]:
    """The series of `latency_rows`: a server has one colour on all charts, and its p99 dashes."""
    return {
        _latency(server, share, servers): at + dashes * len(SERIES)
        for at, server in enumerate(servers)
        for dashes, share in enumerate(DRAWN)
    }


def _latency(server: ServerState, share: float, servers: Sequence[ServerState]) -> str:
    return f"p{share * 100:.0f}" + (f" {server.address}" if len(servers) > 1 else "")


def call_rows(servers: Sequence[ServerState], most: int) -> list[Row]:
    """Calls a second over time: time, series (the server), value."""
    return [
        {"time": moment.at * 1000.0, "series": server.address, "value": moment.calls}
        for server in servers
        for moment in server.moments[-(most // max(1, len(servers))) :]
    ]


def lag_rows(trainers: Sequence[TrainerState], most: int) -> list[Row]:
    """A trainer's lag over time: time, series (the trainer), value in seconds."""
    return [
        {"time": at * 1000.0, "series": trainer.address, "value": lag}
        for trainer in trainers
        for at, lag in trainer.moments[-(most // max(1, len(trainers))) :]
    ]


def freshness(servers: Sequence[ServerState], model: str) -> tuple[list[Row], float | None, float | None]:
    """The time from a click to its weight being served, in seconds: rows (low, high, value), median and 95 %."""
    buckets: dict[float, float] = {}
    for server in servers:
        for bound, value in buckets_of(server.totals, FRESHNESS, model=model).items():
            buckets[bound] = buckets.get(bound, 0.0) + value
    finite = max((bound for bound in buckets if bound != float("inf")), default=1.0)
    rows = [
        # The last bucket has no end: it is drawn up to twice the last bound.
        {"low": low, "high": min(high, 2.0 * finite), "value": value}
        for low, high, value in per_bucket(buckets)
        if value
    ]
    return rows, percentile(buckets, 0.5), percentile(buckets, 0.95)


def unknown_users(servers: Sequence[ServerState], model: str) -> float | None:
    """The share of the answers, of the last seconds, in which no key of the user had a weight; None if unknown."""
    if not any(UNKNOWN_USERS in server.totals for server in servers):
        return None
    calls = sum(added(server.rates, CALLS, {"model": model}) for server in servers)
    unknown = sum(added(server.rates, UNKNOWN_USERS, {"model": model}) for server in servers)
    return unknown / calls if calls else None


def dead_letters(feed: Feed, model: str, count: int) -> list[list[Any]]:
    """The latest events that could not be learned from: number, reason, source, place, text. Raises FtrieError."""
    return [
        [
            number,
            letter.reason,
            letter.source,
            letter.place,
            text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…",
        ]
        for number, letter in feed.store.dead_letters(model).latest(count)
        for text in [letter.json.decode("utf-8", "backslashreplace")]
    ]


def trainer_lines(trainers: Sequence[TrainerState]) -> list[list[Any]]:
    """A line a trainer: address, state, examples/s, lag, open requests, versions, dead letters, rollbacks, log-loss."""
    rows: list[list[Any]] = []
    for trainer in trainers:
        lag, loss = trainer.highest(LAG), trainer.highest("ftrie_trainer_logloss")
        rows.append(
            [
                trainer.address,
                trainer.problem or "learning",
                f"{trainer.rate('ftrie_trainer_examples_total'):,.0f}",
                "—" if lag is None else f"{lag:.1f} s",
                f"{trainer.total('ftrie_trainer_pending'):,.0f}",
                f"{sum(trainer.total(VERSIONS, kind=kind) for kind in ('snapshots', 'deltas')):,.0f}",
                f"{trainer.total('ftrie_trainer_dead_letters_total'):,.0f}",
                f"{trainer.total('ftrie_trainer_rollbacks_total'):,.0f}",
                "—" if loss is None else f"{loss:.5f}",
            ]
        )
    return rows


def parts_of_join(trainers: Sequence[TrainerState]) -> list[list[Any]]:
    """What became of the events in the join: outcome, in total, per second."""
    return [
        [
            what,
            f"{sum(t.total(JOIN, what=what) for t in trainers):,.0f}",
            f"{sum(t.rate(JOIN, what=what) for t in trainers):,.1f}",
        ]
        for what in sorted(
            {label for trainer in trainers for label in labels_of(trainer.totals, JOIN, "what")}
        )
        if sum(t.total(JOIN, what=what) for t in trainers)
    ]


PAGE = Page("/system", "System", build)
