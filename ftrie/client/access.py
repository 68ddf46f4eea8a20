"""How a client reaches a server: the channel, plain or TLS, the token that goes with each call, and how one fails.

Nothing here calls anything. A token is sent over TLS, or to this machine; never in the open over a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from model_store.errors import ServerError
from server.rpc.security import is_loopback

SYSTEM = "system"
MAX_ANSWER_BYTES = 16 << 20


class CallFailed(ServerError):
    """The server answered with an error, or did not answer. `code` is the gRPC status."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, address: str, error: grpc.RpcError) -> Self:
        """From what grpc raised for a call to `address`."""
        return cls(f"{address}: {error.code().name}: {error.details()}", error.code())


@dataclass(frozen=True)
class Access:
    """What it takes to be let in. `ca`: a PEM file of authorities, or "system"; "" means no TLS.

    cert and key: PEM files of the client's own, for mutual TLS. token: not shown by repr.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise ServerError for half of what belongs together."""
        if bool(self.cert) != bool(self.key):
            raise ServerError("--tls-cert and --tls-key belong together")
        if self.cert and not self.ca:
            raise ServerError(
                f"--tls-cert needs --tls-ca: the server's authorities, or {SYSTEM!r} for the well-known ones"
            )
        if not self.token.isascii() or any(letter.isspace() for letter in self.token):
            raise ServerError("the token has spaces, or letters that are not ASCII; expected one word")

    def channel(self, address: str, *, own_connection: bool = False) -> grpc.Channel:
        """A channel to HOST:PORT. Raises ServerError where the token would go in the open, or a file is missing.

        own_connection: share none with this process's other channels to the same address.
        """
        options: Sequence[tuple[str, int]] = [
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.use_local_subchannel_pool", int(own_connection)),
        ]
        if self.ca:
            return grpc.secure_channel(address, self._credentials(), options=options)
        if self.token and not is_loopback(address.rpartition(":")[0]):
            raise ServerError(f"the token would go to {address} in the open; give --tls-ca")
        return grpc.insecure_channel(address, options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
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
"""No TLS and no token: a server on this machine."""
