"""Clocks that are set an hour ahead or back, and clocks that stand still: what each part decides then, in one thread.

What a clock of another machine has written is tried by moving what is written: for Redis' own clock, which no test can
set, that is the same. Whole processes are in test_clocks_of_processes.py, the join is in trainer/events/test_clocks.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1.feedback_pb2 import FeedbackEvent, FeedbackKind, ReportRequest
from model_store.errors import ArtefactError, LeaseHeld, StaleEpoch, StoreError
from model_store.spec.sections import GuardSection
from model_store.store import Store
from model_store.versions.model_versions import KEEP
from server.ranking.candidates import CandidateSets
from server.ranking.experiments import divided_since
from server.ranking.store_reads import FAILURES_BEFORE_PAUSE, Breaker, StoredReads
from server.serve.feedback_service import FeedbackService
from server.sync.version_retry import VersionRetry
from server.telemetry.log import OFTEN, OFTEN_LINES, Sparse
from server.telemetry.meter import Meter
from tests.clocks import ManualClock
from tests.model_store.models import model
from tests.trainer.events.test_parse import WANTED, block_of, lines_of, told
from tests.trainer.publish.test_rollback import Watched
from tests.waiting import eventually
from trainer.events.parse import Parser
from trainer.publish.guard import Guard
from trainer.publish.rollback import Evidence
from trainer.runs.trainer import LeaseHolder, StoreTasks
from trainer.settings import Every, Schedule

HOUR_S = 3600
JUMPS = pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["ahead", "back"])
PATIENT: Any = SimpleNamespace(time_remaining=lambda: None)

Acts = Callable[[], bool]
"""Whether it acts now: tries, does what is due, or reads again."""


def breaker(clock: ManualClock, store: Store) -> Acts:
    made = Breaker(clock)
    for _ in range(FAILURES_BEFORE_PAUSE + 3):
        made.failed()
    return lambda: made.pause_s() == 0.0


def refused_version(clock: ManualClock, store: Store) -> Acts:
    retry = VersionRetry("ads", Meter(), clock)

    def acts() -> bool:
        if resting := retry.resting(7):
            return not resting
        retry.refuse(7, ArtefactError("bad"), still_serving=6)
        return True

    return acts


def schedule(clock: ManualClock, store: Store) -> Acts:
    made = Schedule(Every(None, 1.0), 0, clock)

    def acts() -> bool:
        due = made.is_due(0)
        if due:
            made.restart(0)
        return due

    return acts


def tasks(clock: ManualClock, store: Store, fails: bool = False) -> Acts:
    made, runs = StoreTasks(1.0, lambda text: None, clock), [0]

    def task() -> None:
        runs[0] += 1
        if fails:
            raise StoreError("away")

    made.add(task)

    def acts() -> bool:
        before = runs[0]
        made.run_due()
        return runs[0] > before

    return acts


def failing_tasks(clock: ManualClock, store: Store) -> Acts:
    return tasks(clock, store, fails=True)


def log_lines(clock: ManualClock, store: Store) -> Acts:
    sparse = Sparse(clock)

    def acts() -> bool:
        with suppress(structlog.DropEvent):
            return bool(sparse(None, "info", {"event": OFTEN[0]}))
        return False

    for _ in range(OFTEN_LINES):
        acts()
    return acts


def reads_again(store: Store, read: Callable[[], Any], write: Callable[[int], None]) -> Acts:
    """Whether the latest of what is written again and again is read."""
    number = 0

    def acts() -> bool:
        nonlocal number
        number += 1
        write(number)
        return bool(read() == number)

    write(number)
    assert read() == number
    return acts


def candidate_set(clock: ManualClock, store: Store) -> Acts:
    sets = CandidateSets(opened(clock, store))
    return reads_again(
        store,
        lambda: int(sets.members("home", PATIENT)[0][0]),  # type: ignore[index]
        lambda number: store.records.put_candidates("home", [str(number)]),
    )


def opened(clock: ManualClock, store: Store) -> StoredReads:
    reads = StoredReads(store.url, 5.0, clock=clock)
    reads.connect()
    return reads


PIECES = [breaker, refused_version, schedule, tasks, failing_tasks, log_lines, candidate_set]


@pytest.mark.parametrize("piece", PIECES)
def test_what_counts_the_time_that_passes_does_not_look_at_the_wall_clock(
    piece: Callable[[ManualClock, Store], Acts], store: Store
) -> None:
    def decisions(jump_s: float) -> list[bool]:
        clock, found = ManualClock(), list[bool]()
        random.seed(1)  # pauses are of random length
        acts = piece(clock, store)
        for step in range(80):
            if step % 9 == 4:  # and back again, the other way the next time
                clock.jump(jump_s if step % 2 else -jump_s)
            clock.advance(0.25 if piece is not log_lines else 7.0)
            found.append(acts())
        return found

    undisturbed = decisions(0.0)
    assert set(undisturbed) == {False, True}
    assert decisions(HOUR_S) == decisions(-HOUR_S) == undisturbed


@pytest.mark.parametrize("piece", PIECES)
def test_a_process_that_was_stopped_for_an_hour_acts_at_once(
    piece: Callable[[ManualClock, Store], Acts], store: Store
) -> None:
    clock = ManualClock()
    acts = piece(clock, store)
    while acts():
        clock.advance(0.01)
    clock.advance(HOUR_S)
    assert acts()


# -- the lease


def moved(store: Store, key: str, seconds: float, *fields: str, unit: float = 1e3) -> None:
    """Date these fields of a HASH so much earlier or later, as if the store's clock had been set the other way."""
    for field in fields:
        store.client.hincrby(key, field, round(seconds * unit))


