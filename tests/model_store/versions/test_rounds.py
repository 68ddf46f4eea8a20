"""Parts of rounds in the store: complete or absent, written once, refused to who lost the lease, named when damaged."""

from __future__ import annotations

import pytest

from model_store.errors import StaleEpoch, UnreadableValue
from model_store.store import Store
from model_store.versions import rounds as parts
from model_store.versions.lease import TrainerLease
from model_store.versions.rounds import MODEL, PartitionsRecord, Rounds, contribution, state
from tests.model_store.kinds import on_every_kind

RECORD = PartitionsRecord(start=3, partitions=2, every_us=60_000_000, spec="{}", saved=5, oldest=4)
KEY = "ftrie:{m}:round:3:7:1"


@pytest.fixture
def rounds(store: Store) -> Rounds:
    return store.rounds("m")


@pytest.fixture
def lease(store: Store) -> TrainerLease:
    lease = store.trainer_lease("m", "first", 2)
    lease.take()
    return lease


def test_a_record_is_read_as_written_and_named_if_it_is_none(rounds: Rounds, store: Store) -> None:
    assert rounds.record() is None
    numbers = (b"-1", b"one", b"", b"\xff", b"01")
    junk = dict.fromkeys(("start", "partitions", "every_us", "saved", "oldest"), numbers)
    for field, values in (junk | {"spec": (b"", b"[" * 100_000, b"null", b"\xff")}).items():
        rounds.write_record(RECORD)
        assert rounds.record() == RECORD
        for value in values:
            store.client.hset("ftrie:{m}:partitions", field, value)
            with pytest.raises(UnreadableValue, match=r"ftrie:\{m\}:partitions"):
                rounds.record()


@on_every_kind
def test_a_part_is_written_once_and_read_as_written(
    rounds: Rounds, lease: TrainerLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHUNK_BYTES", 10)
    for size in (0, 1, 10, 11, 30, 31):
        data, part = bytes(range(size)), str(size)
        assert rounds.infos(RECORD, 7, [part]) == {part: None}
        digest = rounds.put(RECORD, 7, part, data, lease)
        assert rounds.put(RECORD, 7, part, b"second", lease) == digest
        assert rounds.get(RECORD, 7, part) == data
        info = rounds.infos(RECORD, 7, [part, "2"])
        assert info["2"] is None
        assert info[part] is not None
        assert (info[part].size, info[part].sha256) == (size, digest)


def test_who_lost_the_lease_writes_nothing(rounds: Rounds, lease: TrainerLease, store: Store) -> None:
    lease.release()
    store.trainer_lease("m", "second", 2).take()
    with pytest.raises(StaleEpoch, match="another trainer has taken over partition 2 of m"):
        rounds.put(RECORD, 7, "2", b"late", lease)
    assert rounds.infos(RECORD, 7, ["2"]) == {"2": None}


def test_partitions_have_leases_of_their_own_and_the_first_one_the_models(store: Store) -> None:
    one, two = store.trainer_lease("m", "a"), store.trainer_lease("m", "b", 2)
    assert one.take() != two.take()
    assert one.keys[0] == "ftrie:{m}:trainer"
    assert two.keys[0] == "ftrie:{m}:trainer:2"


def test_parts_expire_even_if_nobody_deletes_them_and_deleted_ones_leave_nothing(
    rounds: Rounds, lease: TrainerLease, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHUNK_BYTES", 4)
    names = [contribution(1), state(1), MODEL]
    for name in names:
        rounds.put(RECORD, 7, name, b"some bytes", lease)
    keys = list(store.client.scan_iter("ftrie:{m}:round:*"))
    assert len(keys) == 3 * (1 + 3)
    assert all(86_400 < store.client.ttl(key) <= parts.KEPT_S for key in keys)
    rounds.delete(RECORD, 7, [*names, contribution(2)])
    assert not list(store.client.scan_iter("ftrie:{m}:round:*"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda client, chunk: client.set(chunk, b"other bytes"), "is damaged"),
        (lambda client, chunk: client.delete(chunk), "is damaged"),
        (lambda client, chunk: (client.delete(chunk), client.lpush(chunk, 1)), "chunk"),
        (lambda client, chunk: client.hset(KEY, "size", "many"), "got"),
        (lambda client, chunk: client.hset(KEY, "chunk_bytes", "0"), "got"),
        (lambda client, chunk: client.hdel(KEY, "sha256"), "got"),
        (lambda client, chunk: (client.delete(KEY), client.set(KEY, 1)), "WRONGTYPE"),
        (lambda client, chunk: client.delete(KEY), "got nothing"),
    ],
)
def test_a_damaged_part_is_named(
    rounds: Rounds, lease: TrainerLease, store: Store, damage: object, says: str
) -> None:
    rounds.put(RECORD, 7, "1", b"whole bytes", lease)
    (chunk,) = store.client.scan_iter(f"{KEY}:chunk:*")
    assert callable(damage)
    damage(store.client, chunk)
    with pytest.raises(UnreadableValue, match=says) as error:
        rounds.get(RECORD, 7, "1")
    assert KEY in str(error.value)


@on_every_kind
def test_a_repair_removes_what_is_damaged_alone_and_it_is_written_again(
    rounds: Rounds, lease: TrainerLease, store: Store
) -> None:
    rounds.write_record(RECORD)
    for part in ("1", "2", MODEL):
        rounds.put(RECORD, 7, part, part.encode(), lease)
    store.client.set(f"{KEY}:chunk:{lease.epoch}:0", b"x")
    store.client.hset("ftrie:{m}:round:3:7:2", "size", "abc")
    assert {each.key for each in store.check(repair=True)} == {KEY, "ftrie:{m}:round:3:7:2"}
    assert store.check() == []
    assert rounds.record() == RECORD
    assert rounds.get(RECORD, 7, MODEL) == MODEL.encode()
    for part in ("1", "2"):
        assert rounds.infos(RECORD, 7, [part]) == {part: None}
        rounds.put(RECORD, 7, part, part.encode(), lease)
        assert rounds.get(RECORD, 7, part) == part.encode()
