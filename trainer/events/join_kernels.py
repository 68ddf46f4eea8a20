"""Kernels of the join: each event advances the watermark, closes the windows that are due, then takes effect.

The result does not depend on how events are cut into batches. Where room for output runs short, `walk` stops before an
event and continues there on the next call; the work already done is not done twice. The caller provides room in
`Memory` (`trainer.events.join`); nothing is allocated here.

Entries are numbered by their index in `memory.entries`. Parts: the walk over events; rows emitted, windows closed,
requests forgotten; the table that finds an entry by its request's hash; compaction; the expiry heaps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel
from trainer.events.events import (
    ACTIVATED,
    BACKFILL_US,
    CLICK,
    CONVERSION,
    DEFERRED,
    FEEDBACK,
    IMPRESSION,
    SEEN_TO,
)

_CHILDREN = 4
FREE, WAITING, PENDING, CLOSED = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
"""States of an entry: forgotten; known from early feedback only; window open; window closed."""
INACTIVE, EXPIRED = np.uint8(4), np.uint8(5)
"""Of a deferred impression, in place of PENDING and CLOSED while it has not been activated."""

CLICKED, CONVERTED, SEEN = np.uint8(1), np.uint8(2), np.uint8(16)
LATE = np.uint8(2)
"""Flags of a row. The flags of late feedback are LATE bits above those of timely feedback."""
MARKED = 64
"""Of that many rows of a closed request it is known which were clicked."""

_HIGH = np.uint64(0xFFFFFFFF00000000)
_LOW = np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)
_AHEAD = 8  # how many events ahead slots are prefetched
_CLICK, _CONVERSION, _ACTIVATED, _SEEN_TO = (
    np.uint8(what) for what in (CLICK, CONVERSION, ACTIVATED, SEEN_TO)
)
_DEFERRED = np.uint8(DEFERRED)
EXPOSED = CLICKED | CONVERTED | SEEN
"""Flags of which one says that somebody saw the row."""
_NONE = np.uint8(0)
_BACKFILL = np.int64(BACKFILL_US)
_FOREVER = np.int64(2**63 - 1)


@bare_kernel
def walk(memory: Any, rules: Any, room: Any, events: Any, begin: Any) -> Any:
    """Take the events from `begin` on; returns the first event not taken, or their number if the room sufficed."""
    head = memory.head[0]
    for index in range(begin, events.kind.size):
        if index + _AHEAD < events.kind.size:
            prefetch_slot(memory, events.request[index + _AHEAD])
        kind = events.kind[index]
        if kind != IMPRESSION and kind != FEEDBACK:
            continue
        # An event with a time in the future must not close the windows of others.
        now = events.now_us[index]
        time = min(events.time_us[index], now)
        head.watermark = max(head.watermark, time - rules.lateness)
        # One of a clock that is behind must not find its own window closed. Without arrival times, now is the time.
        since = max(time, min(head.watermark, now))
        if now - time < _BACKFILL:
            since = max(since, now - rules.lateness)
        if not close_due(memory, rules, room, head.watermark - rules.window):
            return index
        orphan_due(memory, head.watermark - rules.window)
        forget_due(memory)
        if kind == FEEDBACK:
            if not has_room(room, _rows_of_feedback(memory, events, index), 0):
                return index
            _feedback(memory, rules, room, events, index, time, since)
            continue
        if not _has_room_for(memory, rules, room, events.rows[index]):
            return index
        _impression(memory, rules, room, events, index, since)
        if memory.counts[0].pending > rules.max_pending:
            memory.counts[0].closed_early += 1
            close_oldest(memory, rules, room)
    return events.kind.size


@bare_kernel
def finish(memory: Any, rules: Any, room: Any) -> Any:
    """Close every window and give up early feedback; False if the room did not suffice."""
    if not close_due(memory, rules, room, _FOREVER):
        return False
    orphan_due(memory, _FOREVER)
    return True


@bare_kernel
def _impression(memory: Any, rules: Any, room: Any, events: Any, index: Any, time: Any) -> None:
    """An impression: open its window and apply its early feedback."""
    head, counts, request = memory.head[0], memory.counts[0], events.request[index]
    counts.impressions += 1
    slot = find(memory, request)
    known = entry_in(memory, slot)
    if known >= 0 and memory.entries[known].state != WAITING:
        counts.duplicate_impressions += 1
        return
    number = enter(memory, slot, request)
    entry = memory.entries[number]
    entry.time, entry.state = time, INACTIVE if events.what[index] == _DEFERRED else PENDING
    entry.segment, entry.row, entry.rows = events.segment[index], events.row[index], events.rows[index]
    _copy_rows(memory, events, index, entry)
    if rules.weigh and entry.state == PENDING:
        _emit_exposed(memory, rules, room, entry)
    counts.pending += 1
    counts.rows += entry.rows
    counts.pending_rows += entry.rows
    if known >= 0:
        _join_early(memory, rules, room, known, number)
    if time + rules.window < head.watermark:
        counts.late_impressions += 1
        close(memory, rules, room, number)
        bound_closed(memory, rules)
    else:
        push(memory.due, head.due, time, number)
        head.due += 1


@bare_inline
def _copy_rows(memory: Any, events: Any, index: Any, entry: Any) -> None:
    first = memory.head[0].items
    for row in range(entry.rows):
        memory.items[first + row] = events.items[events.first[index] + row]
        memory.flags[first + row] = 0
    entry.first = first
    memory.head[0].items = first + entry.rows


@bare_kernel
def _join_early(memory: Any, rules: Any, room: Any, waiting: Any, number: Any) -> None:
    """Apply the feedback that came before the impression, in order of arrival."""
    node = memory.entries[waiting].first
    while node >= 0:
        early = memory.early[node]
        if early.live:
            early.live = 0
            memory.counts[0].waiting -= 1
            _join_feedback(memory, rules, room, number, early.item, early.what, early.time)
        node = early.next
    memory.entries[waiting].state = FREE


@bare_kernel
def _feedback(memory: Any, rules: Any, room: Any, events: Any, index: Any, time: Any, since: Any) -> None:
    """A click or conversion at `time`; one whose request is not known waits from `since` on."""
    request, item, what = events.request[index], events.item[index], events.what[index]
    counts = memory.counts[0]
    if what == _CLICK:
        counts.clicks += 1
    elif what == _CONVERSION:
        counts.conversions += 1
    elif what == _ACTIVATED:
        counts.activated += 1
    else:
        counts.seen += 1
    slot = find(memory, request)
    number = entry_in(memory, slot)
    if number >= 0 and memory.entries[number].state != WAITING:
        _join_feedback(memory, rules, room, number, item, what, time)
        return
    counts.early += 1
    if since + rules.window < memory.head[0].watermark:
        counts.out_of_order += 1
    else:
        _hold(memory, rules, slot, request, item, what, since)


@bare_kernel
def _join_feedback(memory: Any, rules: Any, room: Any, number: Any, item: Any, what: Any, time: Any) -> None:
    """Apply feedback to a known request: emit a positive row, or count it."""
    entry, counts = memory.entries[number], memory.counts[0]
    is_late = entry.state == CLOSED or entry.state == EXPIRED or time > entry.time + rules.window
    if what == _ACTIVATED:
        _activate(memory, rules, room, entry, is_late)
        return
    if what == _SEEN_TO:
        _see(memory, entry, item, is_late)
        return
    row = _row_of(memory, entry, item)
    if row < 0:
        counts.unknown_item += 1
        return
    at, flag = entry.first + row, CLICKED if what == _CLICK else CONVERTED if what == _CONVERSION else SEEN
    flags = memory.flags[at]
    if flags & flag or (is_late and flags & (flag << LATE)):
        counts.duplicate_feedback += 1
    elif is_late:
        counts.late += 1
        memory.flags[at] = flags | (flag << LATE)
        if rules.weigh and (entry.state == PENDING or entry.state == CLOSED):
            _weigh(memory, rules, room, entry, row, flags, flag, True)
        elif rules.correct and entry.state == CLOSED:
            _correct(memory, rules, room, entry, row, _known(flags), flag)
    else:
        memory.flags[at] = flags | flag
        counts.joined += 1
        if what == _CLICK:
            entry.clicks += 1
        elif what == _CONVERSION:
            entry.conversions += 1
        is_positive = _completes(rules, flags, flag)
        entry.positives += is_positive
        if entry.state == PENDING:
            if rules.weigh:
                _weigh(memory, rules, room, entry, row, flags, flag, False)
            if is_positive:
                _emit_positive(memory, rules, room, entry, row)


@bare_inline
def _completes(rules: Any, flags: Any, flag: Any) -> Any:
    """Whether a flag that is new to a row with these flags makes it a positive."""
    return flag & rules.positive != 0 and (flags | flag) & rules.positive == rules.positive


@bare_inline
def _known(flags: Any) -> Any:
    """The flags of clicks and conversions in time and late, as those in time."""
    return (flags | (flags >> LATE)) & (CLICKED | CONVERTED)


@bare_inline
def _emit_positive(memory: Any, rules: Any, room: Any, entry: Any, row: Any) -> None:
    memory.counts[0].positives += 1
    memory.counts[0].pending_rows -= 1
    if not rules.weigh:  # else `_weigh` has done so
        emit(room, entry.segment, entry.row + row, 1, True)


@bare_kernel
def _emit_exposed(memory: Any, rules: Any, room: Any, entry: Any) -> None:
    """Emit each row that counts already, as a negative, and those that are clicked as a positive after it."""
    for row in range(entry.rows):
        flags = memory.flags[entry.first + row]
        known, before = _known(flags), _NONE
        if rules.exposing == _NONE:
            emit(room, entry.segment, entry.row + row, 0, False)
        if known & CLICKED:
            _weigh(memory, rules, room, entry, row, before, CLICKED, flags & CLICKED == 0)
            before = CLICKED
        if known & CONVERTED:
            _weigh(memory, rules, room, entry, row, before, CONVERTED, False)


@bare_kernel
def _weigh(
    memory: Any, rules: Any, room: Any, entry: Any, row: Any, flags: Any, flag: Any, is_late: Any
) -> None:
    """Of rows that are negatives at once: emit one that a click makes an exposure, and a positive once more."""
    if rules.exposing == CLICKED and flag == CLICKED:
        emit(room, entry.segment, entry.row + row, 0, False)
        memory.counts[0].corrections += is_late
    if _completes(rules, _known(flags), flag):
        emit(room, entry.segment, entry.row + row, 1, True)
        memory.counts[0].corrections += 1


@bare_kernel
def _correct(memory: Any, rules: Any, room: Any, entry: Any, row: Any, known: Any, flag: Any) -> None:
    """Late feedback of a closed request: emit a row that is a positive by it, or that it makes an exposure."""
    is_positive = _completes(rules, known, flag)
    if is_positive or (rules.exposing == CLICKED and flag & CLICKED):
        emit(room, entry.segment, entry.row + row, is_positive, True)
        memory.counts[0].corrections += 1


@bare_kernel
def _activate(memory: Any, rules: Any, room: Any, entry: Any, is_late: Any) -> None:
    """The list was shown: emit the positives that it has already."""
    counts = memory.counts[0]
    if entry.state == PENDING or entry.state == CLOSED:
        counts.duplicate_feedback += 1
    elif is_late:
        counts.late += 1
    else:
        counts.joined += 1
        entry.state = PENDING
        if rules.weigh:
            _emit_exposed(memory, rules, room, entry)
        for row in range(entry.rows):
            if memory.flags[entry.first + row] & rules.positive == rules.positive:
                _emit_positive(memory, rules, room, entry, row)


@bare_kernel
def _see(memory: Any, entry: Any, position: Any, is_late: Any) -> None:
    """The list was seen up to a position, from 1; an event that says nothing new is a duplicate."""
    flag, found = SEEN << LATE if is_late else SEEN, False
    for at in range(entry.first, entry.first + min(np.int64(position), entry.rows)):
        found |= not memory.flags[at] & (SEEN | flag)
        memory.flags[at] |= flag
    counts = memory.counts[0]
    if entry.rows == 0:
        counts.unknown_item += 1
    elif not found:
        counts.duplicate_feedback += 1
    elif is_late:
        counts.late += 1
    else:
        counts.joined += 1


@bare_inline
def _rows_of_feedback(memory: Any, events: Any, index: Any) -> Any:
    """The most rows that one event of feedback emits: those of a list that it activates, each twice."""
    if events.what[index] != _ACTIVATED:
        return 2
    number = entry_in(memory, find(memory, events.request[index]))
    return 2 * memory.entries[number].rows if number >= 0 else 2


@bare_inline
def _row_of(memory: Any, entry: Any, item: Any) -> Any:
    """The first row that shows an item, -1 if none."""
    for row in range(entry.rows):
        if memory.items[entry.first + row] == item:
            return row
    return -1


@bare_kernel
def _hold(memory: Any, rules: Any, slot: Any, request: Any, item: Any, what: Any, time: Any) -> None:
    """Keep feedback for a request that is not known yet, in order of arrival."""
    head = memory.head[0]
    number = entry_in(memory, slot)
    if number < 0:
        number = enter(memory, slot, request)
        memory.entries[number].state = WAITING
    entry, node = memory.entries[number], head.early
    head.early = node + 1
    early = memory.early[node]
    early.item, early.time, early.what = item, time, what
    early.entry, early.next, early.live = number, -1, 1
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


@bare_inline
def _has_room_for(memory: Any, rules: Any, room: Any, rows: Any) -> Any:
    """Room for all that one event can emit: its rows, each with a correction, and a request closed to make room."""
    if _is_full(memory, rules):
        rows += memory.entries[memory.due[0].place].rows
    return has_room(room, 2 * rows + 1, 2)


@bare_inline
def _is_full(memory: Any, rules: Any) -> Any:
    return memory.counts[0].pending >= rules.max_pending


@bare_inline
def has_room(room: Any, rows: Any, closings: Any) -> Any:
    """Whether this many more rows and closings fit."""
    used = room.used
    return (
        used[0] + rows <= room.row.size
        and used[1] + closings <= room.closings.size
        and used[2] + rows <= room.exposed.size
    )


@bare_inline
def emit(room: Any, segment: Any, row: Any, label: Any, clicked: Any) -> None:
    """Emit a labelled row. The caller has checked `has_room`."""
    at = room.used[0]
    room.segment[at] = segment
    room.row[at] = row
    room.label[at] = label
    room.clicked[at] = clicked
    room.used[0] = at + 1


@bare_kernel
def close_due(memory: Any, rules: Any, room: Any, through: Any) -> Any:
    """Close all requests shown before `through`, in that order; False if the room did not suffice."""
    while memory.head[0].due > 0 and memory.due[0].time < through:
        if not has_room(room, 2 * memory.entries[memory.due[0].place].rows, 1):
            return False
        close_oldest(memory, rules, room)
    return True


@bare_kernel
def close_oldest(memory: Any, rules: Any, room: Any) -> None:
    """Close the pending request that was shown first."""
    number = np.int64(memory.due[0].place)
    pop(memory.due, memory.head[0].due)
    memory.head[0].due -= 1
    close(memory, rules, room, number)
    bound_closed(memory, rules)


@bare_kernel
def close(memory: Any, rules: Any, room: Any, number: Any) -> None:
    """Emit the rows without a positive and remember the request, which is no longer in `due`.

    Of a deferred impression that was not activated nothing is emitted.
    """
    entry, counts, head = memory.entries[number], memory.counts[0], memory.head[0]
    if entry.state == INACTIVE:
        counts.unactivated += 1
        counts.unseen += entry.rows
        counts.pending_rows -= entry.rows
        entry.state = EXPIRED
    else:
        _emit_rows(memory, rules, room, entry)
        entry.state = CLOSED
    counts.pending -= 1
    counts.closed += 1
    counts.remembered += 1
    entry.forget = head.watermark + rules.late_within
    if head.newest_closed >= 0:
        memory.entries[head.newest_closed].next = number
    else:
        head.oldest_closed = number
    head.newest_closed = number


@bare_kernel
def _emit_rows(memory: Any, rules: Any, room: Any, entry: Any) -> None:
    """Emit the rows without a positive, of those that count as shown, and the request."""
    counts = memory.counts[0]
    for row in range(entry.rows):
        flags = memory.flags[entry.first + row]
        is_exposed = rules.exposing == _NONE or flags & rules.exposing != 0
        if rules.exposing:
            room.exposed[room.used[2] + row] = is_exposed
        if flags & rules.positive == rules.positive:
            continue
        counts.pending_rows -= 1
        if is_exposed:
            if not rules.weigh:
                emit(room, entry.segment, entry.row + row, 0, entry.positives > 0)
            counts.negatives += 1
        else:
            counts.unseen += 1
        if rules.correct and not rules.weigh:
            known = _known(flags)
            late = known & ~flags
            # As one event: a click that only counts with its conversion is not learned without it before.
            flag = rules.positive if known & rules.positive == rules.positive else late & CLICKED
            if late & flag:
                _correct(memory, rules, room, entry, row, known, flag)
    if rules.exposing:
        room.used[2] += entry.rows
    _emit_closed(memory, room, entry)


@bare_inline
def _emit_closed(memory: Any, room: Any, entry: Any) -> None:
    at, clicked = room.used[1], np.uint64(0)
    if entry.clicks > 0:
        for row in range(min(entry.rows, MARKED)):
            clicked |= np.uint64(memory.flags[entry.first + row] & CLICKED) << np.uint64(row)
    room.closings[at].clicked = clicked
    room.closings[at].segment = entry.segment
    room.closings[at].rows = entry.rows
    room.closings[at].row = entry.row
    room.closings[at].time_us = entry.time
    room.closings[at].positives = entry.positives
    room.closings[at].clicks = entry.clicks
    room.closings[at].conversions = entry.conversions
    room.used[1] = at + 1


@bare_inline
def bound_closed(memory: Any, rules: Any) -> None:
    """Forget the request that closed first if too many are remembered."""
    if memory.counts[0].remembered > rules.max_pending:
        _forget_oldest(memory)
        memory.counts[0].forgotten_early += 1


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
def forget_due(memory: Any) -> None:
    """Forget the closed requests whose time is over."""
    head = memory.head[0]
    while head.oldest_closed >= 0 and memory.entries[head.oldest_closed].forget < head.watermark:
        _forget_oldest(memory)


@bare_kernel
def orphan_due(memory: Any, through: Any) -> None:
    """Give up all early feedback from before `through`."""
    while memory.head[0].early_due > 0 and memory.early_due[0].time < through:
        orphan_oldest(memory)


@bare_kernel
def orphan_oldest(memory: Any) -> None:
    """Give up the early feedback due first, unless its impression has come meanwhile."""
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


@bare_inline
def prefetch_slot(memory: Any, request: Any) -> None:
    """Prefetch the cache line where the search for a request starts."""
    prefetch(memory.table.ctypes.data + _home(memory, request) * memory.table.itemsize)


@bare_inline
def find(memory: Any, request: Any) -> Any:
    """The slot of a request, or the free slot where it belongs. The table is never full."""
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
def _home(memory: Any, request: Any) -> Any:
    return np.int64(request & np.uint64(memory.table.size - 1))


@bare_inline
def entry_in(memory: Any, slot: Any) -> Any:
    """The number of a slot's entry; -1 for a free slot or a forgotten entry, whose slot may be taken over."""
    number = np.int64(memory.table[slot] & _LOW) - 1
    if number >= 0 and memory.entries[number].state == FREE:
        return -1
    return number


