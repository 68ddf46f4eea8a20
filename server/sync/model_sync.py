"""Keeps one model of a server on the version that the store names as active.

A `ModelSync` is a thread. It reads the active version from the store, has a `ModelBuilder` build it, and hands the
result to a `Distribution`, which passes it to the workers. The event stream is only a hint that ends a wait early; the
active pointer is the truth and is read at least once a second.

`SyncState` names what the thread has found. While it is not SERVING, the version served before stays; where nothing has
been served yet, the last good version on disk is, and every answer says so in `degraded`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from queue import Empty, SimpleQueue

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import FtrieError, StoreUnavailable, UnreadableValue
from model_store.store import Store
from model_store.versions.experiments import Experiment
from model_store.versions.manifest import Manifest
from model_store.versions.model_versions import ModelVersions
from model_store.waiting import Backoff
from server.model.live_model import AllEqual
from server.model.shared_memory import Parts
from server.ranking.warmup import warm_kernels
from server.sync.distribution import Distribution
from server.sync.experiment_sync import ExperimentSync
from server.sync.last_good import LastGoodKeeper
from server.sync.model_builder import ModelBuilder
from server.sync.state_folder import lower_priority
from server.sync.version_retry import VersionRetry, reason_of
from server.telemetry.meter import Meter, declare
from server.telemetry.status import ModelStatus, Source

RELOADS = declare("ftrie_reloads_total", ("model", "kind"), "swaps of the served version, by kind")
RELOAD_SECONDS = declare("ftrie_reload_seconds_total", ("model", "kind"), "time from fetching to swapping")
FRESHNESS = declare(
    "ftrie_freshness_seconds",
    ("model",),
    "age of the newest event in a version when it is swapped in",
    (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600),
)
CHECK_EVERY_S = 1.0
WAIT_S = 0.2
"""How long one wait for the event stream lasts, and with it the longest that `stop` takes to be noticed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between attempts to reach the store."""

MODEL_PART, ITEMS_PART = "model", "items"
STORE: Source = "store"
DISK: Source = "disk"
ITEMS, RESTORED, REBUILT = "items", "restored", "rebuilt"

_log = structlog.get_logger(__name__)


class SyncState(Enum):
    """What the last look at the store has found."""

    CONNECTING = auto()
    """The store has not been looked at yet."""
    STORE_AWAY = auto()
    """The store does not answer."""
    STORE_UNUSABLE = auto()
    """The store answers, but holds what it should not."""
    NO_ACTIVE_VERSION = auto()
    """The store names no active version."""
    REFUSED = auto()
    """The version that the store names cannot be served; it is tried again after growing pauses."""
    SERVING = auto()
    """The version that the store names is served."""


class ModelSync(threading.Thread):
    """Follows one model. Thread safety: the methods above `run` from any thread."""

    def __init__(
        self,
        model: str,
        url: str,
        distribution: Distribution,
        keeper: LastGoodKeeper | None,
        meter: Meter,
        *,
        low_priority: bool = False,
        with_fragments: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """keeper: has the last good version on disk; None where none is kept. with_fragments: see `ModelBuilder`.

        low_priority: run at a lower priority than the threads that answer, in whichever process these are.
        """
        super().__init__(name=f"follow {model}", daemon=True)
        self.state = SyncState.CONNECTING
        self.status = ModelStatus(model)
        """The model as it is now; replaced by this thread, read by any."""
        self.experiment = ExperimentSync(model, self._tell_experiment, meter)
        self._model = model
        self._url = url
        self._distribution = distribution
        self._keeper = keeper
        self._meter = meter
        self._low_priority = low_priority
        self._clock = clock
        self._builder = ModelBuilder(model, with_fragments=with_fragments, clock=clock)
        self._retry = VersionRetry(model, meter, clock)
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stopped = threading.Event()
        self._looked = threading.Condition()
        self._looks_asked = self._looks_done = 0
        """Calls of `look_now`, and how many of them came before the latest look began."""
        self._found_items: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self._free_buffers: SimpleQueue[str] = SimpleQueue()
        self._degraded: dict[str, str] = {}
        """By part, what every answer says."""
        self._problems: dict[str, str] = {}
        """By part, what the status shows."""
        self._items_orders = 0
        self._newest_us = 0
        """The latest `through_us` of all versions served."""

    # -- called by other threads

    def stop(self) -> None:
        """Ask the thread to end; it does so when the present step has ended."""
        self._stopped.set()
        with self._looked:
            self._looked.notify_all()

    def buffer_free(self, uid: str) -> None:
        """Note that no worker reads this buffer of values any more."""
        # Only noted: the builder and its buffers are for the thread that follows the store.
        self._free_buffers.put(uid)

    def items_found(self, ids: Iterable[str]) -> None:
        """Note items that requests have found in the store and that the catalogue lacks."""
        self._found_items.put(tuple(ids))

    def look_now(self, timeout_s: float) -> bool:
        """Look at the store at once, and try a refused version again. False if that took longer than `timeout_s`."""
        with self._looked:
            self._looks_asked += 1
            mine = self._looks_asked
            self._looked.wait_for(lambda: self._looks_done >= mine or self._stopped.is_set(), timeout_s)
            return self._looks_done >= mine

    # -- the thread

    def run(self) -> None:
        """Follow the store until stopped; reconnect with jittered, growing pauses while it is away."""
        if self._low_priority:
            lower_priority()
        # Items' sums are computed here too, by the same kernels.
        warm_kernels()
        if self._keeper is not None:
            self.experiment.restore(self._keeper.experiments(self._model))
        while not self._stopped.is_set():
            try:
                with Store.open(self._url, clock=self._clock) as store:
                    self._follow(store)
            except Exception as error:
                # Bugs too: if the thread ended, the model would stay at its version, and nothing would say so.
                pause_s = self._backoff.failed()
                self._lost_store(error)
                self._clock.wait(self._stopped, pause_s)

    def _follow(self, store: Store) -> None:
        """Look at the store whenever something may have changed, until stopped. Raises StoreUnavailable."""
        self._builder.opened(store)
        versions = store.model(self._model, self._found_junk)
        # Before the look: an event that comes during it ends the next wait.
        event = versions.last_event()
        self._look(versions)
        self._backoff.succeeded()  # only now: a store that opens, and holds what it should not, has failed again
        looked_s = self._clock.monotonic()
        while not self._stopped.is_set():
            before, event = event, versions.wait(event, WAIT_S)
            if self._looks_asked > self._looks_done:
                self._look_as_asked(versions)
            elif event != before or self._clock.monotonic() - looked_s >= CHECK_EVERY_S:
                self._look(versions)
                looked_s = self._clock.monotonic()
            self._take_notes()
            self._finish_rebuild()

    def _look_as_asked(self, versions: ModelVersions) -> None:
        """For `look_now`. A call that comes during this look waits for the next one, which may find something newer."""
        asked = self._looks_asked
        self._retry.forgive()
        self._look(versions)
        with self._looked:
            self._looks_done = asked
            self._looked.notify_all()

    def _look(self, versions: ModelVersions) -> None:
        """Bring what is served up to the store's state. Raises StoreUnavailable."""
        self._take_notes()
        try:
            active = versions.active()
        except UnreadableValue as error:
            self.experiment.check(versions)
            self._refuse(None, error, f"the active version cannot be read ({reason_of(error)}): {error}")
            self._sync_items()
            return
        if active is None:
            self._none_active()
            self._sync_items()
            return
        self.experiment.check(versions)
        try:
            if self._retry.resting(active):
                self._enter(SyncState.REFUSED)
                self._sync_items()
            else:
                self._come_to(versions, versions.manifest(active))
        except StoreUnavailable:
            raise
        except Exception as error:
            problem = f"version {active} was refused ({reason_of(error)})"
            if isinstance(error, AllEqual):
                problem += f": {error}; to serve it: ftrie store activate {self._model} {active} --force"
            self._refuse(active, error, problem)

    def _take_notes(self) -> None:
        """Take in what other threads have noted: buffers that are free, items that requests have found."""
        with suppress(Empty):
            while True:
                self._builder.buffer_free(self._free_buffers.get_nowait())
        with suppress(Empty):
            while True:
                self._builder.items_found(self._found_items.get_nowait())

    # -- SERVING

    def _come_to(self, versions: ModelVersions, manifest: Manifest) -> None:
        """Serve this version over the items as they are now. Raises StoreUnavailable, or why it cannot be served."""
        parts, began_s = self._builder.parts, time.monotonic()
        if parts is None and self._disk_has(manifest):
            pass
        elif parts is None or (parts.version, parts.sha256) != (manifest.version, manifest.sha256):
            from_disk = self._parts_from_disk() if parts is None else None
            kind = self._builder.bring_to(versions, manifest)
            if from_disk is not None:
                self._builder.buffer_free(from_disk.values.uid)  # it was delivered to nobody
            replaces = self.status.version is not None
            self._deliver(kind, began_s)
            self._observe_freshness(manifest, replaces)
        else:
            self._sync_items(manifest)
        self._retry.succeeded()
        # After the delivery: answers say it until the version that the store names is on its way to the workers.
        self._set_degraded(MODEL_PART, "")
        self._set_problem(MODEL_PART, "")
        published = manifest.created.timestamp()
        # Restored from disk or fetched, it is what the store names: no answer need say where it came from.
        through_us = manifest.through_us or 0
        self._newest_us = max(self._newest_us, through_us)
        self.status = replace(
            self.status, source=STORE, kind=manifest.kind, published=published, through_us=through_us
        )
        self._enter(SyncState.SERVING)

    def _observe_freshness(self, manifest: Manifest, replaces: bool) -> None:
        """Observe how old the newest event in a version is when it is delivered, if it is newer than any served before.

        replaces: a version was served before. The first one may be old, since this server has only just begun.
        """
        if replaces and (manifest.through_us or 0) > self._newest_us:
            delay_s = self._clock.time() - (manifest.through_us or 0) / 1e6
            self._meter.observe(FRESHNESS, self._model, value=max(0.0, delay_s))

    def _sync_items(self, manifest: Manifest | None = None) -> None:
        """Serve the items as they are now. manifest: of the version that is served. Raises StoreUnavailable."""
        began_s, forced = time.monotonic(), manifest is not None and manifest.forced
        if self._builder.items_moved() and self._builder.with_new_items(allow_equal=forced):
            self._deliver(ITEMS, began_s)
        self._note_items()

    def _finish_rebuild(self) -> None:
        """Merge a second trie that has grown into the first. Answers stay the same and are found by one look-up."""
        began_s = time.monotonic()
        if self._builder.rebuilt():
            self._deliver(REBUILT, began_s)

    def _deliver(self, kind: str, began_s: float) -> None:
        """Have the workers serve what was built. kind: what led to it, a label of the metrics."""
        parts = self._builder.parts
        assert parts is not None
        self.experiment.served(*self._builder.variants_and_shares())
        self.status = replace(
            self.status,
            version=parts.version,
            sha256=parts.sha256,
            content=parts.content,
            since=self._clock.time(),
            keys=self._builder.keys,
            items=self._builder.items,
            source=self.status.source if kind in (ITEMS, REBUILT) else STORE,
        )
        self._set_lacking("")
        self._meter.count(RELOADS, self._model, kind)
        self._meter.count(RELOAD_SECONDS, self._model, kind, by=time.monotonic() - began_s)
        self._note_items()
        self._distribution.deliver(parts)  # last: a worker that is ready by it finds everything else done

    # -- the other states

    def _enter(self, state: SyncState) -> None:
        """Called last in a change of state, so that a reader that sees the state finds its problem in the status."""
        self.status = replace(self.status, store_away=state is SyncState.STORE_AWAY)
        self.state = state

    def _refuse(self, version: int | None, error: Exception, problem: str) -> None:
        """Keep what is served. version: None if the active pointer itself cannot be read."""
        if not self._retry.resting(version):
            self._retry.refuse(version, error, self.status.version)
        self.status = replace(self.status, refused=self._retry.counts)
        self._set_problem(MODEL_PART, problem)
        self._enter(SyncState.REFUSED)
        self._start_from_disk(problem)
        self._set_lacking(problem)

    def _none_active(self) -> None:
        """Keep what is served; log it when the state is entered."""
        if self.state is SyncState.NO_ACTIVE_VERSION:
            return
        problem = "the store names no active version"
        self._set_problem(MODEL_PART, problem)
        self._enter(SyncState.NO_ACTIVE_VERSION)
        if self.status.version is None:
            _log.info("no version is active yet, waiting", model=self._model)
        else:
            _log.error("no version is active any more", model=self._model, still_serving=self.status.version)
        self._start_from_disk(problem)
        self._set_lacking(problem)

    def _lost_store(self, error: Exception) -> None:
        """Keep what is served; log the first failure in a row."""
        away, first = isinstance(error, StoreUnavailable), self._backoff.failures == 1
        self._enter(SyncState.STORE_AWAY if away else SyncState.STORE_UNUSABLE)
        problem = "the store is away" if away else "the store holds what it should not"
        if first and isinstance(error, FtrieError):
            outcome = "nothing to serve yet" if self.status.version is None else "serving on"
            log = _log.warning if away else _log.error
            log(f"{problem}, {outcome}", model=self._model, error=str(error))
        elif first:
            _log.exception("following failed, starting over", model=self._model)
        self._start_from_disk(problem)

    def _found_junk(self, text: str) -> None:
        _log.error("the store holds what it should not", model=self._model, error=text)

    # -- the copy on disk

    def _start_from_disk(self, problem: str) -> None:
        """If nothing is served yet, serve the copy on disk, and let every answer say why."""
        if self.status.version is not None or self._keeper is None:
            return
        parts = self._keeper.last_good(self._model)
        if parts is not None:
            # Before the parts are delivered, so that every answer says it.
            self._set_degraded(MODEL_PART, f"{problem}; version {parts.version} is from this server's disk")
            if self._restore(parts):
                self.status = replace(self.status, source=DISK)
                _log.warning("serving from disk", model=self._model, version=parts.version, why=problem)

    def _disk_has(self, manifest: Manifest) -> bool:
        """Serve the copy on disk if it is of this very version, which then need not be fetched and built."""
        if self._keeper is None:
            return False
        parts = self._keeper.last_good(self._model, manifest.sha256)
        return parts is not None and parts.version == manifest.version and self._restore(parts)

    def _parts_from_disk(self) -> Parts | None:
        """Build on the copy on disk, of whatever version: its items stay if the store has lost them."""
        parts = self._keeper.last_good(self._model) if self._keeper is not None else None
        return parts if parts is not None and self._built_from_disk(parts) else None

    def _restore(self, parts: Parts) -> bool:
        began_s = time.monotonic()
        if not self._built_from_disk(parts):
            return False
        self._deliver(RESTORED, began_s)
        return True

    def _built_from_disk(self, parts: Parts) -> bool:
        try:
            self._builder.restore(parts)
        except (FtrieError, OSError, MemoryError) as error:
            assert self._keeper is not None
            self._keeper.unusable(self._model, error)
            return False
        return True

    # -- what the status and the answers say

    def _note_items(self) -> None:
        """Report items that are kept or refused; have workers drop what they keep where an operator ordered it."""
        kept, refused, problem = self._builder.kept_items, self._builder.items_refused, ""
        if kept:
            problem = (
                f"the store lost its data: {kept:,} items that it lacks are kept as they were; load them again, or to "
                "keep none: ftrie store load items FILE --only"
            )
        elif refused:
            problem = (
                f"the store's items are refused: {refused}; to take them: ftrie store load items FILE --only"
            )
        self.status = replace(self.status, kept_items=kept, items_refused=bool(refused))
        self._set_problem(ITEMS_PART, problem)
        self._set_degraded(ITEMS_PART, problem)
        if self._items_orders != self._builder.items_orders:
            self._items_orders = self._builder.items_orders
            self._distribution.tell(self._model, {"do": "forget", "model": self._model})

    def _set_problem(self, part: str, text: str) -> None:
        """Show this as the problem of one part from now on; "" for none."""
        if text != self._problems.get(part, ""):
            self._problems[part] = text
            problem = "; ".join(filter(None, self._problems.values()))
            self.status = replace(self.status, problem=problem)

    def _set_lacking(self, why: str) -> None:
        """Let workers be ready without this model, unless it has a version; "" once it has one."""
        if (self.status.version is None or not why) and why != self.status.lacking:
            self.status = replace(self.status, lacking=why)
            self._distribution.tell(self._model, {"do": "lacking", "model": self._model, "why": why})

    def _set_degraded(self, part: str, text: str) -> None:
        """Have every answer say this of a part from now on; "" for nothing."""
        if text != self._degraded.get(part, ""):
            self._degraded[part] = text
            parts = {part: text for part, text in self._degraded.items() if text}
            self._distribution.tell(self._model, {"do": "degraded", "model": self._model, "parts": parts})

    def _tell_experiment(self, asked: Experiment, earlier: Sequence[Experiment]) -> None:
        records = [each.to_json() for each in (asked, *earlier)]
        self._distribution.tell(
            self._model, {"do": "experiment", "model": self._model, "experiments": records}
        )
