"""What a supervisor knows of its models and workers, as metrics. Nothing here counts calls."""

from __future__ import annotations

from server.metrics.families import (
    FROM_DISK,
    ITEMS_KEPT,
    ITEMS_REFUSED,
    LAST_GOOD_FAILED,
    MODEL_PUBLISHED,
    MODEL_VERSION,
    READY,
    STORE_AWAY,
    WORKER_RESTARTS,
    WORKERS,
)
from server.metrics.meter import Meter
from server.supervising.status import SupervisorStatus


def note_status(meter: Meter, status: SupervisorStatus) -> None:
    """Have the meter report the status as it is now; call it again before each `take`."""
    for model in status.models:
        meter.set(READY, model.name, value=float(_is_served(model.name, status)))
        meter.set(STORE_AWAY, model.name, value=float(model.store_away))
        meter.set(ITEMS_KEPT, model.name, value=float(model.kept_items))
        meter.set(ITEMS_REFUSED, model.name, value=float(model.items_refused))
        meter.set(FROM_DISK, model.name, value=float(model.source == "disk"))
        meter.set(LAST_GOOD_FAILED, model.name, value=float(bool(model.disk_problem)))
        if model.version is not None:
            meter.set(MODEL_VERSION, model.name, value=model.version)
            meter.set(MODEL_PUBLISHED, model.name, value=model.published)
    meter.set(WORKERS, value=sum(worker.state == "serving" for worker in status.workers))
    meter.set(WORKER_RESTARTS, value=sum(worker.restarts for worker in status.workers))


def _is_served(model: str, status: SupervisorStatus) -> bool:
    """Whether at least one worker answers for it."""
    return any(worker.state == "serving" and model in worker.versions for worker in status.workers)
