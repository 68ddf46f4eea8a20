"""A cluster's masters are killed while requests are ranked, clicks are reported and a trainer learns of the streams.

No call fails, and afterwards the counts balance: every impression and every click that was acknowledged is in the
streams, and each was learned from once.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ctr.v1.ranking_pb2 import RankRequest
from ftrie.api.access import OPEN
from ftrie.api.client import Client
from ftrie.api.feedback import Feedback, ReportFailed
from ftrie.api.load import Load, LoadResult
from ftrie.demo.market import Market
from ftrie.demo.processes import free_port
from model_store.store import Store
from tests.chaos.loop import COMPILE_S, FTRIE, MODEL, Process, begin, learned, trainer_command
from tests.stores import Cluster, running

RATE = float(os.environ.get("FTRIE_CLUSTER_RATE", "200"))
"""Calls a second: as many as two cores can make, answer and learn from beside seven Valkeys and other tests."""
PART_S = float(os.environ.get("FTRIE_CLUSTER_SECONDS", "2"))
"""Of a run: before the first kill, from a kill to the repair, from there to the next one, and after all."""
CALLERS = 8
ITEMS = 6
LAG = 100
CLICKED = 5
"""Of so many requests one is clicked."""
ENDS_AT_S = 7 * PART_S


class Clicks:
    """Reports a click on the first item of every CLICKED-th call, LAG calls later, until it is acknowledged."""

    def __init__(self, address: str, market: Market) -> None:
        self.acknowledged = self.failures = 0
        self._client = Client(address, timeout_s=10.0)
        self._market = market
        self.made = 0
        """How many calls were answered so far."""
        self._calls: int | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self, calls: int) -> None:
        self._calls = calls
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        number = 0
        while self._calls is None or number < self._calls:
            due = self._calls or self.made - LAG
            batch = range(number, min(due, number + 1000), CLICKED)
            if batch:
                self._report([Feedback(request_of(each), items_of(self._market, each)[0]) for each in batch])
                number = batch[-1] + CLICKED
            time.sleep(0.2)

    def _report(self, batch: Sequence[Feedback]) -> None:
        while True:
            try:
                self._client.feedback(MODEL, batch)
            except ReportFailed:
                self.failures += 1
                time.sleep(0.2)
            else:
                self.acknowledged += len(batch)
                return


class System:
    """A server, a trainer and their callers on a cluster whose writes are confirmed by a replica."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.url = folder, cluster, f"{cluster.url}?wait=1"
        self.market = begin(folder, self.url, window_s=20)
        self.address = f"127.0.0.1:{free_port()}"
        serve = [*FTRIE, "serve", MODEL, "--store", self.url, "--port", self.address.partition(":")[2]]
        serve += ["--impressions", "store", "--state", str(folder / "serve"), "--user-ttl", "0.5"]
        self.server = Process("server", folder, [*serve, "--drain", "20", "--json"])
        self.trainer = Process("trainer", folder, trainer_command(self.url, "state"))

    def start(self) -> None:
        for process in (self.server, self.trainer):
            process.start()
        for process in (self.server, self.trainer):
            process.await_up()

    def requests(self) -> Iterator[tuple[float, bytes]]:
        for number in itertools.count():
            request = RankRequest(
                model=MODEL,
                request_id=request_of(number),
                cookie=self.market.cookies[number % len(self.market.cookies)],
                item_ids=items_of(self.market, number),
            )
            request.context.values["device"].text = ("phone", "desktop")[number % 2]
            yield number / RATE, request.SerializeToString()

    def take_down(self) -> None:
        for process in (self.server, self.trainer):
            process.kill()


def request_of(number: int) -> str:
    return f"call-{number}"


def items_of(market: Market, number: int) -> list[str]:
    return [market.skus[(number * 7 + place * 11) % len(market.skus)] for place in range(ITEMS)]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    with running(Cluster, tmp_path) as cluster:
        made = System(tmp_path, cluster)
        try:
            made.start()
            yield made
        finally:
            made.take_down()


def loaded(system: System, clicks: Clicks) -> LoadResult:
    """Call for a while. Meanwhile kill the master of the model, then one of users alone, and start each again."""
    results: list[LoadResult] = []
    load = Load(system.address, OPEN, system.requests(), timeout_s=10.0)

    def call() -> None:
        results.append(load.run(CALLERS, ENDS_AT_S, lambda calls: setattr(clicks, "made", calls)))

    calling = threading.Thread(target=call)
    calling.start()
    for key_of in (of_the_model, of_another_master):
        time.sleep(PART_S)
        system.cluster.holder(key_of(system)).kill()
        time.sleep(PART_S)
        system.cluster.mend()  # it is a replica by then
    calling.join()
    return results[0]


def streamed(store: Store, key: str) -> list[dict[str, Any]]:
    read = store.event_stream(key).read((0, 0), 1_000_000)
    return [json.loads(payload) for payload in read.payloads]


def of_the_model(system: System) -> str:
    return f"ftrie:{{{MODEL}}}:active"


def of_another_master(system: System) -> str:
    """A user of a master that does not hold the model."""
    of_model = system.cluster.holder(of_the_model(system))
    users = (f"ftrie:user:{cookie}" for cookie in system.market.cookies)
    return next(key for key in users if system.cluster.holder(key) is not of_model)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_masters_killed_under_load_fail_no_call_and_nothing_is_lost_or_learned_twice(
    system: System, record_property: Any
) -> None:
    clicks = Clicks(system.address, system.market)
    result = loaded(system, clicks)
    clicks.finish(result.calls)
    for process in (system.server, system.trainer):
        process.end(COMPILE_S)
    where = system.folder, system.url
    disturbed, clean = learned(*where, "state"), learned(*where, "clean", "--no-publish")

    figures = {"seconds": round(result.seconds, 1), "calls": result.calls, "errors": dict(result.errors)}
    figures["slowest_ms"] = max(result.latencies_ns) / 1e6
    record_property("figures", figures)
    print(figures, {"clicks": clicks.acknowledged, "failed_reports": clicks.failures})
    assert not result.errors
    assert result.calls > RATE * ENDS_AT_S / 2
    with Store.open(system.url) as store:
        versions = store.model(MODEL)
        keys = versions.keys
        impressions, reported = (streamed(store, key) for key in (keys.impressions, keys.clicks))
        assert versions.manifest(versions.active_or_fail()).through_us
    shown = {event["request_id"] for event in impressions}
    clicked = {event["request_id"] for event in reported}
    assert shown == {request_of(number) for number in range(result.calls)}
    assert len(clicked) == clicks.acknowledged == len(clicked & shown)
    print({"entries": len(impressions), "clicks": len(reported)}, disturbed["join"], clean["join"])
    for status in (disturbed, clean):
        join = status["join"]
        assert join["closed"] == result.calls
        assert join["rows"] == ITEMS * result.calls
        assert join["positives"] + join["corrections"] == clicks.acknowledged
        assert set(status["lost"].values()) == {0}
        assert status["dead_letters"] == 0
