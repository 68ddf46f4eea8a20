"""`ftrie.Ranker` beside a real server: the same answers, explanations and errors for the same model, items, users."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ftrie.api.client import Client, RankFailed
from ftrie.api.messages import AnyOf, Between, NoneOf, Ranking, Thompson, UpperConfidenceBound
from ftrie.api.model import Model
from ftrie.api.output import FtrieWarning
from ftrie.api.ranker import Ranker
from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration, PowerCurve, VariantCurves
from model_store.errors import ExperimentError, FieldValueError, FtrieError, SpecError, StoreError, UsageError
from model_store.features.history import SEEN, HistoryPlan, UserHistory
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.errors import status_of
from tests.matrix import slow_except
from tests.server import shop
from tests.server.one_process import Server
from tests.server.slow_ranker import artefact_of

CONTEXT: dict[str, Any] = {"hour": shop.HOURS[0], "distance": 2.5}
ITEMS: dict[str, dict[str, str]] = {
    item: {**record, "bid": str(1.0 + number % 5), "seller": f"s{number % 3}"}
    for number, (item, record) in enumerate(shop.ITEMS.items())
} | {
    "no price": {"brand": "b1"},
    "bad price": {"brand": "b2", "price": "dear", "bid": "1e999"},
    "café": {"brand": "b1", "tags": '["red"]', "price": "3", "bid": "2.5", "seller": "s1"},
}
USERS: dict[str, dict[str, str]] = {**shop.USERS, "é": {"age": "40"}}
USERS["bad likes"] = {"likes": "{}x", "age": "20"}
CURVES = VariantCurves(PowerCurve(0.5, 1.25), {b"8": PowerCurve(1.5, 2.0)})
CALIBRATED = Calibration("power", "hour", {"base": CURVES})
UNSURE = parse_spec(shop.SPEC + '[learner]\nalgorithm = "adpredictor"\n')
MODELS: dict[str, Callable[[], Artefact]] = {
    "one weight": lambda: replace(shop.artefact(), calibration=CALIBRATED),
    "weights of each variant": lambda: shop.artefact(values="per_variant"),
    "adpredictor": lambda: replace(shop.artefact(), spec=UNSURE.resolve(["click", "device", *UNSURE.fields])),
}
MANY = ([item for item in ITEMS if item.isascii()] + ["unknown"] * 3) * 10
ASKED: dict[str, Any] = {"context": CONTEXT, "variant": "base", "request_id": "r"}
ASKED |= {"cookie": "u1", "candidates": [*ITEMS, "unknown"]}
CHANGES: list[dict[str, Any]] = [
    {"cookie": "u2"},
    {"candidates": ["item-3", "café"]},
    {"candidates": MANY},
    {"items": {"item-1": {"brand": "nova", "tags": ["red"], "price": 3}, "unknown": {"price": "1.5"}}},
    {"user": {"age": "40", "likes": {"red": 0.5, "blue": -2.0}, "device": "x"}},
    {"context": {"hour": shop.HOURS[1], "distance": "0.1"}},
    {"context": {**CONTEXT, "moon": "full"}},
    {"top_k": 2},
    {"variant": "plain"},
    {"objective": "ctr * (bid ?? 1)"},
    {"objective": "log(score) + uncertainty"},
    {"filters": {"seller": ["s1", "s2"], "bid": (2, None)}},
    {"filters": [AnyOf("brand", ["b1", "b2"]), NoneOf("seller", ["s0"]), Between("bid", 2)]},
    {"caps": {"brand": 1, "tags": 2}},
    {"exploration": UpperConfidenceBound(2.0)},
    {"exploration": Thompson(0.5)},
    {"request_id": "another é"},
]
"""Of each argument one or more, which change the answer."""
ODD: list[dict[str, Any]] = [
    *({"candidates": each} for each in ([], ["", "item-1"])),
    *({"cookie": each} for each in ("bad likes", "é" * 3000)),
    *({"user": {"age": each}} for each in (None, "\ud800", float("nan"), -(10**20), True)),
    *({"user": {"likes": each}} for each in ([], '{"a": 1}', "{}x")),
    {"user": {"raw_keys": ["age=20"], "distance": 1}},
    {"context": {"hour": "soon"}},
    {"items": {"": {}, "item-2": {"price": "1e400"}}},
    *({"objective": each} for each in ("1 / 0", "bid +", "(" * 40)),
    *({"filters": each} for each in ({"moon": "full"}, [Between("bid", float("nan"), 1)])),
    *({"exploration": each} for each in (Thompson(float("inf")), UpperConfidenceBound(-1.0))),
    *({"top_k": 0}, {"variant": "none"}, {"caps": {"brand": 0}}, {"candidate_set": "none"}),
]


def outcome(ask: Callable[..., Any], **options: Any) -> Any:
    """The answer; of an error its status and its text, as a server sends them."""
    try:
        answer = ask(**options)
        return replace(answer, unknown_fields=sorted(answer.unknown_fields))  # a map's names, in no order
    except RankFailed as error:
        return error.code, str(error).partition(f"{error.code.name}: ")[2]
    except FtrieError as error:
        return status_of(error), str(error)


@pytest.mark.parametrize("kind", slow_except(["one weight"], MODELS))
def test_an_answer_is_what_a_server_sends_in_every_field(
    store: Store, start: Callable[..., Server], kind: str
) -> None:
    model = MODELS[kind]()
    store.records.put_items(ITEMS.items())
    store.records.put_users(USERS.items())
    store.model(shop.NAME).activate(store.model(shop.NAME).publish(model))
    running = start()
    assert running.ready.wait(60)
    with pytest.warns(FtrieWarning, match="'bad price': price: got 'dear', expected a number"):
        ranker = Ranker(model, ITEMS, USERS, version=1)
    plain = ranker.rank(**ASKED)
    with Client(running.address, timeout_s=20.0) as client:
        for change in ({}, *CHANGES, *ODD):
            request = {**ASKED, **change}
            for method in ("rank", "explain"):
                theirs, ours = (outcome(getattr(each, method), **request) for each in (client, ranker))
                assert repr(ours) == repr(theirs), (method, change)
    assert [change for change in CHANGES if ranker.rank(**{**ASKED, **change}) == plain] == []


def asked(**more: Any) -> dict[str, Any]:
    return {"candidates": list(shop.ITEMS), "context": CONTEXT, "variant": "base", "request_id": "r", **more}


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in ranking.items}


@pytest.fixture
def of_shop() -> Ranker:
    """Over the shop's first model, items and users."""
    return Ranker(shop.artefact(), shop.ITEMS, shop.USERS)


