"""Everything between the store and the workers of one server.

A follower for each model, the copies on disk, and the distribution of what is new. A supervisor has one, and so has a
server that is one process (`tests.server.one_process`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.experiment_sync import FollowedExperiment
from server.sync.last_good import Keeper
from server.sync.model_sync import Follower
from server.sync.state_folder import StateFolder
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus

GRACE_S = 2.0


class Feed:
    """Begins with `start`, ends with `stop`. Thread safety: the other methods from any thread."""

    def __init__(
        self, settings: Settings, state: StateFolder | None, meter: Meter, *, yields: bool = False
    ) -> None:
        """state: where the last good models are kept; None keeps none. yields: as of `Follower`."""
        self.distribution = Distribution(self._freed)
        self._keeper = Keeper(state, settings.models, self.distribution) if state else None
        self._followers = {
            name: Follower(
                name,
                settings.store,
                self.distribution,
                self._keeper,
                meter,
                yields=yields,
                with_fragments=bool(settings.impressions),
            )
            for name in settings.models
        }

    def start(self) -> None:
        """Begin to follow the store, and to keep what is good."""
        if self._keeper is not None:
            self.distribution.join(self._keeper)
            self._keeper.start()
        for follower in self._followers.values():
            follower.start()

    def stop(self) -> None:
        """Deliver nothing more; a follower in the middle of a long step is left to the end of the process."""
        for follower in self._followers.values():
            follower.stop()

    def close(self, end_at_s: float) -> None:
        """Wait for the followers to end, then write the last good models. Call after `stop`.

        end_at_s: on the monotonic clock; what a disk has not taken by then is left, and logged.
        """
        grace_ends_s = min(end_at_s, time.monotonic() + GRACE_S)
        for follower in self._followers.values():
            if follower.is_alive():
                follower.join(max(0.0, grace_ends_s - time.monotonic()))
        if self._keeper is not None:
            self._keeper.close(end_at_s)

    def late(self, found: Mapping[str, Sequence[str]]) -> None:
        """By model: ids that requests have found in the store, and the catalogue lacks."""
        for name, ids in found.items():
            self._followers[name].late_items(ids)

    def followed(self, model: str) -> FollowedExperiment:
        """The experiment of one of the models."""
        return self._followers[model].experiment

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once; whether that was done within the time."""
        return self._followers[model].look_now(timeout_s)

    def status(self) -> tuple[ModelStatus, ...]:
        """Each model as it is now."""
        problems = self._keeper.problems if self._keeper else {}
        return tuple(
            replace(follower.status, disk_problem=problems.get(name, ""))
            for name, follower in self._followers.items()
        )

    def _freed(self, model: str, uid: str) -> None:
        self._followers[model].freed(uid)