@bare_inline
def enter(memory: Any, slot: Any, request: Any) -> Any:
    """Append an entry and enter it in the table; returns its number."""
    number = memory.head[0].entries
    memory.head[0].entries = number + 1
    memory.table[slot] = _word(request, number)
    entry = memory.entries[number]
    entry.request, entry.time, entry.forget = request, 0, 0
    entry.first, entry.segment, entry.row, entry.rows = -1, 0, -1, 0
    entry.positives, entry.clicks, entry.conversions, entry.next = 0, 0, 0, -1
    return number


@bare_inline
def _word(request: Any, number: Any) -> Any:
    return (request & _HIGH) | np.uint64(number + 1)


@bare_inline
def rebuild_table(memory: Any) -> None:
    """Rebuild the table from the entries, none of which is forgotten."""
    memory.table[:] = _NOTHING
    for number in range(memory.head[0].entries):
        request = memory.entries[number].request
        memory.table[find(memory, request)] = _word(request, number)


@bare_kernel
def compact(memory: Any, moved: Any, moved_early: Any) -> None:
    """Drop forgotten entries, keep the order of the rest, and rebuild the table.

    moved: int32[entries], moved_early: int32[early], out: the new number of each, -1 if dropped.
    """
    _compact_entries(memory, moved)
    _compact_early(memory, moved, moved_early)
    head = memory.head[0]
    if head.oldest_closed >= 0:
        head.oldest_closed = moved[head.oldest_closed]
        head.newest_closed = moved[head.newest_closed]
    for index in range(head.due):
        memory.due[index].place = moved[memory.due[index].place]
    rebuild_table(memory)


