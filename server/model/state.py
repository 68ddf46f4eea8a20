"""Known items: the catalogue as a part, and what a version of a model knows of its items as another.

The catalogue's part outlives versions. The other is made anew for each of them: every item's own sums by kernel, and
its codes again only where there are other halves than before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.calibration import Calibration
from model_store.artefact.rows import Content
from model_store.errors import ArtefactError
from server.model.catalogue import Catalogue
from server.model.interning_kernels import NO_HALF
from server.model.items import ItemTable, TokenTable, codes_of, sums_of
from server.model.layers import Base, Layer, Rows, fresh_of_part, merged, no_fresh, part_of_fresh, with_rows
from server.model.model import Model, id_fields
from server.model.shared_memory import Mapped, Parts
from server.model.values import Buffers, Values


@dataclass(frozen=True, eq=False)
class KnownItems:
    """A catalogue, packed. tokens: the items', where one has its own id as value if it has no other."""

    catalogue: Catalogue
    part: Mapped
    tokens: TokenTable
    id_fields: tuple[str, ...]

    @classmethod
    def of(cls, catalogue: Catalogue, base: Base, before: KnownItems | None) -> KnownItems:
        """Pack a catalogue, unless `before` is the same. O(items). Raises ArtefactError for one of another plan."""
        if [field.name for field in catalogue.fields] != [field.name for field in base.plan.item_fields]:
            raise ArtefactError(
                f"the catalogue was built for the item fields {[field.name for field in catalogue.fields]}, "
                f"the model has {[field.name for field in base.plan.item_fields]}; build it again"
            )
        own = id_fields(base.spec, base.plan)
        if before is not None and before.catalogue is catalogue and before.id_fields == own:
            return before
        head, arrays = catalogue.pack()
        part = Mapped.write(head, arrays)
        return cls(catalogue, part, catalogue.tokens_with_ids(own), own)

    @classmethod
    def of_part(cls, part: Mapped, base: Base) -> KnownItems:
        """Bind a part. O(items without a value in a field that stands for the item)."""
        catalogue = Catalogue.unpack(base.plan, part.head, part.arrays)
        own = id_fields(base.spec, base.plan)
        return cls(catalogue, part, catalogue.tokens_with_ids(own), own)


def items_part(model: Model, items: KnownItems, codes_from: Mapped | None) -> Mapped:
    """What a model knows of items, its calibration in the head. `codes_from`: a part whose codes are still right."""
    own, unsure = sums_of(model, items.tokens, range(len(model.plan.variants)))
    if codes_from is None:
        table = ItemTable(own, unsure, *codes_of(model, items.tokens))
    else:
        table = ItemTable(own, unsure, *ItemTable.of_arrays(codes_from.arrays).code_arrays)
    calibration = None if model.calibration is None else model.calibration.to_json()
    return Mapped.write({"calibration": calibration}, table.by_name)


# --- State: a version as its supervisor holds it, and the state that a change makes of it. What is out of use
# is let go ---
#
# A change is computed whole before anything of the state before is written; both share only the buffers of
# values.


Array = npt.NDArray[Any]


class AllEqual(ArtefactError):
    """A change would give every candidate the same score, where they differ now."""


@dataclass(frozen=True)
class Apart:
    """What tells candidates apart. items: whether the catalogue's items can score differently; None for fewer than two.

    model: whether it has any key with an item's field, for items that requests spell out.
    """

    items: bool | None
    model: bool

    @classmethod
    def of(cls, model: Model, items_part: Mapped) -> Apart:
        """Of a model and what it knows of the items. O(items); O(keys) where no item has a sum of its own."""
        table = ItemTable.of_arrays(items_part.arrays)
        by_model = bool(len(model.terms.item) or len(model.terms.groups))
        if len(table.codes) < 2:
            return cls(None, by_model)
        own = bool((table.own != table.own[:, :1]).any())
        return cls(own or bool((table.codes != table.codes[:1]).any() and _crosses_count(model)), by_model)

    def check(self, after: Apart) -> None:
        """Raise AllEqual if nothing tells candidates apart any more."""
        if after.items:
            return
        if self.items and after.items is False:
            raise AllEqual("every item of the catalogue would have the same score, and they differ now")
        if self.model and not after.model:
            raise AllEqual(
                "no key of the model has a field of the item, so every candidate would score the same"
            )


def _crosses_count(model: Model) -> bool:
    """Whether any cross of the request with an item has a weight."""
    for layer in (model.base, model.fresh):
        slots = np.flatnonzero(layer.halves.half != NO_HALF)
        slots = layer.halves.at[slots] if len(layer.halves.at) else slots
        if layer.values.weights[:, slots].any():
            return True
    return False


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
    apart: Apart
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
        fresh = fresh_of_part(base, buffers.values, parts.fresh)
        return cls(
            base_part=parts.base,
            buffers=buffers,
            fresh=fresh,
            fresh_part=parts.fresh,
            items=KnownItems.of_part(parts.catalogue, base),
            items_part=parts.items,
            content=Content.parse(parts.content),
            calibration=calibration_of(parts.items),
            apart=Apart.of(Model.of(0, base, buffers.values, fresh, None), parts.items),
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
        apart = Apart.of(model, made)
        return cls(base_part, buffers, fresh, None, items, made, content, calibration, apart, _unused(values))

    @property
    def base(self) -> Base:
        """The base, bound."""
        return Base.of_part(self.base_part)

    def changed(self, delta: Delta, *, allow_equal: bool = False) -> State:
        """The state after a delta. Raises ArtefactError if it does not make the content that it should; OSError.

        AllEqual if it leaves nothing that tells candidates apart, unless that is allowed.
        """
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
        apart = Apart.of(model, made)
        if not allow_equal:
            self.apart.check(apart)
        self.buffers.serve()
        return replace(
            self,
            fresh=fresh,
            fresh_part=fresh_part,
            items_part=made,
            content=content,
            calibration=delta.calibration,
            apart=apart,
            gone=gone,
        )

    def with_catalogue(self, catalogue: Catalogue) -> State:
        """The same version over other items. O(items)."""
        return self.with_items(KnownItems.of(catalogue, self.base, self.items))

    def with_items(self, items: KnownItems) -> State:
        """Likewise, over items that are packed."""
        model = Model.of(0, self.base, self.buffers.values, self.fresh, self.calibration)
        made = items_part(model, items, None)
        return replace(self, items=items, items_part=made, apart=Apart.of(model, made))

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
