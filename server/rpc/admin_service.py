"""`ctr.v1.ModelAdminService`: how a server is, and what it is to serve. Converted, carried out, converted back.

What changes, changes in the store, so that every server of a model follows. Who may call is the gate's business; every
call that changes something is logged with its caller. Nothing here is on the way of a ranking call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from server.errors import InvalidRequest, abort, readable, served_name, status_of
from server.ranking.experiments import Assignment
from server.rpc import security as access
from server.rpc.gate import BoundedPool, Gate
from server.rpc.grpc_server import MAX_STREAMS, listen, reflection_gates
from server.rpc.security import warn_if_exposed
from server.settings import Settings
from server.sync.experiment_sync import ExperimentSync, assigned_by_spec
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, SupervisorStatus, WorkerStatus

SERVICE = "ctr.v1.ModelAdminService"
RELOAD_S = 60.0
"""How long a Reload waits whose caller set no deadline."""

_log = structlog.get_logger(__name__)
Context = grpc.ServicerContext


class Administered(Protocol):
    """A server, as this service needs it. All methods may be called by any thread."""

    def status(self) -> SupervisorStatus:
        """How it is now."""

    def followed(self, model: str) -> ExperimentSync:
        """The experiment of one of its models."""

    def look_now(self, model: str, timeout_s: float) -> bool:
        """Look at the store at once; whether that was done within the time."""


class ModelAdminService:
    """Answers for one server. Thread safety: every method, any thread."""

    def __init__(self, server: Administered, store_url: str) -> None:
        """A store is opened for each call that needs one: they are rare, and the store may come and go."""
        self._server = server
        self._store_url = store_url

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a grpc server is given."""
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
        with Store.open(self._store_url) as store:
            return pb.ListVersionsResponse(versions=map(version, store.model(name, _found_junk).versions()))

    def ActivateVersion(
        self, request: pb.ActivateVersionRequest, context: Context
    ) -> pb.ActivateVersionResponse:
        """The RPC."""
        name = self._name(request.model)
        _check_version(request.version)
        with Store.open(self._store_url) as store:
            before = store.model(name, _found_junk).activate(request.version)
        return pb.ActivateVersionResponse(version=request.version, before=before)

    def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        """The RPC."""
        name = self._name(request.model)
        target = request.version if request.HasField("version") else None
        if target is not None:
            _check_version(target)
        with Store.open(self._store_url) as store:
            version, before = store.model(name, _found_junk).go_back(target)
        return pb.RollBackResponse(version=version, before=before)

    def Reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        """The RPC."""
        name = self._name(request.model)
        left_s = context.time_remaining()
        if not self._server.look_now(name, RELOAD_S if left_s is None else min(left_s, RELOAD_S)):
            raise StoreUnavailable(
                f"{name}: the store is away, or a version takes long to load; see GetStatus"
            )
        return pb.ReloadResponse(model=self._model(self._status(name)))

    def GetExperiment(self, request: pb.GetExperimentRequest, context: Context) -> pb.GetExperimentResponse:
        """The RPC."""
        name = self._name(request.model)
        with Store.open(self._store_url) as store:
            record = store.model(name, _found_junk).experiment()
        followed = self._server.followed(name)
        return pb.GetExperimentResponse(
            experiment=None if record is None else experiment(record),
            division=division(followed.assignment, followed.problem),
        )

    def UpdateExperiment(
        self, request: pb.UpdateExperimentRequest, context: Context
    ) -> pb.UpdateExperimentResponse:
        """The RPC."""
        name = self._name(request.model)
        wanted = record_of(request.experiment)
        with Store.open(self._store_url) as store:
            versions = store.model(name, _found_junk)
            spec = assigned_by_spec(versions)
            if spec is not None:
                Assignment(name, spec.variants, spec.spec_shares, wanted)
            return pb.UpdateExperimentResponse(experiment=experiment(versions.set_experiment(wanted)))

    def _model(self, status: ModelStatus) -> pb.ModelStatus:
        followed = self._server.followed(status.name)
        return model(status, followed.assignment, followed.problem)

    def _status(self, name: str) -> ModelStatus:
        return next(model for model in self._server.status().models if model.name == name)

    def _name(self, name: str) -> str:
        """The model that a request means."""
        return served_name(name, [model.name for model in self._server.status().models])


def _found_junk(text: str) -> None:
    _log.error("the store holds what it should not", error=text)


def _check_version(version: int) -> None:
    if version < 1:
        raise InvalidRequest(f"version: got {version}, expected at least 1")


def _answering(method: Callable[[Any, Context], Any], logged: bool) -> Callable[[Any, Context], Any]:
    """`method`, whose every failure leaves through the table in `server.errors`."""

    def answer(request: Any, context: Context) -> Any:
        if isinstance(request, InvalidRequest):
            abort(context, request, method.__name__)
        facts = {"call": method.__name__, "caller": context.peer()}
        try:
            answered = method(request, context)
        except Exception as error:
            status = status_of(error)
            if status is grpc.StatusCode.INTERNAL:
                _log.error("admin call failed", **facts, exc_info=error)
            elif logged:
                _log.warning("admin call refused", **facts, model=request.model, error=str(error))
            abort(context, error, method.__name__)
        if logged:
            _log.info("admin call", **facts, model=request.model)
        return answered

    return answer


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


# --- Between `ctr.v1` admin messages and Python values. Nothing here acts, and nothing here reads a store ---


_SOURCES = {"": pb.MODEL_SOURCE_UNSPECIFIED, "store": pb.MODEL_SOURCE_STORE, "disk": pb.MODEL_SOURCE_DISK}
_WORKER_STATES = {
    "starting": pb.WORKER_STATE_STARTING,
    "serving": pb.WORKER_STATE_SERVING,
    "draining": pb.WORKER_STATE_DRAINING,
    "gone": pb.WORKER_STATE_GONE,
}
_STATES = {RUNNING: pb.EXPERIMENT_STATE_RUNNING, STOPPED: pb.EXPERIMENT_STATE_STOPPED}


def status_message(of: SupervisorStatus, models: Iterable[pb.ModelStatus]) -> pb.GetStatusResponse:
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


# --- The port of the admin service: a grpc server of its own, on the loopback interface unless told otherwise
# ---
#
# What it answers is `server.rpc.admin_service`. It takes the TLS files and the token file of the ranking
# port, and the role admin.


THREADS = 2
PLACES = 16
MAX_REQUEST_BYTES = 16 << 20  # as many pins as there may be
GRACE_S = 1.0


class AdminPort:
    """Begins with `start`, ends with `stop`."""

    def __init__(self, server: Administered, settings: Settings) -> None:
        """Raises ServerError for TLS or token files that are of no use."""
        self._settings = settings
        pool = BoundedPool(THREADS, PLACES, "admin")
        service = ModelAdminService(server, settings.store)
        # A meter of its own: the one of ranking calls is not to show these.
        tokens, meter = access.tokens(settings), Meter()
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
        credentials = access.credentials(settings)
        # A certificate tells who may rank; that alone makes nobody an operator.
        warn_if_exposed(settings.admin_host, tls=credentials is not None, callers_known=bool(settings.tokens))
        self.address = listen(self._grpc, settings.admin_host, settings.admin_port or 0, credentials)
        self._grpc.start()
        _log.info("administered on", address=self.address)
        return self.address

    def stop(self) -> None:
        """Finish what has begun, for a second at most."""
        self._grpc.stop(GRACE_S).wait(2 * GRACE_S)