@bare_kernel
def _compact_entries(memory: Any, moved: Any) -> None:
    head, kept, items = memory.head[0], 0, 0
    for number in range(head.entries):
        entry = memory.entries[number]
        if entry.state == FREE:
            moved[number] = -1
            continue
        moved[number] = kept
        if entry.state != WAITING:
            for row in range(entry.rows):
                memory.items[items + row] = memory.items[entry.first + row]
                memory.flags[items + row] = memory.flags[entry.first + row]
            entry.first = items
            items += entry.rows
        memory.entries[kept] = entry
        kept += 1
    for number in range(kept):
        if memory.entries[number].next >= 0:
            memory.entries[number].next = moved[memory.entries[number].next]
        if memory.entries[number].state == WAITING:
            memory.entries[number].first = -1
    head.entries, head.items = kept, items


@bare_kernel
def _compact_early(memory: Any, moved: Any, moved_early: Any) -> None:
    """Relinks the chains: each request's feedback in order of arrival."""
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


@bare_kernel
def push(heap: Any, size: Any, time: Any, number: Any) -> None:
    """Add (time, number) to a heap of `size`. O(1) when pushed in order of time, else O(log n)."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // _CHILDREN
        if not _is_before(time, number, heap[parent]):
            break
        heap[hole].time = heap[parent].time
        heap[hole].place = heap[parent].place
        hole = parent
    heap[hole].time = time
    heap[hole].place = number


@bare_kernel
def pop(heap: Any, size: Any) -> None:
    """Remove the first of a heap of `size`. O(log n)."""
    last = size - 1
    time, number = heap[last].time, heap[last].place
    hole = 0
    while True:
        least = _CHILDREN * hole + 1
        if least >= last:
            break
        for child in range(least + 1, min(_CHILDREN * hole + _CHILDREN + 1, last)):
            if _is_before(heap[child].time, heap[child].place, heap[least]):
                least = child
        if _is_before(time, number, heap[least]):
            break
        heap[hole].time = heap[least].time
        heap[hole].place = heap[least].place
        hole = least
    heap[hole].time = time
    heap[hole].place = number


@bare_inline
def _is_before(time: Any, number: Any, other: Any) -> Any:
    return time < other.time or (time == other.time and number < other.place)
