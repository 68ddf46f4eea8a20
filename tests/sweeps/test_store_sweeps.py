"""The n-th failure of what changes a store: versions, activation, experiments, records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
from redis import Redis

from model_store.errors import LeaseHeld
from model_store.store import Store
from model_store.streams.feedback import Event
from model_store.versions import model_versions, rounds
from model_store.versions.experiments import Experiment
from model_store.versions.lease import TrainerLease
from model_store.versions.rounds import PartitionsRecord
from tests.model_store.models import KEYS, model
from tests.sweeps.sweep import Operation, sweep

FIRST, SECOND, THIRD = (model(weights=[weight] * len(KEYS)) for weight in (1.0, 2.0, 3.0))


@dataclass
class Shop:
    """A store with two versions, the second active; `store` is what the operation uses."""

    store: Store
    url: str


@cache
def dump(url: str) -> dict[bytes, bytes]:
    """What the store of a fresh world has."""
    with Store.open(url) as store:
        store.client.flushall()
        ads = store.model("ads")
        ads.publish_and_activate(FIRST)
        ads.publish_and_activate(SECOND)
        ads.experiments.change(lambda e: replace(e, shares={"base": 0.9, "plain": 0.1}))
        store.records.put_candidates("top", ["a", "b"])
        return {key: store.client.dump(key) for key in store.client.scan_iter("*")}


@contextmanager
def shop(url: str) -> Iterator[Shop]:
    kept = dump(url)
    with Store.open(url) as store:
        with store.client.pipeline() as pipe:
            pipe.flushall()
            for key, value in kept.items():
                pipe.restore(key, 0, value)
            pipe.execute()
        yield Shop(store, url)


def state(world: Shop) -> object:
    """The contents of the versions that are listed, the active one's, the experiment, the records; nothing damaged."""
    with Store.open(world.url) as store:
        ads = store.model("ads")
        contents = {ads.materialise(info.version).content for info in ads.versions()}
        active = ads.active()
        experiment = ads.experiment()
        return (
            frozenset(contents),
            active is not None and ads.materialise(active).content,
            experiment and (experiment.shares, experiment.pins, experiment.state, experiment.winner),
            tuple(store.records.candidates("top") or ()),
            tuple(sorted((key, tuple(sorted(record.items()))) for key, record in store.records.scan_items())),
            tuple(sorted(store.records.user("u1").items())),
        )


def damaged(world: Shop) -> list[str]:
    with Store.open(world.url) as store:
        return [str(finding) for finding in store.check()]


def publish(world: Shop) -> None:
    world.store.model("ads").publish(THIRD)


def publish_and_activate(world: Shop) -> None:
    world.store.model("ads").publish_and_activate(THIRD)


DELTA = THIRD.changes_since(SECOND, version=2)


def publish_only_delta(world: Shop) -> None:
    world.store.model("ads").publish(DELTA)


def publish_delta(world: Shop) -> None:
    world.store.model("ads").publish_and_activate(DELTA)


def activate(world: Shop) -> None:
    world.store.model("ads").activate(1)


def rollback(world: Shop) -> None:
    ads = world.store.model("ads")
    if ads.active() == 2:
        ads.rollback()


def divide(world: Shop) -> None:
    world.store.model("ads").experiments.change(lambda e: replace(e, shares={"base": 0.2, "plain": 0.8}))


def stop(world: Shop) -> None:
    def stopped(e: Experiment) -> Experiment:
        return e if not e.running else e.stopped("base")

    world.store.model("ads").experiments.change(stopped)


def put_candidates(world: Shop) -> None:
    world.store.records.put_candidates("top", ["c", "d"])


def put_users(world: Shop) -> None:
    world.store.records.put_users([("u1", {"age": "30", "city": "x"})])


def put_items(world: Shop) -> None:
    world.store.records.put_items([("i1", {"brand": "b"})])


BETWEEN: dict[Callable[[Shop], None], Callable[[Shop], None]] = {
    publish_and_activate: publish,
    publish_delta: publish_only_delta,
}
OPERATIONS: list[Callable[[Shop], None]] = [
    publish,
    publish_and_activate,
    publish_delta,
    activate,
    rollback,
    divide,
    stop,
    put_candidates,
    put_users,
    put_items,
]


IN_EVERY_RUN = (activate, put_users)
"""The others are among the slow tests."""


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(act, id=act.__name__, marks=[pytest.mark.slow] * (act not in IN_EVERY_RUN))
        for act in OPERATIONS
    ],
)
def test_each_failure_leaves_the_old_state_or_the_new_one(
    socket_url: str, control: Redis[bytes], act: Callable[[Shop], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_versions, "CHUNK_BYTES", 2048)
    between = (BETWEEN[act],) if act in BETWEEN else ()
    sweep(
        Operation(
            act.__name__, partial(shop, socket_url), act, state, damaged, between=between, store=control
        )
    )


def test_feedback_that_is_reported_again_is_in_the_stream_once(
    socket_url: str, control: Redis[bytes]
) -> None:
    """Also where the store had it and the answer was lost."""
    events = [Event("r1", item) for item in ("a", "b")]

    def state(world: Shop) -> object:
        with Store.open(world.url) as store:
            found = [json.loads(each) for each in store.clicks("ads").latest(10)]
        return [(each["request_id"], each["item"]) for each in found]

    def report(world: Shop) -> None:
        with closing(world.store.feedback()) as feedback:
            feedback.report("ads", events)

    sweep(Operation("report", partial(shop, socket_url), report, state, damaged, store=control))


def test_a_part_of_a_round_is_whole_or_absent(
    socket_url: str, control: Redis[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CHUNK_BYTES", 10)
    record = PartitionsRecord(start=3, partitions=2, every_us=60_000_000, spec="{}", saved=5, oldest=4)

    @contextmanager
    def world() -> Iterator[tuple[Shop, TrainerLease]]:
        with shop(socket_url) as opened, Store.open(socket_url) as first:
            first.rounds("ads").write_record(record)
            lease = first.trainer_lease("ads", "t", 2)
            lease.take()
            yield opened, lease

    def put(at: tuple[Shop, TrainerLease]) -> None:
        at[0].store.rounds("ads").put(record, 7, "1", b"0123456789" * 4, at[1])

    def state(at: tuple[Shop, TrainerLease]) -> object:
        with Store.open(socket_url) as store:
            found = store.rounds("ads")
            return found.get(record, 7, "1") if found.there(record, [7], "1") else None

    sweep(Operation("put", world, put, state, store=control))


def take(world: Shop) -> None:
    lease = world.store.trainer_lease("ads", "t")
    lease.take()
    lease.renew(rows=5)


def test_a_lease_is_held_or_not(socket_url: str, control: Redis[bytes]) -> None:
    """By the same owner, who may always take it again."""

    def state(world: Shop) -> object:
        with Store.open(world.url) as store:
            try:
                store.trainer_lease("ads", "other").refuse_while_held()
            except LeaseHeld:
                return "held"
            return "free"

    sweep(Operation("take", partial(shop, socket_url), take, state, damaged, store=control))
