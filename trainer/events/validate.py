"""Which events can be joined, and why others cannot: the rules that hold however a block was read.

A BAD event is never an error: it is set aside with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.events.columns import UNKNOWN, digests
from trainer.events.events import BAD, CLICK, CONVERSION, FEEDBACK, IMPRESSION, MAX_ITEMS, Events, Raw
from trainer.events.scan_kernels import find_twice
from trainer.logs.times import NO_TIME, parse_times

AHEAD_US = 300_000_000
"""How far an event's own time may be ahead of the clock by which it came: five minutes."""

_TABLE = 1 << (2 * MAX_ITEMS).bit_length()
_WHAT = {"click": CLICK, "conversion": CONVERSION}
Ints = npt.NDArray[np.int64]
Reasons = Iterator[tuple[int, str]]


def judged(raw: Raw, clock_us: Ints) -> Events:
    """The events of a block. clock_us: int64[n], when each came, or the present time."""
    items = digests(raw.ids)
    lengths = np.maximum(raw.lengths, 0)
    first = np.concatenate([[0], np.cumsum(lengths)])
    times, untimely = parse_times(raw.ts, None)
    what, unknown = _what(raw)
    bad = dict(raw.bad)
    for reasons in (
        _kinds(raw),
        _requests(raw),
        ((event, f"ts: {reason}") for event, reason in untimely),
        _times(times, clock_us),
        _items(raw, lengths, first, items),
        _feedback(raw, unknown),
    ):
        for event, reason in reasons:
            bad.setdefault(event, reason)
    return _without(bad, raw, times, what, first, items)


def _without(
    bad: dict[int, str],
    raw: Raw,
    times: Ints,
    what: npt.NDArray[np.uint8],
    first: Ints,
    items: npt.NDArray[np.uint64],
) -> Events:
    """Those that are good as they are, those that are not without values and rows."""
    kind = np.where(raw.lengths >= 0, IMPRESSION, FEEDBACK).astype(np.uint8)
    columns, numbers = dict(raw.columns), np.array(sorted(bad), np.int64)
    marks = columns[UNKNOWN]
    if marks.null_count == len(marks):  # as nearly always: then it takes no room
        columns[UNKNOWN] = pa.nulls(len(marks))
    kind[numbers] = BAD
    if numbers.size and (raw.lengths[numbers] > 0).any():
        kept = np.repeat(kind != BAD, np.diff(first))
        items, mask = items[kept], pa.array(kept)
        columns = {name: column.filter(mask) for name, column in columns.items()}
    feedback = kind == FEEDBACK
    lengths = np.where(kind == IMPRESSION, raw.lengths, 0)
    return Events(
        kind=kind,
        time_us=np.where(kind == BAD, 0, times),
        request=np.where(kind == BAD, np.uint64(0), digests(raw.request)),
        item=np.where(feedback, digests(raw.item), np.uint64(0)),
        what=np.where(feedback, what, 0).astype(np.uint8),
        event=np.where(feedback, digests(raw.event_id), np.uint64(0)),
        first=np.concatenate([[0], np.cumsum(lengths)]),
        items=items,
        columns=columns,
        bad={int(number): bad[number] for number in numbers.tolist()},
    )


def _kinds(raw: Raw) -> Reasons:
    shown, told = raw.lengths >= 0, _present(raw.item)
    for event in np.flatnonzero(shown & told).tolist():
        yield event, "got both items and item, expected items (an impression) or item (feedback)"
    for event in np.flatnonzero(~shown & ~told).tolist():
        yield event, "got neither items nor item, expected items (an impression) or item (feedback)"


def _requests(raw: Raw) -> Reasons:
    yield from _missing("request_id", raw.request)


def _times(times: Ints, clock_us: Ints) -> Reasons:
    for event in np.flatnonzero(times == NO_TIME).tolist():
        yield event, "ts: missing, expected the time of the event"
    for event in np.flatnonzero(times > clock_us + AHEAD_US).tolist():
        yield event, f"ts: got {_shown(times[event])}, expected no later than five minutes after it came"


def _items(raw: Raw, lengths: Ints, first: Ints, items: npt.NDArray[np.uint64]) -> Reasons:
    if not items.all():
        for row in np.flatnonzero(items == 0).tolist():
            event, index = _place_of(row, first)
            what = "empty" if raw.ids[row].is_valid else "missing"
            yield event, f"items[{index}].id: {what}, expected text or a whole number"
    twice = np.empty(lengths.size, np.int64)
    table = np.full(_TABLE, -1, np.int64)
    find_twice(first, items, table, twice)
    for row in twice[twice >= 0].tolist():
        event, index = _place_of(row, first)
        yield event, f"items[{index}].id: got {_text(raw.ids, row)} a second time, expected each item once"


def _feedback(raw: Raw, unknown: Iterable[int]) -> Reasons:
    for event in np.flatnonzero(
        np.asarray(pc.equal(pc.binary_length(raw.item), 0).fill_null(False))
    ).tolist():
        yield event, "item: empty, expected text or a whole number"
    for event in unknown:
        if raw.lengths[event] < 0:
            yield event, f'event: got {_text(raw.what, event)}, expected "click" or "conversion"'


def _what(raw: Raw) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """CLICK or CONVERSION of each event, and the numbers of those whose `event` is neither."""
    encoded = raw.what.cast(pa.string()).fill_null("click").dictionary_encode()
    known = np.array([_WHAT.get(text, 0) for text in encoded.dictionary.to_pylist()], np.uint8)
    what = known[encoded.indices.to_numpy()] if known.size else np.zeros(0, np.uint8)
    return what, np.flatnonzero(what == 0).tolist()


def _missing(name: str, texts: pa.Array) -> Reasons:
    empty = pc.equal(pc.binary_length(texts), 0).fill_null(True)
    for event in np.flatnonzero(np.asarray(empty)).tolist():
        what = "empty" if texts[event].is_valid else "missing"
        yield event, f"{name}: {what}, expected text or a whole number"


def _present(texts: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(texts.is_valid())


def _place_of(row: int, first: Ints) -> tuple[int, int]:
    event = int(np.searchsorted(first, row, "right")) - 1
    return event, row - int(first[event])


def _text(texts: pa.Array, index: int) -> str:
    return f'"{texts[index].as_py().decode()[:80]}"'


def _shown(time_us: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(time_us))).isoformat()
    except OverflowError:
        return f"{time_us} µs since 1970"
