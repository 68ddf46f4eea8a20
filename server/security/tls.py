"""TLS and mutual TLS of a listening port, from PEM files that may be replaced while the server runs.

A new handshake gets the files as they are; connections that stand keep what they began with.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from model_store.errors import ServerError

_log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's chain, its key, and (for mutual TLS) the authorities that clients must be signed by."""

    cert: str
    key: str
    client_ca: str = ""

    @classmethod
    def of(cls, cert: str, key: str, client_ca: str) -> TlsFiles | None:
        """The files, or None where no TLS is asked for. Raises ServerError for half a pair."""
        if not (cert or key or client_ca):
            return None
        if not (cert and key):
            raise ServerError("--tls-cert and --tls-key belong together; --tls-client-ca needs both")
        return cls(cert, key, client_ca)

    def check(self) -> None:
        """Raises ServerError unless the files can be read and the key is the chain's."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:  # an SSLError is an OSError without a file name
            raise ServerError(
                f"cannot use {self.cert} and {self.key}"
                + (f" with {self.client_ca}" if self.client_ca else "")
                + f" for TLS: {error}; expected PEM files, the key being that of the first certificate"
            ) from error

    def credentials(self) -> grpc.ServerCredentials:
        """What a secure port takes. Raises ServerError as `check`."""
        self.check()
        files = _Files(self)
        return grpc.dynamic_ssl_server_credentials(
            files.read(),
            files.newer,  # type: ignore[arg-type]  # the stubs forget that None means no change
            require_client_authentication=bool(self.client_ca),
        )

    def stamp(self) -> Stamp:
        """Changes whenever a file does. Raises OSError."""
        names = [name for name in (self.cert, self.key, self.client_ca) if name]
        stats = [os.stat(name) for name in names]
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in stats)


class _Files:
    """Reads the files again when they have changed; grpc asks before each handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = files.stamp()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The files as they are."""
        pair = Path(self._files.key).read_bytes(), Path(self._files.cert).read_bytes()
        authorities = Path(self._files.client_ca).read_bytes() if self._files.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The files if they have changed and fit together, else None: grpc goes on with those it has."""
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return None
            self._files.check()
            configuration = self.read()
        except (OSError, ServerError) as error:  # half replaced; the next handshake looks again
            _log.error("certificates not read again, the old ones hold", error=str(error))
            return None
        self._stamp = stamp
        _log.info("certificates read again", file=self._files.cert)
        return configuration
