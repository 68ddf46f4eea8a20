"""The client of `ctr.v1.ModelAdminService`. It returns messages and raises AdminFailed.

with AdminClient("127.0.0.1:50052") as admin:
    print(admin.status().ready)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from ctr.v1 import admin_pb2 as pb
from ctr.v1.admin_pb2_grpc import ModelAdminServiceStub
from ftrie.client.access import OPEN, Access, CallFailed

DEFAULT_TIMEOUT_S = 30.0

T = TypeVar("T")


class AdminFailed(CallFailed):
    """A call to the admin port failed."""


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
        """The status of the server. All methods raise AdminFailed."""
        return self._call(pb.GetStatusResponse, self._service.GetStatus, pb.GetStatusRequest())

    def models(self) -> pb.ListModelsResponse:
        """The status of its models."""
        return self._call(pb.ListModelsResponse, self._service.ListModels, pb.ListModelsRequest())

    def versions(self, model: str = "", page_size: int = 0) -> Iterator[pb.Version]:
        """The published versions of a model, oldest first, read page by page.

        An empty model name means the server's only model, in every method.
        """
        request = pb.ListVersionsRequest(model=model, page_size=page_size)
        while True:
            page = self._call(pb.ListVersionsResponse, self._service.ListVersions, request)
            yield from page.versions
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def activate(self, model: str, version: int) -> pb.ActivateVersionResponse:
        """Make all servers of a model serve a version."""
        request = pb.ActivateVersionRequest(model=model, version=version)
        return self._call(pb.ActivateVersionResponse, self._service.ActivateVersion, request)

    def roll_back(self, model: str = "", version: int | None = None) -> pb.RollBackResponse:
        """Activate the previously active version, or `version`."""
        return self._call(
            pb.RollBackResponse, self._service.RollBack, pb.RollBackRequest(model=model, version=version)
        )

    def reload(self, model: str = "") -> pb.ReloadResponse:
        """Make the server read the store at once; returns when that is done."""
        return self._call(pb.ReloadResponse, self._service.Reload, pb.ReloadRequest(model=model))

    def experiment(self, model: str = "") -> pb.GetExperimentResponse:
        """The stored experiment, and the traffic split that the server applies."""
        return self._call(
            pb.GetExperimentResponse, self._service.GetExperiment, pb.GetExperimentRequest(model=model)
        )

    def update_experiment(
        self,
        experiment: pb.Experiment,
        model: str = "",
        *,
        mask: Sequence[str] | None = None,
        expected_revision: int | None = None,
    ) -> pb.UpdateExperimentResponse:
        """Change the fields of an experiment that `mask` names; None means those that have a value in `experiment`.

        expected_revision: fail with ABORTED if the stored experiment has another revision.
        """
        request = pb.UpdateExperimentRequest(
            model=model,
            experiment=experiment,
            update_mask=None if mask is None else FieldMask(paths=mask),
            expected_revision=expected_revision,
        )
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
