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

from ftrie.simulation.calls import Answered, Callers
from ftrie.simulation.figures import Book, Figures
from ftrie.simulation.freshness import Freshness, Reported, quantiles
from ftrie.simulation.reporting import Reporter, Sent
from ftrie.simulation.sinks import Feedback
from ftrie.simulation.visitors import Seen
from ftrie.simulation.visits import Schedule, Visit

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
