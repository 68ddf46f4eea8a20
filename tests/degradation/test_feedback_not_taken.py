"""docs/degradation.md, "Feedback": the store is away, stalls, is read only or full while clicks are reported."""

from __future__ import annotations

import json
from collections.abc import Callable

import grpc
import pytest

from ftrie.api.feedback import Feedback, ReportFailed
from ftrie.demo.processes import free_port
from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually

METRIC = "ftrie_feedback_total"


def clicks(whole: WholeShop) -> list[Feedback]:
    request = whole.new_name()
    return [Feedback(request, item) for item in ("item-1", "item-2", "item-3")]


def refusal(whole: WholeShop, events: list[Feedback]) -> ReportFailed:
    with pytest.raises(ReportFailed) as failed:
        whole.client.feedback(shop.NAME, events)
    return failed.value


def not_taken(whole: WholeShop, events: list[Feedback], word: str) -> None:
    """Reports fail, say why and when to come back, and are counted; rankings are answered as ever."""
    before = whole.metric(METRIC, result="failed")
    error = refusal(whole, events)
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert word in str(error)
    assert error.retry_after_s is not None and 0.2 <= error.retry_after_s <= 1.0
    assert len(whole.ask().items)
    assert whole.running.healthy()
    eventually(lambda: whole.metric(METRIC, result="failed") >= before + len(events), "the count")


def taken_once(whole: WholeShop, recovered: Recovered, events: list[Feedback]) -> None:
    """The same report is taken once the fault is mended, and each of its events is in the stream once."""
    recovered.then(lambda: is_taken(whole, events), "reports are taken")
    payloads = whole.store.clicks(shop.NAME).read((0, 0), 10_000).payloads
    mine = [event for event in map(json.loads, payloads) if event["request_id"] == events[0].request_id]
    assert sorted(event["item"] for event in mine) == ["item-1", "item-2", "item-3"]


def is_taken(whole: WholeShop, events: list[Feedback]) -> bool:
    try:
        report = whole.client.feedback(shop.NAME, events)
    except ReportFailed:
        return False
    return report.accepted + report.duplicates == len(events)


def test_feedback_while_the_store_refuses(whole: WholeShop, recovered: Recovered) -> None:
    events = clicks(whole)
    whole.valkey.save()
    whole.valkey.kill()
    not_taken(whole, events, "does not answer")
    whole.valkey.start()
    taken_once(whole, recovered, events)


@pytest.mark.slow
def test_feedback_while_the_store_stalls(whole: WholeShop, recovered: Recovered) -> None:
    events = clicks(whole)
    whole.valkey.stall()
    not_taken(whole, events, "")
    eventually(lambda: "did not answer lately" in str(refusal(whole, events)), "a refusal at once")
    whole.valkey.go_on()
    taken_once(whole, recovered, events)


def test_feedback_while_the_store_is_a_replica(whole: WholeShop, recovered: Recovered) -> None:
    while_it_takes_no_writes(
        whole,
        recovered,
        "read only replica",
        lambda: whole.store.client.execute_command("REPLICAOF", "127.0.0.1", free_port()),
        lambda: whole.store.client.execute_command("REPLICAOF", "NO", "ONE"),
    )


def test_feedback_while_the_store_is_full(whole: WholeShop, recovered: Recovered) -> None:
    while_it_takes_no_writes(
        whole,
        recovered,
        "maxmemory",
        lambda: whole.store.client.config_set("maxmemory", "1"),
        lambda: whole.store.client.config_set("maxmemory", "0"),
    )


def while_it_takes_no_writes(
    whole: WholeShop,
    recovered: Recovered,
    word: str,
    break_it: Callable[[], object],
    mend_it: Callable[[], object],
) -> None:
    """Nothing of a report that failed is in the stream."""
    events = clicks(whole)
    before = whole.store.clicks(shop.NAME).info().last_id
    break_it()
    not_taken(whole, events, word)
    whole.awaits_whole_answer("u1")
    assert whole.store.clicks(shop.NAME).info().last_id == before
    mend_it()
    taken_once(whole, recovered, events)
