"""What becomes of each event, one by one. Times are seconds; the window is ten minutes, the lateness five seconds."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import CheckpointError
from model_store.spec.sections import JoinSection
from tests.trainer.join.events import closed_of, merged, rows_of
from tests.trainer.join.oracle import Event
from trainer.checkpoint import file
from trainer.join.join import Join, Joined

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

    def counted(self, **expected: int) -> bool:
        counts = self.join.counts.as_dict()
        return {name: counts[name] for name in expected} == expected


def labels(joined: Joined) -> list[tuple[int, int, int]]:
    """Impression, row and label."""
    return [(row.impression, row.row, row.label) for row in rows_of(joined)]


def test_a_click_is_a_positive_at_once_and_the_rest_negative_when_the_window_closes():
    story = Story().tell(shown(0))
    assert story.learned(clicked(3, 11)) == [(0, 1, 1)]
    assert story.learned(clicked(OVER_S, request=9)) == [(0, 0, 0)]
    assert story.counted(positives=1, negatives=1, pending=0, pending_rows=0, remembered=1)


def test_a_window_is_open_until_time_has_passed_it_by_more_than_the_lateness():
    story = Story().tell(shown(0))
    assert story.learned(clicked(WINDOW_S + LATENESS_S, request=9)) == []
    assert story.learned(clicked(WINDOW_S, 10)) == [(0, 0, 1)]
    assert story.learned(clicked(OVER_S, request=9)) == [(0, 1, 0)]


def test_a_click_after_the_window_is_late_even_where_the_window_is_still_open_for_others():
    story = Story().tell(shown(0), clicked(WINDOW_S + 1))
    assert story.counted(late=1, joined=0, pending=1)
    assert story.learned(clicked(OVER_S, request=9)) == [(0, 0, 0), (0, 1, 0)]


def test_a_click_that_comes_first_waits_and_is_a_positive_when_its_impression_comes():
    story = Story().tell(clicked(0))
    assert story.counted(early=1, waiting=1)
    assert story.learned(shown(-1)) == [(0, 0, 1)]
    assert story.counted(waiting=0, joined=1, orphans=0)


def test_a_click_whose_impression_never_comes_is_an_orphan_after_a_window():
    story = Story().tell(clicked(0), clicked(OVER_S, request=9))
    assert story.counted(orphans=1, waiting=1)
    assert story.learned(shown(1)) == []


def test_a_second_click_changes_nothing_nor_does_one_for_an_item_that_was_not_shown():
    story = Story().tell(shown(0), clicked(1))
    assert story.learned(clicked(2)) == []
    assert story.learned(clicked(3, 99)) == []
    assert story.counted(duplicate_feedback=1, unknown_item=1, joined=1)


def test_a_second_click_after_the_window_is_a_duplicate_and_not_a_late_one():
    story = Story(late="correct").tell(shown(0), clicked(1), clicked(OVER_S, request=9))
    assert story.learned(clicked(2)) == []
    assert story.counted(duplicate_feedback=1, late=0)


def test_of_two_impressions_of_one_request_the_first_counts_whatever_the_second_shows():
    story = Story().tell(shown(0, 1, 10), shown(1, 1, 20, 21))
    assert story.learned(clicked(2, 20)) == []
    assert story.learned(clicked(3, 10)) == [(0, 0, 1)]
    assert story.counted(duplicate_impressions=1, unknown_item=1, rows=1)


def test_an_impression_that_is_closed_is_still_known():
    story = Story().tell(shown(0), clicked(OVER_S, request=9))
    assert story.learned(shown(0)) == []
    assert story.counted(duplicate_impressions=1, closed=1)


def test_a_forgotten_request_is_new_again():
    story = Story(late_within="1m").tell(
        shown(0), clicked(OVER_S, request=8), clicked(OVER_S + 61, request=9)
    )
    assert story.counted(remembered=0, forgotten_early=0)
    story.tell(clicked(OVER_S + 62))
    assert story.counted(late=0, early=3)


def test_an_impression_whose_window_is_over_is_learned_at_once_and_only_once():
    story = Story().tell(clicked(2000, request=9), shown(1500, 2))
    assert story.learned(shown(1000)) == [(1, 0, 0), (1, 1, 0)]
    assert story.learned(shown(1000)) == []
    assert story.counted(late_impressions=1, duplicate_impressions=1, closed=1, pending=1)


def test_an_impression_out_of_order_within_its_window_waits_for_the_rest_of_it():
    story = Story().tell(clicked(500, request=9))
    assert story.learned(shown(0)) == []
    assert story.learned(clicked(400)) == [(0, 0, 1)]


def test_windows_close_in_the_order_of_their_impressions_times():
    story = Story().tell(shown(3, 1, 10), shown(1, 2, 10), shown(2, 3, 10), shown(1, 4, 10))
    assert story.learned(clicked(OVER_S + 3, request=9)) == [(1, 0, 0), (3, 0, 0), (2, 0, 0), (0, 0, 0)]


def test_a_negative_says_whether_its_request_was_clicked():
    story = Story().tell(shown(0, 1), shown(0, 2), clicked(1))
    rows = rows_of(story.joined(clicked(OVER_S, request=9)))
    assert [(row.impression, row.clicked) for row in rows] == [(0, True), (1, False), (1, False)]


def test_a_late_click_is_counted_and_by_choice_learned_as_a_correction():
    events = (shown(0), clicked(OVER_S, request=9))
    assert Story().tell(*events).learned(clicked(5)) == []
    story = Story(late="correct").tell(*events)
    assert story.learned(clicked(5)) == [(0, 0, 1)]
    assert story.learned(clicked(5)) == []
    assert story.counted(late=1, corrections=1, duplicate_feedback=1, positives=0, negatives=2)


def test_a_correction_of_an_open_window_follows_its_negative():
    story = Story(late="correct").tell(shown(0), clicked(WINDOW_S + 1))
    assert story.learned(clicked(OVER_S, request=9)) == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert story.counted(late=1, corrections=1)


def test_a_conversion_after_a_click_is_counted_and_is_no_second_positive():
    story = Story().tell(shown(0), clicked(1))
    assert story.learned(converted(2)) == []
    assert closed_of(story.joined(clicked(OVER_S, request=9))) == [(0, 1, 1, 1)]
    assert story.counted(clicks=2, conversions=1, joined=2, duplicate_feedback=0)


def test_where_conversions_are_the_positives_clicks_are_only_counted():
    story = Story(positive="conversion", late="correct").tell(shown(0))
    assert story.learned(clicked(1)) == []
    assert story.learned(converted(2)) == [(0, 0, 1)]
    joined = story.joined(clicked(OVER_S, request=9))
    assert labels(joined) == [(0, 1, 0)]
    assert closed_of(joined) == [(0, 1, 1, 1)]
    assert story.learned(clicked(OVER_S, 11)) == []
    assert story.counted(late=1, corrections=0)


def test_a_clock_that_runs_ahead_closes_nothing():
    story = Story().tell(shown(0))
    ahead = clicked(10**6, request=9)._replace(now=2 * S)
    assert story.learned(ahead) == []
    assert story.counted(pending=1)
    assert story.join.watermark_us == (2 - LATENESS_S) * S


def test_over_its_bound_the_oldest_request_closes_early():
    story = Story(max_pending=2).tell(shown(2, 1, 10), shown(1, 2, 10))
    assert story.learned(shown(3, 3, 10)) == [(1, 0, 0)]
    assert story.counted(closed_early=1, pending=2)


def test_what_is_remembered_and_what_waits_is_bounded_by_the_same_number():
    story = Story(max_pending=3)
    story.tell(*(shown(second, 100 + second) for second in range(50)))
    story.tell(*(clicked(40, 10, 200 + number) for number in range(50)))
    assert story.counted(pending=3, remembered=3, forgotten_early=44, waiting=3, orphans=47)


def test_the_end_closes_every_window_and_more_may_follow():
    story = Story().tell(shown(0), clicked(1), clicked(1, request=9))
    assert labels(story.join.finish()) == [(0, 1, 0)]
    assert story.counted(pending=0, waiting=0, orphans=1, closed=1)
    assert story.learned(clicked(2, 11)) == []
    assert story.counted(late=1)


def test_an_impression_of_nothing_is_counted_and_closed():
    story = Story().tell(Event(0, 1, ()))
    assert closed_of(story.joined(clicked(OVER_S, request=9))) == [(0, 0, 0, 0)]
    assert story.counted(impressions=1, closed=1, rows=0)


def test_only_segments_whose_rows_may_still_be_given_out_are_needed():
    for late, needed in (("count", [1]), ("correct", [0, 1])):
        story = Story(late=late).tell(shown(0, 1), shown(OVER_S, 2))
        assert story.join.segments().tolist() == needed


def test_an_impression_of_nothing_needs_no_segment():
    story = Story().tell(Event(0, 1, ()), shown(0, 2))
    assert story.join.counts.pending == 2
    assert story.join.segments().tolist() == [1]


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


def test_a_state_of_another_form_is_refused():
    state = {name: array.copy() for name, array in Join(JoinSection()).state().items()}
    with pytest.raises(CheckpointError, match="'entries'"):
        Join(JoinSection()).restore({name: array for name, array in state.items() if name != "entries"})
    with pytest.raises(CheckpointError, match="'items' has not the size"):
        Join(JoinSection()).restore(state | {"items": np.zeros(1, np.uint64)})
