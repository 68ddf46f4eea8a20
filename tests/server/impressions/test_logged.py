"""Impressions of a running server: what each call leaves in a store and in a file, and what it does not."""

from __future__ import annotations

import gc
import json
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from ctr.v1.ranking_pb2 import RankRequest
from ftrie.client import METHOD, AnyOf, Client, RankFailed, Thompson
from model_store.errors import OutputError, ServerError, StoreError
from model_store.store import Store
from server.impressions import lines as lines_module
from server.impressions import log as log_module
from server.impressions import sinks
from server.impressions.lines import Lines, Shown
from server.impressions.log import ImpressionLog
from server.lifecycle import Server
from server.metrics.families import IMPRESSIONS_DROPPED, IMPRESSIONS_LOGGED
from server.metrics.meter import Meter
from server.settings import Settings
from tests.server import shop
from tests.server.impressions import whole_spec
from tests.stalling import stalled

Start = Callable[..., Server]
Eventually = Callable[[Callable[[], bool]], None]
CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}


def in_store(store: Store) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in store.impressions(shop.NAME).read((0, 0), 10_000).payloads]


def in_file(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counted(server: Server, name: str) -> dict[tuple[str, ...], float]:
    return {labels: number for found, labels, number in server.totals.counts() if found == name}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "impressions.jsonl"


@pytest.fixture
def logging(shop_store: Store, start: Start, file: Path) -> Server:
    """A server that logs to its store and to a file."""
    server = start(impressions=("store", f"file:{file}"))
    assert server.ready.wait(60)
    return server


def test_an_answer_is_logged_as_it_was_given(
    logging: Server, store: Store, file: Path, eventually: Eventually
) -> None:
    before = time.time()
    with Client(logging.address) as client:
        answer = client.rank(
            cookie="u1",
            candidates=list(shop.ITEMS),
            context=CONTEXT,
            top_k=3,
            variant="base",
            request_id="r1",
        )
    eventually(lambda: len(in_store(store)) == 1 and file.exists() and len(in_file(file)) == 1)
    (event,) = in_store(store)
    assert in_file(file) == [event]
    assert before <= event.pop("ts") <= time.time()
    assert event == {
        "request_id": "r1",
        "cookie": "u1",
        "model": "shop",
        "version": 1,
        "variant": "base",
        "user": {"age": "20", "device": "u1", "likes": ["red", "blue"]},
        "context": {"hour": "2024-05-01T08:00:00", "distance": 2.5},
        "items": [
            {
                "id": item.id,
                "position": place,
                "ctr": pytest.approx(item.ctr, abs=1e-15),
                "features": {
                    name: json.loads(value) if name in ("tags", "price") else value
                    for name, value in shop.ITEMS[item.id].items()
                    if value != "[]"
                },
            }
            for place, item in enumerate(answer.items, 1)
        ],
    }


def test_nothing_is_lost_by_a_drain(shop_store: Store, start: Start, file: Path) -> None:
    server = start(impressions=("store", f"file:{file}"))
    assert server.ready.wait(60)
    with Client(server.address) as client:
        for n in range(500):
            client.rank(cookie="u1", candidates=["item-1", "item-2"], request_id=f"r{n}")
    server.drain()
    server.shutdown()
    expected = [f"r{n}" for n in range(500)]
    assert [event["request_id"] for event in in_store(shop_store)] == expected
    assert [event["request_id"] for event in in_file(file)] == expected
    logged = {("shop", "store"): 500, ("shop", "file"): 500}
    assert counted(server, IMPRESSIONS_LOGGED) == logged
    assert counted(server, IMPRESSIONS_DROPPED) == {}


def test_explanations_failed_calls_and_warming_leave_nothing(
    logging: Server, store: Store, eventually: Eventually
) -> None:
    with Client(logging.address) as client:
        client.explain(cookie="u1", candidates=["item-1"])
        with pytest.raises(RankFailed):
            client.rank(candidates=[])
        version = shop.publish(store, seed=2)  # warmed with the recent questions before it is served
        eventually(lambda: client.explain(candidates=["item-1"]).version == version)
        client.rank(candidates=["item-1"], request_id="the only one")
    eventually(lambda: bool(in_store(store)))
    logging.drain()
    logging.shutdown()
    assert [event["request_id"] for event in in_store(store)] == ["the only one"]


def test_an_answer_whose_caller_has_gone_was_not_shown(shop_store: Store, store_url: str, file: Path) -> None:
    settings = Settings((shop.NAME,), store_url, store_budget_s=5.0, impressions=(f"file:{file}",))
    server = Server(settings)
    server.startup()
    assert server.ready.wait(60)
    with grpc.insecure_channel(server.address) as channel, Client(server.address, timeout_s=20.0) as client:
        rank: Any = channel.unary_unary(METHOD)  # type: ignore[call-arg]
        with stalled(shop_store):
            gone = rank.future(RankRequest(cookie="u1", item_ids=["item-1"]).SerializeToString())
            gone.cancel()
            client.rank(
                candidates=["item-1"], request_id="still there"
            )  # without a cookie: the store is not asked
    server.drain()
    server.shutdown()
    assert [event["request_id"] for event in in_file(file)] == ["still there"]


def test_an_answer_that_shows_nothing_is_logged_too(
    logging: Server, store: Store, eventually: Eventually
) -> None:
    with Client(logging.address) as client:
        assert client.rank(candidates=["item-1"], filters=[AnyOf("brand", ["none"])]).items == ()
    eventually(lambda: [event["items"] for event in in_store(store)] == [[]])


def test_an_item_that_only_the_store_has_yet_is_logged_with_its_record(
    logging: Server, store: Store, eventually: Eventually
) -> None:
    store.client.hset("ftrie:item:late", mapping={"brand": "b2", "price": "6", "colour": "red"})
    with Client(logging.address) as client:
        client.rank(candidates=["late", "item-1", "nowhere"])
    eventually(lambda: len(in_store(store)) == 1)
    features = {item["id"]: item["features"] for item in in_store(store)[0]["items"]}
    assert features == {
        "late": {"brand": "b2", "price": 6.0},
        "item-1": {"brand": "b1", "tags": ["blue", "green"], "price": 3.0},
        "nowhere": {},
    }


def test_a_changed_item_is_logged_as_it_is_served(
    logging: Server, store: Store, eventually: Eventually
) -> None:
    store.records.put_items([("item-1", {"brand": "new", "price": "1"})])

    def logged_anew() -> bool:
        with Client(logging.address) as client:
            client.rank(candidates=["item-1"])
        return in_store(store)[-1:] != [] and in_store(store)[-1]["items"][0]["features"] == {
            "brand": "new",
            "price": 1.0,
        }

    eventually(logged_anew)


def test_a_copy_on_disk_of_a_server_that_logged_nothing_is_completed(
    shop_store: Store, start: Start, tmp_path: Path, eventually: Eventually
) -> None:
    state = str(tmp_path / "state")
    without = start(state=state)
    assert without.ready.wait(60)
    without.drain()
    without.shutdown()
    server = start(state=state, impressions=("store",))
    assert server.ready.wait(60)

    def is_logged() -> bool:
        with Client(server.address) as client:
            client.rank(candidates=["item-1"])
        return bool(in_store(shop_store))

    eventually(is_logged)
    assert in_store(shop_store)[0]["items"][0]["features"]["brand"] == "b1"
    assert {labels[2] for labels in counted(server, IMPRESSIONS_DROPPED)} <= {"catalogue"}


def test_what_was_drawn_is_logged_with_its_propensity(
    logging: Server, store: Store, eventually: Eventually
) -> None:
    with Client(logging.address) as client:
        answer = client.rank(candidates=list(shop.ITEMS), top_k=4, exploration=Thompson(1.0))
    eventually(lambda: len(in_store(store)) == 1)
    logged = [item["propensity"] for item in in_store(store)[0]["items"]]
    assert logged == pytest.approx([item.propensity for item in answer.items], abs=1e-15)


def test_a_stream_is_trimmed_by_length_and_age(
    shop_store: Store, start: Start, eventually: Eventually
) -> None:
    server = start(impressions=("store",), impressions_length=100, impressions_age_s=3600.0)
    assert server.ready.wait(60)
    shop_store.client.xadd("ftrie:{shop}:impressions", {"json": "{}"}, id="1-1")
    with Client(server.address) as client:
        for _ in range(400):
            client.rank(candidates=["item-1"])
    eventually(lambda: counted(server, IMPRESSIONS_LOGGED).get(("shop", "store")) == 400)
    info = shop_store.impressions(shop.NAME).info()
    assert info.length < 400
    assert info.first_id is not None and info.first_id > (1, 1)


def test_a_file_is_for_its_owner_and_its_group(logging: Server, file: Path, eventually: Eventually) -> None:
    with Client(logging.address) as client:
        client.rank(candidates=["item-1"])
    eventually(file.exists)
    assert stat.S_IMODE(file.stat().st_mode) & ~0o640 == 0


@pytest.mark.parametrize("name", ["kafka://x", "file:", "file", "", "stores"])
def test_a_sink_that_is_none_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ServerError, match="expected store, redis://HOST:PORT or file:PATH"):
        sinks.check(Settings(("shop",), "", impressions=(name,)))


