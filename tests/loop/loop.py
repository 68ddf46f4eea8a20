"""A seed's run of the whole loop: visitors, server, trainer, operator, time and faults, and what must hold of them."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from ctr.v1.feedback_pb2 import FeedbackEvent, FeedbackKind, ReportRequest
from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import FtrieError, StoreError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.waiting import StopRequest
from server.model.items import _BUFFERS
from server.serve.worker import Worker
from server.settings import DEFAULT_USER_TTL_S, Settings
from server.sync.state_folder import StateFolder
from server.sync.store_sync import StoreSync
from server.telemetry.meter import Meter, Totals
from tests.loop.simulation import KILL, Fault, Killed, Process, Simulation, warm
from tests.sweeps.failing import FAILURES
from tests.trainer.events.oracle import Event, OracleJoin
from trainer.output import SILENT
from trainer.runs.status import Status
from trainer.runs.trainer import Trainer
from trainer.settings import Every, TrainerOptions

NAME = "shop"
SPEC = parse_spec(
    """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
cookie = "cookie"
item = "item"
[fields]
age = { side = "user", optional = true }
hour = { }
brand = { side = "item" }
item = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["age*brand"] }
[join]
window = "2s"
lateness = "1s"
[learner]
l1 = 0.0
"""
)
PLAN = FeaturePlan.of(SPEC)
USERS = {f"u{n}": {"age": str(20 + 10 * (n % 3))} for n in range(4)}
ITEMS = {f"i{n}": {"brand": f"b{n % 3}"} for n in range(6)}
HOURS = ("8", "21")
KINDS = {
    "click": FeedbackKind.FEEDBACK_KIND_CLICK,
    "conversion": FeedbackKind.FEEDBACK_KIND_CONVERSION,
}
FRESH_WITHIN_S = 60.0
STEPS = 14
Weights = dict[bytes, tuple[float, int]]


class Refused(Exception):
    """A call ended with a status."""


class Call:
    """What grpc gives a call, without a channel."""

    def time_remaining(self) -> float:
        return 1.0

    def is_active(self) -> bool:
        return True

    def abort_with_status(self, status: Any) -> None:
        raise Refused(f"{status.code.name}: {status.details}")


class Stop(StopRequest):
    """SIGTERM, sent by the driver."""

    def send(self) -> None:
        self.on_signal(15)


class Server:
    """The parts that `ftrie serve` divides between a supervisor and its workers, in one process."""

    def __init__(self, simulation: Simulation, url: str, state: Path) -> None:
        self.process, self.folder = Process("server"), state
        self.simulation = simulation
        self.totals = Totals()
        self.shown: list[str] = []
        self.newest = 0
        self.state: StateFolder | None = None
        self.settings = Settings((NAME,), url, state=str(state), impressions=("store",), threads=1)

    def start(self) -> None:
        with self.simulation.inside(self.process):
            with suppress(OSError):  # as the supervisor: without one, nothing is kept on disk
                self.state = StateFolder(self.folder)
            self.sync = StoreSync(self.settings, self.state, Meter(), clock=self.simulation)
            self.worker = Worker(self.settings, self.say, clock=self.simulation)
            self.worker.start()
            self.sync.distribution.join(self.worker)
            self.sync.start()

    def say(self, body: Mapping[str, Any]) -> None:
        """What a supervisor does with what its workers say."""
        if body["did"] == "release":
            self.sync.distribution.given_back(self.worker, body["serial"])
        elif body["did"] == "count":
            self.totals.add("worker", body["meter"])
            self.sync.items_found(body["late"])

    def rank(self, message: RankRequest) -> RankResponse:
        with self.simulation.inside(self.process):
            answer: bytes = self.worker._service.Rank(message.SerializeToString(), Call())  # type: ignore[arg-type]
        return RankResponse.FromString(answer)

    def report(self, message: ReportRequest) -> None:
        with self.simulation.inside(self.process):
            self.worker._feedback.Report(message, Call())  # type: ignore[arg-type]

    @property
    def version(self) -> int | None:
        served = self.worker.models[NAME].served
        return served.version if served is not None else None

    def dropped(self) -> int:
        return int(
            sum(count for _, count in self.totals.samples().get("ftrie_impressions_dropped_total", ()))
        )

    def stop(self) -> None:
        with self.simulation.inside(self.process):
            self.sync.stop()
            self.sync.close(time.monotonic() + 5.0)
            self.worker.close()
        self._forget()

    def kill(self) -> None:
        self.simulation.kill(self.process)
        self.simulation.block(lambda: self.simulation.ended(self.process))
        self._forget()
        close_all(self.folder)

    def _forget(self) -> None:
        """What ends with a process."""
        if self.state is not None:
            self.state.close()
        if "worker" in vars(self):
            self.worker.models[NAME].served = None
        _BUFFERS.clear()


class Said:
    """What a trainer prints."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.note = self.warn = lambda text: say(f"  trainer: {text}")
        self.progress = SILENT.progress


