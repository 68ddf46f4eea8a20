"""Histories around the loop: what a server serves is what its trainer has written, and what is learned from."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from model_store.features.features import FeaturePlan
from model_store.features.history import HistoryPlan, UserHistory
from model_store.keys import history_key
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.integration.processes import FTRIE, ROOT, ftrie, serving
from tests.trainer.learn.pairs import hash_of
from tests.trainer.oracles.histories import expected, what_happened
from tests.waiting import eventually
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.examples.joined import EventRows, JoinedExamples
from trainer.runs.replay import as_events
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_sources

TEXT = """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "item"
request = "request_id"
[fields]
item = {side = "item"}
brand = {side = "item"}
clicked_brands = {side = "user", kind = "set", history = "clicked", measure = "last", of = "brand", last = 3}
seen_items = {side = "user", kind = "set", history = "seen", measure = "last", last = 4}
clicks = {side = "user", kind = "number", bucket = "log", history = "clicked", measure = "count", within = "1h"}
quiet = {side = "user", kind = "number", bucket = "log", history = "clicked", measure = "age"}
seen_before = {side = "item", kind = "number", bucket = "log", history = "seen", measure = "count"}
seen_ago = {side = "item", kind = "number", scale = "standard", learned = [40, 25], history = "seen", measure = "age"}
brand_clicks = {side = "item", kind = "number", bucket = "log", history = "clicked", measure = "count", of = "brand"}
[[crosses]]
fields = ["clicked_brands", "brand"]
[join]
window = "20m"
"""
USER = ("clicked_brands", "seen_items", "clicks", "quiet")
ITEM = ("seen_before", "seen_ago", "brand_clicks")
ITEMS = [f"i{number}" for number in range(8)]
COOKIES = ("ann", "bob", "Ümit x")
TIMEOUT_S = 60.0


@contextmanager
def training(spec: Path, store_url: str, folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    places = ("--store", store_url, "--checkpoint", str(folder), "--json")
    command = [*FTRIE, "trainer", str(spec), *places, *flags]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_S)


def served_values(impression: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each row: the values of the history fields that the answer was scored with, None if absent."""
    user = {name: impression["user"].get(name) for name in USER}
    return [user | {name: item["features"].get(name) for name in ITEM} for item in impression["items"]]


def stream(store: Store, name: str) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """The events of a stream, each with its id."""
    found = []
    for entry, fields in store.client.xrange(f"ftrie:{{shop}}:{name}"):
        flat = {name.decode(): value.decode() for name, value in fields.items()}
        event = json.loads(flat["json"]) if "json" in flat else flat
        found.append((tuple(map(int, entry.decode().split("-"))), event | {"ts": float(event["ts"])}))
    return found


def arrived(store: Store) -> list[dict[str, Any]]:
    """All events in the order in which they came."""
    both = sorted([*stream(store, "impressions"), *stream(store, "clicks")], key=lambda each: each[0][0])
    return [event for _, event in both]


