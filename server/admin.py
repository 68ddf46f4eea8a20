"""`ctr.v1.ModelAdminService`: how a server is, and what it is to serve. Converted, carried out, converted back.

What changes, changes in the store, so that every server of a model follows. Who may call is the gate's business; every
call that changes something is logged with its caller. Nothing here is on the way of a ranking call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
import structlog

from ctr.v1 import admin_pb2 as pb
from model_store.errors import StoreUnavailable
from model_store.store import Store
from server import admin_wire as wire
from server.errors import InvalidRequest, ModelNotServed, abort, readable, status_of
from server.experiments import Assignment
from server.followed_experiment import FollowedExperiment, assigned_by_spec
from server.supervising.status import ModelStatus, SupervisorStatus

SERVICE = "ctr.v1.ModelAdminService"
RELOAD_S = 60.0
"""How long a Reload waits whose caller set no deadline."""

_log = structlog.get_logger(__name__)
Context = grpc.ServicerContext


class Administered(Protocol):
    """A server, as this service needs it. All methods may be called by any thread."""

    def status(self) -> SupervisorStatus:
        """How it is now."""

    def followed(self, model: str) -> FollowedExperiment:
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
        return wire.status(status, map(self._model, status.models))

    def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """The RPC."""
        return pb.ListModelsResponse(models=map(self._model, self._server.status().models))

    def ListVersions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:
        """The RPC."""
        name = self._name(request.model)
        with Store.open(self._store_url) as store:
            return pb.ListVersionsResponse(
                versions=map(wire.version, store.model(name, _found_junk).versions())
            )

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
            experiment=None if record is None else wire.experiment(record),
            division=wire.division(followed.assignment, followed.problem),
        )

    def UpdateExperiment(
        self, request: pb.UpdateExperimentRequest, context: Context
    ) -> pb.UpdateExperimentResponse:
        """The RPC."""
        name = self._name(request.model)
        wanted = wire.record_of(request.experiment)
        with Store.open(self._store_url) as store:
            versions = store.model(name, _found_junk)
            spec = assigned_by_spec(versions)
            if spec is not None:
                Assignment(name, spec.variants, spec.spec_shares, wanted)
            return pb.UpdateExperimentResponse(experiment=wire.experiment(versions.set_experiment(wanted)))

    def _model(self, status: ModelStatus) -> pb.ModelStatus:
        followed = self._server.followed(status.name)
        return wire.model(status, followed.assignment, followed.problem)

    def _status(self, name: str) -> ModelStatus:
        return next(model for model in self._server.status().models if model.name == name)

    def _name(self, name: str) -> str:
        """The model that a request means."""
        served = [model.name for model in self._server.status().models]
        listed = ", ".join(map(repr, served))
        if not name and len(served) == 1:
            return served[0]
        if not name:
            raise InvalidRequest(f"model: empty, and this server serves several: {listed}")
        if name not in served:
            raise ModelNotServed(f"model: this server serves {listed}, not {name!r}")
        return name


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
