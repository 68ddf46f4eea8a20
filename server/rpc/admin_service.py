"""`ctr.v1.ModelAdminService` and its port: reports a server's status and changes, in the store, what it serves.

Messages are converted to Python values, carried out, and the outcome converted back. Every call that changes something
is logged with its caller. The port is a grpc server of its own with the TLS and token files of the ranking port.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.timestamp_pb2 import Timestamp

from ctr.v1 import admin_pb2 as pb
from model_store.errors import ExperimentError, StoreUnavailable
from model_store.store import Store
from model_store.versions.experiments import RUNNING, STOPPED, Experiment
from model_store.versions.published_versions import VersionInfo
from server.errors import InvalidRequest, abort, is_own_fault, readable, served_name
from server.ranking.experiments import Assignment
from server.rpc import security
from server.rpc.gate import BoundedPool, Gate
from server.rpc.grpc_server import MAX_STREAMS, listen, reflection_gates
from server.settings import Settings
from server.sync.experiment_sync import ExperimentSync, change_experiment
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, SupervisorStatus, WorkerStatus

SERVICE = "ctr.v1.ModelAdminService"
TOOL = "admin service"
"""In the audit of what operators changed; `who` is the caller's address."""
RELOAD_S = 60.0
"""How long a Reload waits if its caller set no deadline."""
PAGE_SIZE, MAX_PAGE_SIZE = 100, 1_000
THREADS = 2
PLACES = 16
MAX_REQUEST_BYTES = 16 << 20  # the largest experiment has 4 MiB of pinned cookies
GRACE_S = 1.0

_SOURCES = {"": pb.MODEL_SOURCE_UNSPECIFIED, "store": pb.MODEL_SOURCE_STORE, "disk": pb.MODEL_SOURCE_DISK}
_KINDS = {"snapshot": pb.VERSION_KIND_SNAPSHOT, "delta": pb.VERSION_KIND_DELTA}
_WORKER_STATES = {
    "starting": pb.WORKER_STATE_STARTING,
    "serving": pb.WORKER_STATE_SERVING,
    "draining": pb.WORKER_STATE_DRAINING,
    "gone": pb.WORKER_STATE_GONE,
}
_STATES = {RUNNING: pb.EXPERIMENT_STATE_RUNNING, STOPPED: pb.EXPERIMENT_STATE_STOPPED}
_MASKED = ("state", "winner", "shares", "salt", "pins", "shadows", "objective")
"""The fields of an Experiment that an update may change."""

_log = structlog.get_logger(__name__)
Context = grpc.ServicerContext


