"""Clocks that step or differ: each row is learned once with its own label, by a join of the raw events."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.streams.event_streams import EntryId, EventStream, Read
from tests.matrix import slow_except
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.parse import PartitionShare
from trainer.events.waiting_rows import Segments
from trainer.examples.joined import EventRows
from trainer.sources import merge
from trainer.sources.merge import Merger
from trainer.sources.redis import StreamSource

SPEC = parse_spec(
    '[model]\nname = "m"\n[input]\nlabel = "click"\nrequest = "request_id"\n'
    '[fields]\nbrand = {}\n[join]\nwindow = "1m"\nlateness = "5s"'
)
BEGAN_S, LASTS_S, HOUR_S = 1_700_000_000, 240, 3600
IMPRESSIONS, CLICKS = KEYS = ("ftrie:{m}:impressions", "ftrie:{m}:clicks")

Step = Callable[[float], float]
"""How far a clock is ahead, in seconds, by the true time since the beginning."""


class Site:
    """Two servers and a store, each with its clock; `now_s` is the true time. `labels`: of each row, by its clicks."""

    def __init__(self, store: Store, steps: dict[str, Step]) -> None:
        self.store, self.now_s, self.events = store, 0.0, 0
        self._steps, self._chance = steps, random.Random(1)
        self._last_ms = dict.fromkeys(KEYS, 0)
        self._due: list[tuple[float, int]] = []
        self.labels: dict[tuple[str, str], int] = {}

    def by(self, clock: str) -> float:
        return BEGAN_S + self.now_s + self._steps.get(clock, lambda at_s: 0.0)(self.now_s)

    def write(self, key: str, event: dict[str, Any], at_ms: int | None = None) -> None:
        """Add an entry, with the id that a store whose clock is so would give it."""
        ms = max(int(self.by("store") * 1000), self._last_ms[key]) if at_ms is None else at_ms
        self._last_ms[key] = ms
        self.store.client.xadd(key, {"json": json.dumps(event)}, id=f"{ms}-*")
        self.events += 1

    def live(self) -> None:
        """A second: an impression of two items, and the clicks that are due, half a minute after theirs at most."""
        number = int(self.now_s)
        for due in [each for each in self._due if each[0] <= self.now_s]:
            self._due.remove(due)
            server = self._chance.choice("ab")
            self.write(CLICKS, {"request_id": f"r{due[1]}", "item": "i0", "ts": self.by(server)})
        if number < LASTS_S - 60:
            clicked = self._chance.random() < 0.5
            self.labels |= {(f"r{number}", "i0"): int(clicked), (f"r{number}", "i1"): 0}
            self._due += [(self.now_s + self._chance.uniform(0.5, 40), number)] if clicked else []
            items = [{"id": item, "features": {"brand": item}} for item in ("i0", "i1")]
            self.write(
                IMPRESSIONS, {"request_id": f"r{number}", "items": items, "ts": self.by("ab"[number % 2])}
            )
        self.now_s = number + 1.0


class Stepped(EventStream):
    """A stream of the store, whose clock is the site's."""

    site: Site

    def read(self, after: EntryId, count: int) -> Read:
        now_us = int(self.site.by("store") * 1000) * 1000
        return replace(super().read(after, count), now_us=now_us)


