"""`ctr.v1.ModelAdminService` and its port: a server's status, and reading the store at once.

What the store can do (versions, activation, the experiment) is done through the store. Reloads are logged with their
caller. The port is a grpc server of its own with the TLS and token files of the ranking port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
import structlog

from ctr.v1 import admin_pb2 as pb
from model_store.errors import StoreUnavailable
from server.errors import InvalidRequest, abort, is_own_fault, served_name
from server.serve import security
from server.serve.gate import CallPool, Gate, handlers_of
from server.serve.grpc_server import MAX_STREAMS, listen, reflection_gates
from server.settings import Settings
from server.sync.experiment_sync import ExperimentSync
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus, SupervisorStatus

_WIRE = pb.DESCRIPTOR.services_by_name["ModelAdminService"]
SERVICE = _WIRE.full_name
RELOAD_S = 60.0
"""How long a Reload waits if its caller set no deadline."""
THREADS = 2
PLACES = 16
GRACE_S = 1.0
UNSPECIFIED = "UNSPECIFIED"

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


def _answering(method: Callable[[Any, Any, Context], Any]) -> Callable[[Any, Any, Context], Any]:
    """`method`, with every failure logged and ended by `abort`."""

    def answer(service: Any, request: Any, context: Context) -> Any:
        if isinstance(request, InvalidRequest):
            abort(context, request)
        try:
            return method(service, request, context)
        except Exception as error:
            facts = {"call": method.__name__, "caller": context.peer()}
            if is_own_fault(error):
                _log.error("admin call failed", **facts, exc_info=error)
            else:
                _log.warning("admin call refused", **facts, error=str(error))
            abort(context, error)

    return answer


class ModelAdminService:
    """Answers for one server. Thread safety: every method, any thread."""

    def __init__(self, server: Administered) -> None:
        self._server = server

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers for a grpc server."""
        return handlers_of(_WIRE, self)

    @_answering
    def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The RPC."""
        status = self._server.status()
        return pb.GetStatusResponse(
            address=status.address,
            ready=status.ready,
            draining=status.draining,
            models=map(self._model, status.models),
            workers=[
                pb.WorkerStatus(
                    index=of.number,
                    pid=of.pid,
                    state=f"WORKER_STATE_{of.state.upper()}",
                    restart_count=of.restarts,
                    versions=of.versions,
                )
                for of in status.workers
            ],
            predecessor_pids=status.successor_of,
        )

    @_answering
    def Reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        """The RPC."""
        name = served_name(request.model, [model.name for model in self._server.status().models])
        left_s = context.time_remaining()
        if not self._server.look_now(name, RELOAD_S if left_s is None else min(left_s, RELOAD_S)):
            raise StoreUnavailable(
                f"{name}: the store is unreachable, or a version takes long to load; see GetStatus"
            )
        _log.info("admin call", call="Reload", caller=context.peer(), model=name)
        status = next(model for model in self._server.status().models if model.name == name)
        return pb.ReloadResponse(model=self._model(status))

    def _model(self, of: ModelStatus) -> pb.ModelStatus:
        """One model and how its traffic is split."""
        experiment = self._server.experiment(of.name)
        assignment = experiment.assignment
        shares = zip(assignment.variants, assignment.shares, strict=True)
        message = pb.ModelStatus(
            name=of.name,
            version=of.version,
            kind=f"VERSION_KIND_{of.kind.upper() or UNSPECIFIED}",
            sha256=of.sha256,
            content_digest=of.content,
            key_count=of.keys,
            item_count=of.items,
            source=f"MODEL_SOURCE_{of.source.upper() or UNSPECIFIED}",
            store_unavailable=of.store_away,
            refusal_counts=of.refused,
            problem=of.problem,
            disk_problem=of.disk_problem,
            traffic_split=pb.TrafficSplit(
                revision=experiment.revision,
                shares=[pb.VariantShare(variant=name, share=share) for name, share in shares],
                shadows=[assignment.variants[bit] for bit in assignment.shadows],
                problem=experiment.problem,
                exploration=str(assignment.explore or ""),
                apprentice=assignment.apprentice,
                interleave=assignment.teams.names if assignment.teams else (),
                draft=assignment.experiment.draft if assignment.teams and assignment.experiment else "",
            ),
        )
        if of.published:
            message.publish_time.FromMilliseconds(round(1000 * of.published))
        if of.since:
            message.serve_start_time.FromMilliseconds(round(1000 * of.since))
        return message


class AdminPort:
    """The admin service on a port of its own, from `start` to `stop`."""

    def __init__(self, server: Administered, settings: Settings) -> None:
        """Raises ServerError for invalid TLS or token files."""
        self._settings = settings
        pool = CallPool(THREADS, "admin", PLACES)
        service = ModelAdminService(server)
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
                # Else the kernel would let another server take the same port, and divide the calls among the two.
                ("grpc.so_reuseport", 0),
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
