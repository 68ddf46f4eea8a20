"""Every key of `model_store.keys` with wrong types and wrong values: nothing dies of it, and `store check` repairs it.

The keys are those of the table: a new one is fuzzed by itself, or fails here until `filled` writes it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import grpc
import pytest

from ftrie.api.admin import AdminClient, AdminFailed
from ftrie.api.client import Client, RankFailed
from model_store.errors import FtrieError
from model_store.features.history import ITEM, KEPT_US, SEEN, HistoryPlan, UserHistory
from model_store.keys import TABLE, AnyKey, ModelKeys, history_key
from model_store.store import Store
from model_store.streams.event_streams import Letter
from model_store.streams.feedback import Event
from model_store.versions.audit import By
from model_store.versions.rounds import MODEL, PartitionsRecord, contribution, state
from server.serve.admin_service import ModelAdminService
from server.settings import Settings
from server.sync import model_sync as follower
from server.sync.experiment_sync import ExperimentSync
from server.telemetry.status import SupervisorStatus
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually
from tests.worlds import online_cell
from trainer.runs.trainer import run as run_trainer
from trainer.settings import Every, TrainerOptions

TYPES = ("string", "list", "set", "zset", "hash", "stream")
NUMBERS = (b"abc", b"", b"-1", b"1e9", b"0", b"9" * 12, b"9" * 24, b"\xff\xfe", b" 7", b"07")
TEXTS = (b"abc", b"", b"\xff\xfe", b"[" * 100_000, b"null", b"1e999", b'{"a": 1' + b"0" * 400 + b"}")
FUTURE = "9999999999999-0"
READ_BY_A_TRAINER = (ModelKeys.active, ModelKeys.trainer, ModelKeys.epoch, ModelKeys.impressions)
WAIT_S = 30.0
MINUTE = 28_000_000
IMPRESSION = b"""{
    "request_id": "r1", "ts": 1714550400.0, "cookie": "u1", "version": 1, "variant": "base",
    "age": "20", "device": "u1", "likes": ["red"], "hour": "2024-05-01T08:00:00", "distance": 2.5, "items": [
        {"id": "item-1", "ctr": 0.1, "features": {"brand": "b1", "tags": ["red"], "price": 3.0}},
        {"id": "item-2", "ctr": 0.1, "features": {"brand": "b2", "tags": [], "price": 6.0}}
    ]
}"""


def history() -> bytes:
    """The record of a user who was shown one item."""
    plan, user = HistoryPlan((SEEN,), (ITEM,), (), KEPT_US), UserHistory()
    user.add(SEEN, 1_700_000_000_000_000, [[b"item-1"]])
    return user.encode(plan)


def filled(store: Store) -> None:
    """Everything that ftrie writes, once: a snapshot, a delta of it, a snapshot that is active, and the records."""
    versions = store.model(shop.NAME)
    shop.fill(store)
    delta = shop.artefact(2).changes_since(shop.artefact(1), version=1)
    versions.activate(versions.publish(delta, epoch=versions.begin()))
    versions.activate(versions.publish(shop.artefact(3)))
    versions.experiments.change(
        lambda before: before.pinned({"u1": "base"}).divided({"base": 0.5, "plain": 0.5})
    )
    versions.guard.watch(3, 1)
    versions.guard.note_rollback(2, 1, "a test")
    versions.online.write({(MINUTE, "base"): online_cell(requests=1)})
    versions.online.add_up(range(MINUTE // 60, MINUTE // 60 + 1))
    store.client.persist(versions.keys.outcomes(MINUTE))
    store.client.persist(versions.keys.outcomes_of_hour(MINUTE // 60))
    store.records.put_histories(shop.NAME, [(b"u1", history())], 60_000)
    store.client.persist(history_key(shop.NAME, b"u1"))
    store.impressions(shop.NAME).append([IMPRESSION])
    feedback = store.feedback()
    feedback.report(shop.NAME, [Event("r1", "item-1")])
    feedback.close()
    store.dead_letters(shop.NAME).add(1, [Letter("source", "place", "reason", b"{}")])
    lease = store.trainer_lease(shop.NAME, "folder")
    lease.take()
    lease.release()
    versions.activate(3)  # pins it
    store.to_forget(shop.NAME).add(1, [2])
    versions.audit.write(By("a test"), "activate", 2, 3)
    partition, rounds = store.trainer_lease(shop.NAME, "another", 2), store.rounds(shop.NAME)
    partition.take()
    record = PartitionsRecord(partition.epoch, partitions=2, every_us=60_000_000, spec=shop.spec().to_json())
    rounds.write_record(record)
    for part in (contribution(2), state(2), MODEL):
        rounds.put(record, 5, part, part.encode(), partition)
    partition.release()
    store.records.item_changes.state()
    store.client.set("ftrie:items:generation", "1")


@dataclass(frozen=True)
class Junk:
    key: str
    name: str
    words: tuple[tuple[bytes | str, ...], ...]

    def put(self, store: Store) -> None:
        for command in self.words:
            store.client.execute_command(*command)


def junk_of(store: Store) -> list[Junk]:
    """All junk there is for the keys of the table."""
    found = []
    keys = sorted(key.decode() for key in store.client.scan_iter())
    for kind in TABLE:
        there = [key for key in keys if is_of(key, kind)]
        assert there, f"{kind.pattern}: `filled` writes no such key, so junk in it would go unnoticed"
        for key in there[:4]:
            found += wrong_types(key, [each for each in TYPES if each not in kind.types])
            found += wrong_values(store, key)
    return found


def wrong_types(key: str, kinds: list[str]) -> Iterator[Junk]:
    write: dict[str, tuple[bytes | str, ...]] = {
        "string": ("SET", key, b"abc"),
        "list": ("RPUSH", key, b"abc"),
        "set": ("SADD", key, b"abc"),
        "zset": ("ZADD", key, "1", b"abc"),
        "hash": ("HSET", key, b"abc", b"abc"),
        "stream": ("XADD", key, "*", b"abc", b"abc"),
    }
    for kind in kinds:
        yield Junk(key, f"a {kind}", (("DEL", key), write[kind]))


def wrong_values(store: Store, key: str) -> Iterator[Junk]:
    def all_of(values: Iterable[bytes], *command: bytes | str) -> Iterator[Junk]:
        for value in values:
            yield Junk(key, f"{value[:9]!r}", ((command[0], key, *command[1:], value),))

    match store.client.type(key):
        case b"string":
            yield from all_of(TEXTS if "chunk" in key else NUMBERS, "SET")
        case b"hash":
            for field, there in sorted(store.client.hgetall(key).items()):
                for value in NUMBERS if there.isdigit() else TEXTS:
                    yield Junk(key, f"{field.decode()}={value[:9]!r}", (("HSET", key, field, value),))
                yield Junk(key, f"no {field.decode()}", (("HDEL", key, field),))
            yield Junk(key, "another field", (("HSET", key, b"\xff\xfe", b"\xff\xfe"),))
        case b"list":
            yield from all_of(NUMBERS, "LPUSH")
        case b"zset":
            yield from all_of(NUMBERS, "ZADD", "1")
            for score in ("inf", "-inf", "-1", "1e300"):
                yield Junk(key, f"score {score}", (("ZADD", key, score, store.client.zrange(key, 0, 0)[0]),))
        case b"stream":
            yield Junk(key, "other fields", (("XADD", key, "*", b"\xff", b"\xff", b"version", b"abc"),))
            yield Junk(key, "not JSON", (("XADD", key, "*", b"json", b"[" * 100_000),))
            if not key.endswith(":dead"):
                yield Junk(key, "a future id", (("XADD", key, FUTURE, b"version", b"abc"),))


class Whole:
    """A store with everything in it, a server and an admin service on it; each test begins with all of it as it was."""

    def __init__(self, url: str, store: Store, folder: Path) -> None:
        self.url, self.store, self.folder = url, store, folder
        store.client.flushall()
        filled(store)
        self.there = {key: store.client.dump(key) for key in store.client.scan_iter()}
        self.ttl = {key: max(0, store.client.pttl(key)) for key in self.there}
        self.junk = junk_of(store)
        self.server = Server(Settings((shop.NAME,), url, drain_s=1.0, store_budget_s=1.0, user_ttl_s=0.0))
        self.server.startup()
        assert self.server.ready.wait(170)
        self.client = Client(self.server.address, timeout_s=WAIT_S)
        self.grpc = grpc.server(ThreadPoolExecutor(2))
        self.grpc.add_generic_rpc_handlers((ModelAdminService(Administered(self.server)).handlers(),))
        port = self.grpc.add_insecure_port("127.0.0.1:0")
        self.grpc.start()
        self.admin = AdminClient(f"127.0.0.1:{port}", WAIT_S)
        self.runs = 0
        store.model(shop.NAME).resume()
        self.train()  # loads the kernels

    def as_it_was(self) -> None:
        """The store as `filled` has left it, in one step."""
        with self.store.client.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, dumped in self.there.items():
                pipe.restore(key, self.ttl[key], dumped)
            pipe.execute()
        self.look()

    def look(self) -> None:
        assert self.server._sync.look_now(shop.NAME, WAIT_S)

    def train(self) -> None:
        """A trainer's whole life, on what is in the streams."""
        self.runs += 1
        seldom = Every.parse("1h")
        folder = self.folder / f"run-{self.runs}"
        options = TrainerOptions(
            store=self.url, sources=("store",), checkpoint=folder, every=seldom, publish_every=seldom,
            snapshot_every=Every(1, None), keep=50, once=True, idle_s=1.0, memory_bytes=1 << 20, say_every_s=60.0,
        )  # fmt: skip
        run_trainer(shop.spec(), options, lambda status: None)

    def close(self) -> None:
        self.client.close()
        self.admin.close()
        self.grpc.stop(0)
        self.server.drain()
        self.server.shutdown()


