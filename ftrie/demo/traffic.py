"""Traffic: visits at their times, from many callers at once, and the clicks that follow. What `ftrie simulate` runs.

Failures of servers are counted and never end it.
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
from ftrie.demo.figures import Book, Figures, Freshness, Reported, quantiles
from ftrie.demo.market import Market
from ftrie.demo.visitors import Schedule, Seen, Visit
from model_store.backoff import Backoff

LATEST_S = 5.0
"""A visit that could not be made within so many seconds of its time is lost: visitors leave."""
FINISH_S = 30.0


@dataclass(frozen=True)
class Share:
    """Which models are asked: `model`, and on a share of the visits `beside`, to compare the two."""

    model: str
    beside: str = ""
    share: float = 0.0

    def of(self, visit: Visit) -> str:
        """The one for a visit."""
        return self.beside if self.beside and visit.apart < self.share else self.model


@dataclass(frozen=True)
class Window:
    """What happened from one line to the next. second: of the market's, at the end. fresh: see Freshness."""

    second: float
    seconds: float
    figures: Figures
    fresh: dict[str, float | int | None]
    sent: Sent

    def as_json(self) -> dict[str, Any]:
        """One line of --json."""
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
            "freshness": self.fresh,
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
    """One run of traffic, `run` once; `stop` from any thread or signal handler ends it."""

    def __init__(
        self,
        schedule: Schedule,
        from_s: float,
        share: Share,
        callers: Callers,
        reporter: Reporter,
        freshness: Freshness,
        book: Book,
    ) -> None:
        self._schedule, self._from_s, self._share = schedule, from_s, share
        self._callers, self._reporter, self._freshness, self._book = callers, reporter, freshness, book
        self._stop = threading.Event()
        self._until_s = float("inf")
        self._began = 0.0

    def run(self, seconds: float, concurrency: int, every_s: float, tell: Callable[[Window], None]) -> Window:
        """Make visits for so many seconds; tells a window now and then. Returns the whole as one."""
        self._until_s = self._from_s + seconds
        self._began = time.monotonic()
        self._reporter.start()
        threads = [threading.Thread(target=self._visits, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        try:
            self._tell_windows(every_s, tell)
            for thread in threads:  # visits that were due before the end are still made, or counted as lost
                thread.join(max(0.0, self._until_s + LATEST_S - self.second))
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        last = self._window(self._told_s)
        sent = self._reporter.finish(FINISH_S)
        self._callers.close()
        whole = quantiles(self._freshness.all())
        return Window(last.second, last.second - self._from_s, self._book.all(), whole, sent)

    def stop(self) -> None:
        """End it; `run` returns once what is due was reported."""
        self._stop.set()

    @property
    def second(self) -> float:
        """The market's, now."""
        return self._from_s + time.monotonic() - self._began

    def _tell_windows(self, every_s: float, tell: Callable[[Window], None]) -> None:
        self._told_s = self._from_s
        while not self._stop.wait(max(0.0, min(self._told_s + every_s, self._until_s) - self.second)):
            window = self._window(self._told_s)
            tell(window)
            if self.second >= self._until_s:
                return

    def _window(self, since_s: float) -> Window:
        self._told_s = second = self.second
        fresh = quantiles(self._freshness.turn_page())
        return Window(second, second - since_s, self._book.turn_page(), fresh, self._reporter.sent())

    def _visits(self) -> None:
        """One caller's life: the next visit, when it is due."""
        for visit in self._schedule:
            if visit.due_s >= self._until_s or self._stop.wait(max(0.0, visit.due_s - self.second)):
                return
            if self.second - visit.due_s > LATEST_S:
                self._book.lost()
                continue
            model = self._share.of(visit)
            answer = self._callers.rank(self._schedule.market, visit, model, stopped=self._stop.is_set)
            if answer is None:
                self._book.lost()
            else:
                self._answered(visit, model, answer)

    def _answered(self, visit: Visit, model: str, answer: Answered) -> None:
        ranking, at_s, now = answer.ranking, time.monotonic(), time.time()
        seen = seen_of(self._schedule, visit, [(item.id, item.ctr) for item in ranking.items])
        self._book.answered(model, ranking.version, seen, bool(ranking.degraded))
        if model == self._share.model:
            self._freshness.answered(answer.server, ranking.version, at_s)
        self._reporter.expect(
            [
                Feedback(model, ranking.request_id, each.item, each.event, now + each.after_s, each.value)
                for each in seen.reactions()
            ]
        )


def seen_of(schedule: Schedule, visit: Visit, items: Sequence[tuple[str, float]]) -> Seen:
    """The visit with the items of its answer, best first, each with its predicted ctr."""
    market = schedule.market
    place = {market.skus[item]: number for number, item in enumerate(visit.candidates)}
    order = np.array([place[sku] for sku, _ in items], np.int64)
    return Seen(market, visit, order, np.array([ctr for _, ctr in items], np.float64))


def fresh_only(freshness: Freshness, model: str) -> Callable[[str, Reported, int], None]:
    """What a Reporter tells: clicks of `model` alone wait for a version that contains them, one for each batch."""

    def acknowledged(reported_of: str, times: Reported, events: int) -> None:
        if reported_of == model:
            freshness.reported(times)

    return acknowledged


PATIENCE_S = 5.0
CALL_S = 2.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5


@dataclass(frozen=True)
class Asked:
    """What all requests have in common. run: in every request_id, so that one run's are not another's."""

    run: str
    top_k: int
    exploration: Exploration | None = None


@dataclass(frozen=True)
class Answered:
    """An answer, and which server gave it: its place among the addresses."""

    ranking: Ranking
    server: int


class Callers:
    """Connections to all servers. Any thread may call; `close` ends it."""

    def __init__(
        self, addresses: Sequence[str], asked: Asked, failed: Callable[[str], None], access: Access = OPEN
    ) -> None:
        """`failed` is told the gRPC status of each call that fails."""
        self._clients = [Client(address, CALL_S, access) for address in addresses]
        self._asked = asked
        self._failed = failed

    def rank(
        self, market: Market, visit: Visit, model: str, *, stopped: Callable[[], bool]
    ) -> Answered | None:
        """The first answer for a visit; None where none came in time, or `stopped` says to leave off."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        deadline = time.monotonic() + PATIENCE_S
        server = visit.number
        while not stopped():
            server = server % len(self._clients)
            try:
                return Answered(self._call(self._clients[server], market, visit, model), server)
            except RankFailed as error:
                self._failed(error.code.name)
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
            # The same whenever the visit is asked for again: a server may have answered, and logged, a call that
            # failed on the way back.
            request_id=f"{self._asked.run}-{visit.number}",
            cookie=market.cookies[visit.user],
            candidates=[market.skus[item] for item in visit.candidates],
            context=visit.context,
            top_k=self._asked.top_k,
            exploration=self._asked.exploration,
        )
