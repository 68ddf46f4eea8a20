"""The traffic of `ftrie simulate`: visits at their times, from many callers at once, and the clicks that follow.

Failed calls are counted and retried; they never end the traffic. Each click and conversion waits for its time and is
then reported until it is acknowledged: one thread reports, in the order of the events. An event keeps its id when it is
sent again, so that a report whose acknowledgement was lost counts once.
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import numpy as np

from ftrie.api.access import OPEN, Access
from ftrie.api.client import Client, RankFailed
from ftrie.api.feedback import Feedback as ReportedFeedback
from ftrie.api.feedback import ReportFailed
from ftrie.api.messages import Exploration, Ranking
from ftrie.demo.figures import Figures, Freshness, Reported, Statistics, quantiles
from ftrie.demo.market import AnsweredVisit, Market, Schedule, Visit
from ftrie.demo.settings import Rankers
from model_store.errors import StoreError
from model_store.store import Store
from model_store.waiting import Backoff, SignalEvent

LATEST_S = 5.0
"""A visit that starts later than this after its time is lost: visitors leave."""
FINISH_S = 30.0
PATIENCE_S = 5.0
CALL_S = 2.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5
# The most that the service takes in one call.
BATCH = 1000
REPORT_S = 5.0
GATHER_S = 0.02
"""How long a click may wait for others to share its batch."""


@dataclass(frozen=True)
class Window:
    """What happened in `seconds`. second: the market's, at the end. freshness: quantiles, see Freshness."""

    second: float
    seconds: float
    figures: Figures
    freshness: dict[str, float | int | None]
    sent: Sent

    def as_json(self) -> dict[str, Any]:
        """The --json output."""
        figures, sent = self.figures, self.sent
        return {
            "second": round(self.second, 3),
            "seconds": round(self.seconds, 3),
            "visits_a_second": round(figures.visits / self.seconds, 1) if self.seconds else None,
            "models": {name: tally.as_json() for name, tally in sorted(figures.models.items())},
            "versions": figures.versions,
            "degraded": figures.degraded,
            "failures": dict(figures.failures),
            "lost_visits": figures.lost,
            "freshness": self.freshness,
            "feedback": vars(sent) | {"failures": dict(sent.failures)},
        }


