"""Feedback into the stream: each event once, however often it is reported, and nothing that was not written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from model_store.streams.feedback import Event, Feedback, Reported
from tests.model_store.kinds import on_every_kind


@pytest.fixture
def feedback(store: Store) -> Iterator[Feedback]:
    opened = store.feedback()
    yield opened
    opened.close()


def events(count: int) -> list[Event]:
    return [Event("r1", f"item-{number}", event_id=f"e{number}") for number in range(count)]


def stream(store: Store) -> list[dict[str, object]]:
    return [json.loads(payload) for payload in store.clicks("ads").read((0, 0), 10_000).payloads]


@on_every_kind
def test_an_event_stands_in_the_stream_with_all_that_was_said_of_it_or_happened_now(
    store: Store, feedback: Feedback
) -> None:
    sold, before = Event("r1", "ü", "conversion", "e1", 1_700_000_000_123_456, 2.5), time.time()
    assert feedback.report("ads", [sold]) == Reported(1, 0)
    assert feedback.report("ads", [Event("r1", "a")]) == Reported(1, 0)
    event, now = stream(store)
    names = {"event": "conversion", "event_id": "e1", "value": 2.5}
    assert event == {"request_id": "r1", "item": "ü", "ts": 1700000000.123456, **names}
    assert before - 1 <= now["ts"] <= time.time() + 1  # type: ignore[operator]


def test_an_event_reported_again_changes_nothing(store: Store, feedback: Feedback) -> None:
    for count in (0, 1001):
        with pytest.raises(StoreError, match="expected 1 to 1,000"):
            feedback.report("ads", events(count))
    assert feedback.report("ads", events(3) * 2) == Reported(3, 3)
    assert feedback.report("ads", events(5)) == Reported(2, 3)
    assert feedback.report("shop", events(1)) == Reported(1, 0)  # models do not know each other's events
    assert len(stream(store)) == 5


def test_without_an_id_request_item_and_kind_stand_for_an_event(store: Store, feedback: Feedback) -> None:
    plain = [Event("r1", "a"), Event("r1", "b"), Event("r2", "a"), Event("r1", "a", "conversion")]
    assert feedback.report("ads", plain) == Reported(4, 0)
    assert feedback.report("ads", [Event("r1", "a", time_us=5, value=3.0)]) == Reported(0, 1)
    assert feedback.report("ads", [Event("r1", "a", event_id="another click")]) == Reported(1, 0)


@on_every_kind
def test_reported_at_once_by_many_each_is_taken_once(store: Store, feedback: Feedback) -> None:
    with ThreadPoolExecutor(8) as reporters:
        told = list(reporters.map(lambda _: feedback.report("ads", events(50)), range(16)))
    assert sum(each.accepted for each in told) == 50
    assert len(stream(store)) == 50


def test_a_known_event_is_forgotten_with_time_and_all_keys_share_the_models_tag(
    store: Store, feedback: Feedback
) -> None:
    feedback.report("ads", events(1))
    assert all(b"{ads}" in key for key in store.client.scan_iter())
    (known,) = store.client.scan_iter(match="ftrie:{ads}:feedback:*")
    assert 86_000_000 < store.client.pttl(known) <= 86_400_000


def test_what_the_store_cannot_take_is_taken_when_it_can(store: Store, feedback: Feedback) -> None:
    server = store._connection.at(store.clicks("ads").key)
    server.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="accepts no writes now.*maxmemory"):
            feedback.report("ads", events(3))
        with pytest.raises(StoreUnavailable, match="accepts no writes now"):
            store.clicks("ads").append([b"{}"])
    finally:
        server.config_set("maxmemory", "0")
    assert feedback.report("ads", events(3)) == Reported(3, 0)


def test_where_another_type_stands_nothing_is_known_afterwards(store: Store, feedback: Feedback) -> None:
    store.client.set(store.clicks("ads").key, "text")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        feedback.report("ads", events(3))
    store.client.delete(store.clicks("ads").key)
    assert feedback.report("ads", events(3)) == Reported(3, 0)


@on_every_kind
def test_an_emptied_store_forgets_the_script_and_learns_it_again(store: Store, feedback: Feedback) -> None:
    feedback.report("ads", events(1))
    store.client.script_flush()
    assert feedback.report("ads", events(2)) == Reported(1, 1)
