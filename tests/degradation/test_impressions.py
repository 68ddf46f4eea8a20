"""docs/degradation.md, "Impressions": a sink is away, its disk is full, too many wait. No call waits for any of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrie.demo.processes import free_port
from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.degradation.test_disk import on_a_full_disk
from tests.server import shop
from tests.waiting import eventually

LOGGED, DROPPED = "ftrie_impressions_logged_total", "ftrie_impressions_dropped_total"


def answered(running: Running, first: int, stop: int) -> None:
    """Ask, with ids of these numbers."""
    for n in range(first, stop):
        assert running.client.rank(candidates=["item-1", "item-2"], request_id=f"r{n}").items


def ids(store: Store) -> list[str]:
    """Of the requests whose impressions are in the store."""
    read = store.impressions(shop.NAME).read((0, 0), 100_000)
    return [json.loads(payload)["request_id"] for payload in read.payloads]


@contextmanager
def other_valkey(folder: Path) -> Iterator[Valkey]:
    """A Valkey for impressions alone."""
    folder.mkdir()
    other = Valkey(folder, free_port())
    try:
        yield other
    finally:
        other.kill()


@pytest.mark.slow
def test_sink_of_impressions_is_away(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with (
        other_valkey(tmp_path / "events") as sink,
        serving(valkey.url, tmp_path, "--impressions", sink.url, "--workers", "2") as running,
    ):
        running.await_ready()
        answered(running, 0, 10)
        eventually(lambda: running.metric(LOGGED, sink="redis") == 10, "ten impressions")
        sink.save()
        sink.kill()
        answered(running, 10, 60)
        eventually(lambda: running.metric("ftrie_impressions_failed_total", sink="redis") > 0, "a failure")
        eventually(lambda: running.metric("ftrie_impressions_waiting", sink="redis") == 50, "those that wait")
        assert running.healthy()
        assert running.metric("ftrie_store_away") == 0
        sink.start()
        recovered.from_now()
        recovered.when(lambda: running.metric(LOGGED, sink="redis") == 60, "the sink has them all")
        assert running.metric(DROPPED) == 0
        with Store.open(sink.url) as store:
            assert set(ids(store)) == {f"r{n}" for n in range(60)}


@pytest.mark.slow
def test_too_many_impressions_wait(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    with (
        other_valkey(tmp_path / "events") as sink,
        serving(valkey.url, tmp_path, "--impressions", sink.url, "--impressions-queue", "20") as running,
    ):
        running.await_ready()
        sink.stall()
        answered(running, 0, 100)
        eventually(lambda: running.metric(DROPPED, sink="redis") >= 80, "those that have no room")
        assert running.logs("impressions dropped: too many wait for the sink")
        assert running.healthy()
        sink.go_on()
        recovered.from_now()
        recovered.when(
            lambda: running.metric(LOGGED, sink="redis") + running.metric(DROPPED, sink="redis") == 100,
            "every impression is logged or counted as lost",
        )
        answered(running, 100, 110)
        eventually(
            lambda: running.metric(LOGGED, sink="redis") + running.metric(DROPPED) == 110, "the next ones"
        )
        with Store.open(sink.url) as store:
            assert {f"r{n}" for n in range(100, 110)} <= set(ids(store))


@pytest.mark.slow
def test_disk_of_impressions_is_full(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    folder = tmp_path / "impressions"
    folder.mkdir()
    file = folder / "shown.jsonl"
    flags = ("--impressions", f"file:{file}", "--impressions-size", "1")
    with serving(valkey.url, tmp_path, *flags, within=on_a_full_disk(folder)) as running:
        running.await_ready()
        answered(running, 0, 300)
        eventually(lambda: running.metric("ftrie_impressions_failed_total", sink="file") > 0, "a failure")
        assert running.healthy()
        inside = Path(f"/proc/{running.process.pid}/root{folder}")
        (inside / "filler").unlink()
        recovered.from_now()
        recovered.when(lambda: running.metric(LOGGED, sink="file") == 300, "the file has them all")
        assert running.metric(DROPPED) == 0
        answered(running, 300, 4000)
        eventually(lambda: running.metric(LOGGED, sink="file") == 4000, "those after")
        files = sorted(inside.glob("shown.jsonl*"))
        assert len(files) > 1
        assert all(path.stat().st_size <= 1 << 20 for path in files)
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert sorted(line["request_id"] for line in lines) == sorted(f"r{n}" for n in range(4000))
