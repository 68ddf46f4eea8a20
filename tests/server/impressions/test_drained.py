"""`ftrie serve` in processes of its own, ended under load: what callers were shown is in the stream."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore

import grpc
import pytest

from ftrie.client.client import Client, RankFailed
from model_store.store import Store
from tests.degradation.system import Running, serving
from tests.server import shop

CALLERS = 4


def logged(store: Store) -> list[str]:
    read = store.impressions(shop.NAME).read((0, 0), 1_000_000)
    return [json.loads(payload)["request_id"] for payload in read.payloads]


def answered(running: Running, caller: int, many: Semaphore) -> list[str]:
    """Call until the server is gone; the ids of the requests that were answered."""
    shown: list[str] = []
    with Client(running.address, timeout_s=5.0) as client, pytest.raises(RankFailed) as failed:
        while True:
            request_id = f"{caller}-{len(shown)}"
            client.rank(cookie="u1", candidates=list(shop.ITEMS), request_id=request_id)
            shown.append(request_id)
            many.release()
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE, "refused, not broken off"
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
            running.process.send_signal(signal.SIGINT)
            shown = {request_id for call in calls for request_id in call.result()}
        assert running.process.wait(30) == 0
    ids = logged(store)
    assert len(ids) == len(set(ids))
    assert shown <= set(ids)
    assert len(set(ids) - shown) <= CALLERS  # answered, but the answer came too late for who had asked