class TrainerRun:
    """One life of `ftrie trainer`."""

    def __init__(
        self, simulation: Simulation, url: str, folder: Path, say: Callable[[str], None], **options: Any
    ) -> None:
        self.process = Process("trainer")
        self.simulation = simulation
        self.status: Status | None = None
        self.error: FtrieError | None = None
        self.said_s = 0.0
        """When it said its status."""
        self.options = TrainerOptions(
            sources=("store",),
            store=url,
            checkpoint=folder,
            every=Every(None, 1.0),
            say_every_s=0.5,
            output=Said(say),
            clock=simulation,
            **options,
        )
        self.stopping = Stop()
        simulation.start(self.process, "trainer", self._run)

    def _run(self) -> None:
        try:
            with self.stopping as stop, ExitStack() as stack:
                trainer = Trainer(SPEC, self.options, stop, self._take)
                trainer.open(stack)
                trainer.begin(stack)
                trainer.go()
                trainer.end()
        except FtrieError as error:
            self.error = error

    def _take(self, status: Status) -> None:
        self.status, self.said_s = status, self.simulation.monotonic()

    @property
    def ended(self) -> bool:
        return self.simulation.ended(self.process)

    def stop(self) -> None:
        self.stopping.send()
        assert self.simulation.block(lambda: self.ended, self.simulation.monotonic() + 120.0), (
            "a trainer that does not end"
        )

    def kill(self) -> None:
        self.simulation.kill(self.process)
        self.simulation.block(lambda: self.ended)
        close_all(self.options.folder)


@dataclass(frozen=True)
class Click:
    request: str
    item: str
    kind: str


