"""From stretches of raw events to events as columns. Never fails: what cannot be an event is BAD, with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainer.events.blocks import BlockReader, odd_lines
from trainer.events.events import Events
from trainer.events.judging import judged
from trainer.events.line_by_line import read_lines
from trainer.events.pieces import interleaved, joined
from trainer.events.raw import MAX_LINE_BYTES
from trainer.events.wanted import Wanted

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]

_FEW = 64
_PARTS = 8
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
        """The events of a block, as many at once as can be: what must be read line by line is set aside first."""
        raw = self._blocks.read(np.frombuffer(data, np.uint8), clock_us.size)
        if raw is not None:
            return judged(raw, clock_us)
        if clock_us.size > _FEW and self._blocks.hopeful:
            odd = odd_lines(data, starts)
            if 0 < np.count_nonzero(odd) <= odd.size // _PARTS:
                return self._without(odd, data, starts, clock_us)
            bounds = np.linspace(0, clock_us.size, _PARTS + 1).astype(int).tolist()
            pieces = [
                (data[starts[a] : starts[b]], starts[a : b + 1] - starts[a], a, b)
                for a, b in pairwise(bounds)
            ]
            return joined([self._block(part, own, clock_us[a:b]) for part, own, a, b in pieces])
        return judged(read_lines(_lines(data, starts), self._wanted), clock_us)

    def _without(self, odd: npt.NDArray[np.bool_], data: bytes, starts: Ints, clock_us: Ints) -> Events:
        """The same, of a block with a few odd lines."""
        lines = list(_lines(data, starts))
        aside = judged(read_lines((lines[line] for line in np.flatnonzero(odd)), self._wanted), clock_us[odd])
        kept = [data[starts[line] : starts[line + 1]] for line in np.flatnonzero(~odd)]
        ends = np.cumsum([0, *(len(line) for line in kept)])
        return interleaved(self._block(b"".join(kept), ends, clock_us[~odd]), aside, odd)


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


def _lines(data: bytes, starts: Ints) -> Iterator[bytes]:
    return (data[a:b].rstrip(b"\r\n") for a, b in pairwise(starts.tolist()))
