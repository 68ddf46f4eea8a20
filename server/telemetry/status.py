"""A server's status in plain values: what the admin service shows, and what the status metrics are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Source = Literal["", "store", "disk"]
WorkerState = Literal["starting", "serving", "draining", "gone"]


@dataclass(frozen=True)
class ModelStatus:
    """One model. Times are seconds since 1970, 0 for none."""

    name: str
    version: int | None = None
    """What workers have been handed to serve; None before the first version."""
    kind: str = ""
    """The kind of this version: "snapshot" or "delta"."""
    sha256: str = ""
    content: str = ""
    published: float = 0.0
    since: float = 0.0
    """When it was delivered."""
    keys: int = 0
    items: int = 0
    source: Source = ""
    """Where the version came from; "" before the first one."""
    store_away: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)
    """How often a version could not be served, by reason."""
    problem: str = ""
    """Why the version that the store names is not served; "" if it is."""
    kept_items: int = 0
    """Items that are served though the store, which has lost its data, lacks them."""
    items_refused: bool = False
    """Whether the store's items are refused because all of them would have the same score."""
    through_us: int = 0
    """Every event that arrived before this time is in the version's weights: microseconds since 1970 by the store's
    clock; 0 for a version that was not learned from the store's streams."""
    lacking: str = ""
    """Why there is no version to serve, though the store answers; "" while there is one, or it still loads."""
    disk_problem: str = ""
    """Why the last good model could not be written to disk, or read from it; "" if it was, or if none is kept."""


@dataclass(frozen=True)
class StoreStatus:
    """A store that the server reads: "store", or "users" for one of --user-store.

    lag_s: of a replica, how long it has heard nothing from its primary; None for others, or if that is not known.
    problem: why its data may be missing or old; "" for none.
    """

    name: str
    away: bool = False
    lag_s: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker."""

    number: int
    pid: int
    state: WorkerState
    restarts: int
    versions: Mapping[str, int]
    """By model, the version that answers requests."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By model, why the worker does not serve the parts it was handed last; they are handed over again later."""


@dataclass(frozen=True)
class SupervisorStatus:
    """The server at one moment."""

    address: str
    begun: bool
    """Whether all workers have served at the same time since this server started."""
    draining: bool
    models: tuple[ModelStatus, ...]
    workers: tuple[WorkerStatus, ...]
    stores: tuple[StoreStatus, ...] = ()
    successor_of: tuple[int, ...] = ()
    """Workers of a dead supervisor, which answer until this one is ready."""

    @property
    def not_ready(self) -> str:
        """Why no calls should be sent here now; "" if they should. One worker that serves is enough.

        A worker serves once it has every model that has a version: one without a version must not stop all others.
        """
        if self.draining:
            return "draining"
        if self.begun and any(worker.state == "serving" for worker in self.workers):
            return ""
        workers = ", ".join(f"worker {worker.number} {worker.state}" for worker in self.workers)
        problems = "".join(f"; {model.name}: {model.problem}" for model in self.models if model.problem)
        what = (
            "no worker serves every model"
            if self.begun
            else "starting: not all workers serve every model yet"
        )
        return f"{what} ({workers}){problems}"

    @property
    def ready(self) -> bool:
        """Whether calls should be sent here now."""
        return not self.not_ready

    @property
    def not_served(self) -> dict[str, str]:
        """The models that no worker answers for, and why."""
        # Of workers that accept calls: one that still starts or drains answers for no model.
        serving = {name for each in self.workers if each.state == "serving" for name in each.versions}
        refused = {name: why for each in self.workers for name, why in each.refused.items()}
        return {
            name: each.lacking or refused.get(name) or self.not_ready or "loading"
            for each in self.models
            if (name := each.name) not in serving
        }

    def to_json(self) -> dict[str, Any]:
        """Every field by name, `ready`, the reason if the server is not ready, and the models that are not served."""
        state = {"ready": self.ready, "not_ready": self.not_ready, "not_served": self.not_served}
        return {**state, **asdict(self)}
