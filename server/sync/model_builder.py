"""Builds the parts of one model: by deltas if they lead from the served version to the new one, else by a snapshot.

Used by the one thread that follows the model. Store in, `Parts` out; delivering them is the caller's. A method that
raises has changed nothing: StoreUnavailable, or the reason why the version cannot be served.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import ArtefactError, VersionNotFound
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.keys import DELTA, SNAPSHOT
from model_store.versions.manifest import Manifest
from server.model.columns import Catalogue, has_fragments
from server.model.event_form import Form
from server.model.layers import Base
from server.model.live_model import AllEqual, LiveModel
from server.model.shared_memory import Parts
from server.sync.item_sync import ItemSync

if TYPE_CHECKING:
    from model_store.artefact.artefact import Delta
    from model_store.spec.spec import ModelSpec
    from model_store.store import Store
    from model_store.versions.model_versions import ModelVersions


MOST_DELTAS = 255
"""Where more deltas lead to a version, it is built from its snapshot."""
CATALOGUE_SHARE = 0.1
"""At most this share of the time goes into building catalogues for items that change."""

_log = structlog.get_logger(__name__)


class ModelBuilder:
    """The parts of one model, built from whichever store is open."""

    def __init__(self, model: str, *, with_fragments: bool = False, clock: Clock = SYSTEM) -> None:
        """with_fragments: catalogues also hold each item as the impression log writes it."""
        self._model = model
        self._with_fragments = with_fragments
        self._clock = clock
        self._live = LiveModel(model)
        self._items: ItemSync | None = None
        self._plan: FeaturePlan | None = None
        self._catalogue_due = 0.0
        self._refused_items: int | None = None
        self.parts: Parts | None = None
        """What was built last."""
        self.items_refused = ""
        """Why the store's items are not served; empty if they are."""

    @property
    def keys(self) -> int:
        """How many keys the parts hold, including those in the second trie."""
        if self.parts is None:
            return 0
        values = [self.parts.values, *filter(None, [self.parts.fresh])]
        return sum(int(block.arrays["variants"].shape[1]) for block in values)

    @property
    def items(self) -> int:
        """How many items the catalogue holds."""
        return 0 if self.parts is None else len(self.parts.catalogue.arrays["tokens.values"])

    @property
    def kept_items(self) -> int:
        """How many items are served though the store, which has lost its data, lacks them."""
        if self._items is None or self.parts is None:
            return 0
        return self.items if self._lost_before_start() else self._items.kept

    @property
    def items_orders(self) -> int:
        """How many orders to read all items again were carried out."""
        return 0 if self._items is None else self._items.orders

    def variants_and_shares(self) -> tuple[Sequence[str], Sequence[float]]:
        """The variants of the spec, and their shares of traffic."""
        return (self._plan.variants, self._plan.shares) if self._plan is not None else ((), ())

    def buffer_free(self, uid: str) -> None:
        """Note that no worker reads this buffer of values any more."""
        self._live.released(uid)

    def opened(self, store: Store) -> None:
        """Read from this store from now on. It may hold other data than the one before."""
        if self._items is None:
            self._items = ItemSync(store.records)
        else:
            self._items.read_from(store.records)

    # -- versions

    def bring_to(self, versions: ModelVersions, manifest: Manifest) -> str:
        """Build the parts of this version; returns SNAPSHOT or DELTA, whichever led to them."""
        began = time.monotonic()
        parts = self._by_deltas(versions, manifest)
        kind = SNAPSHOT if parts is None else DELTA
        self._built(parts or self._by_snapshot(versions, manifest))
        # A delta frees little, and may come every second.
        if kind == SNAPSHOT:
            return_free_memory()
        took_s = round(time.monotonic() - began, 3)
        _log.info(
            "version built", model=self._model, version=manifest.version, by=kind, keys=self.keys, s=took_s
        )
        return kind

    def restore(self, parts: Parts) -> None:
        """Continue from parts that were on disk."""
        self._built(self._live.restore(parts))

    def rebuilt(self) -> bool:
        """Merge a second trie that has grown into the first, in another thread. True once the parts are merged.

        Call it regularly; versions can be built meanwhile. Raises MemoryError or OSError if memory is short.
        """
        if self._live.wants_rebuild:
            threading.Thread(target=self._live.begin_rebuild(), name="rebuild", daemon=True).start()
        parts = self._live.finish_rebuild()
        if parts is None:
            return False
        self._built(parts)
        return_free_memory()
        _log.info("trie rebuilt", model=self._model, keys=self.keys)
        return True

    def _built(self, parts: Parts) -> None:
        if self.parts is None or self.parts.base is not parts.base:
            self._plan = Base.of_part(parts.base).plan
        self.parts = parts

    def _by_deltas(self, versions: ModelVersions, manifest: Manifest) -> Parts | None:
        """The parts, if deltas lead from the served version to this one. Deltas that fail are logged; None then too."""
        if self.parts is None or not manifest.is_delta:
            return None
        try:
            chain = versions.delta_chain(self.parts.version, manifest, at_most=MOST_DELTAS)
            if chain is None:
                return None
            delta = _joined(versions, chain)
            return self._live.apply(manifest.version, manifest.sha256, delta, allow_equal=manifest.forced)
        # The chain is sound; the snapshot of the same version would be refused for the same reason.
        except AllEqual:
            raise
        except (ArtefactError, VersionNotFound) as error:
            _log.warning(
                "deltas do not lead there, taking the snapshot",
                model=self._model,
                version=manifest.version,
                serving=self.parts.version,
                error=str(error),
            )
            return None

    def _by_snapshot(self, versions: ModelVersions, manifest: Manifest) -> Parts:
        artefact = versions.materialise(manifest.version)
        catalogue, generation = self._catalogue(artefact.spec)
        version = manifest.version, manifest.sha256, artefact
        try:
            return self._live.load(
                *version, catalogue, generation, allow_equal=manifest.forced or self._items_are_ordered()
            )
        except AllEqual as error:
            held = self._live.catalogue
            # The items cannot be at fault: there were none before, they are the same, or they cannot be compared.
            if held is None or held is catalogue or not _same_fields(held.fields, catalogue.fields):
                raise
            # If the new version distinguishes the items served before, the fault lies with the new items.
            parts = self._live.load(*version, held, generation, allow_equal=False)
            self._refuse_items(generation, error)
            return parts

    # -- items

    def items_found(self, ids: Iterable[str]) -> None:
        """Note items that requests have found in the store and that the catalogue may lack."""
        if self._items is not None:
            self._items.include(ids)

    def items_moved(self) -> bool:
        """Whether the items have changed and a new catalogue is due."""
        if self._items is None or self.parts is None or self._clock.monotonic() < self._catalogue_due:
            return False
        self._items.poll()
        if self._items.generation == self._refused_items:
            return False
        return self._items.generation != self.parts.items_generation or self._lacks_fragments()

    def with_new_items(self, *, allow_equal: bool = False) -> bool:
        """Build the same version over the store's present items; False if these are refused (see `items_refused`)."""
        assert self.parts is not None
        catalogue, generation = self._catalogue(Base.of_part(self.parts.base).spec)
        allow_equal = allow_equal or self._items_are_ordered()
        try:
            self._built(self._live.with_catalogue(catalogue, generation, allow_equal=allow_equal))
        except AllEqual as error:
            self._refuse_items(generation, error)
            return False
        return True

    def _refuse_items(self, generation: int, error: AllEqual) -> None:
        """Keep the items served before until the store's change again."""
        self._refused_items, self.items_refused = generation, str(error)
        _log.error("items refused", model=self._model, error=str(error), still_serving=self.items)

    def _items_are_ordered(self) -> bool:
        """Whether an operator has ordered the items to be served as they are."""
        return self._items is not None and self._items.is_ordered

    def _lost_before_start(self) -> bool:
        """Whether the store has had no item since the first look while the served version, from disk, has some."""
        return self._items is not None and self._items.began_empty and self.items > 0

    def _lacks_fragments(self) -> bool:
        """Whether the catalogue comes from the disk of a server that logged no impressions."""
        return (
            self._with_fragments and self.parts is not None and not has_fragments(self.parts.catalogue.arrays)
        )

    def _catalogue(self, spec: ModelSpec) -> tuple[Catalogue, int]:
        assert self._items is not None
        began = time.monotonic()
        self._items.poll()
        self._refused_items, self.items_refused = None, ""
        plan = FeaturePlan.of(spec)
        held = self._live.catalogue
        if self._lost_before_start() and held is not None and _same_fields(held.fields, plan.item_fields):
            return held, self._items.generation
        form = Form(spec, plan) if self._with_fragments else None
        catalogue = Catalogue.build(plan, self._items.items(), form)
        took_s = time.monotonic() - began
        self._catalogue_due = self._clock.monotonic() + took_s / CATALOGUE_SHARE
        if catalogue.problems:
            _log.warning("stored values left out", model=self._model, first=catalogue.problems)
        _log.info("catalogue built", model=self._model, items=len(catalogue), s=round(took_s, 3))
        return catalogue, self._items.generation


def _same_fields(these: Sequence[FieldPlan], others: Sequence[FieldPlan]) -> bool:
    """Whether items have the same tokens under both."""
    return [(f.name, f.spec) for f in these] == [(f.name, f.spec) for f in others]


def _joined(versions: ModelVersions, chain: Sequence[Manifest]) -> Delta:
    """The deltas of a chain as one, so that one pass applies them."""
    from model_store.artefact.artefact import Delta

    joined: Delta | None = None
    for manifest in chain:
        delta = versions.read(manifest)
        assert isinstance(delta, Delta)  # `read` checks the kind against the manifest
        joined = delta if joined is None else joined.followed_by(delta)
    assert joined is not None  # a chain ends in the version to build
    return joined


def return_free_memory() -> None:
    """Have the allocators of Arrow and of C return what they do not use; about 10 ms. Call it after large work.

    They keep freed memory for the next allocation, which for a whole model may be hours away: after 3 million keys
    some 170 MB, twice the supervisor itself.
    """
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    _trim()(0)


@cache
def _trim() -> Callable[[int], Any]:
    """glibc's malloc_trim; a no-op where the C library has none."""
    trim: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim or (lambda pad: None)
