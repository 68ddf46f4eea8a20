"""From stretches of raw events to events as columns. Never fails: what cannot be an event is BAD, with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainer.events.blocks import BlockReader
from trainer.events.events import Events
from trainer.events.forms import together
from trainer.events.judging import judged
from trainer.events.line_by_line import read_lines
from trainer.events.raw import MAX_LINE_BYTES, Raw
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
                parts += [judged(raw, clock_us[a:b]) for raw, a, b in self._read(data, starts, first, stop)]
        return _joined(parts) if parts else judged(read_lines((), self._wanted), clock_us)

    def _read(self, data: bytes, starts: Ints, first: int, stop: int) -> Iterator[tuple[Raw, int, int]]:
        """A range in as few pieces as it can be read in: a bad line costs its neighbours alone the fast way."""
        raw = self._blocks.read(_bytes(data, starts, first, stop), stop - first)
        if raw is None and stop - first > _FEW and self._blocks.hopeful:
            bounds = np.linspace(first, stop, _PARTS + 1).astype(int).tolist()
            for a, b in pairwise(bounds):
                yield from self._read(data, starts, a, b)
            return
        yield raw or read_lines(_lines(data, starts, first, stop), self._wanted), first, stop


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


def _bytes(data: bytes, starts: Ints, first: int, stop: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8, int(starts[stop] - starts[first]), int(starts[first]))


def _lines(data: bytes, starts: Ints, first: int, stop: int) -> Iterator[bytes]:
    bounds = starts[first : stop + 1].tolist()
    return (data[a:b].rstrip(b"\r\n") for a, b in pairwise(bounds))


def _joined(parts: Sequence[Events]) -> Events:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part) for part in parts)])
    rows = np.cumsum([0, *(part.items.size for part in parts)])
    bad = dict[int, str]()
    for part, first in zip(parts, before.tolist(), strict=False):
        bad |= {first + number: reason for number, reason in part.bad.items()}
    return Events(
        kind=np.concatenate([part.kind for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
        request=np.concatenate([part.request for part in parts]),
        item=np.concatenate([part.item for part in parts]),
        what=np.concatenate([part.what for part in parts]),
        event=np.concatenate([part.event for part in parts]),
        first=np.concatenate([[0], *(p.first[1:] + row for p, row in zip(parts, rows, strict=False))]),
        items=np.concatenate([part.items for part in parts]),
        columns=together([part.columns for part in parts]),
        bad=bad,
    )
