"""Which server holds a key: the masters of a cluster by slot, or the one master that Sentinel names.

`ClusterNodes` and `SentinelNodes` keep what the servers said last, and ask again once a server failed or sent a caller
elsewhere; while a failover is under way, ten times a second at most. `RoutedConnection` is redis-py's connection to
whatever server they name. Redis Cluster specification: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from model_store.redis.store_url import CLUSTER, Address, StoreUrl

SLOTS = 16_384
REFRESH_S = 0.1
"""At most this often the servers are asked who holds what, while one of them fails."""
LONGEST_ASK_S = 1.0
"""How long one server is waited for while another may know."""


class Rerouted(RedisConnectionError):
    """The server refused the command, since another one holds the key by now. Nothing has changed there."""

    def __init__(self, cause: RedisError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NotThatKind(RedisError):
    """The URL's servers are not of the kind that its scheme says."""


def slot_of(key: str | bytes) -> int:
    """The slot of a key, by its hash tag if it has one."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")))


class Nodes(ABC):
    """Where the masters are. Thread safety: all methods, any thread."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self.masters: list[Address] = []
        """All masters, as known."""
        self._by_slot: list[Address | None] = [None] * (SLOTS if url.kind == CLUSTER else 1)
        self._lock = threading.Lock()
        self._is_stale = True
        self._asked_at = -REFRESH_S
        self._avoided: set[Address] = set()

    def address(self, slot: int, wait_s: float) -> Address:
        """The server that holds this slot. Asks first, for at most `wait_s`, if the last answer may be wrong.

        Raises RedisConnectionError, RedisTimeoutError if no server answers, NotThatKind.
        """
        if self._is_stale:
            self._refresh_unless_just_done(wait_s)
        known = self._by_slot[slot]
        if known is None:
            raise RedisConnectionError(self._nobody(slot))
        return known

    def refresh(self, wait_s: float) -> None:
        """Ask who holds what, now. Raises as `address`."""
        until = time.monotonic() + wait_s
        errors: list[RedisError] = []
        for server in sorted(self._askable(), key=lambda each: each in self._avoided):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._learn(server, min(left_s, LONGEST_ASK_S))
            except NotThatKind:
                raise
            except RedisError as error:
                self._avoided.add(server)
                errors.append(error)
            else:
                self._avoided.discard(server)
                self._is_stale = False
                return
        raise _worst(errors)

    def failed(self, address: Address) -> None:
        """Note that this server does not answer, or is no master: it is asked last, and the others once more."""
        self._avoided.add(address)
        self._is_stale = True

    def layout(self) -> tuple[Address | None, ...]:
        """The holder of each slot, as known."""
        return tuple(self._by_slot)

    def layout_at(self, slot: int) -> Address | None:
        """The holder of one slot, as known."""
        return self._by_slot[slot]

    def moved(self, slot: int, address: Address) -> None:
        """Note that a server has sent a caller to this one for good. Other slots may have moved too."""
        self._is_stale = True
        if slot < len(self._by_slot):
            self._by_slot[slot] = address

    @abstractmethod
    def _askable(self) -> Sequence[Address]: ...

    @abstractmethod
    def _learn(self, server: Address, wait_s: float) -> None:
        """Ask one server, and remember its answer."""

    @abstractmethod
    def _nobody(self, slot: int) -> str: ...

    def _refresh_unless_just_done(self, wait_s: float) -> None:
        """Refresh, in one thread at a time; the others go on with what is known."""
        now = time.monotonic()
        if now - self._asked_at < REFRESH_S or not self._lock.acquire(blocking=not self.masters):
            return
        try:
            if self._is_stale and time.monotonic() - self._asked_at >= REFRESH_S:
                self._asked_at = time.monotonic()
                self.refresh(wait_s)
        finally:
            self._lock.release()

    @contextmanager
    def _asking(self, server: Address, wait_s: float) -> Iterator[Callable[..., Any]]:
        """A connection to one server, used once."""
        options = dict(self._url.asking)
        kind = options.pop("connection_class", Connection)
        options |= {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "protocol": 2}
        connection = kind(host=server[0], port=server[1], retry=Retry(NoBackoff(), 0), **options)

        def ask(*words: str) -> Any:
            connection.send_command(*words)
            return connection.read_response()

        try:
            connection.connect()
            yield ask
        finally:
            connection.disconnect()


