"""The client of `ctr.v1.ModelAdminService`: messages out and in, errors as AdminFailed. Prints nothing.

with AdminClient("127.0.0.1:50052") as admin: print(admin.status().ready)
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

import grpc

from ctr.v1 import admin_pb2 as pb
from ctr.v1.admin_pb2_grpc import ModelAdminServiceStub
from ftrie.client.access import OPEN, Access, CallFailed

DEFAULT_TIMEOUT_S = 30.0

T = TypeVar("T")


class AdminFailed(CallFailed):
    """A call to the admin port failed; `code` is the gRPC status."""


class AdminClient:
    """A connection to one server's admin port. Thread safety: may be shared by all threads."""

    def __init__(self, address: str, timeout_s: float = DEFAULT_TIMEOUT_S, access: Access = OPEN) -> None:
        """`address` is host:port. Connects on the first call. Raises ServerError as `Access.channel`."""
        self.address = address
        self._timeout_s = timeout_s
        self._metadata = access.metadata()
        self._channel = access.channel(address)
        self._service = ModelAdminServiceStub(self._channel)

    def status(self) -> pb.GetStatusResponse:
        """How the server is. This and all others raise AdminFailed with the server's message and status."""
        return self._call(pb.GetStatusResponse, self._service.GetStatus, pb.GetStatusRequest())

    def models(self) -> pb.ListModelsResponse:
        """How its models are."""
        return self._call(pb.ListModelsResponse, self._service.ListModels, pb.ListModelsRequest())

    def versions(self, model: str = "") -> pb.ListVersionsResponse:
        """What is published of a model; "" is the server's only one, here and below."""
        return self._call(
            pb.ListVersionsResponse, self._service.ListVersions, pb.ListVersionsRequest(model=model)
        )

    def activate(self, model: str, version: int) -> pb.ActivateVersionResponse:
        """Make all servers of a model serve a version."""
        request = pb.ActivateVersionRequest(model=model, version=version)
        return self._call(pb.ActivateVersionResponse, self._service.ActivateVersion, request)

    def roll_back(self, model: str = "", version: int | None = None) -> pb.RollBackResponse:
        """Go back to what was active before, or to `version`."""
        return self._call(
            pb.RollBackResponse, self._service.RollBack, pb.RollBackRequest(model=model, version=version)
        )

    def reload(self, model: str = "") -> pb.ReloadResponse:
        """Look at the store at once; returns when that is done."""
        return self._call(pb.ReloadResponse, self._service.Reload, pb.ReloadRequest(model=model))

    def experiment(self, model: str = "") -> pb.GetExperimentResponse:
        """What the store asks for, and what is in force."""
        return self._call(
            pb.GetExperimentResponse, self._service.GetExperiment, pb.GetExperimentRequest(model=model)
        )

    def update_experiment(self, experiment: pb.Experiment, model: str = "") -> pb.UpdateExperimentResponse:
        """Replace the experiment that `experiment.revision` names."""
        request = pb.UpdateExperimentRequest(model=model, experiment=experiment)
        return self._call(pb.UpdateExperimentResponse, self._service.UpdateExperiment, request)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, answers: type[T], method: Any, request: Any) -> T:
        try:
            answer: T = method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise AdminFailed.of(self.address, error) from error
        return answer
