"""When a key was seen last, in the layouts that keep it; others pay nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_overload, stub


@stub
def seen_at(table: Any, slot: Any) -> Any:
    """The number of the example that touched the key last; 0 in layouts that do not keep it."""


@stub
def see(table: Any, slot: Any, example: Any) -> Any:
    """Note that an example touches the key."""


def _keeps_seen(table: Any) -> bool:
    return "seen" in table.types[0].dtype.fields


@bare_overload(seen_at)
def _seen_at(table: Any, slot: Any) -> Any:
    if _keeps_seen(table):
        return lambda table, slot: np.int64(table.slots[slot].seen)
    return lambda table, slot: np.int64(0)


@bare_overload(see)
def _see(table: Any, slot: Any, example: Any) -> Any:
    if not _keeps_seen(table):
        return lambda table, slot, example: None

    def note(table: Any, slot: Any, example: Any) -> Any:
        table.slots[slot].seen = np.uint64(example)

    return note
