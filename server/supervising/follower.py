"""Follows one model in the store: which version is active, its items, its experiment. Delivers parts; serves nothing.

The event stream is a hint that ends a wait early; the active pointer is the truth and is read at least each second.
What cannot be taken is refused, and what is served then stays; so it does while the store is away. While there is
nothing to serve yet, the last good model on disk is, and answers say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import structlog

from model_store.errors import FtrieError, StoreUnavailable
from model_store.experiments import Experiment
from model_store.manifest import Manifest
from model_store.model_versions import ModelVersions
from model_store.store import Store
from server.followed_experiment import FollowedExperiment
from server.layers.parts import Parts
from server.metrics.families import RELOAD_SECONDS, RELOADS
from server.metrics.meter import Meter
from server.supervising.builder import Builder
from server.supervising.keeper import Keeper
from server.supervising.pauses import RECONNECT
from server.supervising.priority import yield_to_others
from server.supervising.refusals import Refusals, reason_of
from server.supervising.status import ModelStatus, Source
from server.warming import warm_kernels

CHECK_EVERY_S = 1.0
WAIT_S = 0.2  # how long a stop may have to wait for the event stream
PART = "model"
STORE: Source = "store"
DISK: Source = "disk"
ITEMS, RESTORED, REBUILT = "items", "restored", "rebuilt"

_log = structlog.get_logger(__name__)


class Receiver(Protocol):
    """To whom a follower delivers: a `Distribution`."""

    def deliver(self, parts: Parts) -> None:
        """Serve these parts."""

    def tell(self, model: str, body: Mapping[str, Any]) -> None:
        """Pass this message on to every worker."""


class Follower(threading.Thread):
    """A thread that keeps a receiver on the active version of one model."""

    def __init__(
        self,
        model: str,
        url: str,
        receiver: Receiver,
        keeper: Keeper | None,
        meter: Meter,
        *,
        yields: bool = False,
    ) -> None:
        """yields: run at a lower priority than the threads that answer, in whatever process these are."""
        super().__init__(name=f"follow {model}", daemon=True)
        self.status = ModelStatus(model)
        """Replaced by this thread, read by any."""
        self._model, self._url, self._receiver, self._keeper, self._meter = (
            model,
            url,
            receiver,
            keeper,
            meter,
        )
        self._yields = yields
        self._builder = Builder(model)
        self._refusals = Refusals(model, meter)
        self.experiment = FollowedExperiment(model, self._tell_experiment, meter)
        self._stopped = threading.Event()
        self._late: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self._look = threading.Event()
        self._looked = threading.Event()
        self._freed: SimpleQueue[str] = SimpleQueue()
        self._said_none = False
        self._said_degraded = ""

    # -- from other threads

    def stop(self) -> None:
        """Ask the thread to end; it does when the present step has ended."""
        self._stopped.set()

    def freed(self, uid: str) -> None:
        """Nobody reads this buffer of values any more."""
        self._freed.put(uid)

    def look_now(self, timeout_s: float) -> bool:
        """Look at the store at once, at a version that was refused too; whether that was done within the time."""
        self._looked.clear()
        self._look.set()
        return self._looked.wait(timeout_s)

    def late_items(self, ids: Iterable[str]) -> None:
        """Requests have named these items, which the store has and the catalogue lacks."""
        self._late.put(tuple(ids))

    # -- the thread

    def run(self) -> None:
        """Follow until stopped; reconnect with jittered, growing pauses while the store is away."""
        if self._yields:
            yield_to_others()
        warm_kernels()
        if self._keeper is not None:
            self.experiment.restore(self._keeper.experiment(self._model))
        failures = 0
        while not self._stopped.is_set():
            try:
                with Store.open(self._url) as store:
                    failures = 0
                    self._follow(store)
            except Exception as error:
                failures += 1
                self._went_wrong(error, first=failures == 1)
                self._stopped.wait(RECONNECT.after(failures))

    def _went_wrong(self, error: Exception, *, first: bool) -> None:
        """Say so once, until it went well again; what is served stays."""
        away = isinstance(error, StoreUnavailable)
        problem = "the store is away" if away else "the store holds what it should not"
        self.status = replace(self.status, store_away=away)
        happens = "nothing to serve yet" if self.status.version is None else "serving on"
        if not first:
            pass
        elif isinstance(error, FtrieError):
            say = _log.warning if away else _log.error
            say(f"{problem}, {happens}", model=self._model, error=str(error))
        else:
            _log.exception("following failed, starting over", model=self._model)
        self._start_from_disk(problem)

    def _follow(self, store: Store) -> None:
        self._builder.opened(store)
        versions = store.model(self._model)
        event = versions.last_event()
        self._check(versions)
        self.status = replace(self.status, store_away=False)
        checked = time.monotonic()
        while not self._stopped.is_set():
            before, event = event, versions.wait(event, WAIT_S)
            asked = self._look.is_set()
            if event != before or asked or time.monotonic() - checked >= CHECK_EVERY_S:
                if asked:
                    self._look.clear()
                    self._refusals.forgive()
                self._check(versions)
                checked = time.monotonic()
                if asked:
                    self._looked.set()
            self._rebuild_if_due()

    def _check(self, versions: ModelVersions) -> None:
        """Bring what is served up to the store's state. Raises StoreUnavailable."""
        self._take_back()
        active = versions.active()
        if active is None:
            self._none_is_active()
            return
        self._said_none = False
        self.experiment.check(versions)
        if self._refusals.resting(active):
            return
        try:
            self._come_to(versions, versions.manifest(active))
        except StoreUnavailable:
            raise
        except Exception as error:
            self._refused(active, error)

    def _come_to(self, versions: ModelVersions, manifest: Manifest) -> None:
        parts = self._builder.parts
        if parts is None and self._disk_has(manifest):
            return
        began = time.monotonic()
        if parts is None or (parts.version, parts.sha256) != (manifest.version, manifest.sha256):
            kind = self._builder.bring_to(versions, manifest)
            self._deliver(kind, began)
        elif self._builder.items_moved(self._found_late()):
            self._builder.with_new_items()
            self._deliver(ITEMS, began)
        self._is_served(manifest)

    def _found_late(self) -> list[str]:
        found: list[str] = []
        with suppress(Empty):
            while True:
                found += self._late.get_nowait()
        return found

    def _deliver(self, kind: str, began: float) -> None:
        """Have what was built served; kind: how it came about."""
        parts = self._builder.parts
        assert parts is not None
        self.experiment.served(*self._builder.variants_and_shares())
        self.status = replace(
            self.status,
            version=parts.version,
            sha256=parts.sha256,
            content=parts.content,
            since=time.time(),
            keys=self._builder.keys,
            items=self._builder.items,
            source=STORE,
        )
        self._meter.count(RELOADS, self._model, kind)
        self._meter.count(RELOAD_SECONDS, self._model, kind, by=time.monotonic() - began)
        self._receiver.deliver(parts)  # last: whoever is ready by it finds all the rest done

    def _is_served(self, manifest: Manifest) -> None:
        """What is served is what the store names, wherever it came from: no answer need say anything."""
        self._refusals.succeeded()
        self._say_degraded("")
        published = manifest.created.timestamp()
        self.status = replace(self.status, source=STORE, problem="", kind=manifest.kind, published=published)

    # -- what cannot be taken, and the copy on disk

    def _refused(self, version: int, error: Exception) -> None:
        self._refusals.refuse(version, error, self.status.version)
        problem = f"version {version} was refused ({reason_of(error)})"
        self.status = replace(self.status, refused=self._refusals.counts, problem=problem)
        self._start_from_disk(problem)

    def _none_is_active(self) -> None:
        """Say so once, until a version is active again."""
        if self._said_none:
            return
        self._said_none = True
        if self.status.version is None:
            _log.info("no version is active yet, waiting", model=self._model)
        else:
            _log.error("no version is active any more", model=self._model, still_serving=self.status.version)
        problem = "the store names no active version"
        self.status = replace(self.status, problem=problem)
        self._start_from_disk(problem)

    def _disk_has(self, manifest: Manifest) -> bool:
        """Serve the copy on disk, if it is of this very version: it need not be fetched and built."""
        parts = self._keeper and self._keeper.last_good(self._model, manifest.sha256)
        if not parts or parts.version != manifest.version or not self._restore(parts):
            return False
        self._is_served(manifest)
        return True

    def _start_from_disk(self, problem: str) -> None:
        """Where there is nothing to serve yet, serve the copy on disk, and let every answer say why."""
        if self.status.version is not None or self._keeper is None:
            return
        parts = self._keeper.last_good(self._model)
        if parts is not None:
            # Said before it is delivered: no answer of it is without.
            self._say_degraded(f"{problem}; version {parts.version} is from this server's disk")
            if self._restore(parts):
                self.status = replace(self.status, source=DISK)
                _log.warning("serving from disk", model=self._model, version=parts.version, why=problem)

    def _restore(self, parts: Parts) -> bool:
        began = time.monotonic()
        try:
            self._builder.restore(parts)
        except (FtrieError, OSError, MemoryError) as error:
            _log.error("the last good model on disk is of no use", model=self._model, error=str(error))
            return False
        self._deliver(RESTORED, began)
        return True

    def _say_degraded(self, text: str) -> None:
        """Have every answer say this from now on; "" for nothing."""
        if text != self._said_degraded:
            self._said_degraded = text
            texts = [f"{PART}: {text}"] if text else []
            self._receiver.tell(self._model, {"do": "degraded", "model": self._model, "texts": texts})

    def _tell_experiment(self, asked: Experiment | None) -> None:
        body = {"do": "experiment", "model": self._model, "experiment": asked and asked.to_json()}
        self._receiver.tell(self._model, body)

    # -- buffers and tries

    def _rebuild_if_due(self) -> None:
        """Put a second trie that has grown into the first: the same answers, looked up in one."""
        self._take_back()
        began = time.monotonic()
        if self._builder.rebuilt():
            self._deliver(REBUILT, began)

    def _take_back(self) -> None:
        with suppress(Empty):
            while True:
                self._builder.freed(self._freed.get_nowait())