def test_over_a_store_users_candidate_sets_and_late_items_are_read_from_it(
    server: Server, client: Client, store: Store
) -> None:
    ranker = Ranker(shop.artefact(), store, store, version=1)
    store.records.put_items([("late", {"brand": "b1", "price": "6"})])
    store.records.put_candidates("front page", ["item-3", "item-1", "late"])
    for options in (
        {"candidate_set": "front page"},
        {"candidate_set": "no such set"},
        {"candidates": ["late", "item-1", "never"]},
    ):
        request: dict[str, Any] = {"cookie": "u1", "context": CONTEXT, "request_id": "r", **options}
        assert repr(outcome(ranker.rank, **request)) == repr(outcome(client.rank, **request))
    found = ranker.rank("u1", candidate_set="front page").items
    assert {item.id for item in found} == {"item-1", "item-3", "late"}
    store.client.set("ftrie:candidates:odd", "x")
    with pytest.raises(StoreError, match="expected a LIST, SET or ZSET"):
        ranker.rank(candidate_set="odd")


HISTORIES = """
[model]
name = "shop"
[input]
label = "click"
cookie = "cookie"
item = "item"
request = "request_id"
timestamp = "ts"
[fields]
brand = {side = "item"}
seen_brands = {side = "user", kind = "set", history = "seen", measure = "last", of = "brand", last = 3}
seen_before = {side = "item", kind = "number", bucket = "log", history = "seen", measure = "count"}
[[crosses]]
fields = ["seen_brands", "brand"]
"""


