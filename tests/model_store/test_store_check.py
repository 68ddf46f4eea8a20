"""Junk in the store: what each method does while it is there, and `ftrie store check`, which repairs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from ftrie.cli import run
from model_store.errors import ArtefactError, StaleEpoch, UnreadableValue
from model_store.features.history import ITEM, KEPT_US, SEEN, HistoryPlan, UserHistory
from model_store.keys import history_key
from model_store.store import Store
from model_store.store_check import _ModelCheck
from model_store.versions.model_versions import ModelVersions
from tests.matrix import slow_except
from tests.model_store.kinds import on_every_kind
from tests.model_store.models import model

SEVERAL = 3


@pytest.fixture
def ads(store: Store) -> ModelVersions:
    ads = store.model("ads")
    for number in range(SEVERAL):
        ads.publish_and_activate(model(weights=[number + 1.0] * 5))
    return ads


def test_a_junk_pointer_stays_off_the_history_and_commands_go_on(store: Store, ads: ModelVersions) -> None:
    for junk in (b"abc", b"", b"0", b"-1", b"\xff", b"07"):
        told: list[str] = []
        ads = store.model("ads", told.append)
        ads.activate(3)
        store.client.delete(ads.keys.history)
        store.client.rpush(ads.keys.history, 2, 1)
        store.client.set(ads.keys.active, junk)
        says = r"ftrie:\{ads\}:active: got .*`ftrie store check ads --repair`"
        with pytest.raises(UnreadableValue, match=says):
            ads.active()
        assert [info.active for info in ads.versions()] == [False, False, True]
        assert ads.gc(1, dry_run=True) == [1]
        assert ads.active_through_us() == 0
        assert ads.rollback() == 2
        store.client.set(ads.keys.active, junk)
        assert ads.activate(3) is None
        assert store.client.lrange(ads.keys.history, 0, -1) == [b"1"]
        assert any("version 3 was the last activated" in text for text in told)
        assert any("version 3 was activated anyway" in text for text in told)
    store.client.delete(ads.keys.active)
    store.client.rpush(ads.keys.active, "x")  # a list, which is written over
    assert ads.rollback() == 1
    assert ads.active() == 1


@on_every_kind
def test_a_script_that_refuses_has_changed_nothing(store: Store, ads: ModelVersions) -> None:
    store.client.hset(ads.keys.trainer, "epoch", "abc")
    before = {key: store.client.dump(key) for key in store.client.scan_iter() if b"epoch" not in key}
    with pytest.raises(UnreadableValue, match=r"ftrie:\{ads\}:trainer epoch: got 'abc'"):
        ads.activate(1)
    for change in (store.trainer_lease("ads", "one").take, ads.resume):
        with pytest.raises(UnreadableValue, match="trainer epoch"):
            change()
    assert {key: store.client.dump(key) for key in before} == before


def test_a_sequence_that_was_set_back_overwrites_no_version(store: Store, ads: ModelVersions) -> None:
    store.client.set(ads.keys.sequence, 0)
    assert ads.publish(model()) == SEVERAL + 1
    assert ads.materialise(1).content == model(weights=[1.0] * 5).content


def test_an_epoch_that_was_set_back_fences_nobody_off(store: Store, ads: ModelVersions) -> None:
    lease = store.trainer_lease("ads", "one")
    lease.take()
    lease.release()
    store.client.set(ads.keys.epoch, 0)
    ads.activate(1)
    assert ads.active() == 1
    store.client.set(ads.keys.epoch, 0)
    assert store.trainer_lease("ads", "two").take() > lease.epoch
    with pytest.raises(StaleEpoch):
        lease.renew()


@pytest.mark.parametrize(
    ("field", "junk"),
    [
        ("rows", "abc"),
        ("size", "1e9"),
        ("chunk_bytes", "0"),
        ("chunks", "999999999999"),
        ("version", "7"),
        ("created", "yesterday"),
        ("created", "2024-05-01"),
        ("metrics", "[" * 100_000),
        ("metrics", '{"a": {"b": []}}'),
        ("sha256", b"\xff"),
        ("through_us", None),
        ("refused", None),
    ],
    ids=range(12),
)
def test_a_junk_manifest_is_listed_as_damaged_and_made_again_from_its_bytes(
    store: Store, ads: ModelVersions, field: str, junk: str | bytes | None
) -> None:
    good = ads.manifest(2)
    if junk is None:
        store.client.hdel(ads.keys.manifest(2), field)
    else:
        store.client.hset(ads.keys.manifest(2), field, junk)
    with pytest.raises(ArtefactError, match=r"ftrie store check ads --repair"):
        ads.manifest(2)
    if field != "metrics":  # which a list does not read
        assert [info.damaged for info in ads.versions()] == [False, True, False]
        assert ads.rollback() == 1
        assert ads.gc(2, dry_run=True) == []  # what a damaged version needs is not known
    [finding] = store.check(repair=True)
    assert (finding.key, finding.repaired) == (ads.keys.manifest(2), True)
    assert field in finding.found
    assert ads.manifest(2) == good or field == "created"
    assert ads.materialise(2).content == good.content
    assert store.check() == []


def test_members_that_are_no_versions_are_left_out_told_and_removed(store: Store, ads: ModelVersions) -> None:
    store.client.zadd(ads.keys.versions, {"abc": 1, b"\xff": 2, "1": float("inf")})
    store.client.lpush(ads.keys.history, "abc")
    told: list[str] = []
    ads = store.model("ads", told.append)
    assert [info.version for info in ads.versions()] == [1, 2, 3]
    assert ads.rollback() == 2
    assert len([text for text in told if "'abc'" in text]) == 2
    store.client.rpush(ads.keys.history, "abc")
    assert len(store.check()) == 4
    assert all(each.repaired for each in store.check(repair=True))
    assert store.client.zrange(ads.keys.versions, 0, -1) == [b"1", b"2", b"3"]


def test_a_list_of_versions_of_another_type_is_built_again(store: Store, ads: ModelVersions) -> None:
    before = store.client.zrange(ads.keys.versions, 0, -1, withscores=True)
    store.client.set(ads.keys.versions, "x")
    for use in (ads.versions, lambda: ads.publish(model())):
        with pytest.raises(UnreadableValue, match="versions: WRONGTYPE"):
            use()
    store.check(["ads"], repair=True)
    assert store.client.zrange(ads.keys.versions, 0, -1, withscores=True) == before


@on_every_kind
def test_a_version_beyond_repair_is_refused_and_the_last_active(store: Store, ads: ModelVersions) -> None:
    store.client.set(ads.keys.chunks(3, 1)[0], b"junk")
    found = store.check(repair=True)
    assert [each.key for each in found] == [ads.keys.manifest(3), ads.keys.active]
    assert ads.active() == 2
    assert ads.versions()[2].refused.startswith("damaged: ")
    assert store.check() == []
    assert ads.rollback() == 1


def test_a_pin_a_lease_and_a_guard_are_repaired_field_by_field(store: Store, ads: ModelVersions) -> None:
    lease = store.trainer_lease("ads", "one")
    lease.take()
    ads.activate(2)
    ads.guard.watch(2, 1)
    store.client.hset(ads.keys.trainer, mapping={"until_ms": "9" * 15, "pinned": "abc"})
    store.client.hset(ads.keys.guard, "candidate", "abc")
    assert ads.guard.record().good == 1
    with pytest.raises(UnreadableValue, match="candidate: got 'abc'"):
        ads.gc(1)
    assert [each.found.split()[0] for each in store.check(repair=True)] == ["candidate", "until_ms", "pinned"]
    assert ads.pinned() == 2
    lease.renew()
    assert store.check() == []


def test_an_experiment_keeps_what_can_be_read_of_it(store: Store, ads: ModelVersions) -> None:
    ads.experiments.change(lambda before: before.pinned({"u": "base"}))
    store.client.hset(ads.keys.experiment, "shares", "half and half")
    [finding] = store.check(repair=True)
    assert "half and half" in finding.found
    kept = ads.experiment()
    assert kept is not None and (dict(kept.pins), kept.shares) == ({"u": "base"}, {})


@on_every_kind
def test_the_command_lists_repairs_and_tells_by_its_exit_code(
    store: Store, store_url: str, ads: ModelVersions, capsys: pytest.CaptureFixture[str]
) -> None:
    check: Callable[..., int] = lambda *more: run(["store", "check", *more, "--store", store_url])  # noqa: E731
    assert check() == 0
    assert capsys.readouterr().out == "all keys are valid\n"
    store.client.set(ads.keys.active, "abc")
    store.client.set("ftrie:user:u", "no hash")
    assert check("ads", "--json") == 5
    listed = json.loads(capsys.readouterr().out)
    finding = {"key": "ftrie:{ads}:active", "found": "'abc'", "expected": "3"}
    finding |= {"repair": "version 3 is active", "repaired": False}
    assert listed == {"findings": [finding], "wrong": 1}
    assert check() == 5
    said = capsys.readouterr()
    assert "ftrie:user:u" in said.out and "--repair does" in said.out
    assert "2 invalid values; run again with --repair" in said.err
    assert check("--repair") == 0
    assert ads.active() == 3
    assert check() == 0


def test_commands_beside_junk_say_what_stood_there_and_the_cure(
    store: Store, store_url: str, ads: ModelVersions, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("rollback ads", "gc ads", "versions ads", "activate ads 1"):
        store.client.set(ads.keys.active, "abc")
        assert run(["store", *command.split(), "--store", store_url]) == 0
        said = capsys.readouterr().err
        assert "active" in said and "`ftrie store check ads --repair`" in said


@on_every_kind
def test_a_damaged_history_is_found_and_removed_and_a_sound_one_kept(store: Store) -> None:
    plan = HistoryPlan((SEEN,), (ITEM,), (), KEPT_US)
    user = UserHistory()
    user.add(SEEN, 5, [[b"i1"]])
    sound = user.encode(plan)
    store.records.put_histories("ads", [(b"u", sound), (b"v", sound[:-1]), (b"w", b"junk")], 60_000)
    store.client.rpush(history_key("ads", b"x"), "a list")
    found = store.check(repair=True)
    assert sorted(each.key.split(":")[3][0] for each in found) == ["v", "w", "x"]
    assert all(each.repaired for each in found)
    assert store.check() == []
    assert store.client.get(history_key("ads", b"u")) == sound


STEPS = [name for name in _ModelCheck.run.__code__.co_names if name in vars(_ModelCheck)]


@pytest.mark.parametrize("step", slow_except(["_examine", "_active"], STEPS))
def test_versions_that_come_and_go_meanwhile_are_sound(
    step: str, store: Store, ads: ModelVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer publishes, activates and collects at each moment of a check, and a guard refuses a version."""
    base, own, fields = model(weights=[9.0] * 5), getattr(_ModelCheck, step), _ModelCheck._fields

    def trains() -> None:
        newest = ads.publish_and_activate(base)
        ads.publish_and_activate(model(weights=[10.0] * 5).changes_since(base, version=newest))
        ads.guard.refuse([newest], "for the test")
        ads.gc(2)

    def within(check: _ModelCheck, version: int) -> object:
        found = fields(check, version)
        monkeypatch.setattr(_ModelCheck, "_fields", fields)
        trains()
        return found

    for when in ("before", "after", "within"):

        def looked(check: _ModelCheck, *of: int, when: str = when) -> object:
            if when == "before":
                trains()
            elif when == "within":
                monkeypatch.setattr(_ModelCheck, "_fields", within)
            found = own(check, *of)
            if when == "after":
                trains()
            return found

        monkeypatch.setattr(_ModelCheck, step, looked)
        for repair in (False, True):
            assert store.check(repair=repair) == [], when
            assert ads.active() == ads.versions()[-1].version


def test_a_key_whose_type_changes_while_it_is_checked_ends_no_check(store: Store, ads: ModelVersions) -> None:
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            with store.client.pipeline(transaction=True) as pipe:
                pipe.delete(ads.keys.history)
                pipe.set(ads.keys.history, "x")
                pipe.execute()
                pipe.delete(ads.keys.history)
                pipe.rpush(ads.keys.history, "1")
                pipe.execute()

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(30):
            assert {each.key for each in store.check(["ads"], repair=False)} <= {ads.keys.history}
    finally:
        ended.set()
        changer.join()
