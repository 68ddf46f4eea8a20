"""What becomes of each event, one by one. Times are seconds; the window is ten minutes, the lateness five seconds."""

from __future__ import annotations

import re

import numpy as np
import pytest

from model_store.errors import CheckpointError
from model_store.spec.sections import JoinSection
from tests.trainer.events.events import closed_of, merged, rows_of
from tests.trainer.events.oracle import Event
from trainer.checkpoint import file
from trainer.events.join import Join, Joined

S = 1_000_000
WINDOW_S, LATENESS_S = 600, 5
OVER_S = WINDOW_S + LATENESS_S + 1
"""An event so much after an impression closes its window."""


def shown(second: float, request: int = 1, *items: int) -> Event:
    return Event(int(second * S), request, items or (10, 11))


def clicked(second: float, item: int = 10, request: int = 1, what: str = "click") -> Event:
    return Event(int(second * S), request, None, item, what)


def converted(second: float, item: int = 10) -> Event:
    return clicked(second, item, what="conversion")


def deferred(second: float, request: int = 1, *items: int) -> Event:
    return shown(second, request, *items)._replace(deferred=True)


def seen(second: float, item: int = 10, request: int = 1) -> Event:
    return clicked(second, item, request, "seen")


def seen_to(second: float, position: int, request: int = 1) -> Event:
    return clicked(second, position, request, "seen_to")


def activated(second: float, request: int = 1) -> Event:
    return clicked(second, 0, request, "activated")


TOLD = {
    each.__name__: each for each in (shown, clicked, converted, deferred, seen, seen_to, activated)
}  # fmt: skip


class Story:
    """Events pushed one at a time; `learned` is what the last one brought."""

    def __init__(self, **section) -> None:
        self.join = Join(JoinSection(**section))
        self.shown = 0

    def learned(self, event: Event) -> list[tuple[int, int, int]]:
        return labels(self.joined(event))

    def joined(self, event: Event) -> Joined:
        joined = self.join.push(merged([event], self.shown))
        self.shown += event.shows is not None
        return joined

    def tell(self, *events: Event) -> Story:
        for event in events:
            self.joined(event)
        return self

    def counted(self, **expected: int) -> None:
        counts = self.join.counts.as_dict()
        assert {name: counts[name] for name in expected} == expected


def labels(joined: Joined) -> list[tuple[int, int, int]]:
    return [(row.impression, row.row, row.label) for row in rows_of(joined)]


