"""Between `ctr.v1` admin messages and Python values. Nothing here acts, and nothing here reads a store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1 import admin_pb2 as pb
from model_store.errors import ExperimentError
from model_store.experiments import RUNNING, STOPPED, Experiment
from model_store.published_versions import VersionInfo
from server.experiments import Assignment
from server.supervising.status import ModelStatus, SupervisorStatus, WorkerStatus

_SOURCES = {"": pb.MODEL_SOURCE_UNSPECIFIED, "store": pb.MODEL_SOURCE_STORE, "disk": pb.MODEL_SOURCE_DISK}
_WORKER_STATES = {
    "starting": pb.WORKER_STATE_STARTING,
    "serving": pb.WORKER_STATE_SERVING,
    "draining": pb.WORKER_STATE_DRAINING,
    "gone": pb.WORKER_STATE_GONE,
}
_STATES = {RUNNING: pb.EXPERIMENT_STATE_RUNNING, STOPPED: pb.EXPERIMENT_STATE_STOPPED}


def status(of: SupervisorStatus, models: Iterable[pb.ModelStatus]) -> pb.GetStatusResponse:
    """The whole server; `models` as `model` makes them."""
    return pb.GetStatusResponse(
        address=of.address,
        ready=of.ready,
        draining=of.draining,
        models=models,
        workers=map(_worker, of.workers),
        predecessors=of.successor_of,
    )


def model(of: ModelStatus, assignment: Assignment, problem: str) -> pb.ModelStatus:
    """One model, and how its traffic is divided; `problem` with its experiment."""
    message = pb.ModelStatus(
        name=of.name,
        version=of.version,
        kind=of.kind,
        sha256=of.sha256,
        content=of.content,
        keys=of.keys,
        items=of.items,
        source=_SOURCES[of.source],
        store_away=of.store_away,
        refused=of.refused,
        problem=of.problem,
        disk_problem=of.disk_problem,
        division=division(assignment, problem),
    )
    for name, seconds in (("published", of.published), ("since", of.since)):
        if seconds:
            getattr(message, name).FromMilliseconds(round(1000 * seconds))
    return message


def division(assignment: Assignment, problem: str) -> pb.Division:
    """What is in force."""
    held = assignment.experiment
    shares = zip(assignment.variants, assignment.shares, strict=True)
    return pb.Division(
        revision=held.revision if held is not None else 0,
        shares=[pb.VariantShare(variant=name, share=share) for name, share in shares],
        shadows=[assignment.variants[bit] for bit in assignment.shadows],
        problem=problem,
    )


def version(info: VersionInfo) -> pb.Version:
    """One published version."""
    return pb.Version(
        version=info.version,
        active=info.active,
        published=_timestamp(info.published),
        rows=info.rows,
        bytes=info.size,
        sha256=info.sha256,
        kind=info.kind,
        parent=info.parent,
        content=info.content,
    )


def experiment(record: Experiment) -> pb.Experiment:
    """A record as a message; `record_of` reads it back."""
    return pb.Experiment(
        revision=record.revision,
        state=_STATES[record.state],
        winner=record.winner,
        shares=record.shares,
        salt=record.salt,
        pins=record.pins,
        shadows=record.shadows,
        objective=record.objective,
        updated=None if record.updated is None else _timestamp(record.updated),
    )


def record_of(message: pb.Experiment) -> Experiment:
    """The record that a message asks for. Raises ExperimentError for one that contradicts itself."""
    if message.state not in pb.ExperimentState.values():
        raise ExperimentError(f"state: got {message.state}, which this server does not know: upgrade it")
    return Experiment(
        revision=message.revision,
        state=STOPPED if message.state == pb.EXPERIMENT_STATE_STOPPED else RUNNING,
        winner=message.winner,
        shares=dict(message.shares),
        salt=message.salt,
        pins=dict(message.pins),
        shadows=tuple(message.shadows),
        objective=message.objective,
    )


def _worker(of: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        number=of.number,
        pid=of.pid,
        state=_WORKER_STATES[of.state],
        restarts=of.restarts,
        versions=of.versions,
    )


def _timestamp(when: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(when.astimezone(UTC).replace(tzinfo=None))
    return stamp
