"""Follows one model in the store: waits, looks, and has what it finds served (`server.sync.served_model`).

The event stream is a hint that ends a wait early; the active pointer is the truth and is read at least each second.
While the store is away it is sought again, with growing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

import structlog

from model_store.errors import FtrieError, StoreUnavailable, UnreadableValue
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from server.ranking.warmup import warm_kernels
from server.sync.experiment_sync import FollowedExperiment
from server.sync.last_good import Keeper
from server.sync.pauses import RECONNECT, yield_to_others
from server.sync.served_model import Receiver, ServedModel
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus

CHECK_EVERY_S = 1.0
WAIT_S = 0.2  # how long a stop may have to wait for the event stream

_log = structlog.get_logger(__name__)


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
        with_fragments: bool = False,
    ) -> None:
        """yields: run at a lower priority than the threads that answer, in whatever process these are.

        with_fragments: as of `Builder`.
        """
        super().__init__(name=f"follow {model}", daemon=True)
        self._model = model
        self._url = url
        self._keeper = keeper
        self._yields = yields
        self._served = ServedModel(model, receiver, keeper, meter, with_fragments=with_fragments)
        self._stopped = threading.Event()
        self._looked = threading.Condition()
        self._looks_asked = self._looks_taken = 0
        """Calls of `look_now`, and how many of them came before the latest look began."""
        self._late: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self._freed: SimpleQueue[str] = SimpleQueue()
        self._failures = 0
        """How often in a row the store could not be followed."""

    # -- from other threads

    @property
    def status(self) -> ModelStatus:
        """The model as it is now."""
        return self._served.status

    @property
    def experiment(self) -> FollowedExperiment:
        """Its experiment."""
        return self._served.experiment

    def stop(self) -> None:
        """Ask the thread to end; it does when the present step has ended."""
        self._stopped.set()
        with self._looked:
            self._looked.notify_all()

    def freed(self, uid: str) -> None:
        """Nobody reads this buffer of values any more."""
        self._freed.put(uid)

    def look_now(self, timeout_s: float) -> bool:
        """Look at the store at once, at a version that was refused too; whether that was done within the time."""
        with self._looked:
            self._looks_asked += 1
            mine = self._looks_asked
            self._looked.wait_for(lambda: self._looks_taken >= mine or self._stopped.is_set(), timeout_s)
            return self._looks_taken >= mine

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
        while not self._stopped.is_set():
            try:
                with Store.open(self._url) as store:
                    self._follow(store)
            except Exception as error:
                self._failures += 1
                self._went_wrong(error, first=self._failures == 1)
                self._stopped.wait(RECONNECT.after(self._failures))

    def _follow(self, store: Store) -> None:
        """Look whenever there may be something to see, until stopped. Raises StoreUnavailable."""
        self._served.builder.opened(store)
        versions = store.model(self._model, self._found_junk)
        event = versions.last_event()
        self._check(versions)
        self._served.store_is_away(False)
        self._failures = 0  # not before: a store that opens, and holds what it should not, has failed again
        checked = time.monotonic()
        while not self._stopped.is_set():
            before, event = event, versions.wait(event, WAIT_S)
            if self._looks_asked > self._looks_taken:
                self._look(versions)
            elif event != before or time.monotonic() - checked >= CHECK_EVERY_S:
                self._check(versions)
                checked = time.monotonic()
            self._hear()
            self._served.rebuild_if_due()

    def _look(self, versions: ModelVersions) -> None:
        """For `look_now`: who asks while this goes on waits for the next one, which may find something newer."""
        asked = self._looks_asked
        self._served.refusals.forgive()
        self._check(versions)
        with self._looked:
            self._looks_taken = asked
            self._looked.notify_all()

    def _check(self, versions: ModelVersions) -> None:
        """Bring what is served up to the store's state. Raises StoreUnavailable."""
        self._hear()
        try:
            active = versions.active()
        except UnreadableValue as error:
            self._served.pointer_is_junk(error)
            self._served.follow_items()
            return
        if active is None:
            self._served.none_is_active()
            self._served.follow_items()
            return
        self.experiment.check(versions)
        if self._served.refusals.resting(active):
            return
        try:
            self._served.come_to(versions, versions.manifest(active))
        except StoreUnavailable:
            raise
        except Exception as error:
            self._served.refuse(active, error)

    def _went_wrong(self, error: Exception, *, first: bool) -> None:
        """Say so once, until it went well again; what is served stays."""
        away = isinstance(error, StoreUnavailable)
        problem = "the store is away" if away else "the store holds what it should not"
        self._served.store_is_away(away)
        if first and isinstance(error, FtrieError):
            happens = "nothing to serve yet" if self.status.version is None else "serving on"
            say = _log.warning if away else _log.error
            say(f"{problem}, {happens}", model=self._model, error=str(error))
        elif first:
            _log.exception("following failed, starting over", model=self._model)
        self._served.start_from_disk(problem)

    def _found_junk(self, text: str) -> None:
        _log.error("the store holds what it should not", model=self._model, error=text)

    def _hear(self) -> None:
        """What workers have reported: buffers that are free, items that were found late."""
        builder = self._served.builder
        with suppress(Empty):
            while True:
                builder.freed(self._freed.get_nowait())
        with suppress(Empty):
            while True:
                builder.found_late(self._late.get_nowait())
