"""The join against one that is slow and obvious: random events, however they are cut, saved and taken up again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.spec.sections import JoinSection
from tests.trainer.events.events import WHATS, assert_alike, closed_of, merged, rows_of
from tests.trainer.events.oracle import Event, OracleJoin
from trainer.events.join import Join
from trainer.events.join_kernels import WAITING

SECOND = 1_000_000


@st.composite
def rules(draw):
    """A section, and the rows that are learned."""
    rows = draw(st.sampled_from(["shown", "shown", "clicked"]))
    late = draw(st.sampled_from(["count", "correct", "weigh"]))
    positives = ["conversion"] if rows == "clicked" else ["click", "conversion"]
    section = JoinSection(
        window=draw(st.sampled_from(["1s", "5s", "20s"])),
        lateness=draw(st.sampled_from(["0s", "2s", "10s"])),
        late=late,
        late_within=draw(st.sampled_from(["0s", "3s", "30s"])),
        positive=draw(st.sampled_from(positives)),
        negatives=draw(st.sampled_from(["shown"] if late == "weigh" else ["shown", "seen"])),
        max_pending=draw(st.sampled_from([1, 2, 3, 1000])),
    )
    return section, rows


requests = st.sampled_from([1, 2, 3, 4, 5, 6, 2**32 + 1, 2**63 + 1, 0])
items = st.integers(0, 4)


@st.composite
def events(draw):
    """Impressions and feedback of few requests, mostly in order, some far out of it; clocks that run ahead."""
    found, clock = [], 0
    for _ in range(draw(st.integers(0, 40))):
        clock += draw(st.integers(0, 3 * SECOND)) // SECOND * SECOND // draw(st.sampled_from([1, 1, 4]))
        time = clock - draw(st.sampled_from([0, 0, 0, SECOND, 7 * SECOND, 40 * SECOND]))
        now = draw(st.sampled_from([None, None, None, time - SECOND, time + SECOND]))
        if draw(st.booleans()):
            shows = tuple(draw(st.lists(items, max_size=4)))
            found.append(Event(time, draw(requests), shows, now=now, deferred=draw(st.booleans())))
        else:
            what = draw(st.sampled_from([*WHATS]))
            found.append(Event(time, draw(requests), None, draw(items), what, now))
    return found


@given(rules(), events(), st.data())
def test_whatever_is_cut_saved_and_restored_the_join_is_the_oracle(learned, found, data):
    oracle, join = OracleJoin(*learned), Join(*learned)
    rows, closed, exposed, begin = [], [], [], 0
    while begin < len(found):
        size = data.draw(st.integers(1, 12), label="batch")
        before = sum(event.shows is not None for event in found[:begin])
        batch = found[begin : begin + size]
        joined = join.push(merged(batch, before))
        for event in batch:
            oracle.take(event)
        rows, closed, begin = rows + rows_of(joined), closed + closed_of(joined), begin + size
        exposed += joined.closed.exposed.tolist()
        assert (rows, closed, exposed) == (oracle.rows, oracle.closed, oracle.exposed)
        assert_alike(join, oracle)
        if data.draw(st.booleans(), label="restore"):
            join = restored(join, learned)
    if data.draw(st.booleans(), label="finish"):
        joined = join.finish()
        oracle.finish()
        assert rows + rows_of(joined) == oracle.rows and closed + closed_of(joined) == oracle.closed
        assert_alike(join, oracle)


@given(rules(), events(), st.integers(0, 40))
def test_the_state_does_not_tell_how_the_events_were_cut(learned, found, cut):
    whole, parts = Join(*learned), Join(*learned)
    whole.push(merged(found))
    parts.push(merged(found[:cut]))
    parts = restored(parts, learned)
    for index, event in enumerate(found[cut:]):
        parts.push(merged([event], sum(each.shows is not None for each in found[: cut + index])))
    expected, got = whole.state(), parts.state()
    assert expected.keys() == got.keys()
    for name in expected:
        assert expected[name].tobytes() == got[name].tobytes(), name


@settings(max_examples=30)
@given(rules(), events(), st.integers(0, 40), st.sets(requests, max_size=4), st.data())
def test_a_join_that_forgets_requests_gives_out_what_it_would_have_but_their_rows(
    learned, found, cut, forgotten, data
):
    """Given requests that are forgotten in the middle: the rows of all others as ever, and counts that add up."""
    learned = learned[0].model_copy(update={"max_pending": 1000}), learned[1]
    whole, join = Join(*learned), Join(*learned)
    theirs = {
        number
        for number, event in enumerate(e for e in found if e.shows is not None)
        if event.request in forgotten
    }
    join.push(merged(found[:cut]))
    whole.push(merged(found[:cut]))
    before = join.counts
    join.forget(np.array(sorted(forgotten), np.uint64))
    after = join.counts
    assert not {entry["request"] for entry in join.shown()} & forgotten
    entries = join.state()["entries"]
    assert not set(entries["request"][entries["state"] == WAITING].tolist()) & forgotten
    assert before.rows - after.rows == before.pending_rows - after.pending_rows
    assert before.waiting - after.waiting == after.orphans - before.orphans
    assert (before.impressions, before.joined, before.pending) == (
        after.impressions,
        after.joined,
        after.pending,
    )
    if data.draw(st.booleans(), label="restore"):
        join = restored(join, learned)
    shown = sum(event.shows is not None for event in found[:cut])
    rest = merged(found[cut:], shown)
    got = rows_of(join.push(rest))
    expected = rows_of(whole.push(rest))
    for each, rows in ((join, got), (whole, expected)):
        rows += rows_of(each.finish())
    others = [[row for row in rows if row.impression not in theirs] for rows in (got, expected)]
    assert others[0] == others[1]
    counts = join.counts
    assert counts.impressions == counts.closed + counts.duplicate_impressions
    assert counts.rows == counts.positives + counts.negatives + counts.unseen


def restored(join: Join, learned: tuple[JoinSection, str]) -> Join:
    again = Join(*learned)
    again.restore({name: array.copy() for name, array in join.state().items()})
    return again
