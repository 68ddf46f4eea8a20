"""The figures of minutes and hours against their definition: each closed request is counted once, whenever they are
written, however late it comes, and wherever the trainer crashes or the store fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from model_store.errors import FtrieError
from model_store.store import Store
from model_store.versions.online_metrics import CTR_UNIT, HOUR, OnlineCell
from tests.clocks import ManualClock
from tests.sweeps.failing import Failing, Fault
from tests.trainer.publish.test_online_metrics import (
    MINUTE_US,
    Cells,
    Request,
    by_definition,
    by_variant,
    closing,
    counted,
    drawn,
    same,
)
from trainer.events.waiting_rows import Segments
from trainer.publish.online_metrics import REMEMBERED_MINUTES, OnlineAccumulator

KNOWN = ("base", "ü")
DAY = 24 * HOUR
AGES = st.sampled_from([0, 0, 1, 30, 60, 90, REMEMBERED_MINUTES - 1, REMEMBERED_MINUTES])


def evidence_of(requests: list[Request]) -> dict[int, tuple[float, float]]:
    """Predicted and observed clicks by version, of requests with a ctr for every item."""
    found: dict[int, tuple[int, int]] = {}
    for each in requests:
        if None not in each["ctr"]:
            expected, clicks = found.get(each["version"] or 0, (0, 0))
            expected += sum(round(1e9 * ctr) for ctr in each["ctr"])
            found[each["version"] or 0] = expected, clicks + each["clicks"]
    return {version: (expected * CTR_UNIT, float(clicks)) for version, (expected, clicks) in found.items()}


class Minutes(RuleBasedStateMachine):
    """`log`: all requests in the order in which they close, of which `at` were added, and before a crash `furthest`."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__()
        store.client.flushall()
        self.store, self.online = store, store.model("m").online
        self.folders = (folder / str(number) for number in itertools.count())
        self.clock = ManualClock()
        self.began = self.minute
        self.earliest = (self.began - REMEMBERED_MINUTES) // HOUR * HOUR
        self.log: list[Request] = []
        self.at = self.furthest = self.restored = 0
        self.counts = OnlineAccumulator(KNOWN)
        self.saved: tuple[int, dict[str, Any]] = 0, self.counts.state()

    @property
    def minute(self) -> int:
        return int(self.clock.time()) // 60

    # -- the model

    def in_time(self, number: int) -> list[Request]:
        """Of the first so many, those that are no more than REMEMBERED_MINUTES older than the latest before them."""
        found, latest = [], 0
        for each in self.log[:number]:
            minute = each["time_us"] // MINUTE_US
            latest = max(latest, minute)
            if minute > latest - REMEMBERED_MINUTES:
                found.append(each)
        return found

    # -- rules

    @rule(
        minutes=st.sampled_from([0, 1, 2, 59, 61, REMEMBERED_MINUTES]),
        seed=st.integers(0, 99),
        ages=st.lists(AGES, min_size=1, max_size=6),
        is_written=st.booleans(),
    )
    def requests_close(self, minutes: int, seed: int, ages: list[int], is_written: bool) -> None:
        """After so many minutes, of so many minutes ago. What was lost in a crash is read again first."""
        if self.minute + minutes < self.began + 5 * HOUR:
            self.clock.advance(60.0 * minutes)
        made = drawn(len(ages), seed)
        self.log += [
            r | {"time_us": (self.minute - age) * MINUTE_US} for r, age in zip(made, ages, strict=True)
        ]
        self.read_on(len(self.log))
        if is_written:
            self.write()

    @precondition(lambda self: self.at < len(self.log))
    @rule(number=st.integers(1, 5))
    def read_on(self, number: int) -> None:
        """In other pieces than before the crash."""
        some = self.log[self.at : self.at + number]
        segments = Segments(next(self.folders), 1 << 30)
        self.counts.add(closing(some, segments), segments)
        self.at += len(some)

    @rule()
    def write(self) -> None:
        self.counts.flush(self.online)
        if self.at >= self.furthest:
            self.the_store_has_what_is_counted()
        else:
            # The store is ahead until all is read again, but for the minutes that the checkpoint has: these are written
            # whole, as if nothing had come after it.
            known = {minute for minute, _ in by_definition(self.in_time(self.restored))}
            found = self.read(self.earliest, self.minute + 1, self.minute)
            expected = by_definition(self.in_time(self.at))
            assert same(
                *({at: cell for at, cell in cells.items() if at[0] in known} for cells in (found, expected))
            )
        self.furthest = max(self.furthest, self.at)

    @rule(at=st.integers(0, 6), failure=st.sampled_from(["ECONNRESET", "OOM"]))
    def write_to_a_store_that_fails(self, at: int, failure: str) -> None:
        """Part of it may be there; the next write makes it whole."""
        with (
            suppress(FtrieError),
            Failing(Fault(at, "send", failure, for_good=True), self.store.client),
        ):
            self.counts.flush(self.online)
        self.furthest = max(self.furthest, self.at)

    @rule()
    def checkpoint(self) -> None:
        self.saved = self.at, {name: array.copy() for name, array in self.counts.state().items()}

    @rule()
    def crash(self) -> None:
        self.at, state = self.saved
        self.restored = self.at
        self.counts = OnlineAccumulator(KNOWN)
        self.counts.restore({name: array.copy() for name, array in state.items()})

    # -- what holds

    @invariant()
    def each_request_is_counted_once(self) -> None:
        assert counted(self.counts.totals()) == by_variant(self.log[: self.at], KNOWN)
        assert self.counts.too_late == self.at - len(self.in_time(self.at))
        evidence = {version: (each.expected, each.clicks) for version, each in self.counts.evidence().items()}
        assert evidence == evidence_of(self.log[: self.at])

    def the_store_has_what_is_counted(self) -> None:
        in_time = self.in_time(self.at)
        latest = max((r["time_us"] // MINUTE_US for r in in_time), default=0)
        remembered = [r for r in in_time if r["time_us"] // MINUTE_US > latest - REMEMBERED_MINUTES]
        assert counted(self.counts.recent()) == by_variant(remembered, KNOWN)
        expected = by_definition(in_time)
        assert same(self.read(self.earliest, self.minute + 1, self.minute), expected)
        ended = (latest - REMEMBERED_MINUTES + 1) // HOUR * HOUR
        hours: Cells = {}
        for (minute, variant), cell in expected.items():
            if minute < ended:
                place = minute // HOUR * HOUR, variant
                hours[place] = hours.get(place, OnlineCell.empty()) + cell
        assert same(self.read(self.earliest, ended, self.minute + 2 * DAY), hours)

    def read(self, begin: int, stop: int, now: int) -> Cells:
        return {(slot.minute, slot.variant): cell for slot, cell in self.online.read(begin, stop, now)}


@pytest.fixture
def machines(valkey_url: str, tmp_path: Path) -> Iterator[Callable[[], Minutes]]:
    numbers = itertools.count()
    with Store.open(valkey_url) as store:
        yield lambda: Minutes(store, tmp_path / str(next(numbers)))


@pytest.mark.parametrize(
    ("examples", "steps"), [(6, 12), pytest.param(40, 20, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_any_order_of_what_is_counted_and_written(
    machines: Callable[[], Minutes], examples: int, steps: int
) -> None:
    run_state_machine_as_test(
        machines, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
