"""Rank against an empty handler: the same grpc server, the same requests, one process after the other on one core.

    python -m benchmarks.rank

The worker has one core to itself; the load (benchmarks/load.py), Valkey, on a unix socket, and the supervisor share the
other. The empty handler parses the request and answers an empty response. Users come three ways: "inline" sends their
features in the request; "Zipf" sends cookies, some far more often than others, most of which the worker's cache knows;
"new" sends a cookie that was never seen, so that each call reads Valkey.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.processes import process, served
from benchmarks.rank_requests import TOP_K, Called, call, fill, framed, request
from ftrie.api.client import Client
from model_store.store import Store

CALLS = {10: 8000, 200: 6000, 1000: 2500}
RUNS = ROUNDS + 1  # the first one warms up
ZIPF_USERS = 50_000
USERS = ZIPF_USERS + RUNS * CALLS[200]
CASES = {
    ("inline", 10): "",
    ("inline", 200): "≥ 0.70",
    ("inline", 1000): "≥ 0.45",
    ("Zipf", 200): "≥ 0.60",
    ("new", 200): "≥ 0.50",
}
COLUMNS = ("user", "candidates", "empty calls/s", "Rank calls/s", "ratio", "ratio low", "ratio high", "goal")
COLUMNS += ("cookies seen before", "load busy, empty", "load busy, Rank")


def check(address: str) -> None:
    """Both kinds of request are answered whole, or the figures mean nothing."""
    with Client(address) as client:
        answer = client.rank(shop.NAME, cookie="user-1", candidates=["item-1", "item-2"])
    assert not answer.degraded
    assert not answer.unknown_items
    assert not answer.unknown_fields


def cookies(user: str, calls: int) -> Iterator[list[int | None]]:
    """Each run's users; an inline request's is of its own number."""
    weight = 1.0 / np.arange(1, ZIPF_USERS + 1)
    draw = np.random.default_rng(5)
    for run in range(RUNS):
        if user == "Zipf":
            yield draw.choice(ZIPF_USERS, calls, p=weight / weight.sum()).tolist()
        elif user == "new":
            yield list(range(ZIPF_USERS + run * calls, ZIPF_USERS + (run + 1) * calls))
        else:
            yield [None] * calls


def measure(user: str, candidates: int, empty: str, ranking: str, bodies: Path) -> list[object]:
    """A row of the table: both servers take each run's requests in turn."""
    calls = CALLS[candidates]
    runs: list[tuple[Called, Called]] = []
    seen: set[int | None] = set()
    again = 0
    for users in cookies(user, calls):
        again += sum(cookie in seen for cookie in users) if runs else 0
        seen.update(users)
        made = (
            framed(request(n, candidates, inline=user == "inline", cookie=cookie))
            for n, cookie in enumerate(users)
        )
        bodies.write_bytes(b"".join(made))
        runs.append((call(empty, bodies, calls), call(ranking, bodies, calls)))
    return _row(user, candidates, runs[1:], again / (ROUNDS * calls))


def _row(user: str, candidates: int, runs: list[tuple[Called, Called]], again: float) -> list[object]:
    empty, rank = (Spread.of([pair[side].calls_per_second for pair in runs]) for side in (0, 1))
    ratio = Spread.of([rank.calls_per_second / empty.calls_per_second for empty, rank in runs])
    busy = [f"{Spread.of([pair[side].busy for pair in runs]).median:.0%}" for side in (0, 1)]
    ratios = [round(value, 3) for value in (ratio.median, ratio.low, ratio.high)]
    shown = "" if user == "inline" else f"{again:.0%}"
    speeds = [round(empty.median), round(rank.median)]
    return [user, candidates, *speeds, *ratios, CASES[user, candidates], shown, *busy]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with Store.open(url) as store, process("benchmarks.empty_server") as empty:
            fill(store, USERS)
            with served(shop.NAME, "--store", url) as ranking:
                check(ranking.address)
                bodies = Path(folder) / "bodies"
                rows = [measure(*case, empty.address, ranking.address, bodies) for case in CASES]
    report(
        "rank",
        f"Rank, calls/s on one core, top {TOP_K}; {shop.KEYS:,} keys, {shop.ITEMS:,} items, 8 + 6 fields, "
        f"{len(shop.CROSSES)} crosses; medians of {ROUNDS} alternating rounds; load: benchmarks/load.py",
        COLUMNS,
        rows,
    )


if __name__ == "__main__":
    main()
