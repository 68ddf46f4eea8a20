"""The join, event by event: an event moves the watermark, what is due then is closed, then the event is acted on.

Nothing here depends on how events are cut into batches. Where there is no room to write to, `walk` stops before an
event and goes on there when it is called again; the work that it has done by then it would find done.
Callers see to the room in `Memory` (`trainer.join.join_state`); nothing is allocated here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.events.events import CLICK, FEEDBACK, IMPRESSION
from trainer.join.state_kernels import (
    CLICKED,
    CLOSED,
    CONVERTED,
    FREE,
    LATE,
    PENDING,
    WAITING,
    enter,
    entry_in,
    find,
    pop,
    prefetch_slot,
    push,
)

_AHEAD = 8  # events whose slots are on their way from memory
_CLICK = np.uint8(CLICK)
_FOR_EVER = np.int64(2**63 - 1)


@bare_inline
def _row_of(memory: Any, entry: Any, item: Any) -> Any:
    """The first row that shows an item, -1 if none does."""
    for row in range(entry.rows):
        if memory.items[entry.first + row] == item:
            return row
    return -1


@bare_kernel
def _take(memory: Any, rules: Any, room: Any, place: Any, item: Any, what: Any, time: Any) -> None:
    """Feedback for a request that is known: a positive at once, or counted as what it is."""
    entry, counts = memory.entries[place], memory.counts[0]
    row = _row_of(memory, entry, item)
    if row < 0:
        counts.unknown_item += 1
        return
    at, flag = entry.first + row, CLICKED if what == _CLICK else CONVERTED
    flags = memory.flags[at]
    is_late = entry.state == CLOSED or time > entry.time + rules.window
    if flags & flag or (is_late and flags & (flag << LATE)):
        counts.duplicate_feedback += 1
    elif is_late:
        counts.late += 1
        memory.flags[at] = flags | (flag << LATE)
        if rules.correct and flag == rules.positive and entry.state == CLOSED:
            give(room, entry.segment, entry.row + row, 1, True)
            counts.corrections += 1
    else:
        memory.flags[at] = flags | flag
        counts.joined += 1
        if what == _CLICK:
            entry.clicks += 1
        else:
            entry.conversions += 1
        if flag == rules.positive:
            entry.positives += 1
            counts.positives += 1
            counts.pending_rows -= 1
            give(room, entry.segment, entry.row + row, 1, True)


@bare_kernel
def _wait(memory: Any, rules: Any, slot: Any, request: Any, item: Any, what: Any, time: Any) -> None:
    """Feedback for a request that is not known: it waits, in the order it came."""
    head = memory.head[0]
    place = entry_in(memory, slot)
    if place < 0:
        place = enter(memory, slot, request)
        memory.entries[place].state = WAITING
    entry, node = memory.entries[place], head.early
    head.early = node + 1
    early = memory.early[node]
    early.item, early.time, early.what = item, time, what
    early.entry, early.next, early.live = place, -1, 1
    if entry.first < 0:
        entry.first = node
    else:
        memory.early[entry.row].next = node
    entry.row = node
    entry.rows += 1
    push(memory.early_due, head.early_due, time, node)
    head.early_due += 1
    memory.counts[0].waiting += 1
    while memory.counts[0].waiting > rules.max_pending:
        orphan_oldest(memory)


@bare_kernel
def _feedback(memory: Any, rules: Any, room: Any, events: Any, index: Any, time: Any) -> None:
    request, item, what = events.request[index], events.item[index], events.what[index]
    counts = memory.counts[0]
    if what == _CLICK:
        counts.clicks += 1
    else:
        counts.conversions += 1
    slot = find(memory, request)
    place = entry_in(memory, slot)
    if place >= 0 and memory.entries[place].state != WAITING:
        _take(memory, rules, room, place, item, what, time)
        return
    counts.early += 1
    if time + rules.window < memory.head[0].watermark:
        counts.orphans += 1
    else:
        _wait(memory, rules, slot, request, item, what, time)


@bare_inline
def _copy_rows(memory: Any, events: Any, index: Any, entry: Any) -> None:
    first = memory.head[0].items
    for row in range(entry.rows):
        memory.items[first + row] = events.items[events.first[index] + row]
        memory.flags[first + row] = 0
    entry.first = first
    memory.head[0].items = first + entry.rows


@bare_kernel
def _show(memory: Any, rules: Any, room: Any, events: Any, index: Any, time: Any) -> None:
    """An impression: its window opens, and what came before it is taken at once."""
    head, counts, request = memory.head[0], memory.counts[0], events.request[index]
    counts.impressions += 1
    slot = find(memory, request)
    known = entry_in(memory, slot)
    if known >= 0 and memory.entries[known].state != WAITING:
        counts.duplicate_impressions += 1
        return
    place = enter(memory, slot, request)
    entry = memory.entries[place]
    entry.time, entry.state = time, PENDING
    entry.segment, entry.row, entry.rows = events.segment[index], events.row[index], events.rows[index]
    _copy_rows(memory, events, index, entry)
    counts.pending += 1
    counts.rows += entry.rows
    counts.pending_rows += entry.rows
    if known >= 0:
        _meet(memory, rules, room, known, place)
    if time + rules.window < head.watermark:
        counts.late_impressions += 1
        close(memory, rules, room, place)
        bound_remembered(memory, rules)
    else:
        push(memory.due, head.due, time, place)
        head.due += 1


@bare_kernel
def _meet(memory: Any, rules: Any, room: Any, waiting: Any, place: Any) -> None:
    """Take the feedback that came before the impression, in the order it came."""
    node = memory.entries[waiting].first
    while node >= 0:
        early = memory.early[node]
        if early.live:
            early.live = 0
            memory.counts[0].waiting -= 1
            _take(memory, rules, room, place, early.item, early.what, early.time)
        node = early.next
    memory.entries[waiting].state = FREE


@bare_inline
def _is_full(memory: Any, rules: Any) -> Any:
    return memory.counts[0].pending >= rules.max_pending


@bare_inline
def _has_room_for(memory: Any, rules: Any, room: Any, rows: Any) -> Any:
    """For all that one event can give out: its rows, each with a correction, and those of a request closed for it."""
    if _is_full(memory, rules):
        rows += memory.entries[memory.due[0].place].rows
    return has_room(room, 2 * rows + 1, 2)


@bare_kernel
def walk(memory: Any, rules: Any, room: Any, events: Any, begin: Any) -> Any:
    """Take the events from `begin` on; the first that is not taken, or how many there are if the room sufficed."""
    head = memory.head[0]
    for index in range(begin, events.kind.size):
        if index + _AHEAD < events.kind.size:
            prefetch_slot(memory, events.request[index + _AHEAD])
        kind = events.kind[index]
        if kind != IMPRESSION and kind != FEEDBACK:
            continue
        # Who reports a time that is still to come must not close what others wait for.
        time = min(events.time_us[index], events.now_us[index])
        head.watermark = max(head.watermark, time - rules.lateness)
        if not close_due(memory, rules, room, head.watermark - rules.window):
            return index
        orphan_due(memory, head.watermark - rules.window)
        forget_due(memory)
        if kind == FEEDBACK:
            if not has_room(room, 1, 0):
                return index
            _feedback(memory, rules, room, events, index, time)
            continue
        if not _has_room_for(memory, rules, room, events.rows[index]):
            return index
        _show(memory, rules, room, events, index, time)
        if memory.counts[0].pending > rules.max_pending:
            memory.counts[0].closed_early += 1
            close_oldest(memory, rules, room)
    return events.kind.size


@bare_kernel
def finish(memory: Any, rules: Any, room: Any) -> Any:
    """Close every window and give up all that waits; False if the room did not suffice."""
    if not close_due(memory, rules, room, _FOR_EVER):
        return False
    orphan_due(memory, _FOR_EVER)
    return True


# --- Rows are given out; windows close; what is closed is remembered for a while; early feedback is given up
# ---
#
# Callers of what gives rows out have asked `has_room` first.


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