def test_a_password_in_a_sink_is_not_shown() -> None:
    with pytest.raises(ServerError) as refused:
        sinks.check(Settings(("shop",), "", impressions=("redis:/:secret@host",)))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://:secret@host:notaport", "redis://:secret@host:99999"])
def test_a_url_that_is_none_is_told_at_the_start(url: str) -> None:
    with pytest.raises(StoreError, match="cannot read the store's URL") as refused:
        sinks.check(Settings(("shop",), "", impressions=(url,)))
    assert "secret" not in str(refused.value)


def test_a_sink_is_named_once() -> None:
    with pytest.raises(ServerError, match="one sink is given twice"):
        sinks.check(Settings(("shop",), "", impressions=("store", "store")))


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write impressions to .*nowhere"):
        sinks.check(Settings(("shop",), "", impressions=(f"file:{tmp_path}/nowhere/x",)))


# -- the queue before the writer


def offered(log: ImpressionLog, count: int, message_bytes: int = 0) -> None:
    serving = whole_spec.serving()
    request = RankRequest(item_ids=["i1", "x" * message_bytes] if message_bytes else ["i1"])
    question = whole_spec.question(serving, request, None, plain=True)
    for n in range(count):
        log.offer(f"r{n}", serving, question, question.ask(serving))


def test_a_writer_that_is_behind_costs_impressions_that_are_counted_and_told_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LINGER_S", 60.0)  # it is busy until the end
    meter = Meter()
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        offered(log, 100)
        log.close()
    counts = {(name, *labels): number for name, labels, number in meter.take()["counts"]}
    logged = counts.pop((IMPRESSIONS_LOGGED, "whole", "file"))
    assert logged == len(in_file(file)) == 5
    assert sum(counts.values()) == 95
    assert (
        counts[IMPRESSIONS_DROPPED, "whole", "file", "queue"] >= 94
    )  # the sixth, if the writer has the first in hand
    assert "impressions dropped: too many wait for the writer" in [line["event"] for line in told]


