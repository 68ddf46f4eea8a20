"""The port that the workers share: reserved by the supervisor, who binds it and never listens.

With SO_REUSEPORT the kernel lets any process of the same user listen on a port that another has, and divides
connections among all who listen. So the workers can share it, and so a second server would go unnoticed: hence the
look first.
"""

from __future__ import annotations

import socket

from model_store.errors import ServerError
from server.grpc_server import address_of, taken


class Port:
    """A reserved port, from construction to `close`."""

    def __init__(self, host: str, port: int, *, shared: bool) -> None:
        """port: 0 takes a free one. shared: whether those who listen there already are known, and to be joined.

        Raises ServerError if somebody else listens there, or the host is no address of this machine.
        """
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            if port and not shared:
                _look(family, address)
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(address)
        except OSError as error:
            raise ServerError(taken(address_of(host, port))) from error
        self.number: int = self._socket.getsockname()[1]
        self.address = address_of(host, self.number)

    def close(self) -> None:
        """Let go of the port."""
        self._socket.close()


def _look(family: int, address: tuple[object, ...]) -> None:
    """Raise OSError if anybody has the port. Past connections that the kernel still remembers do not count."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
