"""Which events of several sources are sure to be next, and how they become one stretch. Arrays only; no threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.columns import together
from trainer.events.events import BAD, BadEvent, Int64s, Merged, Source, Stretch
from trainer.events.parse import gathered
from trainer.events.read_ahead import Parsed

NO_SEGMENT = -1


@dataclass(frozen=True)
class Part:
    """Events first to stop of a stretch of a source."""

    source: int
    parsed: Parsed
    first: int
    stop: int


def releasable(fronts: Sequence[Sequence[tuple[Parsed, int]]], horizons_us: Sequence[int]) -> list[Part]:
    """The events before which none can come any more.

    fronts: of each source, its next stretches and how much of each is taken; horizons_us: what a source brings behind
    them came no earlier. Invariant: events are ordered by (when they came, source), then as in the source; so one
    that came at another's horizon goes first if its source does.
    """
    parts = []
    for source, front in enumerate(fronts):
        for parsed, first in front:
            stop = min(
                (
                    int(np.searchsorted(parsed.order_us, horizon, "right" if source < other else "left"))
                    for other, horizon in enumerate(horizons_us)
                    if other != source
                ),
                default=len(parsed),
            )
            if stop > first:
                parts.append(Part(source, parsed, first, stop))
            if stop < len(parsed):
                break
    return parts


def merge(
    parts: Sequence[Part], sources: Sequence[Source], add: Callable[[Mapping[str, pa.Array]], int]
) -> Merged:
    """Events of all parts in one order; their rows are added as one table. parts: by source, then as in the source."""
    order = np.argsort(_concat(parts, lambda p: p.parsed.order_us), kind="stable")
    lengths = np.concatenate([np.diff(p.parsed.events.first[p.first : p.stop + 1]) for p in parts])
    row = np.cumsum(lengths) - lengths
    kind = _concat(parts, lambda p: p.parsed.events.kind)[order]
    time_us = _concat(parts, lambda p: p.parsed.events.time_us)
    order_us = _concat(parts, lambda p: p.parsed.order_us)
    return Merged(
        kind=kind,
        time_us=time_us[order],
        now_us=np.concatenate([_now(part) for part in parts])[order],
        request=_concat(parts, lambda p: p.parsed.events.request)[order],
        item=_concat(parts, lambda p: p.parsed.events.item)[order],
        what=_concat(parts, lambda p: p.parsed.events.what)[order],
        event=_concat(parts, lambda p: p.parsed.events.event)[order],
        segment=np.full(order_us.size, _add(parts, add), np.int32),
        row=row[order],
        rows=lengths[order].astype(np.int32),
        items=_items(parts, row[order], lengths[order]),
        bad=_bad(parts, sources, order),
    )


def _concat(parts: Sequence[Part], of: Callable[[Part], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([of(part)[part.first : part.stop] for part in parts])


def _now(part: Part) -> Int64s:
    """When each came by its source's clock, or else its own time; of one that cannot be read, the one's before."""
    window = slice(part.first, part.stop)
    if part.parsed.stretch.arrived_us is not None:
        return part.parsed.stretch.arrived_us[window]
    events = part.parsed.events
    return np.where(events.kind[window] == BAD, part.parsed.order_us[window], events.time_us[window])


def _rows_of(part: Part) -> slice:
    first = part.parsed.events.first
    return slice(int(first[part.first]), int(first[part.stop]))


def _add(parts: Sequence[Part], add: Callable[[Mapping[str, pa.Array]], int]) -> int:
    tables = []
    for part in parts:
        rows = _rows_of(part)
        if rows.stop > rows.start:
            columns = part.parsed.events.columns
            tables.append({name: column[rows] for name, column in columns.items()})
    return add(together(tables)) if tables else NO_SEGMENT


def _items(parts: Sequence[Part], row: Int64s, lengths: Int64s) -> npt.NDArray[np.uint64]:
    items = np.concatenate([part.parsed.events.items[_rows_of(part)] for part in parts])
    return items[gathered(row, lengths)]


def _bad(parts: Sequence[Part], sources: Sequence[Source], order: Int64s) -> tuple[BadEvent, ...]:
    if not any(part.parsed.events.bad for part in parts):
        return ()
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    found, before = dict[int, BadEvent](), 0
    for part in parts:
        for number, reason in part.parsed.events.bad.items():
            if part.first <= number < part.stop:
                at = int(place[before + number - part.first])
                found[at] = _bad_event(sources[part.source], part.parsed.stretch, number, reason)
        before += part.stop - part.first
    return tuple(found[at] for at in sorted(found))


def _bad_event(source: Source, stretch: Stretch, number: int, reason: str) -> BadEvent:
    line = stretch.data[stretch.starts[number] : stretch.starts[number + 1]].rstrip(b"\r\n")
    return BadEvent(source.name, source.where(stretch, number), line, reason)
