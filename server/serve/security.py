"""What protects a port: TLS from PEM files and bearer tokens by role, both read again when their files change.

`check`, `credentials` and `tokens` go from `Settings` to these. Warnings name a port or a file that others can reach.

The token file is TOML with one list a role; a token may occur in several:

    rank = ["…"]
    explain = ["…"]
    feedback = ["…"]
    admin = ["…"]

Only SHA-256 digests of tokens are kept, and no token is logged. Each call's token is compared with every digest by
hmac.compare_digest, so that the time reveals neither how much of a guess was right nor which token matched.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import grpc
import structlog

from model_store.bounded import toml_document
from model_store.errors import ServerError
from server.settings import Settings, is_loopback

Role = Literal["rank", "explain", "feedback", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
SHORTEST_TOKEN = 16
LOOK_EVERY_S = 1.0
"""How often the token file is checked for changes."""
HEADER = "authorization"
SCHEME = "bearer "
REMEDY = "make one with: openssl rand -hex 32"

Stamp = tuple[int, int, int]

_log = structlog.get_logger(__name__)


def check(settings: Settings) -> None:
    """Check the files before anything starts, and warn of what is unprotected. Raises ServerError."""
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
    """The credentials of a TLS port; None without TLS. Raises ServerError."""
    files = TlsFiles.of(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return files.credentials() if files else None


def tokens(settings: Settings) -> Tokens | None:
    """The tokens that callers need; None admits every caller. Raises ServerError."""
    return Tokens(settings.tokens) if settings.tokens else None


def warn_if_exposed(host: str, *, tls: bool, callers_known: bool) -> None:
    """Log that the port is open to the network without TLS, or to every caller."""
    if is_loopback(host):
        return
    if not tls:
        _log.warning(
            "NO TLS: anyone on the network can read and change every request, tokens included; "
            "give --tls-cert and --tls-key, or listen on 127.0.0.1",
            host=host,
        )
    if not callers_known:
        _log.warning(
            "NO TOKENS: anyone who reaches this port can call it; give --tokens or --tls-client-ca", host=host
        )


def stamp_of(path: str | Path) -> Stamp:
    """A value that changes whenever the file does. Raises OSError."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino, found.st_size


def warn_if_others_read(path: str) -> None:
    """Log that users other than its owner can read a file with a secret."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning(
            "other users can read this secret", file=path, mode=f"{mode:04o}", remedy=f"chmod 600 {path}"
        )


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's certificate chain, its key, and for mutual TLS the authorities of client certificates."""

    cert: str
    key: str
    client_ca: str = ""

    @classmethod
    def of(cls, cert: str, key: str, client_ca: str) -> TlsFiles | None:
        """The files, or None without TLS. Raises ServerError if the certificate or the key is missing."""
        if not (cert or key or client_ca):
            return None
        if not (cert and key):
            raise ServerError("--tls-cert and --tls-key belong together; --tls-client-ca needs both")
        return cls(cert, key, client_ca)

    def check(self) -> None:
        """Raise ServerError unless the files can be read and the key belongs to the certificate."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:  # an SSLError is an OSError without a file name
            raise ServerError(
                f"cannot use {self.cert} and {self.key}"
                + (f" with {self.client_ca}" if self.client_ca else "")
                + f" for TLS: {error}; expected PEM files, with the key of the first certificate"
            ) from error

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of a TLS port. New handshakes use changed files. Raises ServerError as `check`."""
        self.check()
        # Before the files are read: if one changes in between, the next handshake reads it again.
        stamp = self._stamp()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """What grpc asks before each handshake: the files if they have changed; None keeps those it has."""
            nonlocal stamp
            try:
                now = self._stamp()
                if now == stamp:
                    return None
                self.check()
                configuration = self._read()
            except (OSError, ServerError) as error:  # perhaps half replaced; the next handshake tries again
                _log.error("certificates not read again, the old ones stay in use", error=str(error))
                return None
            stamp = now
            _log.info("certificates read again", file=self.cert)
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            newer,  # type: ignore[arg-type]  # the stubs lack None, which means no change
            require_client_authentication=bool(self.client_ca),
        )

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = Path(self.key).read_bytes(), Path(self.cert).read_bytes()
        authorities = Path(self.client_ca).read_bytes() if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    def _stamp(self) -> tuple[Stamp, ...]:
        return tuple(stamp_of(name) for name in (self.cert, self.key, self.client_ca) if name)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call is refused. label: in metrics; reason: of google.rpc.ErrorInfo."""

    label: str
    code: grpc.StatusCode
    reason: str
    message: str


_NO_TOKEN = Refused(
    "unauthenticated",
    grpc.StatusCode.UNAUTHENTICATED,
    "TOKEN_MISSING",
    "a token is required: send the metadata authorization: Bearer TOKEN",
)
_WRONG_TOKEN = Refused(
    "unauthenticated", grpc.StatusCode.UNAUTHENTICATED, "TOKEN_UNKNOWN", "this token is unknown to the server"
)


class Tokens:
    """The digests of a token file, kept current. Thread safety: all methods from any thread."""

    def __init__(self, path: str) -> None:
        """Raises ServerError if the file cannot be read or is not a token file."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp = self._changed()
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._digests = _read(self._path)

    def roles(self, token: str) -> frozenset[str]:
        """The roles of a token; empty if it is unknown."""
        self._look()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        # All digests, also after a match, so that the time is the same.
        return frozenset(role for role, known in self._digests if hmac.compare_digest(known, digest))

    def guard(self, *roles: Role) -> Guard:
        """A guard that admits callers with one of `roles`."""
        return Guard(self, roles)

    def _look(self) -> None:
        """Read the file again if it has changed, at most once a second. If it is invalid, the old tokens stay valid."""
        # One thread looks; the others go on with the tokens that there are.
        if time.monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            stamp = self._changed()
            if stamp != self._stamp:
                # Before the file is read, so that an invalid one is logged once and not every second.
                self._stamp = stamp
                self._digests = _read(self._path)
                _log.info("tokens read again", file=str(self._path))
        except ServerError as error:
            _log.error("tokens not read again, the old ones stay valid", error=str(error))
        finally:
            self._lock.release()

    def _changed(self) -> Stamp:
        try:
            return stamp_of(self._path)
        except OSError as error:
            raise ServerError(f"cannot read the tokens {self._path}: {error.strerror}") from error


