"""The audit of what operators change: what is written, what is read of junk, and a store that refuses it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from model_store.errors import ExperimentChanged, UnreadableValue, VersionNotFound, VersionRefused
from model_store.store import Store
from model_store.versions.audit import KEPT, TEXT_CHARACTERS, By, operator
from model_store.versions.experiments import Experiment
from tests.model_store.models import model

TOOL = "a tool"


def test_changes_are_read_newest_first_with_the_store_s_time(store: Store) -> None:
    audit = store.model("ads").audit
    assert audit.read() == []
    assert audit.write(By(TOOL), "activate", None, 7)
    assert audit.write(By(TOOL, "Zoë"), "resume", 7, None)
    last, first = audit.read()
    assert (first.who, first.tool, first.action, first.before, first.after) == (
        operator(), TOOL, "activate", "", "7",
    )  # fmt: skip
    assert (last.who, last.before, last.after) == ("Zoë", "7", "")
    assert abs(datetime.now(UTC) - last.at) < timedelta(minutes=5)
    assert audit.read(1) == [last]
    assert first.words == "activated version 7 (before: none)"
    assert last.words == "let the trainer activate versions again (before: 7)"


def test_of_an_experiment_it_holds_what_differs_and_no_cookie(store: Store) -> None:
    ads = store.model("ads")
    audit = ads.audit
    divided = Experiment().divided({"base": 0.9, "plain": 0.1})
    pinned = divided.pinned({"secret-cookie": "plain"})
    for after in (divided, pinned, pinned.stopped("base"), pinned.divided({"base": 1.0}), divided):
        ads.experiments.change(lambda _, after=after: after, by=By(TOOL))
    assert {each.tool for each in audit.read()} == {TOOL}
    found = [(each.action, json.loads(each.before), json.loads(each.after)) for each in audit.read()[::-1]]
    assert found == [
        ("shares", {"shares": {}}, {"shares": {"base": 0.9, "plain": 0.1}}),
        ("pin", {"pins": 0}, {"pins": 1}),
        ("stop", {"state": "running", "winner": ""}, {"state": "stopped", "winner": "base"}),
        (
            "start",
            {"state": "stopped", "winner": "base", "shares": {"base": 0.9, "plain": 0.1}},
            {"state": "running", "winner": "", "shares": {"base": 1.0}},
        ),
        ("shares", {"shares": {"base": 1.0}, "pins": 1}, {"shares": {"base": 0.9, "plain": 0.1}, "pins": 0}),
    ]
    assert [each.words for each in audit.read()[:0:-1]] == [
        "shares: none → base 0.9, plain 0.1",
        "pin; pins: none → 1",
        "stop; state: running → stopped; winner: none → base",
        "start; state: stopped → running; winner: base → none; shares: base 0.9, plain 0.1 → base 1",
    ]
    assert audit.write(By(TOOL), "shares", "{cut", '{"shares":{"base":1.0}}')
    assert audit.read(1)[0].words == "{cut → none; shares: none → base 1"
    assert all("secret" not in each.before + each.after for each in audit.read())


def test_an_entry_is_written_if_an_operator_s_change_is_made_and_only_then(store: Store) -> None:
    ads, by = store.model("ads"), By(TOOL, "Zoë")
    ads.publish_and_activate(model())  # by a program
    second = ads.publish_and_activate(model(), by=by)
    assert ads.activate(1, by=by) == second
    lease = store.trainer_lease("ads", "one")
    ads.activate(ads.publish(model(), epoch=lease.take()), epoch=lease.epoch)  # by a trainer
    assert ads.rollback(by=by) == 1
    assert (ads.resume(by), ads.resume(by)) == (1, None)
    ads.guard.refuse([second], "of a test")
    for refused, version in ((VersionRefused, second), (VersionNotFound, 77)):
        with pytest.raises(refused):
            ads.activate(version, by=by)
    assert ads.activate(second, force=True, by=by) == 1
    ads.experiments.change(lambda before: before.divided({"base": 1.0}), by=by)
    with pytest.raises(ExperimentChanged):
        ads.experiments.change(lambda before: before.stopped("base"), 7, by)
    store.client.hset(ads.keys.experiment, "shares", "junk")
    ads.experiments.clear(by)
    assert [(each.action, each.before, each.after) for each in ads.audit.read()[::-1]] == [
        ("activate", "1", "2"),
        ("activate", "2", "1"),
        ("rollback", "3", "1"),
        ("resume", "1", ""),
        ("activate", "1", "2"),
        ("shares", '{"shares":{}}', '{"shares":{"base":1.0}}'),
        ("clear", "{}", "{}"),
    ]
    assert {(each.tool, each.who) for each in ads.audit.read()} == {(TOOL, "Zoë")}


def test_junk_is_skipped_reported_and_removed_by_the_check(store: Store) -> None:
    told: list[str] = []
    ads = store.model("ads", told.append)
    ads.publish_and_activate(model())
    store.client.xadd(ads.keys.audit, {"who": "only"}, id="1700000000000-1")
    ads.audit.write(By(TOOL), "activate", 1, 2)
    store.client.xadd(ads.keys.audit, {"who": b"\xff", "tool": "t", "action": "a", "before": "", "after": ""})
    assert [each.who for each in ads.audit.read()] == [r"\xff", operator()]
    assert len(told) == 1 and "tool is missing" in told[0] and "skipped" in told[0]
    (finding,) = store.check(["ads"], repair=True)
    assert (finding.key, finding.repaired) == (ads.keys.audit, True)
    assert store.client.xlen(ads.keys.audit) == 2
    assert store.check(["ads"]) == []


def test_a_change_that_cannot_be_written_is_a_warning(store: Store) -> None:
    told: list[str] = []
    ads = store.model("ads", told.append)
    store.client.set(ads.keys.audit, "no stream")
    assert not ads.audit.write(By(TOOL), "activate", 1, 2)
    assert "the change is made, but not in the audit (a tool: activate)" in told[0]
    with pytest.raises(UnreadableValue, match="ftrie store check ads --repair"):
        ads.audit.read()
    assert [each.repaired for each in store.check(["ads"], repair=True)] == [True]
    assert ads.audit.write(By(TOOL), "activate", 1, 2)


def test_the_stream_is_bounded_and_so_is_a_text(store: Store) -> None:
    ads = store.model("ads")
    with store.client.pipeline(transaction=False) as pipe:
        for number in range(KEPT + 2_000):
            pipe.xadd(ads.keys.audit, {"who": "", "tool": "", "action": "", "before": "", "after": number})
        pipe.execute()
    assert ads.audit.write(By(TOOL), "shares", "", "x" * 10_000)
    assert KEPT <= store.client.xlen(ads.keys.audit) < KEPT + 500
    assert len(ads.audit.read(1)[0].after) == TEXT_CHARACTERS
