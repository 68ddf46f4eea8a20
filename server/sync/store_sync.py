"""Everything between the store and the workers of one server.

One `ModelSync` for each model, the last good copies on disk, and the `Distribution` to the workers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.experiment_sync import ExperimentSync
from server.sync.last_good import LastGoodKeeper
from server.sync.model_sync import ModelSync
from server.sync.state_folder import StateFolder
from server.sync.store_watch import StoreWatch
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, StoreStatus

GRACE_S = 2.0
"""How long `close` waits for the threads that follow the store."""


class StoreSync:
    """Runs from `start` to `stop`. Thread safety: the other methods from any thread."""

    def __init__(
        self, settings: Settings, state: StateFolder | None, meter: Meter, *, low_priority: bool = False
    ) -> None:
        """state: where the last good models are kept; None keeps none. low_priority: see `ModelSync`."""
        self.distribution = Distribution(self._buffer_free)
        self._keeper = LastGoodKeeper(state, settings.models, self.distribution) if state else None
        self._models = {
            name: ModelSync(
                name,
                settings.store,
                self.distribution,
                self._keeper,
                meter,
                low_priority=low_priority,
                with_fragments=bool(settings.impressions),
            )
            for name in settings.models
        }

        stores = {settings.user_store: "users", settings.store: "store"}  # one entry, if it is the same store
        self._watches = [StoreWatch(name, url) for url, name in stores.items() if url]

    def start(self) -> None:
        """Begin to follow the store, and to keep the last good models on disk."""
        if self._keeper is not None:
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