PASSED = clicked(OVER_S, request=9)
"""Time has passed the window of what was shown at 0."""
STORIES = """
A click is a positive at once, the rest is negative when the window closes.
    shown 0 | clicked 3 11 -> 0/1+ | clicked 606 10 9 -> 0/0-
    positives=1 negatives=1 pending=0 pending_rows=0 remembered=1
A window is open until time has passed it by more than the lateness.
    shown 0 | clicked 605 10 9 | clicked 600 -> 0/0+ | clicked 606 10 9 -> 0/1-
A click after the window is late even where the window is still open for others.
    shown 0 | clicked 601 | clicked 606 10 9 -> 0/0- 0/1-
    late=1 joined=0
A click that comes first waits and is a positive when its impression comes.
    clicked 0 | shown -1 -> 0/0+
    early=1 waiting=0 joined=1 orphans=0
A click whose impression never comes is an orphan after a window.
    clicked 0 | clicked 606 10 9 | shown 1
    orphans=1 waiting=1
A second click changes nothing, nor does one for an item that was not shown.
    shown 0 | clicked 1 -> 0/0+ | clicked 2 | clicked 3 99
    duplicate_feedback=1 unknown_item=1 joined=1
A second click after the window is a duplicate and not a late one. late=correct
    shown 0 | clicked 1 -> 0/0+ | clicked 606 10 9 -> 0/1- | clicked 2
    duplicate_feedback=1 late=0
Of two impressions of one request the first counts, whatever the second shows.
    shown 0 1 10 | shown 1 1 20 21 | clicked 2 20 | clicked 3 10 -> 0/0+
    duplicate_impressions=1 unknown_item=1 rows=1
An impression that is closed is still known.
    shown 0 | clicked 606 10 9 -> 0/0- 0/1- | shown 0
    duplicate_impressions=1 closed=1
A forgotten request is new again. late_within=1m
    shown 0 | clicked 606 10 8 -> 0/0- 0/1- | clicked 667 10 9 | clicked 668
    remembered=0 forgotten_early=0 late=0 early=3
An impression whose window is over is learned at once and only once.
    clicked 2000 10 9 | shown 1500 2 | shown 1000 -> 1/0- 1/1- | shown 1000
    late_impressions=1 duplicate_impressions=1 closed=1 pending=1
An impression out of order within its window waits for the rest of it.
    clicked 500 10 9 | shown 0 | clicked 400 -> 0/0+
Windows close in the order of their impressions' times.
    shown 3 1 10 | shown 1 2 10 | shown 2 3 10 | shown 1 4 10 | clicked 609 10 9 -> 1/0- 3/0- 2/0- 0/0-
A late click is counted.
    shown 0 | clicked 606 10 9 -> 0/0- 0/1- | clicked 5
    late=1 corrections=0
A late click is by choice learned as a correction. late=correct
    shown 0 | clicked 606 10 9 -> 0/0- 0/1- | clicked 5 -> 0/0+ | clicked 5
    late=1 corrections=1 duplicate_feedback=1 positives=0 negatives=2
A correction of an open window follows its negative. late=correct
    shown 0 | clicked 601 | clicked 606 10 9 -> 0/0- 0/0+ 0/1-
    late=1 corrections=1
Over its bound the oldest request closes early. max_pending=2
    shown 2 1 10 | shown 1 2 10 | shown 3 3 10 -> 1/0-
    closed_early=1 pending=2
What was seen and not clicked is negative, what was clicked was seen, the rest is nothing. negatives=seen
    shown 0 1 10 11 12 13 | seen 1 10 | clicked 2 12 -> 0/2+ | clicked 606 10 9 -> 0/0-
    negatives=1 positives=1 unseen=2 seen=1 pending_rows=0
A list seen up to a position is seen from its first item on, and an event that says nothing new is none. negatives=seen
    shown 0 1 10 11 12 | seen_to 1 2 | seen_to 2 1 | seen_to 3 99 | seen_to 4 3 | clicked 606 10 9 -> 0/0- 0/1- 0/2-
    seen=4 joined=2 duplicate_feedback=2 unseen=0
Where all that is shown counts, what was seen changes nothing.
    shown 0 | seen 1 10 | clicked 606 10 9 -> 0/0- 0/1-
    seen=1 joined=1 unseen=0
What was seen before the impression came waits, and what is seen after the window is late. negatives=seen
    seen 0 10 | shown -1 | seen 606 11 -> 0/0- | seen_to 2 2 | seen_to 3 2
    early=1 waiting=0 late=1 duplicate_feedback=2 unseen=1
A late click of what nobody saw is by choice learned, without a negative. negatives=seen late=correct
    shown 0 | clicked 606 10 9 | clicked 5 -> 0/0+
    corrections=1 unseen=2
A deferred list that is never activated is nothing, whatever is clicked in it. late=correct
    deferred 0 | clicked 1 10 | clicked 606 10 9 | clicked 5 11 | activated 6
    unactivated=1 unseen=2 closed=1 joined=1 late=2 positives=0 negatives=0 corrections=0
Once it is activated it is as any other, and what was clicked before is learned then, row by row.
    deferred 0 | clicked 1 11 | clicked 2 10 | activated 3 -> 0/0+ 0/1+ | activated 4 | clicked 606 10 9
    activated=2 joined=3 duplicate_feedback=1 positives=2 unactivated=0
It may be activated before the impression comes.
    activated 1 | clicked 2 11 | deferred 0 -> 0/1+ | clicked 606 10 9 -> 0/0-
    early=3 joined=2 waiting=1
"""
"""How the join is set; what is told (the functions of TOLD and their arguments) and which rows that brings (impression,
row, label); what is counted in the end."""


@pytest.mark.parametrize(
    "story", re.split(r"\n(?=\w)", STORIES.strip()), ids=lambda story: story.split(".")[0]
)
def test_what_becomes_of_each_event(story):
    title, steps, counts = (*story.splitlines(), "")[:3]
    told = Story(**dict(each.split("=") for each in title.rpartition(".")[2].split()))
    for step in steps.split("|"):
        event, _, rows = step.partition("->")
        kind, *values = event.split()
        learned = told.learned(TOLD[kind](*map(int, values)))
        assert " ".join(f"{n}/{row}{'+' if label else '-'}" for n, row, label in learned) == rows.strip(), (
            step
        )
    told.counted(**{name: int(count) for name, count in (each.split("=") for each in counts.split())})


def test_a_negative_says_whether_its_request_was_clicked():
    story = Story().tell(shown(0, 1), shown(0, 2), clicked(1))
    rows = rows_of(story.joined(clicked(OVER_S, request=9)))
    assert [(row.impression, row.clicked) for row in rows] == [(0, True), (1, False), (1, False)]


