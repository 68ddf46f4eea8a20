"""Experiments against a model of them: in any order of operators' changes, versions, losses and restarts, a cookie gets
the variant that these few lines say.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ctr.v1.ranking_pb2 import Item, RankRequest, RankResponse
from model_store.errors import (
    ExperimentChanged,
    ExperimentError,
    Pinned,
    StoreError,
    StoreUnavailable,
    VersionNotFound,
)
from model_store.store import Store
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment
from model_store.versions.lease import TrainerLease
from server.ranking.experiments import assigned_by_spec, change_experiment
from server.ranking.served import ServedVersion
from server.serve.worker import Worker
from server.settings import Settings
from server.sync import model_builder
from server.sync.model_sync import ModelSync
from server.sync.state_folder import StateFolder
from server.sync.store_sync import StoreSync
from server.telemetry.meter import Meter
from tests.clocks import ManualClock
from tests.server.model.models import parse
from tests.server.slow_ranker import artefact_of

NAME, BY = "m", By("a test")
SHARES: list[dict[str, float]] = [
    {"a": 0.5, "b": 0.5},
    {"a": 0.25, "b": 0.75},
    {"b": 0.125, "c": 0.875},
    {"c": 0.5, "a": 0.5},
]
"""By spec: its variants in their order."""
SPECS = [
    parse({"age": {"side": "user"}}, variants={name: {"share": share} for name, share in shares.items()})
    for shares in SHARES
]
MODELS = [artefact_of(spec, {b"bias": (1.0, 1)}) for spec in SPECS]
COOKIES = ["u1", "u2", "u3", "u4", "ü", ""]
"""An empty one is none: the request's id stands for it."""
DIVISIONS: list[dict[str, float]] = [
    {}, {"a": 1.0}, {"b": 0.25, "a": 0.75}, {"a": 0.5, "b": 0.5}, {"c": 0.75, "b": 0.25},
]  # fmt: skip
THEN = st.integers(0, 2)
"""What follows: nothing, the server looks at the store, or the worker serves what it was sent too."""


DAMAGES = st.sampled_from(
    [("shares", '{"a": 0.5}'), ("state", "?"), ("format", "99"), ("salt", b"\xff"), ("pin:x", b"\xff")]
)


class Change(NamedTuple):
    """What `ftrie experiment` can do to a record."""

    command: str
    words: Any

    def made(self, before: Experiment) -> Experiment:
        match self.command:
            case "set":
                return before.divided(*self.words)
            case "pin":
                return before.pinned(self.words)
            case "unpin":
                return before.unpinned(self.words)
            case "shadow":
                return replace(before, shadows=self.words)
            case "ahead":
                return Experiment(shares=self.words[0], pins={"u1": self.words[1]})
            case _:
                return before.stopped(self.words)


EDIT = st.sampled_from(
    [
        *(Change("set", each) for each in zip(DIVISIONS, (None, None, "", "s", None), strict=True)),
        *(Change("pin", {cookie: variant}) for cookie, variant in itertools.product(COOKIES[:-1], "abc")),
        *(Change("unpin", COOKIES[:number]) for number in range(1, 4)),
        *(Change("shadow", names) for names in ((), ("a",), ("a", "b"), ("b", "c"))),
        *(Change("stop", variant) for variant in "aabbc"),
        *(Change("ahead", each) for each in zip(DIVISIONS, "abcba", strict=True)),
        Change("clear", None),
    ]
)
EDITS = st.lists(EDIT, min_size=1, max_size=6)


# -- the model


def names(record: Experiment) -> set[str]:
    """The variants without which a record means nothing."""
    return {*record.shares, *record.pins.values(), *record.shadows, record.winner} - {""}


def choice(record: Experiment | None, spec: int, cookie: str) -> str:
    """The definition, as docs/experiments.md has it."""
    shares = SHARES[spec]
    if record is not None:
        if record.winner:
            return record.winner
        if cookie in record.pins:
            return record.pins[cookie]
        shares = {name: record.shares.get(name, 0.0) for name in shares} if record.shares else shares
    salt = (record and record.salt) or NAME
    digest = blake2b(f"{salt}\0{cookie}".encode(), digest_size=8).digest()
    point, border = Fraction(int.from_bytes(digest, "big"), 2**64), Fraction(0)
    for name, share in shares.items():
        border += Fraction(share)
        if point < border:
            return name
    raise AssertionError("shares sum to 1")