class ClusterNodes(Nodes):
    """The masters of a cluster, by slot."""

    _replicas: Sequence[Address] = ()

    def _askable(self) -> Sequence[Address]:
        return list(dict.fromkeys([*self.masters, *self._replicas, *self._url.seeds]))

    def _learn(self, server: Address, wait_s: float) -> None:
        with self._asking(server, wait_s) as ask:
            try:
                ranges = ask("CLUSTER", "SLOTS")
            except ResponseError as error:
                if "cluster support disabled" not in str(error):
                    raise
                raise NotThatKind(
                    f"{server[0]}:{server[1]} is no node of a cluster; name it by redis://HOST:PORT"
                ) from None
        by_slot: list[Address | None] = [None] * SLOTS
        replicas = dict[Address, None]()
        for first, last, *servers in ranges:
            # A node without a name of its own is named as whoever answered.
            there = [(host.decode() if host else server[0], port) for host, port, *_ in servers]
            by_slot[first : last + 1] = [there[0]] * (last + 1 - first)
            replicas |= dict.fromkeys(there[1:])
        self._by_slot = by_slot
        self.masters = list(dict.fromkeys(filter(None, by_slot)))
        self._replicas = list(replicas)

    def _nobody(self, slot: int) -> str:
        return f"no node of the cluster serves slot {slot}; `CLUSTER SLOTS` shows what is served"


class SentinelNodes(Nodes):
    """The master of one name, which holds all keys: slot 0 stands for all."""

    def _askable(self) -> Sequence[Address]:
        return self._url.seeds

    def _learn(self, server: Address, wait_s: float) -> None:
        with self._asking(server, wait_s) as ask:
            try:
                found = ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.master)
            except ResponseError as error:
                if "unknown command" not in str(error).lower():
                    raise
                raise NotThatKind(
                    f"{server[0]}:{server[1]} is no Sentinel; name its port, usually 26379, or the store by "
                    "redis://HOST:PORT"
                ) from None
            if found is None:
                masters = ask("SENTINEL", "MASTERS")
                names = ", ".join(
                    _text(dict(zip(each[::2], each[1::2], strict=True))[b"name"]) for each in masters
                )
                raise NotThatKind(
                    f"the Sentinel has no master {self._url.master!r}; it has: {names or 'none'}"
                )
        host, port = found
        self.masters = [(_text(host), int(port))]
        self._by_slot = [self.masters[0]]

    def _nobody(self, slot: int) -> str:
        return f"no Sentinel has named the master {self._url.master}"


class RoutedConnection(Connection):
    """A connection to the server that holds a slot. Once another one holds it, it connects to that."""

    def __init__(self, *, nodes: Nodes, slot: int = 0, fixed: Address | None = None, **options: Any) -> None:
        """fixed: the server, instead of the one that holds `slot`."""
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._nodes, self._slot, self._fixed = nodes, slot, fixed

    def _connect(self) -> Any:
        wait_s = float(self.socket_connect_timeout or LONGEST_ASK_S)
        self.host, self.port = self._fixed or self._nodes.address(self._slot, wait_s)
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except (OSError, RedisError):
            self._nodes.failed((self.host, self.port))
            raise

    def read_response(self, *args: Any, **options: Any) -> Any:
        """As redis-py's. Raises Rerouted, disconnected, if another server is the one to ask."""
        try:
            return super().read_response(*args, **options)
        except MovedError as error:
            self._nodes.moved(error.slot_id, (error.host or self.host, error.port))
            raise self._rerouted(error) from error
        except AskError as error:
            error.host = error.host or self.host
            raise
        except ReadOnlyError as error:
            self._nodes.failed((self.host, self.port))
            raise self._rerouted(error) from error
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
            self._nodes.failed((self.host, self.port))
            raise

    def _rerouted(self, error: RedisError) -> Rerouted:
        self.disconnect()  # type: ignore[no-untyped-call]
        return Rerouted(error)


class RoutedTlsConnection(RoutedConnection, SSLConnection):
    """The same over TLS."""


def _worst(errors: Sequence[RedisError]) -> RedisError:
    """The error to report of several servers: one that can be mended by the user, else the first."""
    for error in errors:
        if isinstance(error, AuthenticationError):
            return error
    return errors[0] if errors else RedisTimeoutError("no time was left to ask who holds the key")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