def test_few_long_requests_wait_where_many_short_ones_may(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LINGER_S", 60.0)
    monkeypatch.setattr(log_module, "MOST_BYTES", 10_000)
    meter = Meter()
    log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=1000)
    offered(log, 100, message_bytes=1000)
    log.close()
    assert 10 <= len(in_file(file)) <= 12


def test_an_impression_that_waits_keeps_no_version_in_memory() -> None:
    serving = whole_spec.serving()
    request = RankRequest(item_ids=["i1", "new"], cookie="c1")
    left = whole_spec.shown(serving, whole_spec.question(serving, request, None, plain=True))
    model = weakref.ref(serving.model)
    del serving
    gc.collect()
    assert model() is None
    assert json.loads(left.lines.line(left))["version"] == 7


def test_items_whose_values_are_not_known_yet_are_told_and_counted(file: Path) -> None:
    meter = Meter()
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        serving = whole_spec.serving(with_fragments=False)
        question = whole_spec.question(serving, RankRequest(item_ids=["i1"]), None, plain=True)
        for _ in range(3):
            log.offer("r", serving, question, question.ask(serving))
        log.close()
    counts = {(name, *labels): number for name, labels, number in meter.take()["counts"]}
    assert counts == {(IMPRESSIONS_DROPPED, "whole", "file", "catalogue"): 3}
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]


def test_a_line_that_cannot_be_made_costs_itself_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Lines.line

    def fails(self: Lines, left: Shown) -> bytes:
        if left.request_id == "r1":
            raise ValueError("a fault")
        return make(self, left)

    monkeypatch.setattr(lines_module.Lines, "line", fails)
    meter = Meter()
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=50)
        offered(log, 3)
        log.close()
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]
    assert [event["request_id"] for event in in_file(file)] == ["r0", "r2"]
    counts = {(name, *labels): number for name, labels, number in meter.take()["counts"]}
    assert counts[IMPRESSIONS_DROPPED, "whole", "file", "failed"] == 1