class Loop:
    """One run. The seed decides everything."""

    store: Store

    def __init__(self, seed: int, url: str, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self.seed, self.url, self.folder, self.listener = seed, url, folder, say
        self.simulation = Simulation(seed)
        self.draw = random.Random(f"steps {seed}")
        self.trace: list[str] = []
        self.server: Server | None = None
        self.trainer: TrainerRun | None = None
        self.requests = 0
        self.shown: dict[str, list[str]] = {}
        self.unclicked: list[Click] = []
        self.due: list[Click] = []
        self.acknowledged: set[Click] = set()
        self.offered: set[Click] = set()
        self.lives: list[tuple[list[str], int | None]] = []
        self.contents: dict[int, dict[str, Weights]] = {}
        self.seen = set[int]()
        """The versions that `contents` has, of those that the store has now."""
        self.items = {item: [values] for item, values in ITEMS.items()}
        self.reported_s = 0.0
        self.users_since_s = -math.inf
        """Since when the store has the users, without a loss."""
        self.written: tuple[int, int, int] | None = None
        """What another writer has published and not activated, its epoch, and the `orders` before it."""
        self.orders = 0
        """How often operators have activated a version."""
        self.kept: dict[bytes, bytes] | None = None
        self.active: int | None = None
        self.may_go_back = self.went_back = False
        """Whether an older version may have been activated, since the last step and at all."""
        self.was_killed = False
        """Whether a process was, which may leave temporary files."""
        self.disturbed = False
        """Whether the store has lost data, or the wall clock was set, by which events are ordered."""
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.visit),
            (16, self.click),
            (14, self.pass_time),
            (8, self.fail),
            (3, self.lose_connections),
            (2, self.store_away),
            (4, self.stop_or_start_trainer),
            (3, self.kill_trainer),
            (3, self.stop_or_start_server),
            (3, self.kill_server),
            (3, self.roll_back),
            (2, self.activate),
            (2, self.resume),
            (4, self.write),
            (1, self.collect),
            (2, self.change_items),
            (2, self.experiment),
            (2, self.stop_a_process),
            (1, self.suspend),
            (2, self.other_trainer),
        ]
        # A quarter of the seeds lose data, or have clocks that are set: not everything that holds otherwise holds then.
        if self.draw.random() < 0.25:
            self.disturbed = True
            self.steps += [
                (3, self.lose_data),
                (3, self.keep_or_restore),
                (3, self.restart_store),
                (3, self.set_clock),
            ]

    # -- a run

    def run(self) -> None:
        with self.simulation, Store.open(self.url, clock=self.simulation) as self.store:
            self.begin()
            for number in range(STEPS):
                step = self.draw.choices(
                    [each for _, each in self.steps], [weight for weight, _ in self.steps]
                )[0]
                self.say(f"step {number}: {step.__name__}")
                step()
                self.look()
            self.end()
        assert not self.simulation.errors, self.simulation.errors

    def say(self, text: str) -> None:
        line = f"{self.simulation.monotonic() - 1000:8.3f} {text}"
        self.trace.append(line)
        if self.listener is not None:
            self.listener(line)

    def begin(self) -> None:
        self.store.client.flushall()
        self.versions = self.store.model(NAME)
        self.load_records()
        self.versions.publish_and_activate(first_model())
        self.start_server()
        self.start_trainer()
        self.simulation.sleep(self.draw.choice([0.0, 1.0]))

    # -- visitors

    def visit(self) -> None:
        if self.server is None:
            return
        self.requests += 1
        request = f"r{self.requests}"
        items = self.draw.sample(sorted(ITEMS), self.draw.randint(1, 4))
        cookie, hour = self.draw.choice([*USERS, "nobody"]), self.draw.choice(HOURS)
        message = RankRequest(model=NAME, request_id=request, cookie=cookie, item_ids=items)
        message.context.values["hour"].text = hour
        try:
            answer = self.server.rank(message)
        except Refused as error:
            self.say(f"  {request}: {error}")
            return
        except Killed:
            return self.server_died()
        self.say(f"  {request}: version {answer.version} {items}")
        self.check_answer(answer, cookie, hour)
        self.shown[request] = items
        self.server.shown.append(request)
        for item in items:
            if self.draw.random() < 0.5:
                self.unclicked.append(
                    Click(request, item, self.draw.choice(["click", "click", "conversion"]))
                )

    def click(self) -> None:
        """Report clicks, some of them again; those that may not have been stored are reported later too."""
        if self.server is None or not (self.unclicked or self.due):
            return
        self.draw.shuffle(self.unclicked)
        some = [*self.due, *(self.unclicked.pop() for _ in range(min(3, len(self.unclicked))))]
        if self.acknowledged and self.draw.random() < 0.3:
            some.append(self.draw.choice(sorted(self.acknowledged, key=str)))
        self.report(some)

    def report(self, some: Sequence[Click]) -> None:
        assert self.server is not None
        message = ReportRequest(model=NAME)
        for each in some:
            message.events.append(
                FeedbackEvent(request_id=each.request, item_id=each.item, kind=KINDS[each.kind])
            )
        self.offered.update(some)
        self.due = [each for each in some if each not in self.acknowledged]
        try:
            self.server.report(message)
        except Refused as error:
            self.say(f"  not reported: {error}")
            return
        except Killed:
            return self.server_died()
        self.say(f"  reported {[(each.request, each.item) for each in some]}")
        self.acknowledged.update(some)
        self.due, self.reported_s = [], self.simulation.monotonic()

    # -- time, operators, faults

    def pass_time(self) -> None:
        self.simulation.sleep(self.draw.choice([0.03, 0.1, 0.4, 1.0, 2.0]))

    def fail(self) -> None:
        process = self.draw.choice(["server", "trainer"])
        kind = self.draw.choice(sorted(FAILURES))
        failure = self.draw.choice([*FAILURES[kind], KILL])
        kinds = sorted(FAILURES) if failure == KILL else [kind]
        skip = int(self.draw.choice([0, 1, 3, 10, 30]) * self.draw.random() * 2)
        self.was_killed |= failure == KILL
        fault = Fault(process, kinds, failure, skip, self.draw.choice([1, 1, 1, 2, 5]))
        self.say(f"  {fault}")
        self.simulation.faults.append(fault)

    def lose_connections(self) -> None:
        self.store.client.client_kill_filter(_type="normal", skipme=True)

    def store_away(self) -> None:
        self.simulation.away_until = self.simulation.monotonic() + self.draw.choice([0.2, 1.0, 4.0])

    def roll_back(self) -> None:
        self.may_go_back = self.went_back = True
        self.orders += self.operate(lambda: self.versions.rollback())

    def activate(self) -> None:
        versions = [each.version for each in self.versions.versions()]
        if versions:
            self.may_go_back = self.went_back = True
            self.orders += self.operate(lambda: self.versions.activate(self.draw.choice(versions)))

    def resume(self) -> None:
        self.operate(lambda: self.versions.resume())

    def write(self) -> None:
        """Another writer, such as `ftrie train --publish`, begins; or activates what it has published, if it may."""
        with suppress(StoreError):
            if self.written is None:
                epoch = self.versions.begin()
                self.written = self.versions.publish(first_model(), epoch=epoch), epoch, self.orders
            else:
                (version, epoch, orders), self.written = self.written, None
                self.versions.activate(version, epoch=epoch)
                assert orders == self.orders, (
                    "a writer that began before an operator's order has overruled it"
                )
        self.say(f"  {self.written or 'activated, or refused'}")

    def collect(self) -> None:
        self.learn_versions()
        self.operate(lambda: self.versions.gc(self.draw.choice([1, 5, None])))

    def change_items(self) -> None:
        item, brand = self.draw.choice(sorted(ITEMS)), f"b{self.draw.randrange(3)}"
        self.items[item].append({"brand": brand})
        self.operate(lambda: self.store.records.put_items([(item, {"brand": brand})]))

    def experiment(self) -> None:
        share = self.draw.choice([0.0, 0.25, 1.0])
        self.operate(
            lambda: self.versions.experiments.change(
                lambda it: it.divided({"base": share, "plain": 1.0 - share})
            )
        )

    def stop_a_process(self) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        process = self.draw.choice(
            [each.process for each in (self.server, self.trainer) if each is not None] or [None]
        )
        if process is not None:
            process.stopped_until = self.simulation.monotonic() + self.draw.choice([0.5, 3.0, 12.0])

    def suspend(self) -> None:
        """The machine sleeps."""
        self.simulation.suspend(self.draw.choice([1.0, 30.0, 3600.0]))

    def set_clock(self) -> None:
        self.simulation.jump(self.draw.choice([-3600.0, -2.0, 2.0, 3600.0]))

    def other_trainer(self) -> None:
        """A spare takes the lease over, if it can, learns everything from the beginning, and ends."""
        if self.trainer is not None and self.draw.random() < 0.7:
            self.trainer.process.stopped_until = self.simulation.monotonic() + 12.0
            self.simulation.sleep(11.0)
        spare = TrainerRun(self.simulation, self.url, self.folder / "spare", self.say)
        self.simulation.sleep(self.draw.choice([0.1, 1.0, 3.0]))
        if self.draw.random() < 0.5:
            self.was_killed = True
            spare.kill()
        elif not spare.ended:
            spare.stop()
        if spare.process.dead:
            spare.kill()
        self.say(f"  the spare has ended: {spare.error or spare.status}")

    def lose_data(self) -> None:
        self.restore({})

    def keep_or_restore(self) -> None:
        """The store goes back to an earlier state, as after a failover."""
        client = self.store.client
        if self.kept is None:
            self.kept = {key: client.dump(key) for key in client.scan_iter()}
            return
        self.restore(self.kept)
        self.kept = None

    def restore(self, kept: Mapping[bytes, bytes]) -> None:
        self.learn_versions()  # a server may still have them
        self.store.client.flushall()
        for key, value in kept.items():
            self.store.client.restore(key, 0, value)
        self.seen.clear()
        self.users_since_s = math.inf
        self.written, self.may_go_back, self.went_back = None, True, True
        if self.draw.random() < 0.5:
            self.load_records()

    def restart_store(self) -> None:
        """With what it had."""
        self.store.client.script_flush()
        self.lose_connections()
        self.store_away()

    def load_records(self) -> None:
        if self.users_since_s == math.inf:
            self.users_since_s = self.simulation.monotonic()
        self.store.records.put_users(USERS.items())
        self.store.records.put_items([(item, values[-1]) for item, values in self.items.items()])

    def operate(self, order: Callable[[], object]) -> bool:
        """Whether the order was taken."""
        try:
            self.say(f"  {order()}")
        except StoreError as error:
            self.say(f"  {error}")
            return False
        return True

    # -- processes

    def start_trainer(self) -> None:
        self.trainer = TrainerRun(self.simulation, self.url, self.folder / "trainer", self.say)

    def stop_or_start_trainer(self) -> None:
        if self.trainer is None:
            return self.start_trainer()
        self.trainer.stop()
        self.note_trainer()

    def kill_trainer(self) -> None:
        if self.trainer is not None:
            self.was_killed = True
            self.trainer.kill()
            self.trainer = None

    def note_trainer(self) -> None:
        if self.trainer is not None and self.trainer.ended:
            if self.trainer.process.dead:
                self.trainer.kill()
            self.say(f"  the trainer has ended: {self.trainer.error or self.trainer.process}")
            self.trainer = None

    def start_server(self) -> None:
        self.server = Server(self.simulation, self.url, self.folder / "state")
        try:
            self.server.start()
        except Killed:
            self.server_died()

    def stop_or_start_server(self) -> None:
        if self.server is None:
            return self.start_server()
        try:
            self.server.stop()
        except Killed:
            return self.server_died()
        self.lives.append((self.server.shown, self.server.dropped()))
        self.server = None

    def kill_server(self) -> None:
        if self.server is not None:
            self.simulation.kill(self.server.process)
            self.server_died()

    def server_died(self) -> None:
        assert self.server is not None
        self.say("  the server died")
        self.was_killed = True
        self.server.kill()
        self.lives.append((self.server.shown, None))
        self.server = None

    # -- what must hold

    def look(self) -> None:
        """What holds after each step."""
        assert not self.simulation.errors, self.simulation.errors
        self.note_trainer()
        if self.server is not None and self.server.process.dead:
            self.server_died()
        self.learn_versions()
        active = self.versions.active()
        if not self.may_go_back and self.active is not None:
            assert active is not None and active >= self.active, (
                f"version {active} is active after {self.active}"
            )
        self.active, self.may_go_back = active, False
        if self.server is not None:
            served = self.server.version or 0
            is_older = served < self.server.newest
            assert not is_older or self.went_back, f"version {served} is served after {self.server.newest}"
            self.server.newest = served

    def learn_versions(self) -> None:
        """Read what is published, as the definition of what it answers."""
        numbers = sorted(map(int, self.store.client.zrange(self.versions.keys.versions, 0, -1)))
        for number in numbers:
            if number in self.seen:
                continue
            manifest = self.versions.manifest(number)
            read = self.versions.read(manifest)
            before = self.contents[read.parent][read.parent_content] if isinstance(read, Delta) else {}
            self.contents.setdefault(number, {})[read.content] = weights_of(read, before)
            self.seen.add(number)

    def check_answer(self, answer: RankResponse, cookie: str, hour: str) -> None:
        if answer.version not in self.seen:
            self.learn_versions()
        lacks_user = any(each.part == "user_features" for each in answer.degraded)
        users = [{} if lacks_user else USERS.get(cookie, {})]
        # One who was first read while the store had lost its users is unknown, as others are, until read again.
        if self.simulation.monotonic() < self.users_since_s + DEFAULT_USER_TTL_S:
            users.append({})
        variant = PLAN.variants.index(answer.variant)
        lacking = set(answer.unknown_items)
        for item in answer.items:
            expected = []
            # Items change beside versions: each is as it is, or was.
            kinds = [{}] if item.id in lacking else self.items[item.id]
            for user, values in itertools.product(users, kinds):
                keys = PLAN.keys({"hour": hour, **user, **values, "item": item.id})
                expected += [
                    sum(weights.get(key, (0.0, 0))[0] * x for key, x, mask in keys if mask >> variant & 1)
                    for weights in self.contents[answer.version].values()
                ]
            is_right = any(abs(item.score - each) < 1e-9 for each in expected)
            assert is_right, f"{item.id}: version {answer.version} gives {item.score}, expected {expected}"

    def end(self) -> None:
        """Once faults end: what was shown and clicked is learned once, and what is learned is served."""
        self.say("faults end")
        self.simulation.faults.clear()
        self.simulation.away_until = 0.0
        self.simulation.sleep(0.0)
        self.look()
        if self.server is None:
            self.start_server()
        if self.trainer is None:
            self.start_trainer()
        self.load_records()
        if self.disturbed:  # ids that are ahead of a clock that was set back
            self.store.check(repair=True)
        if self.versions.active() is None:
            self.versions.activate(self.versions.publish(first_model()))
        self.versions.resume()
        self.until(lambda: self.server is not None and self.server.version is not None, "a version is served")
        while self.due or self.unclicked:
            self.click()
            self.simulation.sleep(0.5)
        self.simulation.suspend(3.2)  # the windows end
        self.simulation.sleep(0.2)
        while not self.due:
            self.visit()
            self.due += [each for each in self.unclicked if each.kind == "click"][:1]
        while self.due:
            self.click()
            self.simulation.sleep(0.5)
        self.until(self.is_fresh, "what was clicked is learned and served")
        assert self.trainer is not None
        trainer, self.trainer = self.trainer, None
        trainer.stop()
        status = trainer.status
        assert trainer.error is None and status is not None and status.ended, trainer.error
        self.check_learned(status)
        if self.seed % 2:
            self.check_exactly()
        self.until(
            lambda: self.server is not None and self.server.version == self.versions.active(),
            "the last version is served",
        )
        self.look()
        self.visit()
        self.stop_or_start_server()
        self.check_streams()
        if not self.seed % 2:
            assert not (found := self.store.check()), found

    def check_exactly(self) -> None:
        """A trainer that was stopped, killed and started has learned to the last bit what one without faults learns."""
        self.learn_all("trainer")
        if not self.disturbed:
            self.learn_all("undisturbed", publish=False, save=self.folder / "undisturbed.arrow")
            undisturbed = Artefact.read(self.folder / "undisturbed.arrow")
            active = self.versions.active()
            assert active is not None and self.versions.manifest(active).content == undisturbed.content

    def learn_all(self, folder: str, **options: Any) -> None:
        """Run a trainer until it has learned all that there is, and has closed all windows."""
        run = TrainerRun(self.simulation, self.url, self.folder / folder, self.say, once=True, **options)
        assert self.simulation.block(lambda: run.ended, self.simulation.monotonic() + FRESH_WITHIN_S)
        assert run.error is None, run.error

    def until(self, holds: Callable[[], object], what: str) -> None:
        began = self.simulation.monotonic()
        while not holds():
            assert self.simulation.monotonic() - began < FRESH_WITHIN_S, (
                f"{what}: not within {FRESH_WITHIN_S:g} s"
            )
            self.simulation.sleep(0.25)

    def is_fresh(self) -> bool:
        """Whether the server serves a version that has learned all events."""
        assert self.server is not None and self.trainer is not None
        self.note_trainer()
        if self.trainer is None:  # another one's lease has not expired
            self.start_trainer()
        assert self.trainer is not None
        if not self.disturbed:
            through_us = self.server.sync.status()[0].through_us or 0
            return through_us >= 1000 * self.store.clicks(NAME).info().last_id[0]
        said = self.trainer.status
        if said is None or self.trainer.said_s < self.reported_s + 2.5:
            return False  # lags are looked at every other second
        behind = any(each.events for each in said.lags.values())
        published = int(self.store.client.hget(self.versions.keys.trainer, "rows"))
        return not behind and published == said.examples > 0 and self.server.version == said.version

    def check_learned(self, status: Status) -> None:
        """What the trainer has counted is what the join's definition makes of the streams."""
        oracle = OracleJoin(SPEC.join)
        for event in self.events():
            oracle.take(event)
        expected = {
            **oracle.counts,
            "pending": len(oracle.pending),
            "waiting": len(oracle.early),
        }
        if not self.disturbed:
            for name, count in expected.items():
                assert status.join[name] == count, f"{name}: {status.join}, expected {expected}"
            assert status.examples == len(oracle.rows), (status, oracle.counts)

    def events(self) -> list[Event]:
        numbers: dict[str, int] = {}

        def number(text: str) -> int:
            return numbers.setdefault(text, len(numbers))

        found = []
        for source, stream in enumerate((self.store.impressions(NAME), self.store.clicks(NAME))):
            read = stream.read((0, 0), 1_000_000)
            latest = 0
            for at, (ids, payload) in enumerate(zip(read.ids.tolist(), read.payloads, strict=True)):
                event = json.loads(payload)
                latest = max(latest, ids[0] * 1000)
                shows = tuple(number(each["id"]) for each in event["items"]) if "items" in event else None
                made = Event(
                    round(event["ts"] * 1e6),
                    number(event["request_id"]),
                    shows,
                    number(event.get("item", "")),
                    event.get("event", "click"),
                    latest,
                )
                found.append((latest, source, at, made))
        return [made for *_, made in sorted(found, key=lambda each: each[:3])]

    def check_streams(self) -> None:
        """The streams have each answer, and each acknowledged click once."""
        if self.disturbed:
            return
        clicks = Counter(
            Click(event["request_id"], event["item"], event["event"])
            for event in map(json.loads, self.store.clicks(NAME).read((0, 0), 1_000_000).payloads)
        )
        assert self.acknowledged <= clicks.keys() <= self.offered
        assert all(count == 1 for count in clicks.values()), clicks
        logged = {
            json.loads(each)["request_id"]
            for each in self.store.impressions(NAME).read((0, 0), 1_000_000).payloads
        }
        for shown, dropped in self.lives:
            lost = [each for each in shown if each not in logged]
            assert dropped is None or len(lost) <= dropped, f"answers that are not in the stream: {lost}"