class Administered(Protocol):
    """The server that is administered. All methods may be called by any thread."""

    def status(self) -> SupervisorStatus:
        """The current status."""

    def experiment(self, model: str) -> ExperimentSync:
        """The experiment of one of its models."""

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Read the store at once; returns whether that was done within the time."""


class ModelAdminService:
    """Answers for one server. Thread safety: every method, any thread."""

    def __init__(self, server: Administered, store_url: str) -> None:
        """Each call that needs the store opens a connection: such calls are rare, and the store may come and go."""
        self._server = server
        self._store_url = store_url

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers for a grpc server."""
        reading = (
            (self.GetStatus, pb.GetStatusRequest),
            (self.ListModels, pb.ListModelsRequest),
            (self.ListVersions, pb.ListVersionsRequest),
            (self.GetExperiment, pb.GetExperimentRequest),
        )
        changing = (
            (self.ActivateVersion, pb.ActivateVersionRequest),
            (self.RollBack, pb.RollBackRequest),
            (self.Reload, pb.ReloadRequest),
            (self.UpdateExperiment, pb.UpdateExperimentRequest),
        )
        methods = {
            method.__name__: grpc.unary_unary_rpc_method_handler(
                _answering(method, logged),
                request_deserializer=readable(request),
                response_serializer=_serialized,
            )
            for logged, group in ((False, reading), (True, changing))
            for method, request in group
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The RPC."""
        status = self._server.status()
        return status_message(status, map(self._model, status.models))

    def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The RPC."""
        return pb.ListModelsResponse(models=map(self._model, self._server.status().models))

    def ListVersions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:
        """The RPC."""
        name = self._name(request.model)
        if request.page_size < 0:
            raise InvalidRequest(f"page_size: got {request.page_size}, expected 0 or more")
        size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
        after = version_of_token(name, request.page_token) if request.page_token else 0
        with Store.open(self._store_url) as store:
            listed = store.model(name, _found_junk).versions()
        left = [info for info in listed if info.version > after]
        page = left[:size]
        token = page_token(name, page[-1].version) if len(left) > size else ""
        return pb.ListVersionsResponse(versions=map(version_message, page), next_page_token=token)

    def ActivateVersion(
        self, request: pb.ActivateVersionRequest, context: Context
    ) -> pb.ActivateVersionResponse:
        """The RPC."""
        name = self._name(request.model)
        _check_version(request.version)
        with Store.open(self._store_url) as store:
            versions = store.model(name, _found_junk)
            previous = versions.activate(request.version)
            versions.audit.write(TOOL, "activate", previous, request.version, context.peer())
        return pb.ActivateVersionResponse(version=request.version, previous_version=previous)

    def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        """The RPC."""
        name = self._name(request.model)
        target = request.version if request.HasField("version") else None
        if target is not None:
            _check_version(target)
        with Store.open(self._store_url) as store:
            versions = store.model(name, _found_junk)
            version, previous = versions.go_back(target)
            versions.audit.write(TOOL, "rollback", previous, version, context.peer())
        return pb.RollBackResponse(version=version, previous_version=previous)

    def Reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        """The RPC."""
        name = self._name(request.model)
        left_s = context.time_remaining()
        if not self._server.look_now(name, RELOAD_S if left_s is None else min(left_s, RELOAD_S)):
            raise StoreUnavailable(
                f"{name}: the store is unreachable, or a version takes long to load; see GetStatus"
            )
        return pb.ReloadResponse(model=self._model(self._status(name)))

    def GetExperiment(self, request: pb.GetExperimentRequest, context: Context) -> pb.GetExperimentResponse:
        """The RPC."""
        name = self._name(request.model)
        with Store.open(self._store_url) as store:
            record = store.model(name, _found_junk).experiment()
        experiment = self._server.experiment(name)
        return pb.GetExperimentResponse(
            experiment=None if record is None else experiment_message(record),
            traffic_split=traffic_split(experiment.assignment, experiment.problem),
        )

    def UpdateExperiment(
        self, request: pb.UpdateExperimentRequest, context: Context
    ) -> pb.UpdateExperimentResponse:
        """The RPC."""
        name = self._name(request.model)
        fields = masked_fields(request)
        expected = request.expected_revision if request.HasField("expected_revision") else None
        with Store.open(self._store_url) as store:
            try:
                changed = change_experiment(
                    store.model(name, _found_junk),
                    lambda before: updated(before, request.experiment, fields),
                    tool=TOOL,
                    who=context.peer(),
                    revision=expected,
                )
            except ExperimentError as error:
                raise ExperimentError(f"experiment.{error}") from None
        return pb.UpdateExperimentResponse(experiment=experiment_message(changed.record))

    def _model(self, status: ModelStatus) -> pb.ModelStatus:
        experiment = self._server.experiment(status.name)
        return model_message(status, experiment.assignment, experiment.problem)

    def _status(self, name: str) -> ModelStatus:
        return next(model for model in self._server.status().models if model.name == name)

    def _name(self, name: str) -> str:
        return served_name(name, [model.name for model in self._server.status().models])


class AdminPort:
    """The admin service on a port of its own, from `start` to `stop`."""

    def __init__(self, server: Administered, settings: Settings) -> None:
        """Raises ServerError for invalid TLS or token files."""
        self._settings = settings
        pool = BoundedPool(THREADS, PLACES, "admin")
        service = ModelAdminService(server, settings.store)
        # A meter of its own: these calls are not counted as ranking calls.
        tokens, meter = security.tokens(settings), Meter()
        guard = tokens.guard("admin") if tokens else None
        self._grpc = grpc.server(
            pool,
            handlers=[
                Gate(service.handlers(), pool, meter, guard),
                *reflection_gates((SERVICE,), meter, guard),
            ],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
            ],
        )
        self.address = ""

    def start(self) -> str:
        """Listen and answer; returns the address. Raises ServerError if the port is taken."""
        settings = self._settings
        credentials = security.credentials(settings)
        # A client certificate identifies a caller that may rank; alone it does not make an operator.
        security.warn_if_exposed(
            settings.admin_host, tls=credentials is not None, callers_known=bool(settings.tokens)
        )
        self.address = listen(self._grpc, settings.admin_host, settings.admin_port or 0, credentials)
        self._grpc.start()
        _log.info("administered on", address=self.address)
        return self.address

    def stop(self) -> None:
        """Finish the calls in progress, within a second."""
        self._grpc.stop(GRACE_S).wait(2 * GRACE_S)


def status_message(of: SupervisorStatus, models: Iterable[pb.ModelStatus]) -> pb.GetStatusResponse:
    """The whole server; `models` from `model_message`."""
    return pb.GetStatusResponse(
        address=of.address,
        ready=of.ready,
        draining=of.draining,
        models=models,
        workers=map(_worker_message, of.workers),
        predecessor_pids=of.successor_of,
    )


