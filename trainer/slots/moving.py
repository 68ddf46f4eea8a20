"""Moving all keys, with all that they hold, from one table to another of the same layout."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_kernel, implements, stub
from trainer.slots.layouts import (
    COMPACT,
    Full,
    FullCounts,
    Own,
    OwnCompact,
    OwnCompactCounts,
    OwnCounts,
)
from trainer.slots.search import EMPTY, find_slot
from trainer.slots.seen import seen_at


@bare_kernel
def move(old: Any, new: Any, before: Any) -> Any:
    """Move every slot of `old` that was seen at example `before` or later to `new`, which is empty; return how many."""
    moved = 0
    for index in range(old.slots.size):
        if old.slots[index].key == EMPTY or seen_at(old, index) < before:
            continue
        slot = find_slot(new, old.slots[index].key)
        new.slots[slot] = old.slots[index]
        move_own(old, new, index, slot)
        moved += 1
    return moved


@stub
def move_own(old: Any, new: Any, index: Any, slot: Any) -> Any:
    """Move what the variants of a slot have of their own."""


@implements(move_own, Full, FullCounts, *COMPACT)
def _move_nothing(old: Any, new: Any, index: Any, slot: Any) -> Any:
    pass


@implements(move_own, Own)
def _move_z_n(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.z.shape[1]):
        new.z[slot, v] = old.z[index, v]
        new.n[slot, v] = old.n[index, v]


@implements(move_own, OwnCounts)
def _move_z(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.z.shape[1]):
        new.z[slot, v] = old.z[index, v]


@implements(move_own, OwnCompact)
def _move_words(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.words.shape[1]):
        new.words[slot, v] = old.words[index, v]


@implements(move_own, OwnCompactCounts)
def _move_q(old: Any, new: Any, index: Any, slot: Any) -> Any:
    for v in range(old.q.shape[1]):
        new.q[slot, v] = old.q[index, v]