def first_model() -> Artefact:
    """A model that was learned elsewhere: a weight for each item."""
    keys = sorted(
        {
            key: mask
            for item, values in ITEMS.items()
            for key, _, mask in PLAN.keys({**values, "item": item})
        }.items()
    )
    weights = np.array([0.1 * (1 + n) for n in range(len(keys))], np.float32)
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(key for key, _ in keys), np.uint8).copy(),
        key_offsets=np.cumsum([0, *(len(key) for key, _ in keys)]).astype(np.int64),
        weight=weights,
        variants=np.array([mask for _, mask in keys], np.uint32),
        rate=np.full_like(weights, 0.1),
        spec=SPEC.resolve(["click", "ts", "request_id", "cookie", "item", *SPEC.fields]),
        metrics={},
    )


def weights_of(read: Artefact | Delta, before: Weights) -> Weights:
    """The weight of each key, and which variants use it, from the rows alone."""
    found = dict(before)
    for row in range(read.rows):
        key, mask = read.key(row), int(read.variants[row])
        if mask:
            found[key] = (float(read.weight[row]), mask)
        else:
            found.pop(key, None)
    return found


def run(seed: int, url: str, folder: Path, say: Callable[[str], None] | None = None) -> None:
    """Raises AssertionError with the seed's trace, of which `say` is told each line."""
    folder.mkdir()
    before = held()
    loop = Loop(seed, url, folder, say)
    try:
        loop.run()
    except BaseException as error:
        trace = "\n".join(loop.trace)
        raise AssertionError(
            f"{trace}\nseed {seed}: {error}\nto replay it: pytest tests/loop -m 'not slow' -s --loop-seed {seed}"
        ) from error
    left = [path for path in folder.rglob(".*") if path.is_file()]
    assert loop.was_killed or not left, f"seed {seed} has left {left}"
    del loop
    gc.collect()
    give_back()
    more = held() - before
    assert not more, f"seed {seed} has left {more}"


_TAKEN = set[int]()
"""Descriptors of processes that were killed, which are open for nothing now."""


def close_all(folder: Path) -> None:
    """Close the files of a folder: those that a process had just opened when it was killed.

    Their numbers stay taken: what still holds one closes it when it is freed, and must not close another's.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/"):
                os.dup2(nothing, number)
                _TAKEN.add(number)
    os.close(nothing)


def give_back() -> None:
    """Close what `close_all` has left, if nothing holds it."""
    for number in _TAKEN:
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == os.devnull:
                os.close(number)
    _TAKEN.clear()


def held() -> Counter[str]:
    """The threads of this process and what its descriptors are open for, but grpc's own."""
    found = [each.name for each in threading.enumerate()]
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return Counter(each for each in found if not each.startswith("anon_inode:"))


def main() -> None:
    """Run seeds, and end with the first that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--trace", action="store_true")
    asked = parser.parse_args()
    if not asked.trace:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warm(SPEC)
    for seed in asked.seeds:
        run(seed, asked.url, asked.folder / str(seed), print if asked.trace else None)


if __name__ == "__main__":
    main()
