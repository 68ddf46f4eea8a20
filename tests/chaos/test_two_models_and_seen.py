"""An order by two models whose answers are seen in part: each process is killed, and every row is learned as it was.

One server orders by `ctr * purchase.ctr * price`. The market's trainer learns what was seen, also of answers that were
deferred and activated, and purchase's trainer the clicked rows. All events of both streams are kept, so what each row
has to become follows from them and from what the visitor reported, without a join.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ftrie.api.client import Client, RankFailed
from ftrie.api.feedback import Feedback, ReportFailed
from ftrie.api.messages import Ranking
from ftrie.demo.market import Market
from ftrie.demo.processes import free_port
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.store import Store
from tests.chaos.loop import (
    COMPILE_S,
    FTRIE,
    MODEL,
    SPEC,
    Process,
    Server,
    Valkey,
    begin,
    learned,
    trainer_command,
)
from tests.chaos.test_cluster import ITEMS, items_of
from tests.integration.processes import Oracle
from tests.waiting import eventually

PURCHASE = "purchase"
OBJECTIVE = "ctr * purchase.ctr * price"
PAUSE_S, REPORTED_S, OVERDUE_S = 0.05, 0.3, 3.0
"""Between answers; from an answer to its reports; how late reports may be before the visitor asks no more."""
WINDOW_S = 8
"""More than all of them: so every report is in time."""
ALPHA = 0.5
LEARNER = f"""
[fields.visit]
side = "context"
optional = true
main = false
[[crosses]]
fields = ["visit", "sku"]
[learner]
alpha = {ALPHA}
beta = 1.0
l1 = 0.0
values = "per_variant"
"""
"""A cross whose keys are each of one row, and FTRL, whose z and n say by how many gradients they came about."""
Labels = dict[tuple[str, str], int]
"""1 for a positive, 0 for a negative, by request and item."""


@dataclass
class Reports:
    """What was reported of one answer."""

    events: list[Feedback] = field(default_factory=list)

    def items(self, event: str) -> set[str]:
        return {each.item for each in self.events if each.event == event}

    @property
    def seen_to(self) -> int:
        return max((each.position for each in self.events), default=0)


class Visitor(threading.Thread):
    """Asks again and again, and reports a moment later, until it is acknowledged.

    While reports are overdue it asks nothing: so no answer is younger than they may be.
    """

    def __init__(self, address: str, market: Market) -> None:
        super().__init__()
        self.answers: list[Ranking] = []
        self.reports: dict[str, Reports] = {}
        self.failed_at: list[float] = []
        self.error: Exception | None = None
        self._client, self._market = Client(address, timeout_s=5.0), market
        self._due = deque[tuple[float, list[Feedback]]]()
        self._ended = threading.Event()
        self._asked = 0

    def run(self) -> None:
        try:
            while not self._ended.wait(PAUSE_S) or self._due:
                self._report()
                overdue = bool(self._due) and self._due[0][0] < time.time() - OVERDUE_S
                if not self._ended.is_set() and not overdue:
                    self._ask()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()
        assert self.error is None, self.error

    def _ask(self) -> None:
        number, cookies = self._asked, self._market.cookies
        self._asked += 1  # also of a call that failed: it may have been answered and logged
        request = f"visit-{number}"
        try:
            answer = self._client.rank(
                MODEL,
                request_id=request,
                cookie=cookies[number % len(cookies)],
                candidates=items_of(self._market, number),
                context={"device": "mobile", "visit": request},
                objective=OBJECTIVE,
                deferred=number % 3 == 0,
            )
        except RankFailed:
            self.failed_at.append(time.monotonic())
            return
        self.answers.append(answer)
        self._due.append((time.time() + REPORTED_S, reports_of(number, answer)))

    def _report(self) -> None:
        while self._due and (self._due[0][0] < time.time() or self._ended.is_set()):
            events = self._due[0][1]
            try:
                report = self._client.feedback(MODEL, events)
            except ReportFailed:
                return
            assert not report.rejected, report
            for event in events:
                self.reports.setdefault(event.request_id, Reports()).events.append(event)
            self._due.popleft()


def reports_of(number: int, answer: Ranking) -> list[Feedback]:
    """Of two thirds what was seen, one way or the other; some clicks, also of unseen items; half of these convert."""
    request, items = answer.request_id, [item.id for item in answer.items]
    now = datetime.now(UTC)
    events = []
    if number % 5 == 1:
        events = [Feedback(request, item, "seen", time=now) for item in items[1:4:2]]
    elif number % 5 > 1:
        events = [Feedback(request, event="seen", position=1 + number % ITEMS, time=now)]
    if number % 4 == 0:
        events.append(Feedback(request, items[number % ITEMS], time=now))
    if number % 8 == 0:
        events.append(Feedback(request, items[number % ITEMS], "conversion", time=now))
    if number % 6 == 0:
        events.append(Feedback(request, event="activated", time=now))
    return events or [Feedback(request, items[0], "seen", time=now)]


class System:
    """A store, a server of both models, a trainer of each and a visitor. Purchase has no version at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.valkey = Valkey(folder)
        self.valkey.start()
        url = self.valkey.url
        market = begin(folder, url, WINDOW_S, f'negatives = "seen"\n{LEARNER}')
        spec = (folder / SPEC).read_text().replace(f'"{MODEL}"', f'"{PURCHASE}"')
        spec = spec.replace('label = "click"', 'label = "click"\nrows = "clicked"')
        spec = spec.replace('negatives = "seen"', 'positive = "conversion"')
        (folder / self.spec_of(PURCHASE)).write_text(spec)
        self.store = Store.open(url)
        port = free_port()
        serve = [*FTRIE, "serve", MODEL, PURCHASE, "--store", url, "--port", str(port), "--drain", "5"]
        serve += ["--impressions", "store", "--state", str(folder / "serve"), "--json"]
        self.server = Server("server", folder, serve)
        self.trainers = {
            model: Process(
                model, folder, trainer_command(url, model, *self.flags(model), spec=self.spec_of(model))
            )
            for model in (MODEL, PURCHASE)
        }
        self.down: Process | None = None
        self.visitor = Visitor(f"127.0.0.1:{port}", market)

    def spec_of(self, model: str) -> str:
        return f"{model}.toml"

    def flags(self, model: str) -> list[str]:
        """All versions are kept, for the test to compare answers with."""
        keys = self.store.model(MODEL).keys
        sources = [word for key in (keys.impressions, keys.clicks) for word in ("--from", f"store#{key}")]
        return ["--keep", "0", "--publish-every", "2s", *(sources if model == PURCHASE else ())]

    def disturb(self, chance: random.Random) -> None:
        """Kill each once, and go back a version of purchase; afterwards answers come by newer versions of both."""
        trainers = self.trainers.values()
        self.server.start()
        self.trainers[MODEL].start()
        self.server.await_up()
        self.visitor.start()
        self.answers_go_on(20)
        self.trainers[PURCHASE].start()
        self.learns_on()
        victims: list[Process] = [self.valkey, self.server, *trainers]
        for victim in chance.sample(victims, len(victims)):
            self.down = victim
            victim.kill()
            if victim is self.server:
                time.sleep(chance.uniform(0.0, 0.5))
            else:
                failed = len(self.visitor.failed_at)
                self.answers_go_on(10)
                assert len(self.visitor.failed_at) == failed, f"answers failed without {victim.name}"
            victim.start()
            self.down = None
        self.learns_on()
        self.server.kill_worker()
        self.goes_back()
        self.learns_on()

    def goes_back(self) -> None:
        """Answers come by an earlier version of purchase, until its trainer may activate again."""
        versions = self.store.model(PURCHASE)
        back = versions.rollback()
        eventually(lambda: self.used(PURCHASE) == back, "answers by the version before", COMPILE_S)
        self.answers_go_on(10)
        assert self.used(PURCHASE) == back, "versions of the trainer stay inactive"
        versions.resume()

    def used(self, model: str) -> int:
        """The version of a model that the latest answer came by; 0 for none."""
        answer = self.visitor.answers[-1]
        return answer.version if model == MODEL else version_of_purchase(answer)

    def answers_go_on(self, more: int) -> None:
        asked = len(self.visitor.answers)
        eventually(lambda: self.has_answered(asked + more), "answers", COMPILE_S)

    def learns_on(self) -> None:
        newest = {model: max((*self.numbers(model), 0)) for model in self.trainers}
        eventually(
            lambda: self.has_answered(0) and all(self.used(model) > newest[model] for model in newest),
            "answers by newer versions of both models",
            COMPILE_S,
        )

    def numbers(self, model: str) -> set[int]:
        find = version_of_purchase if model == PURCHASE else lambda answer: answer.version
        return {find(answer) for answer in self.visitor.answers}

    def has_answered(self, asked: int) -> bool:
        assert self.visitor.error is None, self.visitor.error
        for process in (self.valkey, self.server, *self.trainers.values()):
            assert process is self.down or not process.ended_by_itself, process.said()
        return len(self.visitor.answers) >= asked

    def finish(self) -> None:
        """End all but the store in good order, and let both trainers learn what is left."""
        self.visitor.end()
        for process in (self.server, *self.trainers.values()):
            process.await_up()
            process.end(COMPILE_S)

        def rest(model: str) -> dict[str, Any]:
            flags = (*self.flags(model), "--save", f"{model}.arrow")
            return learned(self.folder, self.valkey.url, model, *flags, spec=self.spec_of(model))

        with ThreadPoolExecutor(2) as pool:
            self.status = dict(zip(self.trainers, pool.map(rest, self.trainers), strict=True))
        read = self.store.event_stream(self.store.model(MODEL).keys.impressions).read((0, 0), 1_000_000)
        self.impressions: dict[str, Any] = {}
        for event in map(json.loads, read.payloads):
            self.impressions.setdefault(event["request_id"], event)

    def take_down(self) -> None:
        self.visitor._ended.set()
        for process in (*self.trainers.values(), self.server, self.valkey):
            if process._process is not None:
                process.kill()
        self.store.close()

    def expected(self, learns: str) -> Labels:
        """What each row has to become, of the impressions in the stream and the reports that were acknowledged."""
        labels: Labels = {}
        for request, event in self.impressions.items():
            told = self.visitor.reports.get(request, Reports())
            if event.get("event") == "deferred" and not any(
                each.event == "activated" for each in told.events
            ):
                continue
            clicked, bought = told.items("click"), told.items("conversion")
            shown = [item["id"] for item in event["items"]]
            seen = {*shown[: told.seen_to], *told.items("seen"), *clicked, *bought}
            exposed, positive = (seen, clicked) if learns == MODEL else (clicked, clicked & bought)
            labels |= {(request, item): int(item in positive) for item in shown if item in exposed}
        return labels

    def learned_rows(self, model: str) -> Labels:
        """What the saved model learned of each row, by the sign of its key's weight; each by one gradient alone.

        After one gradient g, z = g and n = g^2, so |weight| = alpha |g| / (beta + |g|) = alpha - beta · rate. After
        more of one sign |z| is above sqrt(n).
        """
        artefact = Artefact.read(self.folder / f"{model}.arrow")
        plan = FeaturePlan.of(artefact.spec)
        rows = {
            cross_of(plan, {"visit": request, "sku": item["id"]}): (request, item["id"])
            for request, event in self.impressions.items()
            for item in event["items"]
        }
        weights, rates = artefact.weights_of(0).tolist(), artefact.rates_of(0).tolist()
        labels: Labels = {}
        for number in range(artefact.rows):
            if (key := artefact.key(number)).startswith(PREFIX):
                assert abs(weights[number]) + rates[number] == pytest.approx(ALPHA, abs=1e-5), rows[key]
                labels[rows[key]] = int(weights[number] > 0)
        return labels


