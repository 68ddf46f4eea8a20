"""What the join holds under a load that does not end: as much as is pending and remembered, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.sections import JoinSection
from tests.trainer.events.events import merged, rows_of
from tests.trainer.events.oracle import Event
from trainer.events.join import Join

S = 1_000_000
ENTRY_BYTES, ROW_BYTES, WAITING_BYTES = 88, 9, 120


def load(random: np.random.Generator, begin_s: int, seconds: int, rate: int) -> list[Event]:
    """Impressions of one to five items; clicks for them, for requests that never come, and told twice."""
    events = []
    for second in range(begin_s, begin_s + seconds):
        for number in range(rate):
            time, request = second * S + number, second * 1000 + number
            events.append(Event(time, request, tuple(range(int(random.integers(1, 6))))))
            earlier = int(random.integers(max(0, second - 20), second + 1)) * 1000 + int(
                random.integers(0, rate + 2)
            )
            events += [Event(time, earlier, None, int(random.integers(0, 6)))] * int(random.integers(0, 3))
    return events


def pushes(join: Join, seed: int, rates: list[int]):
    """The load of ten seconds at each rate, pushed into the join one after the other."""
    random, shown = np.random.default_rng(seed), 0
    for step, rate in enumerate(rates):
        events = load(random, 10 * step, 10, rate)
        join.push(merged(events, shown))
        shown += sum(event.shows is not None for event in events)
        yield rate, join.counts, sum(array.nbytes for array in join.state().values())


def test_memory_follows_what_is_held_and_falls_again():
    join, sizes, before = Join(JoinSection(window="10s", lateness="1s", late_within="5s")), [], [10]
    for rate, counts, state in pushes(join, 5, [10] * 8 + [100] * 4 + [10] * 18):
        # All that has come in the last 10 + 1 + 5 seconds and in this push; the rest is forgotten.
        assert counts.pending + counts.remembered <= 17 * max(rate, *before[-2:])
        before.append(rate)
        sizes.append(join.nbytes)
        held = (counts.pending + counts.remembered) * (ENTRY_BYTES + 5 * ROW_BYTES)
        assert state <= held + counts.waiting * WAITING_BYTES + 1000
    assert max(sizes) > 3 * sizes[7] and sizes[-1] < 2 * sizes[7]


def test_no_load_exceeds_the_bound():
    join = Join(JoinSection(window="366d", late_within="366d", max_pending=100))
    for _, counts, state in pushes(join, 6, [50] * 10):
        assert max(counts.pending, counts.remembered, counts.waiting) <= 100
        assert state < 100 * (2 * (88 + 45) + 120) + 1000
    assert join.counts.closed_early and join.counts.forgotten_early


@pytest.mark.parametrize("ends", [False, True])
def test_one_event_may_close_any_number_of_windows(ends):
    count = 5000
    join, shown = Join(JoinSection(late="correct")), [Event(n, n, (1, 2, 3)) for n in range(count)]
    late = [Event(2 * 10**9, n, None, 1) for n in range(0, count, 2)]
    join.push(merged(shown))
    joined = join.finish() if ends else join.push(merged([Event(2 * 10**9, 10**6, None, 1), *late]))
    rows = rows_of(joined)
    closed = [(row.impression, row.row) for row in rows if not row.label]
    assert closed == [(n, row) for n in range(count) for row in range(3)]
    assert [row.impression for row in rows if row.label] == ([] if ends else list(range(0, count, 2)))
    assert len(joined.closed) == join.counts.closed == count
