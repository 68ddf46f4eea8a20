"""Everything between the store and the workers of one server.

One `ModelSync` for each model, the last good copies on disk, and the `Distribution` to the workers; and a `StoreWatch`
for each store that the server reads, whether or not a request needs it: a worker notices that the store of users is
away only in a request, and never notices a replica that has lost its primary, since it answers with the data it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.experiment_sync import ExperimentSync
from server.sync.last_good import LastGoodKeeper
from server.sync.model_sync import ModelSync
from server.sync.state_folder import StateFolder
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, StoreStatus

GRACE_S = 2.0
"""How long `close` waits for the threads that follow the store."""
EVERY_S = 1.0
ANSWERS_WITHIN_S = 2.0
LATE_S = 30.0
"""A replica that has heard nothing from its primary for so long is a problem. A primary pings every 10 s by default."""

_log = structlog.get_logger(__name__)


class StoreSync:
    """Runs from `start` to `stop`. Thread safety: the other methods from any thread."""

    def __init__(
        self,
        settings: Settings,
        state: StateFolder | None,
        meter: Meter,
        *,
        low_priority: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """state: where the last good models are kept; None keeps none. low_priority: see `ModelSync`."""
        self.distribution = Distribution(self._buffer_free)
        self._keeper = LastGoodKeeper(state, settings.models, self.distribution, clock) if state else None
        self._models = {
            name: ModelSync(
                name,
                settings.store,
                self.distribution,
                self._keeper,
                meter,
                low_priority=low_priority,
                with_fragments=bool(settings.impressions),
                clock=clock,
            )
            for name in settings.models
        }

        stores = {settings.user_store: "users", settings.store: "store"}  # one entry, if it is the same store
        self._watches = [StoreWatch(name, url, clock) for url, name in stores.items() if url]

    def start(self) -> None:
        """Begin to follow the store, and to keep the last good models on disk."""
        if self._keeper is not None:
            # Before the models' threads start, so that the keeper misses no version.
            self.distribution.join(self._keeper)
            self._keeper.start()
        for model in self._models.values():
            model.start()
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Deliver nothing more. A thread in the middle of a long step is not waited for."""
        for model in self._models.values():
            model.stop()
        for watch in self._watches:
            watch.stop()

    def close(self, end_at_s: float) -> None:
        """Wait for the threads to end, then write the last good models. Call after `stop`.

        end_at_s: on the monotonic clock; what is not on disk by then is given up, and logged.
        """
        grace_ends_s = min(end_at_s, time.monotonic() + GRACE_S)
        for model in self._models.values():
            if model.is_alive():
                model.join(max(0.0, grace_ends_s - time.monotonic()))
        if self._keeper is not None:
            # After the threads that deliver, so that the last version is written too.
            self._keeper.close(end_at_s)

    def items_found(self, found: Mapping[str, Sequence[str]]) -> None:
        """By model: items that requests have found in the store and that the catalogue lacks."""
        for name, ids in found.items():
            self._models[name].items_found(ids)

    def experiment(self, model: str) -> ExperimentSync:
        """The experiment of one of the models."""
        return self._models[model].experiment

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once. False if that took longer than `timeout_s`."""
        return self._models[model].look_now(timeout_s)

    def status(self) -> tuple[ModelStatus, ...]:
        """Each model as it is now."""
        problems = self._keeper.problems if self._keeper else {}
        return tuple(
            replace(model.status, disk_problem=problems.get(name, "")) for name, model in self._models.items()
        )

    def stores(self) -> tuple[StoreStatus, ...]:
        """Each store as it is now."""
        return tuple(watch.status for watch in self._watches)

    def _buffer_free(self, model: str, uid: str) -> None:
        self._models[model].buffer_free(uid)


# -- whether the stores answer


class StoreWatch(threading.Thread):
    """Looks at one store every second, from `start` to `stop`. `status` may be read by any thread."""

    def __init__(self, name: str, url: str, clock: Clock = SYSTEM) -> None:
        """name: what the server calls the store, "store" or "users"."""
        super().__init__(name=f"watch {name}", daemon=True)
        self.status = StoreStatus(name)
        self._name, self._url, self._clock = name, url, clock
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._heard_at: float | None = None
        """When a replica with its link down was last known to hear from its primary."""

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopped.set()

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopped.is_set():
            before, self.status = self.status, self.look()
            if bool(before.problem) != bool(self.status.problem):
                log = _log.warning if self.status.problem else _log.info
                log("store watched", store=self._name, problem=self.status.problem)
            self._stopped.wait(EVERY_S)
        if self._store is not None:
            self._store.close()

    def look(self) -> StoreStatus:
        """The store as it is now."""
        try:
            if self._store is None:
                self._store = Store.open(self._url, timeout_s=ANSWERS_WITHIN_S, clock=self._clock)
            lag_s = self._lag_s(self._store.replication())
        # Other errors below: the store answers, so it is not away.
        except StoreUnavailable as error:
            return StoreStatus(self._name, away=True, problem=f"away: {error}")
        except StoreError as error:  # as by an ACL without `+info`
            return StoreStatus(
                self._name, problem=f"whether it is a replica that lags cannot be seen: {error}"
            )
        late = lag_s is not None and lag_s > LATE_S
        problem = f"a replica that has heard nothing from its primary for {lag_s:.0f} s" if late else ""
        return StoreStatus(self._name, lag_s=lag_s, problem=problem)

    def _lag_s(self, replication: tuple[bool, float] | None) -> float | None:
        """Seconds since a replica heard from its primary; None for a primary."""
        if replication is None:
            self._heard_at = None
            return None
        is_linked, silent_s = replication
        heard_at = self._clock.monotonic() - silent_s
        if is_linked or self._heard_at is None:
            self._heard_at = heard_at
        else:  # a replica that was never linked says nothing of how long
            self._heard_at = min(self._heard_at, heard_at)
        return self._clock.monotonic() - self._heard_at