PREFIX = b"visit*sku="


def cross_of(plan: FeaturePlan, example: Mapping[str, str]) -> bytes:
    (key,) = [key for key, _, _ in plan.keys(example) if key.startswith(PREFIX)]
    return key


def version_of_purchase(answer: Ranking) -> int:
    """The one of all its items; 0 if none has a prediction of it."""
    (version,) = {item.models[PURCHASE].version if item.models else 0 for item in answer.items}
    return version


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[System]:
    made = System(tmp_path_factory.mktemp("two"))
    try:
        made.disturb(random.Random(request.config.getoption("--chaos-seed")))
        made.finish()
        yield made
    finally:
        made.take_down()


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", [MODEL, PURCHASE])
def test_each_row_that_counts_is_learned_once_and_no_other(system: System, model: str) -> None:
    """The market: what was seen, and of deferred answers only activated ones. Purchase: the clicked rows of these."""
    expected = system.expected(model)
    assert system.learned_rows(model) == expected
    status = system.status[model]
    join, labels = status["join"], Counter(expected.values())
    assert min(labels[0], labels[1]) > 10
    rows = sum(len(event["items"]) for event in system.impressions.values())
    assert (join["positives"], join["negatives"], join["rows"]) == (labels[1], labels[0], rows)
    assert join["unseen"] == rows - len(expected)
    deferred = {request for request, each in system.impressions.items() if each.get("event") == "deferred"}
    activated = {
        request for request in deferred if any(e.event == "activated" for e in reported(system, request))
    }
    assert join["unactivated"] == len(deferred - activated) > 10 and len(activated) > 10
    assert (join["late"], join["corrections"], join["out_of_order"], status["dead_letters"]) == (0, 0, 0, 0)
    assert set(status["lost"].values()) == {0}
    online = [cell.sums for _, cell in online_of(system.store, model)]
    assert (sum(each.shown for each in online), sum(each.positives for each in online)) == (
        len(expected),
        labels[1],
    )


