"""The join, slow and obvious: lists and dicts of plain objects, searched from end to end at every event."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from model_store.spec.sections import JoinSection
from trainer.events.events import BACKFILL_US


class Event(NamedTuple):
    """An impression, with the items it shows, or feedback, with its item (seen_to: its position) and what it was."""

    time: int
    request: int
    shows: tuple[int, ...] | None = None
    item: int = 0
    what: str = "click"
    now: int | None = None
    deferred: bool = False


class Row(NamedTuple):
    """A learned row: the number of the impression among all of them, which of its rows, and the label."""

    impression: int
    row: int
    label: int
    clicked: bool


@dataclass
class Request:
    """A request that was shown. came, late: what the rows received in time and afterwards."""

    number: int
    name: int
    time: int
    items: tuple[int, ...]
    came: dict[int, set[str]] = field(default_factory=dict)
    late: dict[int, set[str]] = field(default_factory=dict)
    closed_at: int | None = None
    active: bool = True
    given: dict[int, set[int]] = field(default_factory=dict)
    """The labels with which each row was given out."""

    def positives(self, needed: set[str]) -> int:
        return sum(needed <= what for what in self.came.values())

    def known(self, row: int) -> set[str]:
        return self.came.get(row, set()) | self.late.get(row, set())


class OracleJoin:
    """`rows` and `closed` (number, positives, clicks, conversions) grow; counts: what became of everything.

    exposed: of each row of the requests that closed, whether it was seen, if that matters.
    """

    def __init__(self, section: JoinSection, learned: str = "shown") -> None:
        self.section = section
        self.clicked = learned == "clicked"
        self.needed = {section.positive} | ({"click"} if self.clicked else set())
        self.rows: list[Row] = []
        self.closed: list[tuple[int, int, int, int]] = []
        self.exposed: list[bool] = []
        self.counts: Counter[str] = Counter()
        self.watermark = -(10**30)
        self.pending: list[Request] = []
        self.remembered: list[Request] = []
        self.early: list[Event] = []

    def take(self, event: Event) -> None:
        now = event.time if event.now is None else event.now
        event = event._replace(time=min(event.time, now))
        self.watermark = max(self.watermark, event.time - self.section.lateness_us)
        since = max(event.time, min(self.watermark, now))
        if now - event.time < BACKFILL_US:
            since = max(since, now - self.section.lateness_us)
        for request in sorted(self.pending, key=lambda request: (request.time, request.number)):
            if self.is_over(request.time):
                self.close(request)
        self.give_up([early for early in self.early if self.is_over(early.time)])
        for request in list(self.remembered):
            if request.closed_at + self.section.late_within_us < self.watermark:
                self.remembered.remove(request)
        if event.shows is not None:
            self.show(event._replace(time=since))
        else:
            self.feedback(event, since)

    def step_back(self, now: int) -> None:
        self.watermark = min(self.watermark, now - self.section.lateness_us)

    def finish(self) -> None:
        for request in sorted(self.pending, key=lambda request: (request.time, request.number)):
            self.close(request)
        self.give_up(list(self.early))

    def is_over(self, time: int) -> bool:
        return time + self.section.window_us < self.watermark

    def known(self, name: int) -> Request | None:
        return next((each for each in self.pending + self.remembered if each.name == name), None)

    def show(self, event: Event) -> None:
        number = self.counts["impressions"]
        self.counts["impressions"] += 1
        if self.known(event.request):
            self.counts["duplicate_impressions"] += 1
            return
        request = Request(number, event.request, event.time, event.shows, active=not event.deferred)
        self.counts["rows"] += len(event.shows)
        self.pending.append(request)
        self.weigh(request)
        for early in [early for early in self.early if early.request == event.request]:
            self.early.remove(early)
            self.receive(request, early)
        if self.is_over(event.time):
            self.counts["late_impressions"] += 1
            self.close(request)
        elif len(self.pending) > self.section.max_pending:
            self.counts["closed_early"] += 1
            self.close(min(self.pending, key=lambda request: (request.time, request.number)))

    def feedback(self, event: Event, since: int) -> None:
        self.counts[
            {"seen_to": "seen", "seen": "seen", "activated": "activated"}.get(event.what, event.what + "s")
        ] += 1
        if request := self.known(event.request):
            self.receive(request, event)
            return
        self.counts["early"] += 1
        if self.is_over(since):
            self.counts["out_of_order"] += 1
            return
        self.early.append(event._replace(time=since))
        if len(self.early) > self.section.max_pending:
            self.give_up([min(self.early, key=lambda early: early.time)])

    def receive(self, request: Request, event: Event) -> None:
        is_late = request.closed_at is not None or event.time > request.time + self.section.window_us
        if event.what == "activated":
            self.activate(request, is_late)
            return
        if event.what == "seen_to":
            self.see(request, range(min(event.item, len(request.items))), is_late)
            return
        if event.item not in request.items:
            self.counts["unknown_item"] += 1
            return
        row = request.items.index(event.item)
        in_time, late = request.came.setdefault(row, set()), request.late.setdefault(row, set())
        if event.what in in_time or (is_late and event.what in late):
            self.counts["duplicate_feedback"] += 1
        elif is_late:
            self.counts["late"] += 1
            late.add(event.what)
            if request.closed_at is not None and request.active:
                self.correct(request, row)
        else:
            self.counts["joined"] += 1
            in_time.add(event.what)
            if event.what in self.needed and self.needed <= in_time and request.active:
                self.positive(request, row)
        self.weigh(request)

    def give(self, request: Request, row: int, label: int, clicked: bool) -> bool:
        """Whether the row is new with this label; then it is given out."""
        given = request.given.setdefault(row, set())
        if label in given:
            return False
        given.add(label)
        self.rows.append(Row(request.number, row, label, clicked))
        return True

    def positive(self, request: Request, row: int) -> None:
        self.counts["positives"] += 1
        if self.section.late != "weigh":
            self.give(request, row, 1, True)

    def weigh(self, request: Request) -> None:
        """A negative of each row that counts, and a positive of each that has what it takes, whenever it came."""
        if self.section.late != "weigh" or not request.active:
            return
        for row in range(len(request.items)):
            known = request.known(row)
            if not self.clicked or "click" in known:
                is_late = self.clicked and "click" in request.late.get(row, ())
                self.counts["corrections"] += self.give(request, row, 0, False) and is_late
            if self.needed <= known:
                self.counts["corrections"] += self.give(request, row, 1, True)

    def activate(self, request: Request, is_late: bool) -> None:
        if request.active:
            self.counts["duplicate_feedback"] += 1
        elif is_late:
            self.counts["late"] += 1
        else:
            self.counts["joined"] += 1
            request.active = True
            for row in range(len(request.items)):
                if self.needed <= request.came.get(row, set()):
                    self.positive(request, row)
            self.weigh(request)

    def see(self, request: Request, rows: range, is_late: bool) -> None:
        into, new = request.late if is_late else request.came, False
        for row in rows:
            new |= not any("seen" in each.get(row, ()) for each in (request.came, into))
            into.setdefault(row, set()).add("seen")
        if not request.items:
            self.counts["unknown_item"] += 1
        else:
            self.counts[("late" if is_late else "joined") if new else "duplicate_feedback"] += 1

    def correct(self, request: Request, row: int) -> None:
        if self.section.late == "correct":
            known = request.known(row)
            if self.needed <= known:
                self.counts["corrections"] += self.give(request, row, 1, True)
            elif self.clicked and "click" in known:
                self.counts["corrections"] += self.give(request, row, 0, True)

    def close(self, request: Request) -> None:
        if request.active:
            self.give_out(request)
        else:
            self.counts["unactivated"] += 1
            self.counts["unseen"] += len(request.items)
        self.counts["closed"] += 1
        request.closed_at = self.watermark
        self.pending.remove(request)
        self.remembered.append(request)
        if len(self.remembered) > self.section.max_pending:
            self.counts["forgotten_early"] += 1
            self.remembered.pop(0)

    def give_out(self, request: Request) -> None:
        for row in range(len(request.items)):
            came = request.came.get(row, set())
            counts = self.section.negatives == "shown" or bool(came)
            if self.clicked:
                counts = "click" in came
            if self.clicked or self.section.negatives == "seen":
                self.exposed.append(counts)
            if self.needed <= came:
                continue
            if counts:
                self.counts["negatives"] += 1
                if self.section.late != "weigh":
                    self.give(request, row, 0, request.positives(self.needed) > 0)
            else:
                self.counts["unseen"] += 1
            self.correct(request, row)
        what = [request.positives(each) for each in (self.needed, {"click"}, {"conversion"})]
        self.closed.append((request.number, *what))

    def give_up(self, early: list[Event]) -> None:
        self.counts["orphans"] += len(early)
        for each in early:
            self.early.remove(each)
