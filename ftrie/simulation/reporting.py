"""Clicks on their way: each waits for its time, then it is reported until it is acknowledged, whatever fails meanwhile.

One thread, so that reports leave in the order of their clicks. An event's id is the same each time it is sent, so that
one which was taken without our knowing counts once.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ftrie.simulation.freshness import Reported
from ftrie.simulation.sinks import Feedback, NotTaken, Receipt, Sink
from model_store.backoff import Backoff

BATCH = 1000
GATHER_S = 0.02
"""How long a click may wait for others to be sent with."""


@dataclass
class Sent:
    """What became of feedback so far. to_come: clicks and conversions whose time has not come."""

    clicks: int = 0
    conversions: int = 0
    duplicates: int = 0
    rejected: int = 0
    to_come: int = 0
    unsent: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Reporter:
    """Takes feedback of the future and reports it in time. Any thread may `expect`; begin with `start`."""

    def __init__(self, sink: Sink, acknowledged: Callable[[str, Reported, int], None]) -> None:
        """`acknowledged` is told the model, the times and the number of events of each batch, in order."""
        self._sink = sink
        self._acknowledged = acknowledged
        self._awake = threading.Condition()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Feedback]] = []
        self._over = self._hurried = False
        self._sent = Sent()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def expect(self, events: Sequence[Feedback]) -> None:
        """Report each of these when its time comes."""
        with self._awake:
            for event in events:
                heapq.heappush(self._waiting, (event.at, next(self._numbers), event))
            self._awake.notify()

    def finish(self, patience_s: float) -> Sent:
        """End: what is due is reported still, for as long as patience lasts; what is to come does not happen."""
        with self._awake:
            self._over = True
            self._awake.notify()
        self._thread.join(patience_s)
        with self._awake:
            self._hurried = True
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
        """Wait for the next clicks; an empty list is the end."""
        with self._awake:
            while True:
                now = time.time()
                if self._waiting and self._waiting[0][0] <= now:
                    return self._popped(now)
                if self._over:
                    return []
                wait_s = self._waiting[0][0] - now if self._waiting else None
                self._awake.wait(None if wait_s is None else max(wait_s, GATHER_S))

    def _popped(self, now: float) -> list[Feedback]:
        due: list[Feedback] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < BATCH:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    def _report(self, model: str, events: list[Feedback]) -> None:
        """Send until it is taken, or nobody waits for it any more."""
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
        """Note a failure and wait; False once nobody waits any more."""
        with self._awake:
            self._sent.failures[status] += 1
            self._awake.wait_for(lambda: self._hurried, wait_s)
            return not self._hurried

    def _count(self, receipt: Receipt, events: Sequence[Feedback]) -> None:
        with self._awake:
            for event in events:
                if event.event == "click":
                    self._sent.clicks += 1
                else:
                    self._sent.conversions += 1
            self._sent.duplicates += receipt.duplicates
            self._sent.rejected += receipt.rejected