class Administered:
    """A server in this process, as the admin service needs it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def status(self) -> SupervisorStatus:
        return SupervisorStatus(self._server.address, True, False, self._server.status(), ())

    def experiment(self, model: str) -> ExperimentSync:
        return self._server._sync.experiment(model)

    def look_now(self, model: str, timeout_s: float) -> bool:
        return self._server._sync.look_now(model, timeout_s)


@pytest.fixture(scope="module")
def whole(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with pytest.MonkeyPatch.context() as patch, Store.open(valkey_url) as store:
        patch.setattr(follower, "WAIT_S", 0.01)
        made = Whole(valkey_url, store, tmp_path_factory.mktemp("trainers"))
        yield made
        made.close()


def asked_of_the_store(whole: Whole) -> list[tuple[str, Callable[[], object]]]:
    """What every command does. Each may be refused with a message, and in no other way."""
    versions = whole.store.model(shop.NAME)
    return [
        ("versions", versions.versions),
        ("inspect", lambda: versions.materialise(versions.active_or_fail())),
        ("report", lambda: list(versions.online.read(MINUTE, MINUTE + 1, MINUTE))),
        ("experiment", versions.experiment),
        ("dead", lambda: list(whole.store.dead_letters(shop.NAME).latest(5))),
        ("audit", lambda: versions.audit.read(5)),
        ("gc --dry-run", lambda: versions.gc(2, dry_run=True)),
        ("resume", versions.resume),
        ("train", whole.train),
        ("activate", lambda: versions.activate(2)),
        ("rollback", versions.rollback),
        ("publish", lambda: versions.publish(shop.artefact(4))),
        ("gc", lambda: versions.gc(50)),
    ]


def asked_of_the_server(whole: Whole) -> list[tuple[str, Callable[[], object]]]:
    return [
        ("GetStatus", whole.admin.status),
        ("Reload", whole.admin.reload),
        ("Rank set", lambda: whole.client.rank(cookie="u1", candidate_set="front page")),
    ]


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except (AdminFailed, RankFailed) as error:
        return error.code
    return grpc.StatusCode.OK


def survives(whole: Whole, junk: Junk, *, trains: bool = True) -> None:
    """Everything is asked while the junk is there; then it is repaired, and all is as it should be.

    trains: run a trainer with the junk there, and another after the repair.
    """
    whole.as_it_was()
    junk.put(whole.store)
    for name, ask in asked_of_the_store(whole):
        with suppress(FtrieError):  # anything else fails the test
            if trains or name != "train":
                ask()
    whole.as_it_was()
    junk.put(whole.store)
    for name, ask in asked_of_the_server(whole):
        assert status_of(ask) is not grpc.StatusCode.INTERNAL, name
    answer = whole.client.rank(cookie="u1", candidates=["item-1"], variant="base")
    assert answer.version in (1, 2, 3)

    whole.as_it_was()
    junk.put(whole.store)
    is_repaired(whole, junk)
    if trains:
        whole.train()


def is_repaired(whole: Whole, junk: Junk) -> None:
    versions = whole.store.model(shop.NAME)
    dry, found = whole.store.check(), whole.store.check(repair=True)
    assert all(each.repaired for each in found), found
    assert not any(each.repaired for each in dry) and bool(dry) == bool(found), (dry, found)
    assert whole.store.check() == []
    lost = {int(junk.key.split(":")[3])} if re.search(":version:.*:chunk:", junk.key) else set()
    lost |= {2} if 1 in lost else set()  # the delta stands on it
    if junk.name.startswith("refused="):  # whatever stands there is a reason
        lost.add(int(junk.key.split(":")[3]))
    there = versions.versions()
    good = [info.version for info in there if not info.refused]
    assert set(good) | lost >= {1, 2, 3}, (found, there)
    for version, seed in ((1, 1), (2, 2), (3, 3)):
        if version in good:
            assert versions.materialise(version).content == shop.artefact(seed).content
    active = versions.active()
    assert active in good and (active == 3 or 3 in lost or junk.key.endswith("}:active")), (active, found)
    whole.look()
    serves(whole, active)

    if others := [each for each in good if each != active]:
        assert versions.activate(others[0]) == active and versions.rollback() == active
    versions.resume()
    newest = versions.publish_and_activate(shop.artefact(4))
    assert newest == max(info.version for info in versions.versions())
    versions.gc(50)
    whole.look()
    serves(whole, newest)
    assert whole.admin.status().models[0].version == newest


def serves(whole: Whole, version: int) -> None:
    eventually(lambda: whole.client.rank(candidates=["item-1"]).version == version, f"version {version}")
    [status] = whole.server.status()
    assert status.problem == ""


@pytest.mark.parametrize(("number", "key"), list(enumerate(TABLE)), ids=[key.pattern for key in TABLE])
def test_junk_kills_nothing_and_is_repaired(whole: Whole, number: int, key: AnyKey) -> None:
    """A selection: for every other key a wrong type, for the others a wrong value."""
    of_key = [junk for junk in whole.junk if is_of(junk.key, key)]
    some = [junk for junk in of_key if junk.name.startswith("a ") == (number % 2 == 0)]
    survives(whole, some[len(some) // 2], trains=key in READ_BY_A_TRAINER)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("number", "key"), list(enumerate(TABLE)), ids=[key.pattern for key in TABLE])
def test_more_junk_kills_nothing_and_is_repaired(
    whole: Whole, number: int, key: AnyKey, pytestconfig: pytest.Config
) -> None:
    """Of some 1,200 cases those that `--fuzz-cases` and `--chaos-seed` draw; a number that large takes them all.

    Wrong types and wrong values take turns, and the kind that the selection above has left out is first.
    """
    of_key = [junk for junk in whole.junk if is_of(junk.key, key)]
    many, seed = pytestconfig.getoption("fuzz_cases"), pytestconfig.getoption("chaos_seed")
    random.Random(seed).shuffle(of_key)
    first, second = (
        [junk for junk in of_key if junk.name.startswith("a ") == (number % 2 == turn)] for turn in (1, 0)
    )
    in_turn = [junk for pair in zip_longest(first, second) for junk in pair if junk is not None]
    for junk in in_turn[:many]:
        survives(whole, junk)


def is_of(key: str, kind: AnyKey) -> bool:
    return re.fullmatch(kind.expression, key) is not None
