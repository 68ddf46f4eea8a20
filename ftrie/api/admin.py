"""The client of `ctr.v1.ModelAdminService`. It returns messages and raises AdminFailed.

with AdminClient("127.0.0.1:50052") as admin:
    print(admin.status().ready)
"""

from __future__ import annotations

from typing import Any

from ctr.v1 import admin_pb2 as pb
from ctr.v1.admin_pb2_grpc import ModelAdminServiceStub
from ftrie.api.access import OPEN, Access, CallFailed, Connection

DEFAULT_TIMEOUT_S = 30.0


class AdminFailed(CallFailed):
    """A call to the admin port failed."""


class AdminClient(Connection):
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
        answer: pb.GetStatusResponse = self._made(self._service.GetStatus, pb.GetStatusRequest())
        return answer

    def reload(self, model: str = "") -> pb.ReloadResponse:
        """Make the server read the store at once; returns when that is done. model: empty for the server's only one."""
        answer: pb.ReloadResponse = self._made(self._service.Reload, pb.ReloadRequest(model=model))
        return answer

    def _made(self, method: Any, request: Any) -> Any:
        keywords = {"timeout": self._timeout_s, "metadata": self._metadata}
        return self._answer(AdminFailed, method, request, keywords)
