"""Simulated clicks and conversions: each waits for its time and is then reported until it is acknowledged.

One thread reports, in the order of the events. An event keeps its id when it is sent again, so that a report whose
acknowledgement was lost counts once.
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
from typing import Literal, Protocol

from ftrie.client.access import OPEN, Access
from ftrie.client.client import Client
from ftrie.client.feedback import Feedback as ReportedFeedback
from ftrie.client.feedback import ReportFailed
from ftrie.demo.figures import Reported
from model_store.errors import StoreError
from model_store.store import Store
from model_store.waiting import Backoff

BATCH = 1000
CALL_S = 5.0
GATHER_S = 0.02
"""How long a click may wait for others to share its batch."""


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
        self._waiting: list[tuple[float, int, Feedback]] = []
        self._finishing = self._aborted = False
        self._sent = Sent()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def expect(self, events: Sequence[Feedback]) -> None:
        """Report each of these when its time comes."""
        with self._awake:
            for event in events:
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

    def _due(self) -> list[Feedback]:
        """Wait for the next events that are due; an empty list means the end."""
        with self._awake:
            while True:
                now = time.time()
                if self._waiting and self._waiting[0][0] <= now:
                    return self._popped(now)
                if self._finishing:
                    return []
                wait_s = self._waiting[0][0] - now if self._waiting else None
                self._awake.wait(None if wait_s is None else max(wait_s, GATHER_S))

    def _popped(self, now: float) -> list[Feedback]:
        due: list[Feedback] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < BATCH:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def _report(self, model: str, events: list[Feedback]) -> None:
        """Send until the batch is acknowledged, or `finish` times out."""
        backoff = Backoff(0.05, 1.0)
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

    def _count(self, receipt: Receipt, events: Sequence[Feedback]) -> None:
        with self._awake:
            for event in events:
                if event.event == "click":
                    self._sent.clicks += 1
                else:
                    self._sent.conversions += 1
            self._sent.duplicates += receipt.duplicates
            self._sent.rejected += receipt.rejected


@dataclass(frozen=True)
class Feedback:
    """An event of one item of one answer. at: seconds since 1970."""

    model: str
    request_id: str
    item: str
    event: Literal["click", "conversion"]
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

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """Return once the events are in the store. Raises NotTaken."""

    def close(self) -> None:
        """Close the connections."""


class Service:
    """The FeedbackService of several servers, used in turn."""

    def __init__(self, addresses: Sequence[str], access: Access = OPEN) -> None:
        self._clients = [Client(address, CALL_S, access) for address in addresses]
        self._turn = 0

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
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

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """Same as in `Sink`."""
        try:
            return Receipt(self._store.clicks(model).append([_payload(event) for event in events]))
        except StoreError as error:
            raise NotTaken(type(error).__name__) from error

    def close(self) -> None:
        """Do nothing: the caller closes the store."""


def _payload(event: Feedback) -> bytes:
    members = {
        "request_id": event.request_id,
        "item": event.item,
        "ts": event.at,
        "event": event.event,
        "event_id": event.event_id,
    }
    return json.dumps(members | ({"value": event.value} if event.value else {})).encode()
