"""From `Settings` to what protects a port: credentials and tokens. What these do is in `tls` and `tokens`."""

from __future__ import annotations

import grpc

from server.security.exposure import warn_if_exposed, warn_if_others_read
from server.security.tls import TlsFiles
from server.security.tokens import Tokens
from server.settings import Settings


def check(settings: Settings) -> None:
    """Once, before anything begins: raises ServerError for what is wrong, and warns of what stands open."""
    files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if files is not None:
        files.check()
        warn_if_others_read(files.key)
    if settings.tokens:
        Tokens(settings.tokens)
        warn_if_others_read(settings.tokens)
    known = bool(settings.tokens or settings.tls_client_ca)
    warn_if_exposed(settings.host, tls=files is not None, callers_known=known)


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """For a secure port; None for a plain one. Raises ServerError."""
    files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return files.credentials() if files else None


def tokens(settings: Settings) -> Tokens | None:
    """The tokens that callers need; None lets everybody in. Raises ServerError."""
    return Tokens(settings.tokens) if settings.tokens else None
