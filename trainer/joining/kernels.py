"""The join, event by event: an event moves the watermark, what is due then is closed, then the event is acted on.

Nothing here depends on how events are cut into batches. Where there is no room to write to, `walk` stops before an
event and goes on there when it is called again; the work that it has done by then it would find done.
Callers see to the room in `Memory` (`trainer.joining.remembering`); nothing is allocated here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.events.events import CLICK, FEEDBACK, IMPRESSION

FREE, WAITING, PENDING, CLOSED = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
"""States of an entry: forgotten; known by early feedback only; its window is open; its window is closed."""

CLICKED, CONVERTED = np.uint8(1), np.uint8(2)
LATE = np.uint8(2)
"""Flags of a row. What came late stands LATE bits above what came in time."""

_HIGH = np.uint64(0xFFFFFFFF00000000)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_NOTHING = np.uint64(0)
_CHILDREN = 4
_CLICK = np.uint8(CLICK)
_FOR_EVER = np.int64(2**63 - 1)


# --- The order of what is due: a heap whose nodes have four children, so that a few cache lines are touched -----------


@bare_inline
def _is_before(time: Any, place: Any, other: Any) -> Any:
    return time < other.time or (time == other.time and place < other.place)


@bare_kernel
def push(heap: Any, size: Any, time: Any, place: Any) -> None:
    """Put (time, place) into a heap of `size`. What comes in order of time stays where it is put."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // _CHILDREN
        if not _is_before(time, place, heap[parent]):
            break
        heap[hole].time = heap[parent].time
        heap[hole].place = heap[parent].place
        hole = parent
    heap[hole].time = time
    heap[hole].place = place


@bare_kernel
def pop(heap: Any, size: Any) -> None:
    """Take the first out of a heap of `size`."""
    last = size - 1
    time, place = heap[last].time, heap[last].place
    hole = 0
    while True:
        least = _CHILDREN * hole + 1
        if least >= last:
            break
        for child in range(least + 1, min(_CHILDREN * hole + _CHILDREN + 1, last)):
            if _is_before(heap[child].time, heap[child].place, heap[least]):
                least = child
        if _is_before(time, place, heap[least]):
            break
        heap[hole].time = heap[least].time
        heap[hole].place = heap[least].place
        hole = least
    heap[hole].time = time
    heap[hole].place = place


# --- The table: request to entry --------------------------------------------------------------------------------------


@bare_inline
def _home(memory: Any, request: Any) -> Any:
    return np.int64(request & np.uint64(memory.table.size - 1))


@bare_inline
def find(memory: Any, request: Any) -> Any:
    """The slot of a request, or the free one where it belongs. The table is never full."""
    slot, tag = _home(memory, request), request & _HIGH
    while memory.table[slot] != _NOTHING:
        word = memory.table[slot]
        if word & _HIGH == tag and memory.entries[np.int64(word & _LOW) - 1].request == request:
            break
        slot += 1
        if slot == memory.table.size:
            slot = 0
    return slot


@bare_inline
def _entry_in(memory: Any, slot: Any) -> Any:
    """The place of the entry that a slot has, -1 of a free slot or a forgotten one."""
    place = np.int64(memory.table[slot] & _LOW) - 1
    if place >= 0 and memory.entries[place].state == FREE:
        return -1
    return place


@bare_inline
def _enter(memory: Any, slot: Any, request: Any) -> Any:
    """Append an entry, known from now on under its slot; its place."""
    place = memory.head[0].entries
    memory.head[0].entries = place + 1
    memory.table[slot] = (request & _HIGH) | np.uint64(place + 1)
    memory.entries[place].request = request
    memory.entries[place].next = -1
    return place


# --- Giving out -------------------------------------------------------------------------------------------------------


@bare_inline
def _give(room: Any, segment: Any, row: Any, label: Any, clicked: Any) -> None:
    at = room.used[0]
    room.segment[at] = segment
    room.row[at] = row
    room.label[at] = label
    room.clicked[at] = clicked
    room.used[0] = at + 1