def model_message(of: ModelStatus, assignment: Assignment, problem: str) -> pb.ModelStatus:
    """One model and its traffic split. problem: why the stored experiment is not applied."""
    message = pb.ModelStatus(
        name=of.name,
        version=of.version,
        kind=_KINDS.get(of.kind, pb.VERSION_KIND_UNSPECIFIED),
        sha256=of.sha256,
        content_digest=of.content,
        key_count=of.keys,
        item_count=of.items,
        source=_SOURCES[of.source],
        store_unavailable=of.store_away,
        refusal_counts=of.refused,
        problem=of.problem,
        disk_problem=of.disk_problem,
        traffic_split=traffic_split(assignment, problem),
    )
    if of.published:
        message.publish_time.FromMilliseconds(round(1000 * of.published))
    if of.since:
        message.serve_start_time.FromMilliseconds(round(1000 * of.since))
    return message


def traffic_split(assignment: Assignment, problem: str) -> pb.TrafficSplit:
    """The traffic split that is applied."""
    held = assignment.experiment
    shares = zip(assignment.variants, assignment.shares, strict=True)
    return pb.TrafficSplit(
        revision=held.revision if held is not None else 0,
        shares=[pb.VariantShare(variant=name, share=share) for name, share in shares],
        shadows=[assignment.variants[bit] for bit in assignment.shadows],
        problem=problem,
    )


def version_message(info: VersionInfo) -> pb.Version:
    """One published version."""
    return pb.Version(
        version=info.version,
        active=info.active,
        publish_time=_timestamp(info.published),
        row_count=info.rows,
        size_bytes=info.size,
        sha256=info.sha256,
        kind=_KINDS.get(info.kind, pb.VERSION_KIND_UNSPECIFIED),
        parent_version=info.parent,
        content_digest=info.content,
    )


def page_token(model: str, version: int) -> str:
    """The token of the page after `version`; opaque to callers."""
    return base64.urlsafe_b64encode(f"{version}:{model}".encode()).decode()


def version_of_token(model: str, token: str) -> int:
    """The version that a `page_token` of this model continues after. Raises InvalidRequest."""
    try:
        version, _, of = base64.b64decode(token, b"-_", validate=True).decode().partition(":")
        if of == model and version.isascii() and version.isdecimal():
            return int(version)
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest(f"page_token: not a next_page_token of model {model!r}")


def experiment_message(record: Experiment) -> pb.Experiment:
    """A record as a message."""
    return pb.Experiment(
        revision=record.revision,
        state=_STATES[record.state],
        winner=record.winner,
        shares=record.shares,
        salt=record.salt,
        pins=record.pins,
        shadows=record.shadows,
        objective=record.objective,
        update_time=None if record.updated is None else _timestamp(record.updated),
    )


def masked_fields(request: pb.UpdateExperimentRequest) -> Collection[str]:
    """The fields that an update changes. Raises InvalidRequest for a path that is none of them."""
    if not request.HasField("update_mask"):
        return [field.name for field, _ in request.experiment.ListFields() if field.name in _MASKED]
    paths = list(request.update_mask.paths)
    if paths == ["*"]:
        return _MASKED
    for path in paths:
        if path not in _MASKED:
            raise InvalidRequest(f"update_mask: got {path!r}, expected {', '.join(_MASKED)}, or * alone")
    return paths


def updated(before: Experiment, message: pb.Experiment, fields: Collection[str]) -> Experiment:
    """`before` with the message's values of `fields`. Raises InvalidRequest, ExperimentError for a contradiction."""
    values: dict[str, Any] = {
        "winner": message.winner,
        "shares": dict(message.shares),
        "salt": message.salt,
        "pins": dict(message.pins),
        "shadows": tuple(message.shadows),
        "objective": message.objective,
    }
    if "state" in fields:
        states = {number: state for state, number in _STATES.items()}
        if message.state not in states:
            known = " or ".join(map(pb.ExperimentState.Name, states))
            raise InvalidRequest(f"experiment.state: got {message.state}, expected {known}")
        values["state"] = states[message.state]
    return replace(before, **{name: values[name] for name in fields})


def _worker_message(of: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        index=of.number,
        pid=of.pid,
        state=_WORKER_STATES[of.state],
        restart_count=of.restarts,
        versions=of.versions,
    )


def _timestamp(when: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(when.astimezone(UTC).replace(tzinfo=None))
    return stamp


def _found_junk(text: str) -> None:
    _log.error("the store holds unexpected data", error=text)


def _check_version(version: int) -> None:
    if version < 1:
        raise InvalidRequest(f"version: got {version}, expected at least 1")


def _answering(method: Callable[[Any, Context], Any], logged: bool) -> Callable[[Any, Context], Any]:
    """`method`, with every failure ended by `abort`."""

    def answer(request: Any, context: Context) -> Any:
        if isinstance(request, InvalidRequest):
            abort(context, request)
        facts = {"call": method.__name__, "caller": context.peer()}
        try:
            answered = method(request, context)
        except Exception as error:
            if is_own_fault(error):
                _log.error("admin call failed", **facts, exc_info=error)
            elif logged:
                _log.warning("admin call refused", **facts, model=request.model, error=str(error))
            abort(context, error)
        if logged:
            _log.info("admin call", **facts, model=request.model)
        return answered

    return answer


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
