"""From stretches of raw events to events as columns. Never fails: what cannot be an event is BAD, with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.block_parser import BlockReader
from trainer.events.columns import Wanted, together
from trainer.events.events import MAX_LINE_BYTES, Events, Int64s
from trainer.events.line_parser import read_lines
from trainer.events.validate import judged

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]

_BLOCK_BYTES = 4 << 20


def parse(data: bytes, starts: Ints, wanted: Wanted, arrived_us: Ints | None = None) -> Events:
    """The events on the lines of `data`, as `Parser.parse` for one block alone."""
    return Parser(wanted).parse(data, starts, arrived_us)


class Parser:
    """Parses the stretches of one source. What it remembers of earlier ones makes it faster and changes no value."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._blocks = BlockReader(wanted)

    def parse(self, data: bytes, starts: Ints, arrived_us: Ints | None = None) -> Events:
        """data, starts, arrived_us: as of a Stretch. Without arrived_us the present time bounds the events' own."""
        clock_us = arrived_us
        if clock_us is None:
            clock_us = np.full(starts.size - 1, time.time_ns() // 1000, np.int64)
        parts = []
        for first, stop in _ranges(starts):
            if first + 1 == stop and _is_long(starts, first):
                parts.append(_too_long(int(starts[stop] - starts[first]), self._wanted))
            else:
                part, own = data[starts[first] : starts[stop]], starts[first : stop + 1] - starts[first]
                parts.append(self._block(part, own, clock_us[first:stop]))
        return joined(parts) if parts else judged(read_lines((), self._wanted), clock_us)

    def _block(self, data: bytes, starts: Ints, clock_us: Ints) -> Events:
        """The events of a block: by one scan, but for the odd lines in it."""
        raw, odd = self._blocks.read(np.frombuffer(data, np.uint8), starts)
        events = judged(raw, clock_us[~odd])
        if not odd.any():
            return events
        lines = (data[starts[line] : starts[line + 1]].rstrip(b"\r\n") for line in np.flatnonzero(odd))
        return interleaved(events, judged(read_lines(lines, self._wanted), clock_us[odd]), odd)


def _ranges(starts: Ints) -> Iterator[Range]:
    """Ranges of lines of about a block each; a line that is too long stands alone."""
    count, first = starts.size - 1, 0
    alone = [int(line) for line in np.flatnonzero(np.diff(starts) > MAX_LINE_BYTES)]
    for bound in (*alone, count):
        while first < bound:
            stop = int(np.searchsorted(starts, starts[first] + _BLOCK_BYTES, "right")) - 1
            stop = min(max(stop, first + 1), bound)
            yield first, stop
            first = stop
        if bound < count:
            yield bound, bound + 1
            first = bound + 1


def _is_long(starts: Ints, line: int) -> bool:
    return bool(starts[line + 1] - starts[line] > MAX_LINE_BYTES)


def _too_long(size: int, wanted: Wanted) -> Events:
    reason = f"got a line of {size:,} bytes, expected at most {MAX_LINE_BYTES:,}"
    return judged(replace(read_lines((b"{}",), wanted), bad={0: reason}), np.zeros(1, np.int64))


# --- Parsed pieces of a stretch put together again ---


_OF_EVENTS = ("kind", "time_us", "request", "item", "what", "event")


def joined(parts: Sequence[Events]) -> Events:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    rows = np.cumsum([0, *(part.items.size for part in parts)]).tolist()
    bad = dict[int, str]()
    for part, first in zip(parts, before, strict=False):
        bad |= {first + number: reason for number, reason in part.bad.items()}
    return Events(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_EVENTS},
        first=np.concatenate([[0], *(part.first[1:] + row for part, row in zip(parts, rows, strict=False))]),
        items=np.concatenate([part.items for part in parts]),
        columns=together([part.columns for part in parts]),
        bad=bad,
    )


def interleaved(kept: Events, aside: Events, is_aside: npt.NDArray[np.bool_]) -> Events:
    """In the order in which they stood. is_aside: bool[events of both]."""
    order = np.empty(is_aside.size, np.int64)
    order[~is_aside] = np.arange(len(kept))
    order[is_aside] = len(kept) + np.arange(len(aside))
    both = joined([kept, aside])
    lengths = np.diff(both.first)
    rows = gathered(both.first[:-1][order], lengths[order])
    items, columns = both.items, both.columns
    if aside.items.size:
        items, columns = items[rows], {name: column.take(pa.array(rows)) for name, column in columns.items()}
    place = np.argsort(order)
    members: dict[str, Any] = {name: getattr(both, name)[order] for name in _OF_EVENTS}
    return Events(
        **members,
        first=np.concatenate([[0], np.cumsum(lengths[order])]),
        items=items,
        columns=columns,
        bad={
            int(place[number]): reason
            for number, reason in sorted(both.bad.items(), key=lambda b: place[b[0]])
        },
    )


def gathered(first: Int64s, lengths: Int64s) -> Int64s:
    """The rows of stretches, one after the other: `lengths[i]` of them from first[i] on."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(lengths.sum())
