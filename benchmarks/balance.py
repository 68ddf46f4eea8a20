"""Calls divided among several servers in turn, and by cookie: how many users the servers' caches know.

    python -m benchmarks.balance

`ftrie serve` with one worker, 2 and 4 times, with a user cache for a tenth of the users; cookies are Zipf (s = 1).
In turn every server meets every user, so that each cache holds the same users; by cookie each server has users of its
own, and the caches add up. A round has users whom no server has read before. Load, servers and Valkey share all cores.
"""

from __future__ import annotations

import tempfile
import urllib.request
from collections import defaultdict
from contextlib import ExitStack

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.processes import served
from benchmarks.rank_requests import request
from ftrie.api.access import BALANCES, OPEN, Balance
from ftrie.api.load import Load, Requests, due, figures
from ftrie.demo.processes import free_port
from model_store.store import Store

SERVERS = (2, 4)
USERS, CACHE = 20_000, 2_000
CANDIDATES = 20
CALLERS = 8
WARM_S, MEASURED_S, RATE = 15.0, 20.0, 400.0
MEASURED = int(MEASURED_S * RATE)
CALLS = 40_000 + MEASURED
"""The first ones fill the caches, as many as the servers answer in WARM_S; the measured ones are others."""
TTL_S = "3600"


def messages(run: int) -> list[bytes]:
    """The requests of a run: the users are its own, the candidates the same in every run."""
    weight = 1.0 / np.arange(1, USERS + 1)
    users = np.random.default_rng(3).choice(USERS, CALLS, p=weight / weight.sum()).tolist()
    return [
        request(number, CANDIDATES, inline=False, cookie=run * USERS + user).SerializeToString()
        for number, user in enumerate(users)
    ]


def look_ups(pages: list[int]) -> dict[str, float]:
    """Look-ups in the user caches so far by their outcome, over all servers."""
    total: dict[str, float] = defaultdict(float)
    for port in pages:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            for family in text_string_to_metric_families(page.read().decode()):
                for sample in family.samples:
                    if sample.name == "ftrie_user_cache_total":
                        total[sample.labels["result"]] += sample.value
    return total


def measured(
    addresses: list[str], pages: list[int], balance: Balance, run: int
) -> tuple[float, float, float]:
    """The share of look-ups that a cache answered, in percent, and the median and p99 latency in milliseconds."""
    bodies = messages(run)

    def called(some: list[bytes], seconds: float, rate: float | None) -> dict[str, float]:
        requests = Requests(some, [0.0] * len(some), timed=False)
        load = Load(",".join(addresses), OPEN, due(requests, rate, None), 5.0, balance)
        found = figures(load.run(CALLERS, seconds, lambda calls: None))
        if found["errors"]:
            raise RuntimeError(f"calls failed: {found['errors']}")
        return found

    called(bodies[:-MEASURED], WARM_S, None)
    before = look_ups(pages)
    found = called(bodies[-MEASURED:], MEASURED_S, RATE)
    after = look_ups(pages)
    counts = {result: after[result] - before[result] for result in after}
    return 100 * counts["hit"] / sum(counts.values()), found["p50_ms"], found["p99_ms"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, ExitStack() as last:
        store = last.enter_context(Store.open(f"embedded:{folder}"))
        runs = ROUNDS * len(SERVERS) * len(BALANCES)
        store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))
        store.records.put_users(shop.records(shop.USER_FIELDS, "user-", runs * USERS, seed=2))
        versions = store.model(shop.NAME)
        versions.activate(versions.publish(shop.artefact()))
        pages = [free_port() for _ in range(max(SERVERS))]
        flags = ("--user-cache", str(CACHE), "--user-ttl", TTL_S, "--metrics-port")
        where = (shop.NAME, "--store", f"embedded:{folder}", *flags)
        servers = [last.enter_context(served(*where, str(page), pinned=False)) for page in pages]
        figure: dict[tuple[int, Balance], list[tuple[float, float, float]]] = defaultdict(list)
        run = 0
        for _ in range(ROUNDS):
            for count in SERVERS:
                for balance in BALANCES:
                    addresses = [server.address for server in servers[:count]]
                    figure[count, balance].append(measured(addresses, pages[:count], balance, run))
                    run += 1
    rows = []
    for (count, balance), found in figure.items():
        hits, p50, p99 = ([each[n] for each in found] for n in range(3))
        spread = Spread.of(hits)
        rows.append(
            (
                count,
                balance,
                *(round(x, 1) for x in (spread.median, spread.low, spread.high)),
                round(10 * (100 - spread.median)),
                round(Spread.of(p50).median, 2),
                round(Spread.of(p99).median, 2),
            )
        )
    report(
        "balance",
        f"User-cache hits with calls divided in turn and by cookie; {USERS:,} Zipf users, caches of {CACHE:,}, "
        f"{RATE:.0f} calls/s; medians of {ROUNDS} rounds",
        ("servers", "balance", "hits %", "low", "high", "store reads per 1,000 calls", "p50 ms", "p99 ms"),
        rows,
    )


if __name__ == "__main__":
    main()
