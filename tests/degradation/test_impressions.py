"""docs/degradation.md, "Impressions": a sink is away, its disk is full, too many wait. No call waits for any of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Running, Valkey, serving
from tests.degradation.test_disk import on_a_full_disk
from tests.server import shop
from tests.waiting import eventually

LOGGED, DROPPED = "ftrie_impressions_logged_total", "ftrie_impressions_dropped_total"
QUEUE = 40


def answered(running: Running, ids: Iterable[str]) -> None:
    for request_id in ids:
        assert running.client.rank(candidates=["item-1", "item-2"], request_id=request_id).items


def numbered(letter: str, first: int, stop: int) -> list[str]:
    return [f"{letter}{n}" for n in range(first, stop)]


def ids(store: Store) -> list[str]:
    read = store.impressions(shop.NAME).read((0, 0), 100_000)
    return [json.loads(payload)["request_id"] for payload in read.payloads]


@dataclass(frozen=True)
class Logging:
    """A server, and the Valkey that it writes impressions to and nothing else."""

    running: Running
    sink: Valkey

    def metric(self, name: str) -> float:
        return self.running.metric(name, sink="redis")


@pytest.fixture(scope="module")
def logging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logging]:
    folder = tmp_path_factory.mktemp("logging")
    (folder / "events").mkdir()
    with ExitStack() as last:
        valkey = Valkey(folder)
        last.callback(valkey.kill)
        with Store.open(valkey.url) as store:
            shop.fill(store)
        sink = Valkey(folder / "events")
        last.callback(sink.kill)
        flags = ("--impressions", sink.url, "--impressions-queue", str(QUEUE))
        running = last.enter_context(serving(valkey.url, folder, *flags))
        running.await_ready()
        yield Logging(running, sink)


@pytest.mark.slow
def test_sink_of_impressions_is_away(logging: Logging, recovered: Recovered) -> None:
    running, sink = logging.running, logging.sink
    logged, dropped = logging.metric(LOGGED), logging.metric(DROPPED)
    answered(running, numbered("a", 0, 10))
    eventually(lambda: logging.metric(LOGGED) == logged + 10, "ten impressions")
    sink.save()
    sink.kill()
    answered(running, numbered("a", 10, 40))
    eventually(lambda: logging.metric("ftrie_impressions_failed_total") > 0, "a failure")
    eventually(lambda: logging.metric("ftrie_impressions_waiting") == 30, "those that wait")
    assert running.healthy()
    assert running.metric("ftrie_store_away") == 0
    sink.start()
    recovered.then(lambda: logging.metric(LOGGED) == logged + 40, "the sink has them all")
    assert logging.metric(DROPPED) == dropped
    with Store.open(sink.url) as store:
        assert {each for each in ids(store) if each.startswith("a")} == set(numbered("a", 0, 40))


@pytest.mark.slow
def test_too_many_impressions_wait(logging: Logging, recovered: Recovered) -> None:
    running, sink = logging.running, logging.sink

    def counted() -> float:
        return logging.metric(LOGGED) + logging.metric(DROPPED)

    before, dropped = counted(), logging.metric(DROPPED)
    sink.stall()
    answered(running, numbered("b", 0, 2 * QUEUE))
    eventually(lambda: logging.metric(DROPPED) >= dropped + QUEUE, "those that have no room")
    assert running.logs("impressions dropped: too many wait for the sink")
    assert running.healthy()
    sink.go_on()
    recovered.then(lambda: counted() == before + 2 * QUEUE, "every impression is logged or counted as lost")
    answered(running, numbered("c", 0, 10))
    eventually(lambda: counted() == before + 2 * QUEUE + 10, "the next ones")
    with Store.open(sink.url) as store:
        assert set(numbered("c", 0, 10)) <= set(ids(store))


@pytest.mark.slow
def test_disk_of_impressions_is_full(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    folder = tmp_path / "impressions"
    folder.mkdir()
    file = folder / "shown.jsonl"
    wanted = [f"r{n:01000}" for n in range(1000)]  # long ones, so that few fill a file
    flags = ("--impressions", f"file:{file}", "--impressions-size", "1")
    with serving(valkey.url, tmp_path, *flags, within=on_a_full_disk(folder)) as running:
        running.await_ready()
        answered(running, wanted[:100])
        eventually(lambda: running.metric("ftrie_impressions_failed_total", sink="file") > 0, "a failure")
        assert running.healthy()
        inside = Path(f"/proc/{running.process.pid}/root{folder}")
        (inside / "filler").unlink()
        recovered.then(lambda: running.metric(LOGGED, sink="file") == 100, "the file has them all")
        assert running.metric(DROPPED) == 0
        answered(running, wanted[100:])
        eventually(lambda: running.metric(LOGGED, sink="file") == len(wanted), "those after")
        files = sorted(inside.glob("shown.jsonl*"))
        assert len(files) > 1
        assert all(path.stat().st_size <= 1 << 20 for path in files)
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert sorted(line["request_id"] for line in lines) == sorted(wanted)
