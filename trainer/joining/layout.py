"""The join's records, as numpy lays them out. What is done with them is in `kernels`; docs/join.md counts their bytes.

Times are microseconds since 1970. A place is an index into the array that is named; -1 is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# A request. first: place of its rows in `items` and `flags`; segment, row, rows: where they stand as columns. forget:
# from this watermark on. next: the request that closed after it. While WAITING first and row are the places of the
# first and the last of its early feedback in `waiting`, and rows says how many are left of it.
ENTRY = np.dtype(
    [
        ("request", np.uint64),
        ("time", np.int64),
        ("forget", np.int64),
        ("first", np.int64),
        ("row", np.int64),
        ("segment", np.int32),
        ("rows", np.int32),
        ("positives", np.int32),
        ("clicks", np.int32),
        ("conversions", np.int32),
        ("next", np.int32),
        ("state", np.uint8),
    ],
    align=True,
)

# Feedback whose impression has not come. entry: of its request; next: what came after it for the same one.
EARLY = np.dtype(
    [
        ("item", np.uint64),
        ("time", np.int64),
        ("entry", np.int32),
        ("next", np.int32),
        ("what", np.uint8),
        ("live", np.uint8),
    ],
    align=True,
)

# One place in an order of due times: the least (time, place) stands first. Places are given as things arrive.
DUE = np.dtype([("time", np.int64), ("place", np.int32)], align=True)

HEAD = np.dtype(
    [
        ("watermark", np.int64),
        ("items", np.int64),
        ("entries", np.int64),
        ("early", np.int64),
        ("due", np.int64),
        ("early_due", np.int64),
        ("oldest_closed", np.int32),
        ("newest_closed", np.int32),
    ],
    align=True,
)
"""How much of each array is used, and the two ends of the closed requests that are remembered."""

COUNTED = (
    "impressions",
    "duplicate_impressions",
    "late_impressions",
    "closed",
    "closed_early",
    "pending",
    "remembered",
    "forgotten_early",
    "rows",
    "positives",
    "negatives",
    "pending_rows",
    "corrections",
    "clicks",
    "conversions",
    "joined",
    "early",
    "waiting",
    "orphans",
    "late",
    "duplicate_feedback",
    "unknown_item",
)
COUNTS = np.dtype([(name, np.int64) for name in COUNTED], align=True)

# A request whose window has closed, as it is given out.
CLOSING = np.dtype(
    [
        ("segment", np.int32),
        ("rows", np.int32),
        ("row", np.int64),
        ("time_us", np.int64),
        ("positives", np.int32),
        ("clicks", np.int32),
        ("conversions", np.int32),
    ],
    align=True,
)


class Memory(NamedTuple):
    """All that the join knows.

    table: uint64, a power of two, a word a request: the upper half of its hash, and 1 + the place of its entry; 0 is
    free, and a request's search begins at its hash's low bits. entries: ENTRY, in order of arrival; items: uint64 and
    flags: uint8, of their rows; due: DUE, a heap of the pending ones; early: EARLY, in order of arrival; early_due:
    DUE, a heap of them; head: HEAD[1]; counts: COUNTS[1].
    """

    table: Any
    entries: Any
    items: Any
    flags: Any
    due: Any
    early: Any
    early_due: Any
    head: Any
    counts: Any


class Rules(NamedTuple):
    """What `[join]` says. Times in microseconds; positive: the flag of a row that makes it one; correct: bool."""

    window: np.int64
    lateness: np.int64
    late_within: np.int64
    max_pending: np.int64
    positive: np.uint8
    correct: bool


class Arriving(NamedTuple):
    """Merged events, as `trainer.events.events.Merged` has them; first: int64[n], each one's place in items."""

    kind: Any
    time_us: Any
    now_us: Any
    request: Any
    item: Any
    what: Any
    segment: Any
    row: Any
    rows: Any
    first: Any
    items: Any


class Room(NamedTuple):
    """Where what is given out is written.

    segment: int32, row: int64, label: uint8, clicked: bool, one a joined row; closings: CLOSING; used: int64[2], of
    the joined rows and of the closings.
    """

    segment: Any
    row: Any
    label: Any
    clicked: Any
    closings: Any
    used: Any
