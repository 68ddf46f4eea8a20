"""Store URLs and connections, Lua scripts, and the translation of redis-py's exceptions into `model_store.errors`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable, UnreadableValue
from model_store.redis.embedded import EmbeddedValkey
from model_store.redis.stored_values import cure, shown, unreadable

SCHEMES = ("redis", "rediss", "unix")
EMBEDDED = "embedded:"
LONGEST_BLOCK_S = 2.0
_UNREADABLE = re.compile(r"WRONGTYPE|not an integer|would overflow|not a valid float")
_TAKES_NO_WRITES = re.compile(r"-?(OOM|READONLY|MISCONF|NOREPLICAS) ")


class StoreConnection:
    """An open store: its URL without the password, for messages, and connections to it.

    `client` returns bytes and is shared by all threads; so is `patient_client`, for commands that block for up to
    LONGEST_BLOCK_S (a server may unblock them a tenth of a second late). `single(timeout_s)` makes a separate
    connection that decodes answers to text, for one thread's hot path.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.shown_url = _without_password(url)
        self._embedded: EmbeddedValkey | None = None
        self._redis_url = self._resolved(url)
        retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
        self.client = self._client(timeout_s, retry=retry)
        self.patient_client = self._client(timeout_s + 2 * LONGEST_BLOCK_S, retry=retry)

    def single(self, timeout_s: float) -> Any:
        """A new connection, not yet open, owned by the caller."""
        client = self._client(
            timeout_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            encoding_errors="surrogateescape",
        )
        pool = client.connection_pool
        return pool.connection_class(**pool.connection_kwargs)

    @contextmanager
    def answers(self, key: str = "") -> Iterator[None]:
        """Wraps every use of `client`: raises redis-py's exceptions as StoreUnavailable or StoreError.

        key: the key used, for the message of UnreadableValue.
        """
        try:
            yield
        except RedisError as error:
            raise self.translated(error, key) from error

    def script(self, name: str) -> Script:
        """The Lua script of this name in this folder, ready to run."""
        return Script(self, name)

    def translated(self, error: RedisError, key: str = "") -> StoreError:
        """The StoreError for an exception of redis-py. key: as in `answers`."""
        if isinstance(error, AuthenticationError):
            return StoreUnavailable(
                f"{self.shown_url} refused the name or password ({error}); "
                "expected redis://NAME:PASSWORD@HOST:PORT"
            )
        if isinstance(error, BusyLoadingError):
            return StoreUnavailable(f"{self.shown_url} is still reading its data; try again shortly")
        if isinstance(
            error, ClusterDownError | TryAgainError
        ):  # the former also from a replica without its primary
            return StoreUnavailable(f"{self.shown_url} cannot answer now: {error}")
        if isinstance(error, RedisConnectionError | RedisTimeoutError):
            return StoreUnavailable(
                f"{self.shown_url} does not answer ({error}); is it running, and is --store right?"
            )
        if isinstance(error, OutOfMemoryError | ReadOnlyError):  # redis-py removes the error's prefix
            return StoreUnavailable(f"{self.shown_url} accepts no writes now: {error}")
        return self.refused(str(error), key)

    def refused(self, text: str, key: str = "") -> StoreError:
        """The StoreError for an error answer; StoreUnavailable if the store accepts no writes (full, or a replica)."""
        if _UNREADABLE.search(text):
            found = f"{self.shown_url} answered with an error: {text}; {cure('')} finds the key"
            return unreadable(key, text) if key else UnreadableValue(found)
        if _TAKES_NO_WRITES.search(text):
            return StoreUnavailable(f"{self.shown_url} accepts no writes now: {text}")
        return StoreError(f"{self.shown_url} answered with an error: {text}")

    def close(self) -> None:
        """Close the connections, then leave the embedded server, if any."""
        for client in (self.client, self.patient_client):
            client.close()
            client.connection_pool.disconnect()
        if self._embedded is not None:
            self._embedded.close()

    def _resolved(self, url: str) -> str:
        """The URL for redis-py; for `embedded:DIR`, once the server there answers."""
        if url.startswith(EMBEDDED):
            directory = url.removeprefix(EMBEDDED)
            if not directory:
                raise StoreError("expected embedded:DIR, got no directory")
            self._embedded = EmbeddedValkey.join(os.path.expanduser(directory))
            return f"unix://{quote(str(self._embedded.socket))}"
        if urlsplit(url).scheme not in SCHEMES:
            raise StoreError(
                f"got the store {self.shown_url!r}; expected redis://HOST:PORT, rediss://HOST:PORT, "
                "unix:///PATH/TO/SOCKET or embedded:DIR"
            )
        return url

    def _client(self, timeout_s: float, **options: Any) -> Any:
        try:
            # redis-py's default protocol, hence the shape of answers, differs by release.
            return redis.Redis.from_url(
                self._redis_url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                **options,
            )
        except ValueError as error:
            raise StoreError(f"cannot read the store's URL {self.shown_url!r}: {error}") from error


class Script:
    """A Lua script, preceded by `checks.lua`. Thread safety: all methods, any thread."""

    def __init__(self, store: StoreConnection, name: str) -> None:
        folder = Path(__file__).parent
        self._store = store
        self._run = store.client.register_script(
            f"{(folder / 'checks.lua').read_text()}\n{(folder / f'{name}.lua').read_text()}"
        )

    def __call__(self, keys: Sequence[str], words: Sequence[Any] = ()) -> Any:
        """Run it. Raises StoreUnavailable, StoreError, and UnreadableValue if a key holds an unreadable value.

        In the last case nothing has changed.
        """
        with self._store.answers():
            answer = self._run(keys, words)
        if isinstance(answer, list) and answer and answer[0] == b"junk":
            _, key, got, expected = answer
            raise unreadable(key.decode(), f"got {shown(got)}, expected {expected.decode()}")
        return answer


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, slashes, login = head.partition("://")
    return f"{scheme}{slashes}{login.split(':')[0]}:…@{tail}" if at and ":" in login else url