class Follower:
    """What a server goes by: the record that was read last, and those that stand in where it does not fit a version."""

    def __init__(self) -> None:
        self.asked: Experiment | None = None
        self.earlier: list[Experiment] = []
        self.spec: int | None = None

    def by(self, spec: int | None) -> Experiment | None:
        """What divides the traffic of a version with this spec; None for its own shares."""
        if self.asked is not None and spec is not None:
            for record in [self.asked, *self.earlier]:
                if names(record) <= {*SHARES[spec]}:
                    return record
        return None

    def ask(self, record: Experiment | None) -> None:
        if (in_force := self.by(self.spec)) is not None:
            self.earlier = [in_force]
        self.asked = record

    def restart(self) -> None:
        """Whether the record was in force is known once a version is served again."""
        self.spec = None
        if self.asked is not None:
            self.earlier = [self.asked, *self.earlier]


# -- the machine


class NoContext:
    """A call without a deadline."""

    def time_remaining(self) -> None:
        return None

    def is_active(self) -> bool:
        return True


class Machine(RuleBasedStateMachine):
    """A store with its operators, and one server of it in single steps: what follows the store, and a worker."""

    def __init__(self, store: Store, clock: ManualClock, folder: Path) -> None:
        super().__init__()
        store.client.flushall()
        self.store, self.clock, self.folder = store, clock, folder
        self.ads = store.model(NAME)
        self.record: Experiment | None = None
        self.is_damaged = False
        self.specs: dict[int, int] = {}
        self.active: int | None = None
        self.on_disk: int | None = None
        self.lease: TrainerLease | None = None
        self.server = Follower()
        self.numbers = itertools.count()
        self.held: list[tuple[ServedVersion, int]] = []
        self.start()

    def start(self) -> None:
        self.state = StateFolder(self.folder)
        self.settings = Settings((NAME,), self.store.url, state=str(self.folder), threads=1)
        self.sync = StoreSync(self.settings, self.state, Meter(), clock=self.clock)
        assert self.sync._keeper is not None
        self.sync.distribution.join(self.sync._keeper)
        self.sync._keeper.start()
        self.model: ModelSync = self.sync._models[NAME]
        self.model.experiment.restore(self.sync._keeper.experiments(NAME))
        self.model._builder.opened(self.store)
        self.start_worker()

    def start_worker(self) -> None:
        self.worker = Worker(self.settings, self.say, clock=self.clock)
        self.worker_spec: int | None = None
        self.sync.distribution.join(self.worker)

    def say(self, body: Mapping[str, Any]) -> None:
        if body["did"] == "release":
            self.sync.distribution.given_back(self.worker, body["serial"])

    def stop(self) -> None:
        self.held.clear()
        self.sync.stop()
        self.sync.close(time.monotonic() + 60.0)
        self.worker.models[NAME].served = None
        self.worker.close()
        self.state.close()

    def teardown(self) -> None:
        self.stop()

    # -- operators

    def edited(self, edit: Callable[[Experiment], Experiment]) -> None:
        """As `ftrie experiment` does: nothing changes if the result does not fit the active version."""
        before = self.record or Experiment()
        if self.is_damaged:
            with pytest.raises(StoreError):
                change_experiment(self.ads, edit, by=BY)
            return
        try:
            wanted = edit(before)
        except ExperimentError:
            with pytest.raises(ExperimentError):
                change_experiment(self.ads, edit, by=BY)
            return
        if self.active is not None and not names(wanted) <= {*SHARES[self.specs[self.active]]}:
            with pytest.raises(ExperimentError):
                change_experiment(self.ads, edit, by=BY)
            return
        self.written(wanted, change_experiment(self.ads, edit, by=BY).record)

    def written(self, wanted: Experiment, stored: Experiment) -> None:
        """The record is what was wanted, and dated anew only where cookies may have got another variant."""
        before = self.record or Experiment()
        assert stored == replace(
            wanted, revision=before.revision + 1, updated=stored.updated, assigned=stored.assigned
        )
        assert isinstance(stored.updated, datetime)
        if (wanted.winner, wanted.shares, wanted.salt) == (before.winner, before.shares, before.salt):
            assert stored.assigned == before.assigned
        else:
            assert stored.assigned is not None
        self.record = stored

    @rule(edits=EDITS, then=THEN)
    def change(self, edits: list[Change], then: int) -> None:
        for edit in edits:
            self.clock.advance(0.001)
            if edit.command == "clear":
                self.clear()
            elif edit.command == "ahead" and not self.is_damaged:
                self.write_for_a_model_to_come(edit)
            else:
                self.edited(edit.made)
        self.follow(then)

    def write_for_a_model_to_come(self, edit: Change) -> None:
        """From Python, where nothing is compared with the active version."""
        self.written(edit.made(Experiment()), self.ads.experiments.change(edit.made))
        assert self.record is not None
        stale = replace(self.record.stopped("a"), revision=self.record.revision - 1)
        with pytest.raises(ExperimentChanged):
            self.ads.experiments.write(stale)

    def clear(self) -> None:
        stored = self.ads.experiments.clear(BY)
        revision = (self.record.revision if self.record is not None else 0) + 1
        assert stored == Experiment(
            revision=stored.revision, updated=stored.updated, assigned=stored.assigned
        ) and (self.is_damaged or stored.revision == revision)
        self.record, self.is_damaged = stored, False

    # -- damage, loss, repair

    @precondition(lambda self: self.record)
    @rule(damage=DAMAGES, then=THEN, is_repaired=st.booleans())
    def damage(self, damage: tuple[str, str | bytes], then: int, is_repaired: bool) -> None:
        if not self.is_damaged:
            self.store.client.hset(self.ads.keys.experiment, *damage)
            self.is_damaged, self.damaged = True, damage[0]
        self.follow(then)
        if is_repaired:
            self.repair()

    def repair(self) -> None:
        """What can be read is kept. The record of a later ftrie is left to it."""
        found = self.store.check([NAME], repair=True)
        assert [finding.key for finding in found] == [self.ads.keys.experiment]
        if self.damaged == "format":
            self.clear()
            return
        assert self.record is not None
        lost: dict[str, Any] = {
            "shares": {"shares": {}},
            "state": {"state": "running", "winner": ""},
            "salt": {"salt": ""},
        }.get(self.damaged, {})
        stored = self.ads.experiment()
        assert stored == replace(self.record, **lost, revision=self.record.revision + 1)
        self.record, self.is_damaged = stored, False

    @rule(spec=st.none() | st.integers(0, 3), then=THEN)
    def lose_the_store(self, spec: int | None, then: int) -> None:
        """spec: of a model that is published at once into the store that is empty now."""
        self.store.client.flushall()
        self.record, self.is_damaged, self.active, self.lease = None, False, None, None
        self.specs.clear()
        if spec is not None:
            self.release(spec, then)

    # -- versions below the experiment

    @initialize(spec=st.integers(0, 3), edits=EDITS)
    def begin(self, spec: int, edits: list[Change]) -> None:
        self.release(spec, 2)
        self.change(edits, 1)

    @precondition(lambda self: self.lease is None)
    @rule(spec=st.integers(0, 3), then=THEN)
    def release(self, spec: int, then: int) -> None:
        self.active = self.ads.publish_and_activate(MODELS[spec])
        self.specs[self.active] = spec
        self.follow(then)

    @rule(how=st.sampled_from(["activate", "roll back", "collect"]), at=st.integers(0, 9), then=THEN)
    def go_to_another_version(self, how: str, at: int, then: int) -> None:
        if how == "activate" and self.specs:
            self.active = sorted(self.specs)[at % len(self.specs)]
            self.ads.activate(self.active)
        elif how == "roll back":
            with suppress(VersionNotFound):
                self.active = self.ads.rollback()
        else:
            # Never what is served or pinned, whatever an experiment says.
            for version in self.ads.gc(1 + at % 2):
                assert version not in (self.active, self.ads.pinned())
                del self.specs[version]
        self.follow(then)

    @precondition(lambda self: self.specs)
    @rule(spec=st.integers(0, 3), at=st.integers(0, 9))
    def pin_a_version_or_resume(self, spec: int, at: int) -> None:
        """Against a trainer, which stays out until it is let in again."""
        is_pinned = self.lease is not None
        if self.lease is None:
            self.lease = self.store.trainer_lease(NAME, "t")
            self.lease.take()
            self.go_to_another_version("activate", at, 0)
            assert self.ads.pinned() == self.active
        version, epoch = self.ads.publish(MODELS[spec], epoch=self.lease.epoch), self.lease.epoch
        self.specs[version] = spec
        with pytest.raises(Pinned):
            self.ads.activate(version, epoch=epoch)
        if is_pinned:
            self.ads.resume()
            self.ads.activate(version, epoch=epoch)
            self.active = version
            self.lease.release()
            self.lease = None

    # -- the server

    @rule(then=st.integers(1, 3))
    def follow(self, then: int) -> None:
        if then in (1, 2):
            self.look()
        if then > 1:
            self.swap()

    def look(self) -> None:
        self.model._look(self.ads)
        server, disk = self.server, self.on_disk
        if self.active is None:
            server.spec = disk if server.spec is None else server.spec
        else:
            is_lost = self.record is None and server.asked is not None
            if not self.is_damaged and not is_lost and self.record != server.asked:
                server.ask(self.record)
            by_spec = assigned_by_spec(self.ads)
            server.spec = self.specs[self.active]
            assert by_spec is not None
            assert dict(zip(by_spec.variants, by_spec.shares, strict=True)) == SHARES[server.spec]
            fits = server.by(server.spec) == server.asked
            assert bool(self.model.experiment.problem) == (self.is_damaged or is_lost or not fits)

    def swap(self) -> None:
        """What was delivered is served by the worker only now, and only the latest of it.

        Two requests have read which version is served just before, and not yet how the traffic is divided.
        """
        if self.worker_spec is not None:
            served = self.worker.models[NAME].served
            assert served is not None
            self.held = [*self.held[-1:], (served, self.worker_spec)]
        while not self.worker._errands.empty():
            self.worker._errands.get()()
        self.worker_spec = self.server.spec

    @rule(restarts=st.sampled_from(["worker", "server", "server without its store"]))
    def restart(self, restarts: str) -> None:
        if restarts == "worker":
            self.restart_the_worker()
        else:
            self.restart_the_server(restarts != "server")

    def restart_the_worker(self) -> None:
        self.held.clear()
        self.sync.distribution.leave(self.worker)
        self.worker.models[NAME].served = None
        self.worker.close()
        self.start_worker()
        self.swap()

    def restart_the_server(self, store_is_away: bool) -> None:
        """With what is on disk."""
        self.stop()
        self.on_disk = self.server.spec if self.server.spec is not None else self.on_disk
        self.server.restart()
        self.start()
        if store_is_away:
            self.model._lost_store(StoreUnavailable("away"))
            self.server.spec = self.on_disk
            self.swap()
        else:
            self.follow(2)

    # -- what holds after each step

    @invariant()
    def every_cookie_gets_its_variant(self) -> None:
        handle = self.worker.models[NAME]
        if self.worker_spec is None:
            assert handle.served is None
            return
        for served, spec in [(handle.served, self.worker_spec), *self.held]:
            assert served is not None and served.variant_names == (*SHARES[spec],)
            record = self.server.by(spec)
            assigned = handle.assigned(served)
            for cookie in COOKIES:
                bit = assigned.choose(cookie)
                assert served.variant_names[bit] == choice(record, spec, cookie)
                shadows = record.shadows if record is not None and record.running else ()
                beside = [served.variant_names[each] for each in assigned.shadows_beside(bit)]
                assert beside == [each for each in shadows if each != served.variant_names[bit]]
        number = next(self.numbers)
        cookie, spec = COOKIES[number % len(COOKIES)], self.worker_spec
        asked = RankRequest(model=NAME, cookie=cookie, request_id=f"r{number}", items=[Item(id="i")])
        expected = choice(self.server.by(spec), spec, cookie or asked.request_id)
        assert self.answered(asked) == expected
        asked.variant = [*SHARES[spec]][number % 2]
        assert self.answered(asked) == asked.variant, "named by the request"

    def answered(self, asked: RankRequest) -> str:
        answer: bytes = self.worker._service.Rank(asked.SerializeToString(), NoContext())  # type: ignore[arg-type]
        return RankResponse.FromString(answer).variant

    @invariant()
    def a_reader_finds_the_record(self) -> None:
        if self.is_damaged:
            with pytest.raises(StoreError):
                self.ads.experiment()
        else:
            assert self.ads.experiment() == self.record


@pytest.fixture
def machines(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Machine]]:
    monkeypatch.setattr(
        model_builder, "return_free_memory", lambda: None
    )  # a tenth of a second for each version
    clock, numbers = ManualClock(), itertools.count()
    with tempfile.TemporaryDirectory() as folder, Store.open(valkey_url, clock=clock) as store:

        def machine() -> Machine:
            return Machine(store, clock, Path(folder) / str(next(numbers)))

        yield machine


@pytest.mark.parametrize(
    ("examples", "steps"), [(5, 12), pytest.param(30, 25, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_any_order_of_experiments_versions_and_restarts(
    machines: Callable[[], Machine], examples: int, steps: int
) -> None:
    run_state_machine_as_test(
        machines, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def test_a_new_worker_and_a_new_server_divide_as_before_while_the_record_does_not_fit(
    machines: Callable[[], Machine],
) -> None:
    machine = machines()
    machine.begin(0, [])
    for shares in ({"a": 1.0}, {"c": 0.75, "b": 0.25}):
        machine.change([Change("ahead", (shares, "b"))], 1)
    machine.restart_the_worker()
    machine.every_cookie_gets_its_variant()
    machine.restart_the_server(True)
    machine.every_cookie_gets_its_variant()
    machine.teardown()
