"""State: a version as its supervisor holds it, and the state that a change makes of it. What is out of use is let go.

A change is computed whole before anything of the state before is written; both share only the buffers of values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.calibration import Calibration
from model_store.content import Content
from model_store.delta import Delta
from model_store.errors import ArtefactError
from server.catalogue import Catalogue
from server.layers.base import Base
from server.layers.buffers import Buffers
from server.layers.fresh import fresh_of_part, no_fresh, part_of_fresh, with_rows
from server.layers.known_items import KnownItems, items_part
from server.layers.layer import Layer
from server.layers.merging import Rows, merged
from server.layers.parts import Parts
from server.layers.values import Values
from server.mapped import Mapped
from server.model import Model

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class State:
    """The parts of a version, bound; the digest of its content; and how many of the base's keys were taken out."""

    base_part: Mapped
    buffers: Buffers
    fresh: Layer
    fresh_part: Mapped | None
    items: KnownItems
    items_part: Mapped
    content: Content
    calibration: Calibration | None
    gone: int = 0

    @classmethod
    def of(cls, artefact: Artefact, catalogue: Catalogue, before: State | None) -> State:
        """That of a snapshot. O(bytes + items)."""
        rows = Rows(artefact.key_data, artefact.key_offsets, Values.of(artefact))
        base_part = Base.part(artefact.spec, rows.key_data, rows.key_offsets)
        kept = None if before is None else before.items
        items = KnownItems.of(catalogue, Base.of_part(base_part), kept)
        return cls._whole(base_part, rows.values, items, _content(rows, rows.values), artefact.calibration)

    @classmethod
    def of_parts(cls, parts: Parts) -> State:
        """That of parts which another process made. O(keys + items)."""
        base = Base.of_part(parts.base)
        buffers = Buffers(parts.values)
        return cls(
            base_part=parts.base,
            buffers=buffers,
            fresh=fresh_of_part(base, buffers.values, parts.fresh),
            fresh_part=parts.fresh,
            items=KnownItems.of_part(parts.catalogue, base),
            items_part=parts.items,
            content=Content.parse(parts.content),
            calibration=calibration_of(parts.items),
            gone=_unused(buffers.values),
        )

    @classmethod
    def _whole(
        cls,
        base_part: Mapped,
        values: Values,
        items: KnownItems,
        content: Content,
        calibration: Calibration | None,
    ) -> State:
        """A base without a fresh layer."""
        buffers = Buffers(Mapped.write({}, values.by_name()))
        base = Base.of_part(base_part)
        fresh = no_fresh(base, values)
        model = Model.of(0, base, buffers.values, fresh, calibration)
        made = items_part(model, items, None)
        return cls(base_part, buffers, fresh, None, items, made, content, calibration, _unused(values))

    @property
    def base(self) -> Base:
        """The base, bound."""
        return Base.of_part(self.base_part)

    def changed(self, delta: Delta) -> State:
        """The state after a delta. Raises ArtefactError if it does not make the content that it should; OSError."""
        if delta.spec.sha256 != self.base.spec.sha256:
            raise ArtefactError("the delta is of another spec than the model; fetch a snapshot")
        rows = Rows(delta.key_data, delta.key_offsets, Values.of(delta))
        slots = self.base.trie.get_many(rows.key_data, rows.key_offsets)
        before = self._values_before(rows, slots)
        content = self.content - _content(rows, before) + _content(rows, rows.values)
        if str(content) != delta.content:
            raise ArtefactError(
                f"the delta makes the content {content}, expected {delta.content}; fetch a snapshot"
            )
        known, others = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        values = self.buffers.prepare(slots[known], rows.values.take(known))
        fresh = with_rows(self.base, self.fresh, rows.at(others)) if len(others) else self.fresh
        model = Model.of(0, self.base, values, fresh, delta.calibration)
        made = items_part(model, self.items, self.items_part if self._same_halves(fresh) else None)
        fresh_part = self.fresh_part
        if fresh is not self.fresh:
            fresh_part = part_of_fresh(fresh) if len(fresh) else None
        gone = self.gone + _unused(rows.values.take(known)) - _unused(before.take(known))
        self.buffers.serve()
        return replace(
            self,
            fresh=fresh,
            fresh_part=fresh_part,
            items_part=made,
            content=content,
            calibration=delta.calibration,
            gone=gone,
        )

    def with_catalogue(self, catalogue: Catalogue) -> State:
        """The same version over other items. O(items)."""
        return self.with_items(KnownItems.of(catalogue, self.base, self.items))

    def with_items(self, items: KnownItems) -> State:
        """Likewise, over items that are packed."""
        model = Model.of(0, self.base, self.buffers.values, self.fresh, self.calibration)
        return replace(self, items=items, items_part=items_part(model, items, None))

    def rebuilt(self, values: Values) -> State:
        """The same version, whose base has these values, without a fresh layer. O(bytes + items)."""
        base, fresh = self.base.trie, self.fresh
        rows = merged(
            Rows(base.key_data, base.key_offsets, values),
            Rows(fresh.trie.key_data, fresh.trie.key_offsets, fresh.values),
        )
        base_part = Base.part(self.base.spec, rows.key_data, rows.key_offsets)
        return self._whole(base_part, rows.values, self.items, self.content, self.calibration)

    def _values_before(self, rows: Rows, slots: Array) -> Values:
        """What the keys of a delta weigh now, 0 where there is no such key."""
        before = rows.values.zeros(len(rows))
        fresh_slots = self.fresh.trie.get_many(rows.key_data, rows.key_offsets)
        for found, values in ((slots, self.buffers.values), (fresh_slots, self.fresh.values)):
            known = np.flatnonzero(found >= 0)
            before.put(known, values.take(found[known]))
        return before

    def _same_halves(self, fresh: Layer) -> bool:
        """Whether the items' codes stay as they are: the fresh layer has the same halves as before."""
        ours, theirs = self.fresh.halves.trie, fresh.halves.trie
        return np.array_equal(ours.key_offsets, theirs.key_offsets) and np.array_equal(
            ours.key_data, theirs.key_data
        )


def _content(rows: Rows, values: Values) -> Content:
    """The digest of these keys with those values."""
    offsets = np.ascontiguousarray(rows.key_offsets, np.int64)
    return Content.of(rows.key_data, offsets, values.weights.T, values.bits, values.rates.T)


def _unused(values: Values) -> int:
    return len(values) - int(np.count_nonzero(values.used))


def calibration_of(part: Mapped) -> Calibration | None:
    """The calibration in the head of a part `items`."""
    text = part.head["calibration"]
    return None if text is None else Calibration.from_json(text)
