"""The client of `ctr.v1.ModelAdminService`. It returns messages and raises AdminFailed.

with AdminClient("127.0.0.1:50052") as admin:
    print(admin.status().ready)
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

    def reload(self, model: str = "") -> pb.ReloadResponse:
        """Make the server read the store at once; returns when that is done. model: empty for the server's only one."""
        return self._call(pb.ReloadResponse, self._service.Reload, pb.ReloadRequest(model=model))

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