class Guard:
    """Checks the metadata of calls for a token with one of several roles."""

    def __init__(self, tokens: Tokens, roles: Sequence[Role]) -> None:
        self._tokens = tokens
        self._roles = frozenset(roles)
        required = " or ".join(map(repr, roles))
        self._forbidden = Refused(
            "forbidden",
            grpc.StatusCode.PERMISSION_DENIED,
            "ROLE_MISSING",
            f"token lacks the required role {required}",
        )

    def refusal(self, metadata: Sequence[tuple[str, str | bytes]] | None) -> Refused | None:
        """Why the call is refused, or None."""
        for name, value in metadata or ():
            if name == HEADER and isinstance(value, str) and value[: len(SCHEME)].lower() == SCHEME:
                roles = self._tokens.roles(value[len(SCHEME) :])
                if roles & self._roles:
                    return None
                return self._forbidden if roles else _WRONG_TOKEN
        return _NO_TOKEN


def _read(path: Path) -> tuple[tuple[str, bytes], ...]:
    """(role, digest) of every token. No error quotes the file, whose words might be tokens."""
    try:
        document = toml_document(path.read_text("utf-8"))
    except OSError as error:
        raise ServerError(f"cannot read the tokens {path}: {error.strerror}") from error
    except ValueError:  # of TOML, or of UTF-8
        # Not chained: the parser's message may quote the line.
        raise ServerError(f'{path} is not TOML; expected lines such as rank = ["TOKEN"]') from None
    if not document or not document.keys() <= set(ROLES):
        raise ServerError(f"{path}: expected lists of tokens under one or more of {', '.join(ROLES)}")
    for role, tokens in document.items():
        if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
            raise ServerError(
                f"{path}: {role}: expected a list of texts of at least {SHORTEST_TOKEN} printable ASCII "
                f"characters without spaces; {REMEDY}"
            )
    return tuple(
        (role, hashlib.sha256(token.encode()).digest())
        for role, tokens in document.items()
        for token in tokens
    )


def _is_token(token: object) -> bool:
    return (
        isinstance(token, str)
        and len(token) >= SHORTEST_TOKEN
        and token.isascii()
        and all(33 <= byte < 127 for byte in token.encode())
    )