def reported(system: System, request: str) -> list[Feedback]:
    return system.visitor.reports.get(request, Reports()).events


def online_of(store: Store, model: str) -> list[Any]:
    now = int(time.time()) // 60
    return list(store.model(model).online.read(now - 60, now + 2, now))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_answer_has_the_order_and_the_values_of_the_versions_that_it_names(system: System) -> None:
    """Answers that lack purchase's values say so, and which; others say at most that its model or user is old."""
    used = [version_of_purchase(answer) for answer in system.visitor.answers]
    for answer in system.visitor.answers:
        parts = {each.part for each in answer.degraded}
        assert ("objective" in parts) == (version_of_purchase(answer) == 0), answer
        assert "other_models" in parts or "objective" not in parts, answer
    assert used.count(0) >= 20 and len(set(used)) >= 3, Counter(used)
    assert any(before > after > 0 for before, after in pairwise(used)), "a version came back"
    oracle = cache(lambda model, version: Oracle.of(system.store, model, version))
    for event in system.impressions.values():
        values = []
        for item in event["items"]:
            example = {**event["user"], **event["context"], **item["features"]}
            score = oracle(MODEL, event["version"]).score(example, event["variant"])
            assert item["ctr"] == pytest.approx(sigmoid(score), rel=1e-9)
            value = item["ctr"]
            if other := item.get("models", {}).get(PURCHASE):
                score = oracle(PURCHASE, other["version"]).score(example, other["variant"])
                assert other["ctr"] == pytest.approx(sigmoid(score), rel=1e-9)
                value *= other["ctr"] * example["price"]
            values.append(value)
        assert values == sorted(values, reverse=True), event["request_id"]


def sigmoid(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-score))