def test_histories_are_read_from_the_store_that_is_given(store: Store, start: Callable[..., Server]) -> None:
    spec = parse_spec(HISTORIES).resolve(["click", "cookie", "item", "request_id", "ts", "brand"])
    keys = {b"bias", *(b"seen_before=%d" % bucket for bucket in range(20))}
    keys |= {b"seen_brands*brand=%b*%b" % (a, b) for a in (b"b1", b"b2") for b in (b"b1", b"b2")}
    model = artefact_of(spec, {key: (shop.weight(key, 1), 1) for key in keys})
    records = {f"item-{n}": {"brand": f"b{n % 3}"} for n in range(6)}
    plan, history = HistoryPlan.of(spec), UserHistory()
    assert plan is not None
    history.add(SEEN, 1_700_000_000_000_000, [[b"item-1", b"item-2"], [b"b1", b"b2"]])
    history.add(SEEN, 1_700_000_001_000_000, [[b"item-1"], [b"b1"]])
    store.records.put_items(records.items())
    store.records.put_histories("shop", [(b"u1", history.encode(plan))], 60_000)
    store.model("shop").publish_and_activate(model)
    running = start()
    assert running.ready.wait(60)
    rankers = [Ranker(model, *each, version=1) for each in ((store, {}), (records, store), (store, store))]
    request: dict[str, Any] = {"candidates": [*records, "new"], "items": {"item-4": {"brand": "b2"}}}
    with Client(running.address, timeout_s=20.0) as connected:
        for method, cookie in itertools.product(("rank", "explain"), ("u1", "u2")):
            theirs = getattr(connected, method)(**request, cookie=cookie, request_id="r")
            ours = [getattr(each, method)(**request, cookie=cookie, request_id="r") for each in rankers]
            assert ours == [theirs] * 3
    found = scores(rankers[0].rank("u1", candidates=list(records)))
    assert len(set(found.values())) > 2, "the history counts"


def test_a_mapping_of_users_is_read_when_a_request_names_the_user() -> None:
    users: dict[str, dict[str, Any]] = {
        "u": {"age": 20, "likes": ("red", "blue")},
        "v": {"age": np.int64(30)},
    }
    ranker = Ranker(shop.artefact(), shop.ITEMS, users)
    given = {"age": "20", "likes": ["red", "blue"], "device": "u"}
    assert scores(ranker.rank("u", **asked())) == scores(ranker.rank(given, **asked()))
    assert scores(ranker.rank("v", **asked())) == scores(ranker.rank({"age": 30, "device": "v"}, **asked()))
    users["u"]["age"] = float("nan")
    assert scores(ranker.rank("u", **asked())) == scores(ranker.rank({**given, "age": ""}, **asked()))
    users["u"]["age"] = object()
    (note,) = ranker.rank("u", **asked()).degraded
    assert (note.reason, note.part) == ("INVALID_DATA", "user_features")
    assert note.detail.startswith("users['u'].age: got a object, expected text")
    with pytest.raises(FieldValueError, match=r"items\['a'\]\.brand: got a object, expected text"):
        Ranker(shop.artefact(), {"a": {"brand": object()}})