class Traffic:
    """One run of traffic: call `run` once. `stop` may be called from any thread or signal handler."""

    def __init__(
        self,
        schedule: Schedule,
        from_s: float,
        rankers: Rankers,
        callers: Callers,
        reporter: Reporter,
        freshness: Freshness,
        statistics: Statistics,
    ) -> None:
        self._schedule, self._from_s, self._rankers = schedule, from_s, rankers
        self._callers, self._reporter = callers, reporter
        self._freshness, self._statistics = freshness, statistics
        self._stop = SignalEvent()  # `stop` may run in a handler
        self._until_s = float("inf")
        self._began = 0.0

    def run(
        self, seconds: float, concurrency: int, every_s: float, on_window: Callable[[Window], None]
    ) -> Window:
        """Make visits for `seconds`; `on_window` gets a window each `every_s`. Returns one window of the whole run."""
        self._until_s = self._from_s + seconds
        self._began = time.monotonic()
        self._reporter.start()
        threads = [threading.Thread(target=self._visits, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        try:
            self._make_windows(every_s, on_window)
            for thread in threads:  # visits due before the end are still made, or counted as lost
                thread.join(max(0.0, self._until_s + LATEST_S - self.second))
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        last = self._window(self._window_end_s)
        sent = self._reporter.finish(FINISH_S)
        self._callers.close()
        freshness = quantiles(self._freshness.all())
        return Window(last.second, last.second - self._from_s, self._statistics.all(), freshness, sent)

    def stop(self) -> None:
        """End the run; `run` returns once the feedback that is due has been reported."""
        self._stop.set()

    @property
    def second(self) -> float:
        """The market's second, now."""
        return self._from_s + time.monotonic() - self._began

    def _make_windows(self, every_s: float, on_window: Callable[[Window], None]) -> None:
        self._window_end_s = self._from_s
        while not self._stop.wait(max(0.0, min(self._window_end_s + every_s, self._until_s) - self.second)):
            on_window(self._window(self._window_end_s))
            if self.second >= self._until_s:
                return

    def _window(self, since_s: float) -> Window:
        self._window_end_s = second = self.second
        figures, freshness = self._statistics.next_window(), quantiles(self._freshness.next_window())
        return Window(second, second - since_s, figures, freshness, self._reporter.sent())

    def _visits(self) -> None:
        """One caller: make the next visit when it is due, until the end."""
        for visit in self._schedule:
            if visit.due_s >= self._until_s or self._stop.wait(max(0.0, visit.due_s - self.second)):
                return
            if self.second - visit.due_s > LATEST_S:
                self._statistics.lost()
                continue
            model = self._rankers.of(visit.apart)
            answer = self._callers.rank(self._schedule.market, visit, model, stopped=self._stop.is_set)
            if answer is None:
                self._statistics.lost()
            else:
                self._answered(visit, model, answer)

    def _answered(self, visit: Visit, model: str, answer: ServerAnswer) -> None:
        ranking, at_s, now = answer.ranking, time.monotonic(), time.time()
        answered = answered_visit(self._schedule, visit, [(item.id, item.ctr) for item in ranking.items])
        self._statistics.answered(model, ranking.version, answered, bool(ranking.degraded))
        if model == self._rankers.model:
            self._freshness.answered(answer.server, ranking.version, at_s)
        self._reporter.expect(
            [
                FutureFeedback(
                    model, ranking.request_id, each.item, each.event, now + each.after_s, each.value
                )
                for each in answered.reactions(self._schedule.habits.seen)
            ]
        )


def answered_visit(schedule: Schedule, visit: Visit, items: Sequence[tuple[str, float]]) -> AnsweredVisit:
    """The visit with the items of its answer and their predicted ctr, best first."""
    market = schedule.market
    index = {market.skus[item]: number for number, item in enumerate(visit.candidates)}
    order = np.array([index[sku] for sku, _ in items], np.int64)
    return AnsweredVisit(market, visit, order, np.array([ctr for _, ctr in items], np.float64))


def freshness_of(freshness: Freshness, model: str) -> Callable[[str, Reported, int], None]:
    """A Reporter's callback that measures the freshness of `model` alone, by one click of each batch."""

    def acknowledged(reported_model: str, times: Reported, events: int) -> None:
        if reported_model == model:
            freshness.reported(times)

    return acknowledged


@dataclass(frozen=True)
class RequestOptions:
    """Parameters of all requests. run: a prefix of every request_id, different in each run."""

    run: str
    top_k: int
    exploration: Exploration | None = None


@dataclass(frozen=True)
class ServerAnswer:
    """A ranking, and the index of the server that gave it among the addresses."""

    ranking: Ranking
    server: int


class Callers:
    """Connections to all servers. Thread-safe."""

    def __init__(
        self,
        addresses: Sequence[str],
        options: RequestOptions,
        on_failure: Callable[[str], None],
        access: Access = OPEN,
    ) -> None:
        """`on_failure` gets the gRPC status of each failed call."""
        self._clients = [Client(address, CALL_S, access) for address in addresses]
        self._options = options
        self._on_failure = on_failure

    def rank(
        self, market: Market, visit: Visit, model: str, *, stopped: Callable[[], bool]
    ) -> ServerAnswer | None:
        """The first answer for a visit, each server tried in turn; None after PATIENCE_S, or once `stopped` is true."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        deadline = time.monotonic() + PATIENCE_S
        # Visits begin with the servers in turn.
        server = visit.number
        while not stopped():
            server = server % len(self._clients)
            try:
                return ServerAnswer(self._call(self._clients[server], market, visit, model), server)
            except RankFailed as error:
                self._on_failure(error.code.name)
            server += 1
            wait_s = backoff.failed()
            if time.monotonic() + wait_s > deadline:
                return None
            time.sleep(wait_s)
        return None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _call(self, client: Client, market: Market, visit: Visit, model: str) -> Ranking:
        return client.rank(
            model,
            # The same at every retry: a server may have logged a call whose answer was lost.
            request_id=f"{self._options.run}-{visit.number}",
            cookie=market.cookies[visit.user],
            candidates=[market.skus[item] for item in visit.candidates],
            context=visit.context,
            top_k=self._options.top_k,
            exploration=self._options.exploration,
        )


# -- feedback


@dataclass
class Sent:
    """Counts of feedback so far. to_come: events whose time has not come; unsent: given up at the end."""

    clicks: int = 0
    conversions: int = 0
    duplicates: int = 0
    rejected: int = 0
    to_come: int = 0
    unsent: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Reporter:
    """Takes future feedback and reports it at its time. Thread-safe. Call `start` first."""

    def __init__(self, sink: Sink, acknowledged: Callable[[str, Reported, int], None]) -> None:
        """`acknowledged` gets the model, the times and the size of each acknowledged batch, in order."""
        self._sink = sink
        self._acknowledged = acknowledged
        self._awake = threading.Condition()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, FutureFeedback]] = []
        self._finishing = self._aborted = False
        self._sent = Sent()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def expect(self, events: Sequence[FutureFeedback]) -> None:
        """Report each of these when its time comes."""
        with self._awake:
            for event in events:
                # The number: events of the same time are not compared.
                heapq.heappush(self._waiting, (event.at, next(self._numbers), event))
            self._awake.notify()

    def finish(self, timeout_s: float) -> Sent:
        """Report what is due, within the timeout, and end; events whose time has not come are dropped."""
        with self._awake:
            self._finishing = True
            self._awake.notify()
        self._thread.join(timeout_s)
        with self._awake:
            self._aborted = True
            self._awake.notify()
        self._thread.join()
        return self.sent()

    def sent(self) -> Sent:
        """The counts so far."""
        with self._awake:
            return replace(self._sent, to_come=len(self._waiting), failures=Counter(self._sent.failures))

    def _run(self) -> None:
        while due := self._due():
            for model in dict.fromkeys(event.model for event in due):
                self._report(model, [event for event in due if event.model == model])

    def _due(self) -> list[FutureFeedback]:
        """Wait for the next events that are due; an empty list means the end."""
        with self._awake:
            while True:
                now = time.time()
                if self._waiting and self._waiting[0][0] <= now:
                    due: list[FutureFeedback] = []
                    while self._waiting and self._waiting[0][0] <= now and len(due) < BATCH:
                        due.append(heapq.heappop(self._waiting)[2])
                    return due
                if self._finishing:
                    return []
                wait_s = self._waiting[0][0] - now if self._waiting else None
                self._awake.wait(None if wait_s is None else max(wait_s, GATHER_S))

    def _report(self, model: str, events: list[FutureFeedback]) -> None:
        """Send until the batch is acknowledged, or `finish` times out."""
        backoff = Backoff(0.05, 1.0)
        # Before the first attempt: an outage is part of the delay that is measured.
        began_s = time.monotonic()
        while True:
            try:
                receipt = self._sink.send(model, events)
                break
            except NotTaken as error:
                if not self._wait(error.status, backoff.failed()):
                    self._sent.unsent += len(events)
                    return
        self._acknowledged(model, Reported(began_s, time.time_ns() // 1000), len(events))
        self._count(receipt, events)

    def _wait(self, status: str, wait_s: float) -> bool:
        """Count a failure and wait; False once `finish` has timed out."""
        with self._awake:
            self._sent.failures[status] += 1
            self._awake.wait_for(lambda: self._aborted, wait_s)
            return not self._aborted

    def _count(self, receipt: Receipt, events: Sequence[FutureFeedback]) -> None:
        with self._awake:
            for event in events:
                if event.event == "click":
                    self._sent.clicks += 1
                elif event.event == "conversion":
                    self._sent.conversions += 1
            self._sent.duplicates += receipt.duplicates
            self._sent.rejected += receipt.rejected


@dataclass(frozen=True)
class FutureFeedback:
    """An event of one item of one answer. at: seconds since 1970."""

    model: str
    request_id: str
    item: str
    event: Literal["click", "conversion", "seen"]
    at: float
    value: float

    @property
    def event_id(self) -> str:
        """The same at every retry; a second click on the same item of an answer is a duplicate."""
        return f"{self.request_id}/{self.item}/{self.event}"

    def reported(self) -> ReportedFeedback:
        """The client's form."""
        at = datetime.fromtimestamp(self.at, UTC)
        return ReportedFeedback(self.request_id, self.item, self.event, self.event_id, at, self.value)


@dataclass(frozen=True)
class Receipt:
    """The counts of an acknowledged batch."""

    accepted: int
    duplicates: int = 0
    rejected: int = 0


class NotTaken(Exception):
    """A batch was not acknowledged; send it again. status: the gRPC status, or the store error's class."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Sink(Protocol):
    """Takes batches of one model's feedback, at most BATCH events. For one thread."""

    def send(self, model: str, events: Sequence[FutureFeedback]) -> Receipt:
        """Return once the events are in the store. Raises NotTaken."""

    def close(self) -> None:
        """Close the connections."""


class Service:
    """The FeedbackService of several servers, used in turn."""

    def __init__(self, addresses: Sequence[str], access: Access = OPEN) -> None:
        self._clients = [Client(address, REPORT_S, access) for address in addresses]
        self._turn = 0

    def send(self, model: str, events: Sequence[FutureFeedback]) -> Receipt:
        """Same as in `Sink`."""
        client = self._clients[self._turn % len(self._clients)]
        self._turn += 1
        try:
            report = client.feedback(model, [event.reported() for event in events])
        except ReportFailed as error:
            raise NotTaken(error.code.name) from error
        return Receipt(report.accepted, report.duplicates, len(report.rejected))

    def close(self) -> None:
        """Same as in `Sink`."""
        for client in self._clients:
            client.close()


class Stream:
    """The stream of clicks in the store, written directly as by a system that does not use the service."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, model: str, events: Sequence[FutureFeedback]) -> Receipt:
        """Same as in `Sink`."""
        try:
            return Receipt(self._store.clicks(model).append([_payload(event) for event in events]))
        except StoreError as error:
            raise NotTaken(type(error).__name__) from error

    def close(self) -> None:
        """Do nothing: the caller closes the store."""


def _payload(event: FutureFeedback) -> bytes:
    members = {
        "request_id": event.request_id,
        "item": event.item,
        "ts": event.at,
        "event": event.event,
        "event_id": event.event_id,
    }
    return json.dumps(members | ({"value": event.value} if event.value else {})).encode()
