"""Impressions of a running server: what each call leaves in a store and in a file; and the queue before the writer."""

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
from ftrie.api.client import METHOD, Client, RankFailed
from ftrie.api.messages import AnyOf, Thompson
from ftrie.cli import run
from model_store.metrics import Family
from model_store.store import Store
from server.events import lines as lines_module
from server.events import log as log_module
from server.events import sinks
from server.events.lines import Lines, Shown
from server.events.log import DROPPED, LOGGED, SKIPPED, ImpressionLog
from server.telemetry.meter import FAMILIES, Meter
from tests.server import shop
from tests.server.events import whole_spec
from tests.server.one_process import Server
from tests.stalling import stalled
from tests.waiting import eventually

Start = Callable[..., Server]
CONTEXT: dict[str, Any] = {"hour": "2024-05-01T08:00:00", "distance": 2.5}


def in_store(store: Store) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in store.impressions(shop.NAME).read((0, 0), 10_000).payloads]


def in_file(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counted(server: Server, family: Family) -> dict[tuple[str, ...], float]:
    return dict(server.totals.samples()[family.name])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "impressions.jsonl"


@pytest.fixture
def logging(shop_store: Store, start: Start, file: Path) -> Server:
    server = start(impressions=("store", f"file:{file}"))
    assert server.ready.wait(180)
    return server


def test_an_answer_is_logged_as_it_was_given(logging: Server, store: Store, file: Path) -> None:
    before = time.time()
    with Client(logging.address) as client:
        asked: dict[str, Any] = {"context": CONTEXT, "top_k": 3, "request_id": "r1"}
        answer = client.rank(cookie="u1", candidates=list(shop.ITEMS), **asked)
    logging.end()
    assert stat.S_IMODE(file.stat().st_mode) & ~0o640 == 0, "it is for its owner and its group"
    (event,) = in_store(store)
    assert in_file(file) == [event]
    assert before <= event.pop("ts") <= time.time()
    assert event == {
        "request_id": "r1",
        "cookie": "u1",
        "model": "shop",
        "version": 1,
        "variant": answer.variant,
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


def test_nothing_is_lost_by_a_drain_and_a_stream_is_trimmed_by_length_and_age(
    shop_store: Store, start: Start, file: Path
) -> None:
    server = start(impressions=("store", f"file:{file}"), impressions_length=100, impressions_age_s=3600.0)
    assert server.ready.wait(180)
    shop_store.client.xadd("ftrie:{shop}:impressions", {"json": "{}"}, id="1-1")
    with Client(server.address) as client:
        for n in range(400):
            client.rank(cookie="u1", candidates=["item-1", "item-2"], request_id=f"r{n}")
    server.drain()
    server.shutdown()
    expected = [f"r{n}" for n in range(400)]
    assert [event["request_id"] for event in in_file(file)] == expected
    in_stream = [event["request_id"] for event in in_store(shop_store)]
    assert in_stream == expected[-len(in_stream) :]
    assert 100 <= len(in_stream) < 400
    first = shop_store.impressions(shop.NAME).info().first_id
    assert first is not None and first > (1, 1)
    assert counted(server, LOGGED) == {("shop", "store"): 400, ("shop", "file"): 400}
    assert counted(server, DROPPED) == {}


def test_every_answer_was_logged_or_is_counted_as_dropped(shop_store: Store, start: Start) -> None:
    """The stream's part of the balance; tests/chaos has the trainer's: every entry is learned from or reported."""
    server = start(impressions=("store",), impressions_queue=20)
    assert server.ready.wait(180)
    answered: list[str] = []
    with Client(server.address, timeout_s=20.0) as client:

        def is_logged() -> bool:
            """Whether one of the latest answers is in the stream."""
            answered.append(client.rank(candidates=["item-1"]).request_id)
            return any(event["request_id"] in answered[-9:] for event in in_store(shop_store))

        eventually(is_logged)
        with stalled(shop_store):  # some lines are on their way, twenty wait
            answered += [client.rank(candidates=["item-1"]).request_id for _ in range(60)]
        eventually(is_logged)  # nearly: what is on its way has arrived before the end
    server.end()
    logged = sum(counted(server, LOGGED).values())
    dropped = sum(counted(server, DROPPED).values())
    # An unanswered call may have sent one twice.
    entries = {event["request_id"] for event in in_store(shop_store)}
    assert logged + dropped == len(answered)
    assert dropped > 0
    assert len(entries) == logged
    assert entries <= set(answered)


def test_explanations_failed_calls_and_warming_leave_nothing(logging: Server, store: Store) -> None:
    with Client(logging.address) as client:
        client.explain(cookie="u1", candidates=["item-1"])
        with pytest.raises(RankFailed):
            client.rank(candidates=[])
        version = shop.publish(store, seed=2)  # warmed with the recent questions before it is served
        eventually(lambda: client.explain(candidates=["item-1"]).version == version)
        client.rank(candidates=["item-1"], request_id="the only one")
    logging.end()
    assert [event["request_id"] for event in in_store(store)] == ["the only one"]


def test_an_answer_whose_caller_has_gone_was_not_shown(shop_store: Store, start: Start, file: Path) -> None:
    server = start(store_budget_s=5.0, impressions=(f"file:{file}",))
    assert server.ready.wait(180)
    with grpc.insecure_channel(server.address) as channel, Client(server.address, timeout_s=20.0) as client:
        rank: Any = channel.unary_unary(METHOD)  # type: ignore[call-arg]
        with stalled(shop_store):
            gone = rank.future(RankRequest(cookie="u1", item_ids=["item-1"]).SerializeToString())
            gone.cancel()
            client.rank(candidates=["item-1"], request_id="still there")  # no cookie: nothing is read
    server.end()
    assert [event["request_id"] for event in in_file(file)] == ["still there"]


def test_what_is_logged_of_items_late_unknown_drawn_and_left_out(logging: Server, store: Store) -> None:
    store.client.hset("ftrie:item:late", mapping={"brand": "b2", "price": "6", "colour": "red"})
    with Client(logging.address) as client:
        client.rank(candidates=["late", "item-1", "nowhere"], items={"spelled": {}})
        drawn = client.rank(candidates=list(shop.ITEMS), top_k=4, exploration=Thompson(1.0))
        assert client.rank(candidates=["item-1"], filters=[AnyOf("brand", ["none"])]).items == ()
    logging.end()
    first, second, nothing = (event["items"] for event in in_store(store))
    assert {item["id"]: item["features"] for item in first} == {
        "late": {"brand": "b2", "price": 6.0},
        "item-1": {"brand": "b1", "tags": ["blue", "green"], "price": 3.0},
        "nowhere": {},
        "spelled": {},
    }
    assert [item["id"] for item in first if item.get("unknown") == 1] == ["nowhere"]
    chances = [item.propensity for item in drawn.items]
    assert [item["propensity"] for item in second] == pytest.approx(chances, abs=1e-15)
    assert nothing == []


def test_a_changed_item_is_logged_as_it_is_served(logging: Server, store: Store) -> None:
    store.records.put_items([("item-1", {"brand": "new", "price": "1"})])
    anew = {"brand": "new", "price": 1.0}

    def logged_anew() -> bool:
        with Client(logging.address) as client:
            client.rank(candidates=["item-1"])
        return [event["items"][0]["features"] for event in in_store(store)[-1:]] == [anew]

    eventually(logged_anew)


@pytest.mark.slow
def test_a_copy_on_disk_of_a_server_that_logged_nothing_is_completed(
    shop_store: Store, start: Start, tmp_path: Path
) -> None:
    state = str(tmp_path / "state")
    without = start(state=state)
    assert without.ready.wait(180)
    without.end()
    server = start(state=state, impressions=("store",))
    assert server.ready.wait(180)

    def is_logged() -> bool:
        with Client(server.address) as client:
            client.rank(candidates=["item-1"])
        return bool(in_store(shop_store))

    eventually(is_logged)
    assert in_store(shop_store)[0]["items"][0]["features"]["brand"] == "b1"
    assert {labels[2] for labels in counted(server, DROPPED)} <= {"catalogue"}


def test_a_deferred_answer_says_so_and_others_do_not(logging: Server, store: Store) -> None:
    with Client(logging.address) as client:
        answers = [client.rank(candidates=["item-1"], deferred=deferred) for deferred in (True, False)]
    logging.end()
    logged = {event["request_id"]: event.get("event") for event in in_store(store)}
    assert [logged[answer.request_id] for answer in answers] == ["deferred", None]


def test_load_tests_and_forced_variants_leave_no_impression_and_are_counted(
    logging: Server, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"request": {"cookie": "u1", "item_ids": ["item-1"]}}\n')
    flags = ["--requests", str(requests), "--rate", "50", "--duration", "0.1", "--json"]
    assert run(["bench", "serve", logging.address, *flags]) == 0
    replayed = json.loads(capsys.readouterr().out)["answered"]
    with Client(logging.address) as client:
        client.rank(candidates=["item-1"], no_log=True)
        client.rank(candidates=["item-1"], variant="base")
        client.rank(candidates=["item-1"], variant="base", no_log=True)
        client.rank(candidates=["item-1"], request_id="the only one")
    logging.end()
    assert [event["request_id"] for event in in_store(store)] == ["the only one"]
    assert replayed > 0
    skipped = {("shop", "no_log"): replayed + 2, ("shop", "variant"): 1}
    assert counted(logging, SKIPPED) == skipped
    assert counted(logging, DROPPED) == {}


@pytest.fixture
def meter() -> Meter:
    return Meter()


def counts_of(meter: Meter) -> dict[tuple[Family | str, ...], float]:
    return {(FAMILIES[name], *labels): number for name, labels, number in meter.take()["counts"]}


def offered(log: ImpressionLog, count: int, message_bytes: int = 0) -> None:
    served = whole_spec.served()
    request = RankRequest(item_ids=["i1", "x" * message_bytes] if message_bytes else ["i1"])
    query = whole_spec.query(served, request, None, plain=True)
    for n in range(count):
        log.offer(served, query._replace(request_id=f"r{n}"), served.ranker.rank(query))


def test_a_writer_that_is_behind_costs_impressions_that_are_counted_and_told_once(
    file: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LINGER_S", 60.0)  # it is busy until the end
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        offered(log, 40)
        log.close()
    counts = counts_of(meter)
    logged = counts.pop((LOGGED, "whole", "file"))
    assert logged == len(in_file(file)) == 5
    assert logged + sum(counts.values()) == 40
    assert counts[DROPPED, "whole", "file", "queue"] == 35
    assert "impressions dropped: too many wait for the writer" in [line["event"] for line in told]
    file.unlink()
    monkeypatch.setattr(log_module, "MOST_BYTES", 10_000)  # few long ones wait where many short ones may
    log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=1000)
    offered(log, 40, message_bytes=1000)
    log.close()
    assert 8 <= len(in_file(file)) <= 9


def test_an_impression_that_waits_keeps_no_version_in_memory() -> None:
    served = whole_spec.served()
    request = RankRequest(item_ids=["i1", "new"], cookie="c1")
    left = whole_spec.shown(served, whole_spec.query(served, request, None, plain=True))
    model = weakref.ref(served.model)
    del served
    gc.collect()
    assert model() is None
    assert json.loads(left.lines.line(left))["version"] == 7


def test_items_whose_values_are_not_known_yet_are_told_and_counted(file: Path, meter: Meter) -> None:
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        served = whole_spec.served(with_fragments=False)
        query = whole_spec.query(served, RankRequest(item_ids=["i1"]), None, plain=True)
        for _ in range(3):
            log.offer(served, query, served.ranker.rank(query))
        log.close()
    assert counts_of(meter) == {(DROPPED, "whole", "file", "catalogue"): 3}
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]


def test_a_line_that_cannot_be_made_costs_itself_only(
    file: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Lines.line

    def fails(self: Lines, left: Shown) -> bytes:
        if left.query.request_id == "r1":
            raise ValueError("a fault")
        return make(self, left)

    monkeypatch.setattr(lines_module.Lines, "line", fails)
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=50)
        offered(log, 3)
        log.close()
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]
    assert [event["request_id"] for event in in_file(file)] == ["r0", "r2"]
    assert counts_of(meter)[DROPPED, "whole", "file", "failed"] == 1
