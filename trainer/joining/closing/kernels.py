"""Rows are given out; windows close; what is closed is remembered for a while; early feedback is given up.

Callers of what gives rows out have asked `has_room` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.joining.due.kernels import pop
from trainer.joining.requests.kernels import CLOSED, FREE, LATE


@bare_inline
def give(room: Any, segment: Any, row: Any, label: Any, clicked: Any) -> None:
    """Give a labelled row out."""
    at = room.used[0]
    room.segment[at] = segment
    room.row[at] = row
    room.label[at] = label
    room.clicked[at] = clicked
    room.used[0] = at + 1


@bare_inline
def has_room(room: Any, rows: Any, closings: Any) -> Any:
    """Whether so many more can be given out."""
    return room.used[0] + rows <= room.row.size and room.used[1] + closings <= room.closings.size


@bare_inline
def _give_closing(room: Any, entry: Any) -> None:
    at = room.used[1]
    room.closings[at].segment = entry.segment
    room.closings[at].rows = entry.rows
    room.closings[at].row = entry.row
    room.closings[at].time_us = entry.time
    room.closings[at].positives = entry.positives
    room.closings[at].clicks = entry.clicks
    room.closings[at].conversions = entry.conversions
    room.used[1] = at + 1


@bare_kernel
def close(memory: Any, rules: Any, room: Any, place: Any) -> None:
    """Give out the rows that nothing made positive, and remember the request. Its place in `due` is gone already."""
    entry, counts, head = memory.entries[place], memory.counts[0], memory.head[0]
    for row in range(entry.rows):
        flags = memory.flags[entry.first + row]
        if flags & rules.positive:
            continue
        give(room, entry.segment, entry.row + row, 0, entry.positives > 0)
        counts.negatives += 1
        counts.pending_rows -= 1
        if rules.correct and flags & (rules.positive << LATE):
            give(room, entry.segment, entry.row + row, 1, True)
            counts.corrections += 1
    _give_closing(room, entry)
    counts.pending -= 1
    counts.closed += 1
    counts.remembered += 1
    entry.state = CLOSED
    entry.forget = head.watermark + rules.late_within
    if head.newest_closed >= 0:
        memory.entries[head.newest_closed].next = place
    else:
        head.oldest_closed = place
    head.newest_closed = place


@bare_inline
def _forget_oldest(memory: Any) -> None:
    head = memory.head[0]
    entry = memory.entries[head.oldest_closed]
    entry.state = FREE
    memory.counts[0].remembered -= 1
    head.oldest_closed = entry.next
    if entry.next < 0:
        head.newest_closed = -1


@bare_inline
def bound_remembered(memory: Any, rules: Any) -> None:
    """Forget the request that closed first if more are remembered than may be."""
    if memory.counts[0].remembered > rules.max_pending:
        _forget_oldest(memory)
        memory.counts[0].forgotten_early += 1


@bare_kernel
def close_oldest(memory: Any, rules: Any, room: Any) -> None:
    """Close the request that was shown first."""
    place = np.int64(memory.due[0].place)
    pop(memory.due, memory.head[0].due)
    memory.head[0].due -= 1
    close(memory, rules, room, place)
    bound_remembered(memory, rules)


@bare_kernel
def close_due(memory: Any, rules: Any, room: Any, through: Any) -> Any:
    """Close all requests shown before `through`, in the order they were shown; False if the room did not suffice."""
    while memory.head[0].due > 0 and memory.due[0].time < through:
        if not has_room(room, 2 * memory.entries[memory.due[0].place].rows, 1):
            return False
        close_oldest(memory, rules, room)
    return True


@bare_kernel
def orphan_oldest(memory: Any) -> None:
    """Give up the early feedback that is due first; what has met its impression meanwhile is just taken out."""
    early = memory.early[memory.early_due[0].place]
    pop(memory.early_due, memory.head[0].early_due)
    memory.head[0].early_due -= 1
    if not early.live:
        return
    early.live = 0
    memory.counts[0].waiting -= 1
    memory.counts[0].orphans += 1
    entry = memory.entries[early.entry]
    entry.rows -= 1
    if entry.rows == 0:
        entry.state = FREE


@bare_kernel
def orphan_due(memory: Any, through: Any) -> None:
    """Give up all early feedback from before `through`."""
    while memory.head[0].early_due > 0 and memory.early_due[0].time < through:
        orphan_oldest(memory)


@bare_inline
def forget_due(memory: Any) -> None:
    """Forget the closed requests whose time is over."""
    head = memory.head[0]
    while head.oldest_closed >= 0 and memory.entries[head.oldest_closed].forget < head.watermark:
        _forget_oldest(memory)
