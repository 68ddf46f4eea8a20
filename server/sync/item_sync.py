"""Keeps the store's item records in memory, up to date by the stream of changes.

All items are read at the start, and again if the stream cannot show what has changed: it was trimmed past the position
read last, the store lost its data, or an operator ordered it. Otherwise only changed items are read.

If the store has lost its data (it has another epoch), the items that it lacks are kept as they were until they are
written again, are removed by a notice, or an operator orders all items to be read again.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import structlog

from model_store.keys import cure
from model_store.records.lookups import Record
from model_store.records.records import BATCH, ItemsState, Records

SHARED_LENGTH = 32
"""Values up to this long are kept once for all items that have them: brands and colours, not titles."""

_log = structlog.get_logger(__name__)


class ItemSync:
    """The items of one store, as of the last `poll`. For one thread."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._items = _Items()
        self._state: ItemsState | None = None
        self._include: dict[str, None] = {}
        self._kept: set[str] = set()
        self._last_order = ""
        self._generation = 0
        # At random: the items of a disk are of an earlier process, and may differ from those read now though the
        # store's state is the same, if a system that gives no notices has written some.
        self._moves = secrets.randbits(62)
        self.orders = 0
        """How many orders to read all items again were carried out."""
        self.is_ordered = False
        """Whether the items come from an ordered reading, plus the notices since."""
        self.began_empty = False
        """Whether the first reading found no item and none has come since: the store may have lost them."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def generation(self) -> int:
        """Changes with each poll that changed the items, and differs between stores; 0 before the first poll."""
        return self._generation

    @property
    def kept(self) -> int:
        """How many items are kept though the store, which has lost its data, lacks them."""
        return len(self._kept)

    def items(self) -> Iterator[tuple[str, Record]]:
        """Every item once. Do not `poll` while iterating."""
        return iter(self._items)

    def include(self, ids: Iterable[str]) -> None:
        """Read these items at the next poll too: requests have found them without a notice of change."""
        self._include.update(dict.fromkeys(ids))

    def read_from(self, records: Records) -> None:
        """Continue with another connection; the next poll finds out whether it leads to the same store."""
        self._records = records

    def poll(self) -> bool:
        """Read what changed since the last call; returns whether anything did. The first call reads all items.

        Raises StoreUnavailable or StoreError; the items are then unchanged, and the next call tries again.
        """
        before = self._state
        state = self._records.item_changes.state()
        if state.junk and state.junk != (before.junk if before else ()):
            _log.error(
                "the store holds what it should not, so changes of items may be missed",
                keys=state.junk,
                cure=cure(""),
            )
        if before is None:
            return self._read_all(state, "start")
        # An order before the epoch: by it the operator says that the store has all items again, so none is kept.
        if state.reread and state.reread != self._last_order:
            return self._read_all(state, "asked for", ordered=True)
        if before.epoch != state.epoch:
            return self._read_all(state, "the store lost its data", lost=True)
        if before.reread != state.reread:
            return self._read_all(state, "the generation was removed")
        if before.position == state.position:
            return self._apply(dict(self._include), state)
        if before.position is None:
            return self._read_all(state, "the stream is new")
        found = self._records.item_changes.since(before.position)
        if found is None:
            # Without an epoch, which a replica may lack, a store without items has lost its data.
            unsure = not state.epoch
            return self._read_all(state, "the stream does not reach back to the last look", if_none=unsure)
        changed, position = found
        return self._apply(changed | self._include, replace(state, position=position))

    def _read_all(
        self,
        state: ItemsState,
        why: str,
        *,
        lost: bool = False,
        if_none: bool = False,
        ordered: bool = False,
    ) -> bool:
        """Read every item. `state` was read before, so changes during the scan are read again at the next poll.

        lost: keep the items that the store lacks. if_none: keep them if it has no item at all. Items that were kept
        before stay, unless the reading is `ordered`.
        """
        items = _Items()
        for item, record in self._records.scan_items():
            items.put(item, record)
        kept = set[str]()
        all_stay = lost or (if_none and not len(items))
        may_stay = not ordered and (all_stay or bool(self._kept))
        for item, record in self._items if may_stay else ():
            if item not in items and (all_stay or item in self._kept):
                items.put(item, record)
                kept.add(item)
        self.is_ordered = ordered
        self.orders += ordered
        self._last_order = state.reread or self._last_order
        # Until an item comes or an order: a store that is emptied again, or trims its stream, has none all the same.
        self.began_empty = not len(items) and not ordered and (self._state is None or self.began_empty)
        self._items, self._state, self._include, self._kept = items, state, {}, kept
        self._moved(state)
        if kept:
            _log.error(
                "the store lost its data: items are kept as they were", kept=len(kept), items=len(items)
            )
        _log.info("items read", items=len(items), why=why)
        return True

    def _apply(self, changed: Mapping[str, None], state: ItemsState) -> bool:
        ids, records = list(changed), list[Record | None]()
        for start in range(0, len(ids), BATCH):
            records += self._records.items(ids[start : start + BATCH])
        moved = False
        for item, record in zip(ids, records, strict=True):
            # A record that was written again as it was changes nothing, and no catalogue is built for it.
            moved |= self._items.put(item, record)
        self._kept.difference_update(ids)
        self.began_empty = self.began_empty and not len(self._items)
        self._state, self._include = state, {}
        if moved:
            self._moved(state)
        return moved

    def _moved(self, state: ItemsState) -> None:
        self._moves += 1  # an item that a request has found does not change the store's state
        self._generation = (state.generation + self._moves) % (1 << 63)


class _Items:
    """Records by id, in a third of the memory of dicts: items with the same fields share one tuple of names."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, item: str) -> bool:
        return item in self._values

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        for item, (names, values) in self._values.items():
            yield item, dict(zip(names, values, strict=True))

    def put(self, item: str, record: Record | None) -> bool:
        """Store one item's record, or remove it for None; returns whether it changed."""
        if record is None:
            return self._values.pop(item, None) is not None
        names = tuple(record)
        kept = self._names.setdefault(names, names), tuple(map(_shared, record.values()))
        if self._values.get(item) == kept:
            return False
        self._values[item] = kept
        return True


def _shared(value: str) -> str:
    return sys.intern(value) if len(value) <= SHARED_LENGTH else value