def test_wrong_arguments_are_refused_by_name(of_shop: Ranker) -> None:
    assert of_shop.rank("u1", **asked()) == of_shop.rank(cookie="u1", **asked())
    assert of_shop.rank("u1", **asked()).cookie == "u1"
    wrong: Any = 7
    for call, message in (
        (lambda: of_shop.rank("u1", **asked(cookie="u2")), "user='u1' and cookie='u2'; give one"),
        (
            lambda: of_shop.rank("u1", **asked(filter=[])),
            "keyword 'filter'; a ranking takes .*; did you mean filters?",
        ),
        (
            lambda: of_shop.explain("u1", **asked(topk=1)),
            "keyword 'topk'; a ranking takes .*; did you mean top_k?",
        ),
        (lambda: of_shop.rank(wrong, **asked()), "user: got 7, expected features by name, or the user's"),
        (lambda: Ranker(shop.artefact(), {7: {}}), "got the id 7, expected a text, such as '7'"),
        (lambda: Ranker(shop.artefact(), {}, {7: {}}), "got the id 7, expected a text, such as '7'"),
        (lambda: Ranker("m.arrow"), r"got a str as model; expected an ftrie\.Model"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_items_come_from_a_mapping_a_table_a_file_or_the_request(of_shop: Ranker, tmp_path: Path) -> None:
    items = {item: {**record, "tags": json.loads(record["tags"])} for item, record in shop.ITEMS.items()}
    rows = [{"id": item, **record} for item, record in items.items()]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected, table = of_shop.rank("u1", **asked()), pa.Table.from_pylist(rows)
    for given in (table, table.to_pydict(), rows, file, str(file)):
        ranker = Model(shop.artefact()).ranker(given, shop.USERS)
        assert repr(ranker) == "Ranker('shop', version 0, 12 items)"
        assert len(ranker) == len(shop.ITEMS)
        assert ranker.rank("u1", **asked()) == expected
    found = Ranker(shop.artefact()).rank(shop.USERS["u2"], CONTEXT, items=items, variant="base")
    wanted = of_shop.rank(shop.USERS["u2"], **asked())
    assert (scores(found), found.unknown_items) == (scores(wanted), ())
    # A request without an id gets one, as from a server.
    assert re.fullmatch("[0-9a-f]{32}", found.request_id)
    with pytest.raises(SpecError, match="no column item or item_id or id for the id"):
        Ranker(shop.artefact(), pa.table({"sku": ["a"], "brand": ["b1"]}))
    with pytest.raises(StoreError, match="got an id of 0 bytes"):
        Ranker(shop.artefact(), {"": {"brand": "b1"}})


def test_an_experiment_divides_requests_and_one_that_does_not_fit_is_refused() -> None:
    pinned = Experiment(shares={"base": 1.0}, pins={"u2": "plain"}, objective="-score")
    ranker = Ranker(shop.artefact(), shop.ITEMS, shop.USERS, experiment=pinned)
    assert {ranker.rank(f"u{n}", CONTEXT, ["item-1"]).variant for n in range(3, 20)} == {"base"}
    found = ranker.rank("u2", CONTEXT, list(shop.ITEMS))
    assert found.variant == "plain"
    assert [item.score for item in found.items] == sorted(scores(found).values())
    with pytest.raises(ExperimentError, match="no variant 'gone' in the model"):
        Ranker(shop.artefact(), experiment=Experiment(pins={"u": "gone"}))
    alone = parse_spec(shop.SPEC.partition("[variants]")[0]).resolve(["click", "device", *UNSURE.fields])
    other = replace(shop.artefact(), spec=alone)
    other = replace(other, variants=np.ones_like(other.variants))
    with pytest.warns(FtrieWarning, match="does not fit version 2: .*no variant 'plain' in the model"):
        ranker.update(other, version=2)
    assert ranker.rank("u2", CONTEXT, ["item-1"]).variant == "base"


def test_an_update_keeps_the_items_or_takes_others_one_that_fails_changes_nothing(of_shop: Ranker) -> None:
    first = of_shop.rank("u1", **asked())
    of_shop.update(shop.artefact(seed=2), version=2)
    second = of_shop.rank("u1", **asked())
    assert (first.version, second.version) == (0, 2)
    assert second == Ranker(shop.artefact(seed=2), shop.ITEMS, shop.USERS, version=2).rank("u1", **asked())
    of_shop.update(shop.artefact(seed=2), {"item-1": {"brand": "b3"}}, version=3)
    assert (len(of_shop), of_shop.version) == (1, 3)
    of_shop.update(shop.artefact(values="per_variant"), version=4)  # another spec: the items are coded again
    assert len(of_shop) == 1
    other = replace(shop.artefact(), spec=parse_spec(shop.SPEC.replace('"shop"', '"mall"')))
    with pytest.raises(UsageError, match="is of model 'shop', got a version of 'mall'"):
        of_shop.update(other)
    with pytest.raises(SpecError):
        of_shop.update(shop.artefact(), pa.table({"sku": ["a"]}))
    assert (of_shop.version, of_shop.variants, len(of_shop)) == (4, shop.VARIANTS, 1)


def test_each_answer_of_any_thread_is_one_versions_while_versions_change(of_shop: Ranker) -> None:
    models = [shop.artefact(seed) for seed in (1, 2)]
    rankers = [Ranker(model, shop.ITEMS, shop.USERS) for model in models]
    expected = [scores(each.rank("u1", **asked())) for each in rankers]

    def ask() -> None:
        versions: set[int] = set()
        while len(versions) < 2:
            answer = of_shop.rank("u1", **asked())
            assert scores(answer) == expected[answer.version]
            versions.add(answer.version)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(30)]
        for number in itertools.count():
            of_shop.update(models[number % 2], version=number % 2)
            if number > 40 and all(each.done() for each in asking):
                break
        for each in asking:
            each.result()


def test_a_ranker_leaves_no_memory_files_or_threads_behind() -> None:
    def held() -> tuple[int, set[str], int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm")), threading.active_count()

    def used() -> weakref.ref[Any]:
        ranker = Ranker(shop.artefact(), shop.ITEMS, shop.USERS)
        assert ranker.rank("u1", **asked()).items
        ranker.update(shop.artefact(seed=2))
        assert ranker.explain("u1", **asked()).items
        return weakref.ref(ranker._handle.served.model)  # type: ignore[union-attr]

    used()
    before = held()
    models = [used() for _ in range(5)]
    assert held() == before
    assert all(model() is None for model in models)
