"""How a server is, in plain values: what the admin service shows and the metrics are made of. Nothing here acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Source = Literal["", "store", "disk"]
WorkerState = Literal["starting", "serving", "draining", "gone"]


@dataclass(frozen=True)
class ModelStatus:
    """One model. Times are seconds since 1970, 0 where there is none."""

    name: str
    version: int | None = None
    """What workers are told to serve; None before there is anything."""
    kind: str = ""
    """How this version came: "snapshot" or "delta"."""
    sha256: str = ""
    content: str = ""
    published: float = 0.0
    since: float = 0.0
    """When it was delivered."""
    keys: int = 0
    items: int = 0
    source: Source = ""
    """Where it came from; "" before there is anything."""
    store_away: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)
    """How often a version could not be taken, by reason."""
    problem: str = ""
    """Why what the store asks for is not what is served; "" if it is."""
    kept_items: int = 0
    """Items that are served as they were, since the store has lost its data and lacks them."""
    items_refused: bool = False
    """Whether the store's items are not taken, since all of them would have the same score."""
    disk_problem: str = ""
    """Why the last good model could not be kept on disk; "" if it was, or is not to be."""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker."""

    number: int
    pid: int
    state: WorkerState
    restarts: int
    versions: Mapping[str, int]
    """By model, what its requests are answered by."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By model, why it does not serve what it was given last; it is given it again after growing pauses."""


@dataclass(frozen=True)
class SupervisorStatus:
    """The server at one moment."""

    address: str
    begun: bool
    """Whether every model has been served by every worker at once since this server started."""
    draining: bool
    models: tuple[ModelStatus, ...]
    workers: tuple[WorkerStatus, ...]
    successor_of: tuple[int, ...] = ()
    """Workers of a supervisor that died, which still answer until this one is ready."""

    @property
    def not_ready(self) -> str:
        """Why no calls should be sent here now; "" if they should: one worker that serves every model is enough."""
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

    def to_json(self) -> dict[str, Any]:
        """Every field by its name, and `ready` with the reason if it is not."""
        return {"ready": self.ready, "not_ready": self.not_ready, **asdict(self)}