@bare_inline
def _has_room(room: Any, rows: Any, closings: Any) -> Any:
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


# --- Closing, remembering, forgetting ---------------------------------------------------------------------------------


@bare_kernel
def _close(memory: Any, rules: Any, room: Any, place: Any) -> None:
    """Give out the rows that nothing made positive, and remember the request. Its place in `due` is gone already."""
    entry, counts, head = memory.entries[place], memory.counts[0], memory.head[0]
    for row in range(entry.rows):
        flags = memory.flags[entry.first + row]
        if flags & rules.positive:
            continue
        _give(room, entry.segment, entry.row + row, 0, entry.positives > 0)
        counts.negatives += 1
        counts.pending_rows -= 1
        if rules.correct and flags & (rules.positive << LATE):
            _give(room, entry.segment, entry.row + row, 1, True)
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
def _bound_remembered(memory: Any, rules: Any) -> None:
    if memory.counts[0].remembered > rules.max_pending:
        _forget_oldest(memory)
        memory.counts[0].forgotten_early += 1


@bare_kernel
def _close_oldest(memory: Any, rules: Any, room: Any) -> None:
    place = np.int64(memory.due[0].place)
    pop(memory.due, memory.head[0].due)
    memory.head[0].due -= 1
    _close(memory, rules, room, place)
    _bound_remembered(memory, rules)


@bare_kernel
def close_due(memory: Any, rules: Any, room: Any, through: Any) -> Any:
    """Close all requests shown before `through`, in the order they were shown; False if the room did not suffice."""
    while memory.head[0].due > 0 and memory.due[0].time < through:
        if not _has_room(room, 2 * memory.entries[memory.due[0].place].rows, 1):
            return False
        _close_oldest(memory, rules, room)
    return True


@bare_kernel
def _orphan_oldest(memory: Any) -> None:
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
        _orphan_oldest(memory)


@bare_inline
def _forget_due(memory: Any) -> None:
    head = memory.head[0]
    while head.oldest_closed >= 0 and memory.entries[head.oldest_closed].forget < head.watermark:
        _forget_oldest(memory)


# --- Acting on an event -----------------------------------------------------------------------------------------------


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
            _give(room, entry.segment, entry.row + row, 1, True)
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
            _give(room, entry.segment, entry.row + row, 1, True)


@bare_kernel
def _wait(memory: Any, rules: Any, slot: Any, request: Any, item: Any, what: Any, time: Any) -> None:
    """Feedback for a request that is not known: it waits, in the order it came."""
    head = memory.head[0]
    place = _entry_in(memory, slot)
    if place < 0:
        place = _enter(memory, slot, request)
        memory.entries[place].state = WAITING
        memory.entries[place].first = -1
        memory.entries[place].rows = 0
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
        _orphan_oldest(memory)


@bare_kernel
def _feedback(memory: Any, rules: Any, room: Any, events: Any, index: Any, time: Any) -> None:
    request, item, what = events.request[index], events.item[index], events.what[index]
    counts = memory.counts[0]
    if what == _CLICK:
        counts.clicks += 1
    else:
        counts.conversions += 1
    slot = find(memory, request)
    place = _entry_in(memory, slot)
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
    known = _entry_in(memory, slot)
    if known >= 0 and memory.entries[known].state != WAITING:
        counts.duplicate_impressions += 1
        return
    place = _enter(memory, slot, request)
    entry = memory.entries[place]
    entry.time, entry.state = time, PENDING
    entry.segment, entry.row, entry.rows = events.segment[index], events.row[index], events.rows[index]
    entry.positives, entry.clicks, entry.conversions = 0, 0, 0
    _copy_rows(memory, events, index, entry)
    counts.pending += 1
    counts.rows += entry.rows
    counts.pending_rows += entry.rows
    if known >= 0:
        _meet(memory, rules, room, known, place)
    if time + rules.window < head.watermark:
        counts.late_impressions += 1
        _close(memory, rules, room, place)
        _bound_remembered(memory, rules)
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
    return _has_room(room, 2 * rows + 1, 2)


