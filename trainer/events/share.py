"""Which events are a partition's own, of those that all partitions of a model read (docs/distributed.md).

A request belongs to one partition by a hash of its id, so an impression and its clicks are in the same one. A line
whose id cannot be read belongs to one partition by a hash of its bytes: there it becomes a dead letter, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.events.events import MAX_LINE_BYTES, OTHER, Events
from trainer.events.parse_kernels import UNSURE, share_of_bytes, shares


@dataclass(frozen=True)
class PartitionShare:
    """Partition `number` of `count`, numbered from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def mine(self, data: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[lines]: which lines are events of this partition. A function of each line's bytes alone."""
        found = np.empty(starts.size - 1, np.int64)
        shares(np.frombuffer(data, np.uint8), starts, self.count, found)
        for line in np.flatnonzero(found == UNSURE).tolist():
            found[line] = _share_of_line(data[starts[line] : starts[line + 1]], self.count)
        mine: npt.NDArray[np.bool_] = found == self.number - 1
        return mine


def among_others(events: Events, mine: npt.NDArray[np.bool_]) -> Events:
    """The events of the lines that are `mine`, and an event of kind OTHER for each of the rest."""
    if mine.all():
        return events

    def spread(values: npt.NDArray[Any], otherwise: int = 0) -> npt.NDArray[Any]:
        wide = np.full(mine.size, otherwise, values.dtype)
        wide[mine] = values
        return wide

    lines = np.flatnonzero(mine)
    return Events(
        kind=spread(events.kind, OTHER),
        time_us=spread(events.time_us),
        request=spread(events.request),
        item=spread(events.item),
        what=spread(events.what),
        first=np.concatenate([[0], np.cumsum(spread(np.diff(events.first)))]),
        items=events.items,
        columns=events.columns,
        bad={int(lines[number]): reason for number, reason in events.bad.items()},
    )


def _share_of_line(line: bytes, count: int) -> int:
    text = line.rstrip(b"\r\n")
    try:
        event = json.loads(text) if len(line) <= MAX_LINE_BYTES else None
        found = event.get("request_id") if isinstance(event, dict) else None
        if isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool)):
            text = str(found).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        pass  # the line is a bad event
    return int(share_of_bytes(np.frombuffer(text, np.uint8), count))
