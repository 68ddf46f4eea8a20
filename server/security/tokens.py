"""Bearer tokens by role, from a file that may change while the server runs. No token is ever logged or shown.

The file is TOML, one list a role; a token may stand under several:

    rank = ["…"]
    explain = ["…"]
    feedback = ["…"]
    admin = ["…"]

Only SHA-256 digests are kept. Each call is compared with every one of them by hmac.compare_digest, so that the time
tells neither how much of a guess was right nor which token it was.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
import structlog

from model_store.bounded import toml_document
from model_store.errors import ServerError

Role = Literal["rank", "explain", "feedback", "admin"]
ROLES: tuple[Role, ...] = ("rank", "explain", "feedback", "admin")
SHORTEST_TOKEN = 16
LOOK_EVERY_S = 1.0
HEADER = "authorization"
SCHEME = "bearer "
REMEDY = "make one with: openssl rand -hex 32"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call may not come in: the metrics' reason, the gRPC status, and what the caller is told."""

    reason: str
    code: grpc.StatusCode
    message: str


_NO_TOKEN = Refused(
    "unauthenticated",
    grpc.StatusCode.UNAUTHENTICATED,
    "this server wants a token: send the metadata authorization: Bearer TOKEN",
)
_WRONG_TOKEN = Refused("unauthenticated", grpc.StatusCode.UNAUTHENTICATED, "this token is not known here")


class Tokens:
    """The digests of a token file, kept up to date. Thread safety: all methods from any thread."""

    def __init__(self, path: str) -> None:
        """Raises ServerError if the file cannot be read or is no token file."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp = self._changed()
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._digests = _read(self._path)

    def roles(self, token: str) -> frozenset[str]:
        """The roles of a token; empty for one that is not known."""
        self._look()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return frozenset(role for role, known in self._digests if hmac.compare_digest(known, digest))

    def guard(self, *roles: Role) -> Guard:
        """What lets in those with one of `roles`."""
        return Guard(self, roles)

    def _look(self) -> None:
        """Read the file again if it has changed; at most once a second. Where it is bad, what was read before holds."""
        if time.monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            stamp = self._changed()
            if stamp != self._stamp:
                self._stamp = stamp
                self._digests = _read(self._path)
                _log.info("tokens read again", file=str(self._path))
        except ServerError as error:
            _log.error("tokens not read again, the old ones hold", error=str(error))
        finally:
            self._lock.release()

    def _changed(self) -> tuple[int, int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ServerError(f"cannot read the tokens {self._path}: {error.strerror}") from error
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


class Guard:
    """Checks the metadata of calls for one of several roles."""

    def __init__(self, tokens: Tokens, roles: Sequence[Role]) -> None:
        self._tokens = tokens
        self._roles = frozenset(roles)
        wanted = " or ".join(map(repr, roles))
        self._forbidden = Refused(
            "forbidden", grpc.StatusCode.PERMISSION_DENIED, f"token lacks the required role {wanted}"
        )

    def refusal(self, metadata: Sequence[tuple[str, str | bytes]] | None) -> Refused | None:
        """Why the caller may not come in, or None."""
        for name, value in metadata or ():
            if name == HEADER and isinstance(value, str) and value[: len(SCHEME)].lower() == SCHEME:
                roles = self._tokens.roles(value[len(SCHEME) :])
                if roles & self._roles:
                    return None
                return self._forbidden if roles else _WRONG_TOKEN
        return _NO_TOKEN


def _read(path: Path) -> tuple[tuple[str, bytes], ...]:
    """(role, digest) of every token. No message holds a word of the file: it might be a token."""
    try:
        document = toml_document(path.read_text("utf-8"))
    except OSError as error:
        raise ServerError(f"cannot read the tokens {path}: {error.strerror}") from error
    except ValueError:  # of TOML, or of UTF-8
        raise ServerError(f'{path} is not TOML; expected lines such as rank = ["TOKEN"]') from None
    if not document or not document.keys() <= set(ROLES):
        raise ServerError(f"{path}: expected lists of tokens under one or more of {', '.join(ROLES)}")
    for role, tokens in document.items():
        if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
            raise ServerError(
                f"{path}: {role}: expected a list of texts of at least {SHORTEST_TOKEN} letters, digits or "
                f"signs, without spaces; {REMEDY}"
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