@bare_kernel
def walk(memory: Any, rules: Any, room: Any, events: Any, begin: Any) -> Any:
    """Take the events from `begin` on; the first that is not taken, or how many there are if the room sufficed."""
    head = memory.head[0]
    for index in range(begin, events.kind.size):
        kind = events.kind[index]
        if kind != IMPRESSION and kind != FEEDBACK:
            continue
        # Who reports a time that is still to come must not close what others wait for.
        time = min(events.time_us[index], events.now_us[index])
        head.watermark = max(head.watermark, time - rules.lateness)
        if not close_due(memory, rules, room, head.watermark - rules.window):
            return index
        orphan_due(memory, head.watermark - rules.window)
        _forget_due(memory)
        if kind == FEEDBACK:
            if not _has_room(room, 1, 0):
                return index
            _feedback(memory, rules, room, events, index, time)
            continue
        if not _has_room_for(memory, rules, room, events.rows[index]):
            return index
        _show(memory, rules, room, events, index, time)
        if memory.counts[0].pending > rules.max_pending:
            memory.counts[0].closed_early += 1
            _close_oldest(memory, rules, room)
    return events.kind.size


@bare_kernel
def finish(memory: Any, rules: Any, room: Any) -> Any:
    """Close every window and give up all that waits; False if the room did not suffice."""
    if not close_due(memory, rules, room, _FOR_EVER):
        return False
    orphan_due(memory, _FOR_EVER)
    return True


# --- Moving together what is left -------------------------------------------------------------------------------------


@bare_kernel
def compact(memory: Any, moved: Any, moved_early: Any) -> None:
    """Drop what is forgotten and keep the order of the rest; the table is made anew.

    moved: int32[entries], moved_early: int32[early], out: the new place of each, -1 of what is gone.
    """
    _compact_entries(memory, moved)
    _compact_early(memory, moved, moved_early)
    head = memory.head[0]
    if head.oldest_closed >= 0:
        head.oldest_closed = moved[head.oldest_closed]
        head.newest_closed = moved[head.newest_closed]
    for index in range(head.due):
        memory.due[index].place = moved[memory.due[index].place]
    memory.table[:] = _NOTHING
    for place in range(head.entries):
        request = memory.entries[place].request
        memory.table[find(memory, request)] = (request & _HIGH) | np.uint64(place + 1)


@bare_kernel
def _compact_entries(memory: Any, moved: Any) -> None:
    head, kept, items = memory.head[0], 0, 0
    for place in range(head.entries):
        entry = memory.entries[place]
        if entry.state == FREE:
            moved[place] = -1
            continue
        moved[place] = kept
        if entry.state != WAITING:
            for row in range(entry.rows):
                memory.items[items + row] = memory.items[entry.first + row]
                memory.flags[items + row] = memory.flags[entry.first + row]
            entry.first = items
            items += entry.rows
        memory.entries[kept] = entry
        kept += 1
    for place in range(kept):
        if memory.entries[place].next >= 0:
            memory.entries[place].next = moved[memory.entries[place].next]
        if memory.entries[place].state == WAITING:
            memory.entries[place].first = -1
    head.entries, head.items = kept, items


@bare_kernel
def _compact_early(memory: Any, moved: Any, moved_early: Any) -> None:
    """Chains are linked anew: the feedback of one request stands in the order it came."""
    head, kept = memory.head[0], 0
    for node in range(head.early):
        if not memory.early[node].live:
            moved_early[node] = -1
            continue
        moved_early[node] = kept
        memory.early[kept] = memory.early[node]
        early = memory.early[kept]
        early.entry, early.next = moved[early.entry], -1
        entry = memory.entries[early.entry]
        if entry.first < 0:
            entry.first = kept
        else:
            memory.early[entry.row].next = kept
        entry.row = kept
        kept += 1
    head.early = kept
    due = 0
    for index in range(head.early_due):
        node = moved_early[memory.early_due[index].place]
        if node >= 0:
            time = memory.early_due[index].time
            push(memory.early_due, due, time, node)
            due += 1
    head.early_due = due
