"""Events of the oracle's kind as the merger hands them out, and what the join gives out in the oracle's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.trainer.events.oracle import Event, OracleJoin, Row
from trainer.events.events import (
    ACTIVATED,
    CLICK,
    CONVERSION,
    DEFERRED,
    FEEDBACK,
    IMPRESSION,
    SEEN,
    SEEN_TO,
    Merged,
)
from trainer.events.join import Join, Joined


def merged(events: Sequence[Event], impressions: int = 0, segment: int | None = None) -> Merged:
    """One batch. Impression n has segment n and begins at row 0; or all are in one segment, one behind the other."""
    rows = np.array([len(event.shows or ()) for event in events], np.int32)
    shown = np.array([event.shows is not None for event in events], bool)
    number = impressions + np.cumsum(shown) - shown
    first = np.cumsum(rows, dtype=np.int64) - rows
    return Merged(
        kind=np.where(shown, IMPRESSION, FEEDBACK).astype(np.uint8),
        time_us=np.array([event.time for event in events], np.int64),
        now_us=np.array([event.time if event.now is None else event.now for event in events], np.int64),
        request=np.array([event.request for event in events], np.uint64),
        item=np.array([event.item for event in events], np.uint64),
        what=np.array([_what(event) for event in events], np.uint8),
        segment=np.where(segment is None, number, segment or 0).astype(np.int32),
        row=np.zeros(len(events), np.int64) if segment is None else first,
        rows=rows,
        items=np.array([item for event in events for item in event.shows or ()], np.uint64),
    )


WHATS = {"click": CLICK, "conversion": CONVERSION, "seen": SEEN, "seen_to": SEEN_TO, "activated": ACTIVATED}


def _what(event: Event) -> int:
    return WHATS[event.what] if event.shows is None else DEFERRED if event.deferred else 0


def rows_of(joined: Joined) -> list[Row]:
    """What was given out, where each impression is a segment of its own."""
    columns = (joined.segment, joined.row, joined.label, joined.clicked)
    return [Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def closed_of(joined: Joined) -> list[tuple[int, int, int, int]]:
    """Of each request that closed: its number, and how many rows had a positive, a click, a conversion."""
    closed = joined.closed
    columns = (closed.segment, closed.positives, closed.clicks, closed.conversions)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_alike(join: Join, oracle: OracleJoin) -> None:
    """Every count is the oracle's, and they balance."""
    counts = join.counts
    expected = dict(oracle.counts) | {
        "pending": len(oracle.pending),
        "remembered": len(oracle.remembered),
        "waiting": len(oracle.early),
        "pending_rows": sum(
            len(each.items) - (each.positives(oracle.needed) if each.active else 0) for each in oracle.pending
        ),
    }
    assert {name: count for name, count in counts.as_dict().items() if count} == {
        name: count for name, count in expected.items() if count
    }
    assert counts.impressions == counts.closed + counts.pending + counts.duplicate_impressions
    assert counts.rows == counts.positives + counts.negatives + counts.unseen + counts.pending_rows
    feedback = counts.joined + counts.duplicate_feedback + counts.unknown_item + counts.late
    assert counts.clicks + counts.conversions + counts.seen + counts.activated == (
        feedback + counts.orphans + counts.out_of_order + counts.waiting
    )