@JUMPS
def test_a_living_trainer_keeps_its_lease_and_a_dead_ones_ends_after_its_term(
    store: Store, jump_s: float
) -> None:
    mine, spare = (store.trainer_lease("ads", name) for name in ("mine", "spare"))
    mine.ttl_s = spare.ttl_s = 0.5
    mine.take()
    epoch = mine.epoch

    def jump() -> None:
        moved(store, mine.keys[0], -jump_s, "until_ms", "seen_ms")
        spare._until_ms -= round(jump_s * 1e3)  # it has seen the lease by the clock as it was

    for _ in range(3):
        mine.renew()
        for disturbances in ((), (jump,), (mine.renew, jump)):  # the last: renewed since the spare has looked
            for disturb in disturbances:
                disturb()
            with pytest.raises(LeaseHeld):
                spare.take()
    mine.renew()
    assert not taken(spare)
    began = time.monotonic()
    jump()
    eventually(lambda: taken(spare), "the lease to end")
    assert time.monotonic() - began > 0.45 and spare.epoch > epoch
    with pytest.raises(StaleEpoch):
        mine.renew()
    versions = store.model("ads")
    with pytest.raises(StaleEpoch):
        versions.publish(model(), epoch=epoch)


def taken(lease: Any) -> bool:
    with suppress(LeaseHeld):
        return bool(lease.take())
    return False


@JUMPS
def test_a_released_lease_is_free_whatever_the_clock_does(store: Store, jump_s: float) -> None:
    mine = store.trainer_lease("ads", "mine")
    mine.take()
    mine.release()
    moved(store, mine.keys[0], -jump_s, "until_ms", "seen_ms")
    store.trainer_lease("ads", "spare").refuse_while_held()
    assert store.model("ads").publish_and_activate(model()) == 1


def test_a_writer_waits_no_longer_than_the_term_for_a_dead_trainer(store: Store) -> None:
    lease, versions = store.trainer_lease("ads", "dead"), store.model("ads")
    lease.ttl_s = 0.0
    lease.take()
    version = versions.publish(model(), epoch=(epoch := versions.begin()))
    lease.ttl_s = 0.2
    lease.renew()  # the lease had ended, but nobody had taken it
    moved(store, lease.keys[0], HOUR_S, "until_ms", "seen_ms")
    with pytest.raises(LeaseHeld, match=r"last seen 0\.\d s ago"):
        versions.activate(version, epoch=epoch)
    time.sleep(0.2)
    versions.activate(version, epoch=epoch)


def test_a_trainer_whose_clocks_stood_still_asks_before_it_writes_what_no_fence_holds_back(
    store: Store,
) -> None:
    asleep, other = (store.trainer_lease("ads", name) for name in ("asleep", "other"))
    asleep.ttl_s = 0.05
    asleep.take()
    holder = LeaseHolder(asleep, lambda: 0, ManualClock())  # as after the machine slept
    eventually(lambda: taken(other), "the lease to end")
    for asks in (holder.confirm, holder.check):
        with pytest.raises(StaleEpoch, match="another trainer has taken over"):
            asks()


