"""Follows the active version and the items in the store, and swaps what is served: `Current`'s only writer.

The event stream is a hint that ends a wait early; the active pointer is the truth and is read at least each
second. A version that is damaged is reported and tried again later, while the one before keeps serving; so it
is when the store is away. Nothing here runs in a request.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import structlog

from model_store.errors import ArtefactError, FtrieError, StoreUnavailable, VersionNotFound
from model_store.model_versions import ModelVersions
from model_store.store import Store
from server.current import Current
from server.followed_experiment import FollowedExperiment
from server.loader import Loader, warm_kernels
from server.serving import Serving
from server.stored import StoredReads

CHECK_EVERY_S = 1.0
WAIT_S = 0.2  # how long a stop may have to wait for the event stream
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
BAD_VERSION_RETRY_S = 10.0
CATALOGUE_SHARE = 0.1
"""At most this share of the time goes into rebuilding the catalogue for items that were found late."""

_log = structlog.get_logger(__name__)


class Watcher(threading.Thread):
    """A thread that keeps `current` on the active version, and calls `on_swap` after each swap."""

    def __init__(
        self,
        url: str,
        reads: StoredReads,
        current: Current,
        on_swap: Callable[[Serving], None] = lambda serving: None,
    ) -> None:
        super().__init__(name="watcher", daemon=True)
        self._model = current.name
        self._url = url
        self._reads = reads
        self._current = current
        self._on_swap = on_swap
        self._stopped = threading.Event()
        self._bad_version: int | None = None
        self._bad_until = 0.0
        self._catalogue_due = 0.0
        self._said_none = False
        self._experiment = FollowedExperiment(current.name, current.ask_for)

    def stop(self) -> None:
        """Ask the thread to end; it does when the present step has ended."""
        self._stopped.set()

    def run(self) -> None:
        """Watch until stopped; reconnect with jittered, growing pauses while the store is away."""
        warm_kernels()
        failures = 0
        while not self._stopped.is_set():
            try:
                with Store.open(self._url) as store:
                    self._reads.connect()
                    loader = Loader(self._model, store)
                    self._check(loader, store)
                    failures = 0
                    self._watch(loader, store)
            except StoreUnavailable as error:
                failures += 1
                pause_s = retry_pause_s(failures)
                happens = "serving on" if self._current.serving else "nothing to serve yet"
                _log.warning(f"store away, {happens}", error=str(error), next_try_s=round(pause_s, 2))
                self._stopped.wait(pause_s)
            except FtrieError as error:
                failures += 1
                _log.error("the store holds what it should not, serving on", error=str(error))
                self._stopped.wait(retry_pause_s(failures))
            except Exception:
                failures += 1
                _log.exception("watcher failed, starting over")
                self._stopped.wait(retry_pause_s(failures))

    def _watch(self, loader: Loader, store: Store) -> None:
        versions = store.model(self._model)
        event, checked = "$", time.monotonic()
        while not self._stopped.is_set():
            before, event = event, versions.wait(event, WAIT_S)
            if event != before or time.monotonic() - checked >= CHECK_EVERY_S:
                self._check(loader, store)
                checked = time.monotonic()

    def _check(self, loader: Loader, store: Store) -> None:
        """Bring `current` up to the store's state. Raises StoreUnavailable."""
        versions = store.model(self._model)
        active = versions.active()
        serving = self._current.serving
        if active is not None:
            self._experiment.check(versions)  # first, so that a new version begins with its experiment
        if active is None:
            self._say_none_is_active(serving)
        elif serving is None or not _is_served(versions, active, serving):
            self._load(loader, active)
        elif self._items_moved(loader, store, serving):
            self._swap(loader.with_new_items(serving, list(self._current.recent)))
            self._catalogue_due = time.monotonic() + loader.catalogue_seconds / CATALOGUE_SHARE

    def _say_none_is_active(self, serving: Serving | None) -> None:
        """Once, until a version is served again."""
        if self._said_none:
            return
        self._said_none = True
        if serving is None:
            _log.info("no version is active yet, waiting", model=self._model)
        else:
            _log.error("no version is active any more", model=self._model, still_serving=serving.version)

    def _load(self, loader: Loader, version: int) -> None:
        if version == self._bad_version and time.monotonic() < self._bad_until:
            return
        try:
            serving = loader.load(version, self._current.serving, list(self._current.recent))
        except StoreUnavailable:
            raise
        except FtrieError as error:
            before = self._current.serving
            _log.error(
                "version refused",
                model=self._model,
                version=version,
                error=str(error),
                still_serving=before.version if before else None,
            )
            self._bad_version, self._bad_until = version, time.monotonic() + BAD_VERSION_RETRY_S
            return
        self._swap(serving)

    def _items_moved(self, loader: Loader, store: Store, serving: Serving) -> bool:
        if store.records.items_generation() != serving.items_generation:
            return True
        return self._current.late_items.found and time.monotonic() >= self._catalogue_due

    def _swap(self, serving: Serving) -> None:
        self._current.serve(serving)
        self._experiment.served(serving.variant_names, serving.model.plan.shares)
        self._said_none = False
        self._current.late_items.rebuilt()
        _log.info("serving", model=self._model, version=serving.version, items=len(serving.catalogue))
        self._on_swap(serving)


def _is_served(versions: ModelVersions, active: int, serving: Serving) -> bool:
    """Whether `serving` is the active version. A store that lost its data gives the same numbers out again."""
    if active != serving.version:
        return False
    try:
        return versions.manifest(active).sha256 == serving.sha256
    except (ArtefactError, VersionNotFound):
        return True  # the store has nothing better than what is served


def retry_pause_s(failures: int) -> float:
    """Seconds to wait after `failures` in a row: doubling from 0.1 to 5, of which between half and all."""
    longest = min(FIRST_RETRY_S * 2.0 ** min(failures - 1, 16), LONGEST_RETRY_S)
    return longest * random.uniform(0.5, 1.0)
