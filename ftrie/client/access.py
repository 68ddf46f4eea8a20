"""How a client reaches a server: the channel, plain or TLS, the token of each call, and the error of a failed one.

A token is sent over TLS or to this machine, never unencrypted over a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from ftrie.client.balance import Balance, balance_of, channel_options, target_of
from model_store.errors import ServerError
from server.settings import is_loopback

SYSTEM = "system"
MAX_ANSWER_BYTES = 16 << 20
_AWAY = re.compile("Connection refused|No route to host|Network is unreachable|DNS resolution failed")


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field that is at fault, by its path in the request, and what is wrong with it."""

    field: str
    description: str


class CallFailed(ServerError):
    """The server answered with an error, or did not answer.

    code: the gRPC status. reason: of google.rpc.ErrorInfo, such as "STORE_UNAVAILABLE"; "" if the server did not
    answer. metadata: also of ErrorInfo. violations: the fields at fault. retry_after_s: when the server asks for the
    call to be tried again; None if that would not help or is not stated.
    """

    code: grpc.StatusCode
    reason: str = ""
    metadata: Mapping[str, str] = MappingProxyType({})
    violations: tuple[FieldViolation, ...] = ()
    retry_after_s: float | None = None

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, address: str, error: Any) -> Self:
        """From the grpc.RpcError of a call to `address`."""
        status = rpc_status.from_call(error)  # None if no server of ftrie answered
        is_away = status is None and error.code() is grpc.StatusCode.UNAVAILABLE
        away = _AWAY.search(error.details() or "") if is_away else None
        text = (
            f"no server at {address}: {away[0]}"
            if away
            else f"{address}: {error.code().name}: {error.details()}"
        )
        made = cls(text, error.code())
        for detail in status.details if status is not None else ():
            made._read(detail)
        return made

    def _read(self, detail: Any) -> None:
        info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
        if detail.Unpack(info):
            self.reason, self.metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            self.violations = tuple(FieldViolation(v.field, v.description) for v in bad.field_violations)
        elif detail.Unpack(retry):
            self.retry_after_s = float(retry.retry_delay.ToMilliseconds() / 1000)


@dataclass(frozen=True)
class Access:
    """The credentials of a client. ca: a PEM file of authorities, or "system"; "" means no TLS.

    cert, key: the client's own PEM files, for mutual TLS. token: hidden by repr.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise ServerError for an incomplete or malformed combination."""
        if bool(self.cert) != bool(self.key):
            raise ServerError("--tls-cert and --tls-key, in Python cert and key, belong together")
        if self.cert and not self.ca:
            raise ServerError(
                f"--tls-cert needs --tls-ca (in Python, ca): the server's authorities, or {SYSTEM!r} for those of "
                "this system"
            )
        if not self.token.isascii() or any(letter.isspace() for letter in self.token):
            raise ServerError("the token has spaces or non-ASCII characters; expected one ASCII word")

    def channel(
        self, address: str, *, balance: Balance | None = None, own_connection: bool = False
    ) -> grpc.Channel:
        """A channel to HOST:PORT, to several with commas between them, or to a gRPC target such as dns:///HOST:PORT.

        balance: how calls are divided among several servers (`ftrie.client.balance`); None: in turn if it is a list.
        own_connection: do not share a connection with this process's other channels to the same address. Raises
        ServerError if the token would be sent unencrypted, a file is missing, or the address is malformed.
        """
        target, credentials, options = self._reach(address, balance, own_connection)
        if credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, credentials, options=options)

    def aio_channel(self, address: str, *, balance: Balance | None = None) -> grpc.aio.Channel:
        """The same for asyncio. Call it where the event loop runs that uses the channel."""
        target, credentials, options = self._reach(address, balance, own_connection=False)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, credentials, options=options)

    def _reach(
        self, address: str, balance: Balance | None, own_connection: bool
    ) -> tuple[str, grpc.ChannelCredentials | None, list[tuple[str, str | int]]]:
        """The target, the credentials (None without TLS) and the options of a channel. Raises ServerError."""
        options: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.use_local_subchannel_pool", int(own_connection)),
        ]
        target, hosts = target_of(address)
        local = all(map(is_loopback, hosts))
        if local:  # a proxy of the environment reaches its own loopback
            options.append(("grpc.enable_http_proxy", 0))
        divided = balance_of(address, balance)
        if divided is not None:
            options += channel_options(divided)
        if self.ca:
            if len(hosts) > 1:
                raise ServerError(
                    f"got {address!r} and --tls-ca; a certificate is checked against one name: give a name that stands "
                    "for all servers, dns:///ftrie.example:50051"
                )
            return target, self._credentials(), options
        if self.token and not local:
            raise ServerError(
                f"the token would be sent to {address} unencrypted; give --tls-ca, in Python ca"
            )
        return target, None, options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def _credentials(self) -> grpc.ChannelCredentials:
        try:
            return grpc.ssl_channel_credentials(
                None if self.ca == SYSTEM else Path(self.ca).read_bytes(),
                Path(self.key).read_bytes() if self.key else None,
                Path(self.cert).read_bytes() if self.cert else None,
            )
        except OSError as error:
            raise ServerError(f"cannot read {error.filename}: {error.strerror}") from error


OPEN = Access()
"""No TLS and no token, for a server on this machine."""
