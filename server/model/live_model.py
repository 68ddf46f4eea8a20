"""One model as its supervisor holds it: snapshots, deltas and items go in, the parts to serve come out.

`LiveModel` decides which parts a change replaces and when a buffer may be written. `ModelState` is one version; each
change makes another one, computed whole before anything of the one before is written: both share only the buffers of
values. `Rebuilding` merges the fresh layer into a new base in another thread, while versions go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.calibration import Calibration
from model_store.artefact.rows import Content
from model_store.errors import ArtefactError
from server.model.byte_kernels import NO_HALF
from server.model.columns import Catalogue
from server.model.items import ItemTable, KnownItems, calibration_of, items_part
from server.model.layers import Base, Layer, Rows, fresh_of_part, merged, no_fresh, part_of_fresh, with_rows
from server.model.model import Model
from server.model.shared_memory import Parts, SharedBlock
from server.model.values import Buffers, Values

Array = npt.NDArray[Any]

FEWEST_FRESH = 50_000
FRESH_SHARE = 0.05
"""A rebuild is due once this share of the base's keys, and at least FEWEST_FRESH, are fresh or were removed."""


class LiveModel:
    """The present version of a model, and the steps to the next one. For one thread.

    A method that raises has changed nothing. What is returned never changes, with one exception: the block `values` of
    parts is written again once `released` has been called for its uid.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: Parts | None = None
        self._state: ModelState | None = None
        self._rebuilding: Rebuilding | None = None
        self._threshold = 1

    @property
    def parts(self) -> Parts:
        """The latest parts. Raises ArtefactError if there are none yet."""
        if self._parts is None:
            raise ArtefactError(
                f"model {self._name!r}: no version has been loaded yet; load a snapshot first"
            )
        return self._parts

    @property
    def wants_rebuild(self) -> bool:
        """Whether enough keys are fresh, or removed from the base, for a rebuild to be worth its cost."""
        state = self._state
        if state is None or self._rebuilding is not None:
            return False
        enough = max(FEWEST_FRESH, FRESH_SHARE * len(state.base.trie))
        return max(len(state.fresh), state.gone) > self._threshold * enough

    def load(
        self,
        version: int,
        sha256: str,
        artefact: Artefact,
        catalogue: Catalogue,
        items_generation: int = 0,
        *,
        allow_equal: bool = True,
    ) -> Parts:
        """Load a snapshot. O(its bytes + items). Raises ArtefactError, OSError, and AllEqual unless `allow_equal`."""
        state = ModelState.of(artefact, catalogue, self._state)
        # The first version has nothing to be compared with.
        if self._state is not None and not allow_equal:
            # Before anything is replaced: a version that is refused leaves the one before as it is, a rebuild included.
            self._state.apart.check(state.apart)
        self._forget_rebuild()
        return self._serve(state, version, sha256, items_generation)

    def apply(self, version: int, sha256: str, delta: Delta, *, allow_equal: bool = True) -> Parts:
        """Apply a delta. O(its rows + fresh keys + items).

        Raises ArtefactError for another parent, or if the result is not the content that the delta announces; OSError;
        and AllEqual unless `allow_equal`.
        """
        parts, state = self.parts, self._present()
        if delta.parent != parts.version or delta.parent_content != parts.content:
            raise ArtefactError(
                f"version {version} changes version {delta.parent} (content {delta.parent_content}), but "
                f"{parts.version} ({parts.content}) is loaded; fetch the versions between, or a snapshot"
            )
        changed = state.changed(delta, allow_equal=allow_equal)
        if self._rebuilding is not None:
            # After `changed`, which raises for a delta that is not applied: the rebuild must not follow that one.
            self._rebuilding.follow(delta)
        return self._serve(changed, version, sha256, parts.items_generation)

    @property
    def catalogue(self) -> Catalogue | None:
        """The items of the latest parts; None if there are none yet."""
        return None if self._state is None else self._state.items.catalogue

    def with_catalogue(
        self, catalogue: Catalogue, items_generation: int = 0, *, allow_equal: bool = True
    ) -> Parts:
        """The same version over other items. O(items). Raises AllEqual unless `allow_equal`."""
        parts, before = self.parts, self._present()
        state = before.with_catalogue(catalogue)
        if not allow_equal:
            before.apart.check(state.apart)
        return self._serve(state, parts.version, parts.sha256, items_generation)

    def rebuild(self) -> Parts:
        """The same version with its fresh keys merged into the base and removed keys dropped. O(bytes + items)."""
        self.begin_rebuild()()
        parts = self.finish_rebuild()
        assert parts is not None
        return parts

    def begin_rebuild(self) -> Callable[[], None]:
        """Returns a function that builds a new base: run it in another thread, then call `finish_rebuild`."""
        self.parts  # noqa: B018 (raises if there are none)
        self._rebuilding = Rebuilding(self._present())
        return self._rebuilding.run

    def finish_rebuild(self) -> Parts | None:
        """The present version on the new base; None until it is built. O(rows changed since + items).

        Raises MemoryError or OSError if memory was short; the next rebuild is then due at twice as many keys.
        """
        if self._rebuilding is None or not self._rebuilding.done:
            return None
        rebuilding, self._rebuilding = self._rebuilding, None
        # Before the next line, which raises if memory was short.
        self._threshold *= 2
        state = rebuilding.finished(self._present())
        self._threshold = 1
        parts = self.parts
        return self._serve(state, parts.version, parts.sha256, parts.items_generation)

    def restore(self, parts: Parts) -> Parts:
        """Continue from parts of another process, as `SharedBlock.load` read them. O(items). Raises ArtefactError."""
        if parts.name != self._name:
            raise ArtefactError(f"these are parts of model {parts.name!r}, expected {self._name!r}")
        self._parts, self._state = parts, ModelState.of_parts(parts)
        self._forget_rebuild()
        return parts

    def released(self, uid: str) -> None:
        """Note that the `values` block of this uid is not read any more."""
        if self._state is not None:
            self._state.buffers.released(uid)

    def _forget_rebuild(self) -> None:
        """Forget a rebuild of a base that has been replaced."""
        self._rebuilding, self._threshold = None, 1

    def _present(self) -> ModelState:
        assert self._state is not None
        return self._state

    def _serve(self, state: ModelState, version: int, sha256: str, items_generation: int) -> Parts:
        self._state = state
        self._parts = Parts(
            name=self._name,
            version=version,
            sha256=sha256,
            content=str(state.content),
            items_generation=items_generation,
            base=state.base_part,
            values=state.buffers.served,
            fresh=state.fresh_part,
            items=state.items_part,
            catalogue=state.items.part,
        )
        return self._parts


class Rebuilding:
    """One rebuild. `run` in any thread, once; everything else in the thread that owns the states.

    What it reads stays as it was when it began: base and fresh layer are immutable, and its buffer of values is held.
    """

    def __init__(self, state: ModelState) -> None:
        self._state, self._values = state, state.buffers.values
        # Held, since the rebuild reads these values in its own thread, for seconds, while versions go on.
        self._uid = state.buffers.hold()
        self._since: list[Delta] = []
        self._made: ModelState | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Build. O(bytes + items). Errors are raised by `finished`."""
        try:
            self._made = self._state.rebuilt(self._values)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether `run` has ended."""
        return self._done.is_set()

    def follow(self, delta: Delta) -> None:
        """Note a delta that was applied meanwhile."""
        self._since.append(delta)

    def finished(self, now: ModelState) -> ModelState:
        """The state `now` on the new base. O(rows of the deltas since + items). Raises `run`'s error, or OSError."""
        self.let_go()
        if self._error is not None:
            raise self._error
        assert self._made is not None
        made = self._made
        if self._since:
            before = made.buffers.served.uid
            # Each of these deltas was accepted when it was applied, so none is refused for equal candidates now.
            made = made.changed(reduce(Delta.followed_by, self._since), allow_equal=True)
            made.buffers.released(before)  # it was never handed out
        return made if made.items is now.items else made.with_items(now.items)

    def let_go(self) -> None:
        """Release the buffer that the rebuild has read."""
        self._state.buffers.let_go(self._uid)


