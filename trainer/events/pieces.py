"""Parsed pieces of a stretch put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.events import Events, Int64s
from trainer.events.forms import together

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