@pytest.mark.slow
def test_what_is_served_is_what_the_raw_events_say_and_what_is_learned(store, store_url, tmp_path):
    """Given a server, a trainer and clicks, each answer's values are an oracle's, and the rows learned have them."""
    spec, log = tmp_path / "shop.toml", tmp_path / "log.csv"
    spec.write_text(TEXT)
    lines = [f"r{n},{n},c,{ITEMS[n % 8]},b{n % 3},{int(n % 3 == 0)}" for n in range(400)]
    log.write_text("\n".join(["request_id,ts,cookie,item,brand,click", *lines]) + "\n")
    items = tmp_path / "items.csv"
    items.write_text("item,brand\n" + "".join(f"{item},b{n % 3}\n" for n, item in enumerate(ITEMS)))
    ftrie("store", "load", "items", items, "--store", store_url)
    ftrie("train", spec, log, "--store", store_url, "--activate")
    store.client.delete("ftrie:{shop}:impressions", "ftrie:{shop}:clicks")
    resolved = as_events(parse_spec(TEXT))
    draw = np.random.default_rng(5)
    settled = set[str]()

    with (
        training(spec, store_url, tmp_path / "trainer"),
        serving("shop", store_url, "--impressions", "store", "--store-budget", "5000") as address,
        Client(address, timeout_s=20) as client,
    ):

        def visit(cookie: str, number: int) -> str:
            answer = client.rank("shop", cookie=cookie, candidates=ITEMS, top_k=3)
            assert not answer.degraded, answer.degraded
            clicks = [item for item in [item.id for item in answer.items] if draw.random() < 0.4]
            events = [Feedback(answer.request_id, item) for item in clicks]
            if clicks and number % 4 == 0:
                events += events[:1]  # reported twice
            if events:
                client.feedback("shop", events)
            return answer.request_id

        def has_settled() -> bool:
            """Whether the trainer has written all events that the store has, and no server keeps an older record."""
            plan, events = HistoryPlan.of(resolved), arrived(store)
            for cookie in COOKIES:
                record = store.client.get(history_key("shop", cookie.encode()))
                if plan is None or record is None:
                    return False
                found = UserHistory.decode(record, plan).events
                for number, kind in enumerate(("seen", "clicked")):
                    known = len(found[number].times) if number in found else 0
                    if known != len(what_happened(resolved, events, cookie, kind)):
                        return False
            time.sleep(1.1)
            return True

        for number in range(24):
            visit(COOKIES[number % 3], number)
        for _ in range(3):
            eventually(has_settled, "the trainer's records", TIMEOUT_S)
            settled |= {visit(cookie, number) for number, cookie in enumerate(COOKIES)}
        eventually(has_settled, "the trainer's records", TIMEOUT_S)

    events = arrived(store)
    impressions = [event for event in events if "items" in event]
    assert len(impressions) == 33
    assert {event.get("derived") for event in impressions} == {parse_spec(TEXT).derivation}

    oracle = iter(expected(resolved, events))
    for impression in impressions:
        rows = [next(oracle) for _ in impression["items"]]
        served = served_values(impression)
        if impression["request_id"] in settled:
            assert [without_nothing(row) for row in served] == [without_nothing(row) for row in rows]
    busy = [row for each in impressions if each["request_id"] in settled for row in served_values(each)]
    assert any(row["brand_clicks"] for row in busy) and any(row["clicked_brands"] for row in busy)

    learned = learned_keys(resolved, store, store_url, tmp_path)
    plan = FeaturePlan.of(resolved)
    for impression in impressions:
        for item, values in zip(impression["items"], served_values(impression), strict=True):
            example = {"item": item["id"], **item["features"], **values}
            keys = sorted((hash_of(key), x) for key, x, _ in plan.keys(example))
            assert learned[impression["request_id"], item["id"]] == keys


def without_nothing(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value not in (None, [])}


def learned_keys(
    resolved: Any, store: Store, store_url: str, folder: Path
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """The hashed keys that each joined row is learned by, as the trainer joins the same events."""
    sources = open_sources(["store"], resolved, store, (), print, once=True)
    segments = Segments(folder / "rows", 1 << 26)
    merger = Merger(sources, Wanted.of(resolved), segments, once=True)
    rows = EventRows(merger, Join(resolved.join), segments, resolved)
    examples = JoinedExamples(ExampleMaker(resolved), segments)
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}

    def take(joined: Any) -> None:
        for batch in examples._batches(joined):
            made = ExampleMaker(resolved).make(batch)
            assert not made.rejects
            requests, items = (batch.columns[name].to_pylist() for name in ("request_id", "item"))
            for at, row in enumerate(made.rows.tolist()):
                part = slice(int(made.hashed.starts[at]), int(made.hashed.starts[at + 1]))
                xs = made.hashed.x[part].tolist() if made.hashed.x.size else [1.0] * (part.stop - part.start)
                keys = made.hashed.hashes[part].tolist()
                found[requests[row].decode(), items[row].decode()] = sorted(zip(keys, xs, strict=True))

    try:
        while not merger.ended:
            step = rows.step(0.2)
            if step is not None:
                take(step[1])
        take(rows.join.finish())
    finally:
        merger.close()
    return found
