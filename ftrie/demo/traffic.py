"""The traffic of `ftrie simulate`: visits at their times, from many callers at once, and the clicks that follow.

Failed calls are counted and retried; they never end the traffic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftrie.client.access import OPEN, Access
from ftrie.client.client import Client, RankFailed
from ftrie.client.messages import Exploration, Ranking
from ftrie.demo.clicks import Feedback, Reporter, Sent
from ftrie.demo.figures import Figures, Freshness, Reported, Statistics, quantiles
from ftrie.demo.market import Market
from ftrie.demo.visitors import AnsweredVisit, Schedule, Visit
from model_store.waiting import Backoff

LATEST_S = 5.0
"""A visit that starts later than this after its time is lost: visitors leave."""
FINISH_S = 30.0
PATIENCE_S = 5.0
CALL_S = 2.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5


@dataclass(frozen=True)
class Share:
    """The models that rank: `model`, and on a share of the visits `beside`, to compare the two."""

    model: str
    beside: str = ""
    share: float = 0.0

    def of(self, visit: Visit) -> str:
        """The model for a visit."""
        return self.beside if self.beside and visit.apart < self.share else self.model


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
            "feedback": {
                "clicks": sent.clicks,
                "conversions": sent.conversions,
                "duplicates": sent.duplicates,
                "rejected": sent.rejected,
                "to_come": sent.to_come,
                "unsent": sent.unsent,
                "failures": dict(sent.failures),
            },
        }


class Traffic:
    """One run of traffic: call `run` once. `stop` may be called from any thread or signal handler."""

    def __init__(
        self,
        schedule: Schedule,
        from_s: float,
        share: Share,
        callers: Callers,
        reporter: Reporter,
        freshness: Freshness,
        statistics: Statistics,
    ) -> None:
        self._schedule, self._from_s, self._share = schedule, from_s, share
        self._callers, self._reporter = callers, reporter
        self._freshness, self._statistics = freshness, statistics
        self._stop = threading.Event()
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
            model = self._share.of(visit)
            answer = self._callers.rank(self._schedule.market, visit, model, stopped=self._stop.is_set)
            if answer is None:
                self._statistics.lost()
            else:
                self._answered(visit, model, answer)

    def _answered(self, visit: Visit, model: str, answer: Answer) -> None:
        ranking, at_s, now = answer.ranking, time.monotonic(), time.time()
        answered = answered_visit(self._schedule, visit, [(item.id, item.ctr) for item in ranking.items])
        self._statistics.answered(model, ranking.version, answered, bool(ranking.degraded))
        if model == self._share.model:
            self._freshness.answered(answer.server, ranking.version, at_s)
        self._reporter.expect(
            [
                Feedback(model, ranking.request_id, each.item, each.event, now + each.after_s, each.value)
                for each in answered.reactions()
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
class Answer:
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

    def rank(self, market: Market, visit: Visit, model: str, *, stopped: Callable[[], bool]) -> Answer | None:
        """The first answer for a visit, each server tried in turn; None after PATIENCE_S, or once `stopped` is true."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        deadline = time.monotonic() + PATIENCE_S
        server = visit.number
        while not stopped():
            server = server % len(self._clients)
            try:
                return Answer(self._call(self._clients[server], market, visit, model), server)
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
