"""What is forgotten is dropped, and the rest moved together in its order, so that places still say what came first."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_kernel
from trainer.joining.due.kernels import push
from trainer.joining.requests.kernels import FREE, WAITING, enter_anew


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
    enter_anew(memory)


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