def test_a_conversion_after_a_click_is_counted_and_is_no_second_positive():
    story = Story().tell(shown(0), clicked(1))
    assert story.learned(converted(2)) == [] and closed_of(story.joined(PASSED)) == [(0, 1, 1, 1)]
    story.counted(clicks=2, conversions=1, joined=2, duplicate_feedback=0)


def test_where_conversions_are_the_positives_clicks_are_only_counted():
    story = Story(positive="conversion", late="correct").tell(shown(0))
    assert story.learned(clicked(1)) == [] and story.learned(converted(2)) == [(0, 0, 1)]
    joined = story.joined(PASSED)
    assert labels(joined) == [(0, 1, 0)] and closed_of(joined) == [(0, 1, 1, 1)]
    assert story.learned(clicked(OVER_S, 11)) == []
    story.counted(late=1, corrections=0)


def test_a_clock_that_runs_ahead_does_not_move_the_watermark():
    story = Story().tell(shown(0), clicked(10**6, request=9)._replace(now=2 * S))
    assert story.join.watermark_us == (2 - LATENESS_S) * S


def test_what_is_remembered_and_what_waits_is_bounded_by_the_same_number():
    story = Story(max_pending=3)
    story.tell(*(shown(second, 100 + second) for second in range(50)))
    story.tell(*(clicked(40, 10, 200 + number) for number in range(50)))
    story.counted(pending=3, remembered=3, forgotten_early=44, waiting=3, orphans=47)


def test_the_end_closes_every_window_and_more_may_follow():
    story = Story().tell(shown(0), clicked(1), clicked(1, request=9))
    assert labels(story.join.finish()) == [(0, 1, 0)]
    story.counted(pending=0, waiting=0, orphans=1, closed=1)
    assert story.learned(clicked(2, 11)) == []
    story.counted(late=1)


def test_an_impression_of_nothing_is_counted_and_closed_and_needs_no_segment():
    story = Story().tell(Event(0, 1, ()), shown(0, 2))
    assert story.join.segments().tolist() == [1]
    assert closed_of(story.joined(PASSED)) == [(0, 0, 0, 0), (1, 0, 0, 0)]
    story.counted(impressions=2, closed=2, rows=2)


def test_only_segments_whose_rows_may_still_be_given_out_are_needed():
    for late, needed in (("count", [1]), ("correct", [0, 1])):
        story = Story(late=late).tell(shown(0, 1), shown(OVER_S, 2))
        assert story.join.segments().tolist() == needed


def test_a_state_goes_through_a_checkpoint_file(tmp_path):
    story = Story(late="correct").tell(
        clicked(0, request=2), shown(0), clicked(1), shown(1, 3), shown(OVER_S, 4)
    )
    path = tmp_path / "state"
    with path.open("wb") as out:
        file.write(out, {}, story.join.state())
    again = Join(JoinSection(late="correct"))
    again.restore(file.read(path)[1])
    assert again.counts == story.join.counts
    events = merged([shown(2, 2), clicked(3, 11), clicked(2 * OVER_S, request=9)], 3)
    assert rows_of(again.push(events)) == rows_of(story.join.push(events)) != []


def test_a_state_has_the_counts_of_what_was_seen_only_once_there_are_some_and_is_read_without_them():
    story = Story(negatives="seen").tell(shown(0), clicked(1))
    before = {name: array.copy() for name, array in story.join.state().items()}
    assert "unseen" not in before["counts"].dtype.names and "unknown_item" in before["counts"].dtype.names
    again = Join(JoinSection(negatives="seen"))
    again.restore(before)
    assert rows_of(again.push(merged([seen(2, 11), PASSED], 1))) == rows_of(
        story.join.push(merged([seen(2, 11), PASSED], 1))
    )
    state = again.state()
    assert state["counts"]["seen"] == 1 and again.counts == story.join.counts


def test_a_segment_is_needed_while_its_list_may_be_activated():
    story = Story().tell(deferred(0), clicked(1))
    assert story.join.segments().tolist() == [0]
    assert len(story.joined(PASSED).closed) == 0 and story.join.segments().tolist() == []


def test_a_state_of_another_form_is_refused():
    state = {name: array.copy() for name, array in Join(JoinSection()).state().items()}
    with pytest.raises(CheckpointError, match="'entries'"):
        Join(JoinSection()).restore({name: array for name, array in state.items() if name != "entries"})
    with pytest.raises(CheckpointError, match="'items' has not the size"):
        Join(JoinSection()).restore(state | {"items": np.zeros(1, np.uint64)})