class AllEqual(ArtefactError):
    """A change would give every candidate the same score, while they differ now."""


@dataclass(frozen=True)
class Apart:
    """What distinguishes candidates.

    items: whether the catalogue's items can score differently; None for fewer than two.
    model: whether it has any key with an item's field, which can distinguish inline items.
    """

    items: bool | None
    model: bool

    @classmethod
    def of(cls, model: Model, items_part: SharedBlock) -> Apart:
        """Compute it from a model and its block `items`. O(items); O(keys) if no item has a sum of its own."""
        table = ItemTable.of_arrays(items_part.arrays)
        by_model = model.terms.know_items
        if len(table.codes) < 2:
            return cls(None, by_model)
        own = bool((table.own != table.own[:, :1]).any())
        return cls(own or bool((table.codes != table.codes[:1]).any() and _crosses_count(model)), by_model)

    def check(self, after: Apart) -> None:
        """Raise AllEqual if nothing distinguishes candidates any more."""
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
        slots = np.flatnonzero(layer.item_parts.half != NO_HALF)
        slots = layer.item_parts.at[slots] if len(layer.item_parts.at) else slots
        if layer.values.weights[:, slots].any():
            return True
    return False


@dataclass(frozen=True, eq=False)
class ModelState:
    """The blocks of a version and their views; the digest of its content; gone: removed keys of the base."""

    base_part: SharedBlock
    buffers: Buffers
    fresh: Layer
    fresh_part: SharedBlock | None
    items: KnownItems
    items_part: SharedBlock
    content: Content
    calibration: Calibration | None
    apart: Apart
    gone: int = 0

    @classmethod
    def of(cls, artefact: Artefact, catalogue: Catalogue, before: ModelState | None) -> ModelState:
        """The state of a snapshot. O(bytes + items)."""
        rows = Rows(artefact.key_data, artefact.key_offsets, Values.of(artefact))
        base_part = Base.part(artefact.spec, rows.key_data, rows.key_offsets)
        # An unchanged catalogue stays in its block, which workers have mapped and touched.
        kept = None if before is None else before.items
        items = KnownItems.of(catalogue, Base.of_part(base_part), kept)
        return cls._whole(base_part, rows.values, items, _content(rows, rows.values), artefact.calibration)

    @classmethod
    def of_parts(cls, parts: Parts) -> ModelState:
        """The state of parts that another process made. O(keys + items)."""
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
        base_part: SharedBlock,
        values: Values,
        items: KnownItems,
        content: Content,
        calibration: Calibration | None,
    ) -> ModelState:
        """A base without a fresh layer."""
        buffers = Buffers(SharedBlock.write({}, values.by_name()))
        base = Base.of_part(base_part)
        fresh = no_fresh(base, values)
        # 0: sums do not depend on the version's number.
        model = Model.of(0, base, buffers.values, fresh, calibration)
        made = items_part(model, items, None)
        apart = Apart.of(model, made)
        return cls(base_part, buffers, fresh, None, items, made, content, calibration, apart, _unused(values))

    @property
    def base(self) -> Base:
        """The base, bound."""
        return Base.of_part(self.base_part)

    def changed(self, delta: Delta, *, allow_equal: bool = False) -> ModelState:
        """The state after a delta.

        Raises ArtefactError if the result is not the content that the delta announces, OSError, and AllEqual if nothing
        distinguishes candidates any more, unless `allow_equal`.
        """
        if delta.spec.sha256 != self.base.spec.sha256:
            raise ArtefactError("the delta is of another spec than the model; fetch a snapshot")
        rows = Rows(delta.key_data, delta.key_offsets, Values.of(delta))
        slots = self.base.trie.get_many(rows.key_data, rows.key_offsets)
        before = self._values_before(rows, slots)
        content = self.content - _content(rows, before) + _content(rows, rows.values)
        # Nothing has been written yet. A key that no variant uses adds nothing to a digest, so new and removed keys
        # need no case of their own.
        if str(content) != delta.content:
            raise ArtefactError(
                f"the delta makes the content {content}, expected {delta.content}; fetch a snapshot"
            )
        known, others = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        # Into a buffer that nobody reads; should a later step raise, it is torn, and copied whole before its next turn.
        values = self.buffers.prepare(slots[known], rows.values.take(known))
        fresh = with_rows(self.base, self.fresh, rows.at(others)) if len(others) else self.fresh
        model = Model.of(0, self.base, values, fresh, delta.calibration)
        made = items_part(model, self.items, self.items_part if self._same_item_parts(fresh) else None)
        fresh_part = self.fresh_part
        if fresh is not self.fresh:
            fresh_part = part_of_fresh(fresh) if len(fresh) else None
        gone = self.gone + _unused(rows.values.take(known)) - _unused(before.take(known))
        apart = Apart.of(model, made)
        if not allow_equal:
            self.apart.check(apart)
        # The last step, which cannot fail: whatever raised above has left the state before in force.
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

    def with_catalogue(self, catalogue: Catalogue) -> ModelState:
        """The same version over other items. O(items)."""
        return self.with_items(KnownItems.of(catalogue, self.base, self.items))

    def with_items(self, items: KnownItems) -> ModelState:
        """The same version over other items, already packed. O(items)."""
        model = Model.of(0, self.base, self.buffers.values, self.fresh, self.calibration)
        made = items_part(model, items, None)
        return replace(self, items=items, items_part=made, apart=Apart.of(model, made))

    def rebuilt(self, values: Values) -> ModelState:
        """The same version, whose base has these values, without a fresh layer. O(bytes + items)."""
        rows = merged(Rows(*self.base.trie.keys(), values), Rows(*self.fresh.trie.keys(), self.fresh.values))
        base_part = Base.part(self.base.spec, rows.key_data, rows.key_offsets)
        return self._whole(base_part, rows.values, self.items, self.content, self.calibration)

    def _values_before(self, rows: Rows, slots: Array) -> Values:
        """The present values of a delta's keys, 0 for new keys."""
        before = rows.values.zeros(len(rows))
        fresh_slots = self.fresh.trie.get_many(rows.key_data, rows.key_offsets)
        for found, values in ((slots, self.buffers.values), (fresh_slots, self.fresh.values)):
            known = np.flatnonzero(found >= 0)
            before.put(known, values.take(found[known]))
        return before

    def _same_item_parts(self, fresh: Layer) -> bool:
        """Whether the items' codes still hold: the fresh layer has the same item parts as before."""
        ours, theirs = self.fresh.item_parts.trie, fresh.item_parts.trie
        return all(map(np.array_equal, ours.arrays, theirs.arrays))


def _content(rows: Rows, values: Values) -> Content:
    """The digest of these keys with those values."""
    offsets = np.ascontiguousarray(rows.key_offsets, np.int64)
    return Content.of(rows.key_data, offsets, values.weights.T, values.bits, values.rates.T)


def _unused(values: Values) -> int:
    return len(values) - int(np.count_nonzero(values.used))