# -- the guard


@JUMPS
def test_a_cooldown_lasts_no_longer_than_it_says(store: Store, jump_s: float) -> None:
    versions = store.model("shop")
    bounds, guard = GuardSection(cooldown="10m"), Guard(versions, lambda text: None)
    versions.guard.note_rollback(2, 1, "bad")
    moved(store, versions.keys.guard, -jump_s, "when_us", unit=1e6)
    for _ in range(2):
        held = guard._cooldown(bounds)
        assert (held == "") if jump_s > 0 else ("for another 600 s" in held)
    moved(store, versions.keys.guard, -601, "when_us", unit=1e6)
    assert guard._cooldown(bounds) == ""


def test_after_an_order_of_the_future_the_watch_counts_what_comes_now(store: Store) -> None:
    versions, asked = store.model("shop"), list[int]()
    watched = Watched(versions)
    watched.publish(2)
    versions.guard.overrule(2)
    moved(store, versions.keys.guard, HOUR_S, "since_us", unit=1e6)  # the store's clock is an hour back now

    def evidence(since_us: int) -> dict[int, Evidence]:
        asked.append(since_us)
        return {}

    for _ in range(2):
        watched.watch.check(evidence, watched.epoch)
    assert len(set(asked)) == 1 and asked[0] <= versions.guard.now_us()


# -- versions, experiments


@JUMPS
def test_versions_go_forward_and_none_that_is_needed_is_collected(store: Store, jump_s: float) -> None:
    clock = ManualClock()
    with Store.open(store.url, clock=clock) as publisher:
        ads = publisher.model("ads")
        for number in range(1, 19):
            if number in (7, 13):
                clock.jump(jump_s if number == 7 else -jump_s)
            clock.advance(20)
            assert ads.publish_and_activate(model()) == number
            before = {info.version for info in ads.versions()}
            gone = set(ads.gc())
            assert not gone & {number, number - 1, *range(number - KEEP + 1, number + 1)}
            assert before - gone == {info.version for info in ads.versions()}
        kept = {info.version for info in ads.versions()}
    with Store.open(store.url, clock=ManualClock(time.time() + 1e9)) as operator:
        assert operator.model("ads").gc() == [], "an operator's clock decides nothing"
    assert kept == {info.version for info in store.model("ads").versions()}


def test_a_new_version_has_the_highest_number_though_those_before_it_are_of_the_future(store: Store) -> None:
    clock = ManualClock()
    with Store.open(store.url, clock=clock) as publisher:
        ads = publisher.model("ads")
        for number in range(1, 15):
            if number == 13:
                clock.jump(-HOUR_S)
            elif number == 14:
                store.client.delete(ads.keys.sequence)
            assert ads.publish(model()) == number


@JUMPS
def test_an_experiment_counts_from_the_minute_of_its_answers(store: Store, jump_s: float) -> None:
    with Store.open(store.url, clock=ManualClock(time.time() + jump_s)) as operator:
        ads = operator.model("ads")
        before_s = store.client.time()[0]
        ads.publish_and_activate(model())
        for record in (
            ads.experiments.change(lambda each: each.divided({"base": 1.0})),
            ads.experiments.clear(),
        ):
            since = divided_since(ads, record)
            assert before_s // 60 < since <= store.client.time()[0] // 60 + 1


# -- times of the future


@JUMPS
def test_an_event_of_the_present_is_none_of_the_future_once_the_clock_was_right(
    store: Store, jump_s: float
) -> None:
    clock = ManualClock()
    parser, service = Parser(WANTED, clock=clock), FeedbackService(["ads"], Meter(), store.url, clock=clock)
    service.connect()
    clock.advance(HOUR_S)
    times_s = int(clock.time()), int(clock.time()) + 1_000_000
    clock.jump(jump_s)
    assert set(parser.parse(*block_of(lines_of([told(ts=each) for each in times_s]))).bad) == {1}
    click = FeedbackKind.FEEDBACK_KIND_CLICK
    events = [
        FeedbackEvent(request_id="r", item_id="i", kind=click, event_time=Timestamp(seconds=each))
        for each in times_s
    ]
    answer = service.Report(ReportRequest(events=events), PATIENT)
    service.close()
    assert (answer.accepted_count, [each.index for each in answer.rejected_events]) == (1, [1])
