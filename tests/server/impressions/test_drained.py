"""`ftrie serve` in processes of its own, ended under load: what callers were shown is in the stream."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Semaphore

import pytest

from ftrie.client.client import Client, RankFailed
from model_store.store import Store
from tests.degradation.system import Running, serving
from tests.server import shop
from tests.waiting import eventually

CALLERS = 4


def logged(store: Store) -> list[str]:
    read = store.impressions(shop.NAME).read((0, 0), 1_000_000)
    return [json.loads(payload)["request_id"] for payload in read.payloads]


def answered(running: Running, caller: int, many: Semaphore) -> list[str]:
    """Call until the server is gone; the ids of the requests that were answered."""
    shown: list[str] = []
    with Client(running.address, timeout_s=5.0) as client, suppress(RankFailed):
        while True:
            request_id = f"{caller}-{len(shown)}"
            client.rank(cookie="u1", candidates=list(shop.ITEMS), request_id=request_id)
            shown.append(request_id)
            many.release()
    return shown


@pytest.mark.slow
def test_a_drain_under_load_loses_no_impression(store: Store, store_url: str, tmp_path: Path) -> None:
    shop.fill(store)
    many = Semaphore(0)
    with serving(store_url, tmp_path, "--impressions", "store", "--workers", "2") as running:
        running.await_ready()
        with ThreadPoolExecutor(CALLERS) as callers:
            calls = [callers.submit(answered, running, caller, many) for caller in range(CALLERS)]
            for _ in range(300):
                assert many.acquire(timeout=60)
            running.process.terminate()
            shown = {request_id for call in calls for request_id in call.result()}
        assert running.process.wait(30) == 0
    ids = logged(store)
    assert len(ids) == len(set(ids))
    assert shown <= set(ids)
    assert len(set(ids) - shown) <= CALLERS  # answered, but the answer came too late for who had asked


def test_a_worker_that_is_killed_loses_what_waited_and_nothing_else(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    shop.fill(store)
    with serving(store_url, tmp_path, "--impressions", "store") as running:
        running.await_ready()
        before = [f"b{n}" for n in range(50)]
        for request_id in before:
            running.client.rank(candidates=["item-1"], request_id=request_id)
        eventually(lambda: len(logged(store)) == 50, "fifty impressions")
        (pid,) = running.workers()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: running.workers() not in ([], [pid]), "another worker")
        eventually(lambda: is_answered(running, "after"), "an answer")  # the connection must be made anew
        eventually(lambda: "after" in logged(store), "the next impression")
    assert logged(store) == [*before, "after"]


def is_answered(running: Running, request_id: str) -> bool:
    try:
        return bool(running.client.rank(candidates=["item-1"], request_id=request_id).items)
    except RankFailed:
        return False