class Learner:
    """The way of events to labelled rows, of one partition or of all; it may be stopped and opened again."""

    def __init__(self, site: Site, folder: Path, share: PartitionShare | None = None) -> None:
        self.site, self._folder, self._share = site, folder, share
        self.learned = list[tuple[str, str, int]]()
        self.notes = list[str]()
        self.taken, self.join = 0, Join(SPEC.join)
        self.positions: list[dict[str, Any]] = []
        self.open()

    def open(self) -> None:
        sources = []
        for number, key in enumerate(KEYS):
            stream = Stepped(self.site.store.event_stream(key)._store, key)
            stream.site = self.site
            position = self.positions[number] if self.positions else {}
            clock = {"machine_s": lambda: self.site.now_s}
            sources.append(StreamSource(key, stream, position, self.notes.append, **clock))
        self.segments = Segments(self._folder / "segments", 1 << 20)
        self.segments.restore(self.join.segments())
        self.merger = Merger(
            sources, Wanted.of(SPEC), self.segments, positions=self.positions, share=self._share
        )
        self._rows = EventRows(self.merger, self.join, self.segments, SPEC)

    def close(self) -> None:
        self.positions = json.loads(json.dumps(self.merger.positions()))
        self.merger.close()
        self.segments.keep(self.join.segments())
        self.segments.flush()

    def restart(self) -> None:
        self.close()
        state = {name: array.copy() for name, array in self.join.state().items()}
        self.join = Join(SPEC.join)
        self.join.restore(state)
        self.open()

    def learn(self, until: int) -> None:
        """Learn until so many events were taken; all clocks go on meanwhile, by two seconds at most."""
        ends_s, stop_s = time.monotonic() + 60.0, self.site.now_s + 2.0
        while self.taken < until:
            assert time.monotonic() < ends_s, f"{until - self.taken} events are not read: {self.notes}"
            if (found := self._rows.step(0.002)) is None:
                self.site.now_s = min(stop_s, self.site.now_s + 0.002)
                continue
            self._note(found[1])
            self.taken += len(found[0])

    def finish(self) -> None:
        self._note(self.join.finish())

    def _note(self, joined: Any) -> None:
        for first, columns in self.segments.gather(joined.segment, joined.row, ["request_id", "brand"]):
            for row in range(len(columns["brand"])):
                request, item = (columns[name][row].as_py().decode() for name in ("request_id", "brand"))
                self.learned.append((request, item, int(joined.label[first + row])))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_GATHER_S", 0.001)
    monkeypatch.setattr(merge, "_PAUSE_S", 0.001)


@contextmanager
def learning(site: Site, folder: Path) -> Iterator[Learner]:
    learner = Learner(site, folder)
    try:
        yield learner
    finally:
        learner.merger.close()


def between(first_s: float, stop_s: float, ahead_s: float) -> Step:
    return lambda at_s: ahead_s if first_s <= at_s < stop_s else 0.0


ALWAYS = float("inf")
SHORT, LONG = (between(100, stop, HOUR_S) for stop in (104, 150))
CASES: dict[str, dict[str, Step]] = {
    "no clock steps": {},
    "the host's is an hour ahead for four seconds": dict.fromkeys(("a", "b", "store"), SHORT),
    "the host's is an hour ahead for a while": dict.fromkeys(("a", "b", "store"), LONG),
    "the host's is an hour behind for a while": dict.fromkeys(
        ("a", "b", "store"), between(100, 150, -HOUR_S)
    ),
    "the host's was an hour ahead at the start": dict.fromkeys(("a", "b", "store"), between(-1, 60, HOUR_S)),
    "the store's is an hour ahead for four seconds": {"store": SHORT},
    "the store's is an hour ahead for good": {"store": between(100, ALWAYS, HOUR_S)},
    "the store's is an hour behind for good": {"store": between(100, ALWAYS, -HOUR_S)},
    "a server's is twenty minutes behind": {"b": between(-1, ALWAYS, -1200)},
    "a server's is of 1970": {"b": between(20, ALWAYS, -BEGAN_S)},
    "a server's is an hour ahead": {"b": between(-1, ALWAYS, HOUR_S)},
}


@pytest.mark.parametrize(
    "restarts", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["restarted", ""]
)
@pytest.mark.parametrize("case", slow_except(list(CASES)[1:10:8], CASES))
def test_each_row_is_learned_once_with_its_label_whatever_the_clocks_do(
    case: str, restarts: bool, store: Store, tmp_path: Path
) -> None:
    site = Site(store, CASES[case])
    with learning(site, tmp_path) as learner:
        for second in range(1, LASTS_S + 1):
            site.live()
            if second % (2 if 98 < second < 106 else 12) == 0:
                learner.learn(site.events)
            if restarts and second in (90, 110, 120, 160):
                learner.restart()
        learner.finish()
    assert Counter(learner.learned) == Counter((*row, label) for row, label in site.labels.items())
    counts = learner.join.counts
    assert (counts.late, counts.orphans, counts.late_impressions) == (0, 0, 0)
