"""The join, in any order of what may happen to it.

Events that come late, twice, early or out of order, clocks that step back, batches cut anywhere, crashes, and
partitions that another trainer takes over. The model is the slow, obvious join of tests/trainer/events/oracle.py, which
has seen each event once and never crashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.trainer.events.events import WHATS, assert_alike, closed_of, merged, rows_of
from tests.trainer.events.oracle import Event, OracleJoin, Row
from tests.trainer.events.test_join_against_oracle import SECOND, items, rules
from trainer.events.join import Join

PARTITIONS = 2
REQUESTS = st.integers(1, 6)
PARTS = st.integers(0, PARTITIONS - 1)
SHIFTS = st.sampled_from([0, 0, 0, 1, SECOND, 6 * SECOND, 25 * SECOND])


@dataclass
class Saved:
    """What a checkpoint has: the join's arrays, how far its events were read, and what it had given to the learner."""

    arrays: Mapping[str, Any] = field(default_factory=dict)
    read: int = 0
    rows: tuple[Row, ...] = ()
    closed: tuple[tuple[int, int, int, int], ...] = ()


class Partition:
    """events: all that came, in order; an int is a step back of the clock to this time. read: how many are taken."""

    def __init__(self, learned: Any) -> None:
        self.learned, self.join, self.oracle = learned, Join(*learned), OracleJoin(*learned)
        self.events: list[Event | int] = []
        self.read = 0
        self.rows: list[Row] = []
        self.closed: list[tuple[int, int, int, int]] = []
        self.saved = Saved()

    def come(self, event: Event | int) -> None:
        self.events.append(event)
        if isinstance(event, int):
            self.oracle.step_back(event)
        else:
            self.oracle.take(event)

    def take(self, count: int) -> None:
        """The next events, cut where a clock steps back."""
        for _ in range(count):
            if self.read == len(self.events):
                return
            event = self.events[self.read]
            if isinstance(event, int):
                self.join.step_back(event)
                self.read += 1
                continue
            batch = [event]
            while self.read + len(batch) < min(len(self.events), self.read + count):
                following = self.events[self.read + len(batch)]
                if isinstance(following, int):
                    break
                batch.append(following)
            shown = (each for each in self.events[: self.read] if isinstance(each, Event))
            joined = self.join.push(merged(batch, sum(each.shows is not None for each in shown)))
            self.rows += rows_of(joined)
            self.closed += closed_of(joined)
            self.read += len(batch)

    def save(self) -> None:
        arrays = {name: array.copy() for name, array in self.join.state().items()}
        self.saved = Saved(arrays, self.read, tuple(self.rows), tuple(self.closed))

    def resume(self) -> None:
        """In another process, by the last checkpoint; what the learner had since is lost with it."""
        self.join = Join(*self.learned)
        if self.saved.arrays:
            self.join.restore(self.saved.arrays)
        self.read, self.rows, self.closed = self.saved.read, [*self.saved.rows], [*self.saved.closed]


class Joins(RuleBasedStateMachine):
    """Requests are divided by their number; `now` is the clock by which events arrive."""

    @initialize(learned=rules())
    def begin(self, learned: Any) -> None:
        self.parts = [Partition(learned) for _ in range(PARTITIONS)]
        self.now = 0

    def come(self, event: Event) -> None:
        self.parts[event.request % PARTITIONS].come(event)

    @rule(
        request=REQUESTS,
        shows=st.lists(items, max_size=4),
        ago=SHIFTS,
        has_clock=st.booleans(),
        deferred=st.booleans(),
    )
    def show(self, request: int, shows: list[int], ago: int, has_clock: bool, deferred: bool) -> None:
        now = self.now if has_clock else None
        self.come(Event(self.now - ago, request, tuple(shows), now=now, deferred=deferred))

    @rule(
        request=REQUESTS,
        item=items,
        what=st.sampled_from(["click", "click", *WHATS]),
        ago=SHIFTS,
        times=st.sampled_from([1, 1, 2]),
        has_clock=st.booleans(),
    )
    def click(self, request: int, item: int, what: str, ago: int, times: int, has_clock: bool) -> None:
        for _ in range(times):
            self.come(Event(self.now - ago, request, None, item, what, self.now if has_clock else None))

    @rule(request=REQUESTS, ahead=SHIFTS)
    def show_by_a_clock_that_is_ahead(self, request: int, ahead: int) -> None:
        self.come(Event(self.now + ahead, request, (0, 1), now=self.now))

    @rule(seconds=st.sampled_from([0.25, 1.0, 1.0, 5.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    @rule(part=PARTS, seconds=st.sampled_from([1, 10, 3600]))
    def a_clock_steps_back(self, part: int, seconds: int) -> None:
        self.now -= seconds * SECOND
        self.parts[part].come(self.now)

    @rule(part=PARTS, count=st.integers(1, 8))
    def take(self, part: int, count: int) -> None:
        self.parts[part].take(count)

    @rule(part=PARTS)
    def save(self, part: int) -> None:
        self.parts[part].save()

    @rule(part=PARTS)
    def crash_or_be_taken_over(self, part: int) -> None:
        self.parts[part].resume()

    @invariant()
    def what_was_given_out_is_what_the_model_gives(self) -> None:
        """So far; and all of it, with every count, where all events are taken."""
        for part in getattr(self, "parts", ()):
            assert part.rows == part.oracle.rows[: len(part.rows)]
            assert part.closed == part.oracle.closed[: len(part.closed)]
            if part.read == len(part.events):
                assert (part.rows, part.closed) == (part.oracle.rows, part.oracle.closed)
                assert_alike(part.join, part.oracle)

    def teardown(self) -> None:
        for part in getattr(self, "parts", ()):
            while part.read < len(part.events):
                part.take(len(part.events))
        self.what_was_given_out_is_what_the_model_gives()
        for part in getattr(self, "parts", ()):
            joined = part.join.finish()
            part.oracle.finish()
            assert part.rows + rows_of(joined) == part.oracle.rows
            assert_alike(part.join, part.oracle)


@pytest.mark.parametrize(
    ("examples", "steps"), [(15, 15), pytest.param(100, 40, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_whatever_happens_each_row_is_given_out_once_with_its_label(examples: int, steps: int) -> None:
    how = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(Joins, settings=how)  # type: ignore[no-untyped-call]
