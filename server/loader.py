"""From a published version to a `Serving` fit to answer: fetch, verify, build, warm. Never swaps or waits.

Everything expensive about a version happens here, in the watcher's thread, before a request sees it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from itertools import islice

import structlog

from model_store.errors import FieldValueError
from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.store import Store
from server.catalogue import Catalogue
from server.model import Model
from server.ranker import Ranker
from server.service import Question
from server.serving import Serving
from server.warm_up import warm_up
from server.wire import Fields

WARM_CANDIDATES = 64
KERNELS = "serve"

_log = structlog.get_logger(__name__)


class Loader:
    """Builds `Serving`s of one model from a store. Used by one thread."""

    def __init__(self, name: str, store: Store) -> None:
        self._name = name
        self._store = store
        self.catalogue_seconds = 0.0
        """How long the latest catalogue took; rebuilding is paced by it."""

    def load(self, version: int, before: Serving | None, recent: Iterable[Question]) -> Serving:
        """The `Serving` of `version`, warmed. Keeps the catalogue of `before` if spec and items are the same.

        Raises ArtefactError for a damaged version, VersionNotFound, StoreUnavailable.
        """
        began = time.monotonic()
        versions = self._store.model(self._name)
        sha256 = versions.manifest(version).sha256
        artefact = versions.materialise(version)
        fetched = time.monotonic()
        model = Model.build(artefact, version)
        built = time.monotonic()
        generation = self._store.records.items_generation()
        if before is not None and self._fits(before, model, generation):
            catalogue = before.catalogue
        else:
            catalogue = self._catalogue(model)
        serving = self._warmed(model, sha256, catalogue, generation, recent)
        _log.info(
            "version built",
            model=self._name,
            version=version,
            keys=model.keys,
            items=len(catalogue),
            fetch_s=round(fetched - began, 3),
            trie_s=round(built - fetched, 3),
            total_s=round(time.monotonic() - began, 3),
        )
        return serving

    def with_new_items(self, before: Serving, recent: Iterable[Question]) -> Serving:
        """The same version over a catalogue read anew. Raises StoreUnavailable."""
        generation = self._store.records.items_generation()
        catalogue = self._catalogue(before.model)
        _log.info(
            "catalogue rebuilt", model=self._name, items=len(catalogue), s=round(self.catalogue_seconds, 3)
        )
        return self._warmed(before.model, before.sha256, catalogue, generation, recent)

    def _fits(self, before: Serving, model: Model, generation: int) -> bool:
        lost_data = before.version == model.version  # the store counts from one again, items too
        same_items = before.items_generation == generation and not lost_data
        return same_items and before.model.spec.sha256 == model.spec.sha256

    def _catalogue(self, model: Model) -> Catalogue:
        began = time.monotonic()
        catalogue = Catalogue.build(model.plan, self._store.records.scan_items())
        self.catalogue_seconds = time.monotonic() - began
        if catalogue.problems:
            _log.warning("stored values left out", model=self._name, first=catalogue.problems)
        return catalogue

    def _warmed(
        self, model: Model, sha256: str, catalogue: Catalogue, generation: int, recent: Iterable[Question]
    ) -> Serving:
        serving = Serving(
            self._name, model.version, sha256, model, catalogue, Ranker(model, catalogue), generation
        )
        for question in (*_synthetic(serving), *recent):
            try:
                question.ask(serving)
            except (FieldValueError, IndexError):
                continue  # a question of the version before need not fit this one
        return serving


def warm_kernels() -> None:
    """Compile the ranking kernels, or load them from the cache, and say so if it takes seconds."""
    if not kernels_are_cached(KERNELS):
        _log.info("compiling the ranking kernels; this happens once on a machine")
    warm_up()
    mark_kernels_cached(KERNELS)
    # The compiler leaves a million objects that live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()


def _synthetic(serving: Serving) -> list[Question]:
    """Questions that touch a version's memory: known, unknown and spelled-out items, every variant's own weights."""
    ids = list(islice(serving.catalogue.ids, WARM_CANDIDATES))
    fields: Fields = {field.name: "1" for field in serving.model.plan.request_fields if field.kind != "time"}
    spelled: Fields = {field.name: "1" for field in serving.model.plan.item_fields if field.kind != "time"}
    return [
        question
        for variant in range(serving.model.base.values.width)
        for question in (
            Question(fields, ids, [("spelled out", spelled)], variant, top_k=10),
            Question({}, [*ids, "no such item"], [], variant, top_k=None),
        )
    ]
