"""Which servers a store URL names, and which of them holds a key.

    redis://[NAME:PASSWORD@]HOST[:PORT][/DB]                     one server; rediss:// over TLS, unix://SOCKET
    cluster://[NAME:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]         a Redis Cluster or Valkey Cluster
    sentinel://[NAME:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]       the master that Sentinel names
    cluster+tls://, sentinel+tls://                              the same over TLS
    embedded:DIR                                                 see `model_store.redis.embedded`

`?wait=N`: what is published or added to a stream counts as written once N replicas have it. All other parameters are
redis-py's, those of `_options`; `sentinel_username` and `sentinel_password` are those of the Sentinels themselves.

Sentinel's master is found by redis-py. The masters of a cluster are kept here (`Nodes`), since a read of a user may
wait for milliseconds only, also while it is asked who holds the key now; docs/adr/0006 has what redis-py's client
costs.
Redis Cluster specification: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
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
from redis.sentinel import MasterNotFoundError, Sentinel

from model_store.clock import SYSTEM, Clock
from model_store.errors import StoreError, listed

EMBEDDED = "embedded:"
ONE, CLUSTER, SENTINEL = "one", "cluster", "sentinel"
_KINDS = {
    "redis": ONE,
    "rediss": ONE,
    "unix": ONE,
    "cluster": CLUSTER,
    "cluster+tls": CLUSTER,
    "sentinel": SENTINEL,
    "sentinel+tls": SENTINEL,
}
SCHEMES = tuple(_KINDS)
MOST_REPLICAS = 100
EXPECTED = (
    "redis://HOST:PORT, rediss://HOST:PORT, unix:///PATH/TO/SOCKET, cluster://HOST:PORT,HOST:PORT, "
    "sentinel://HOST:PORT,HOST:PORT/MASTER or embedded:DIR"
)
_PORTS = {CLUSTER: 6379, SENTINEL: 26379}
# Of redis-py's, those that a text can give and under which answers stay as the store expects them.
_OPTIONS = (
    *("wait", "username", "password", "client_name", "max_connections", "health_check_interval"),
    *("socket_timeout", "socket_connect_timeout", "retry_on_timeout"),
)
_TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version"),
    *("ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_ciphers"),
)
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?")
_SECRET = re.compile(r"([?&](?:sentinel_|ssl_)?password=)[^&]*")

Address = tuple[str, int]


@dataclass(frozen=True)
class StoreUrl:
    """A URL of a running store, parsed. `url`: for redis-py, empty unless it is of the kind ONE.

    seeds: servers of the cluster, or Sentinels; options: redis-py's for connections to the store's servers, asking:
    for those to Sentinels; master: its name; wait: how many replicas confirm a write.
    """

    kind: str
    url: str = ""
    seeds: tuple[Address, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    asking: dict[str, Any] = field(default_factory=dict)
    master: str = ""
    wait: int = 0

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Parse a URL of one of SCHEMES. Raises StoreError, ValueError."""
        scheme, _, rest = url.partition("://")
        kind = _KINDS.get(scheme.lower())
        if kind is None or "://" not in url:
            raise StoreError(f"got the store {without_password(url)!r}; expected {EXPECTED}")
        head, _, query = rest.partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        authority, _, path = head.partition("/")
        is_socket = scheme.lower() == "unix"
        if (
            "#" in rest or "@" in query.partition("=")[0] or ("@" in path and not is_socket)
        ):  # may be of a password
            raise ValueError("expected %23 for '#', %2F for '/' and %3F for '?' in a name, password or path")
        _check_options(kind, scheme.lower(), parameters)
        wait = _replicas(parameters.pop("wait", "0"))
        if kind == ONE:
            if not is_socket:
                _path(kind, path)
            # Without `wait`, which redis-py would take for an argument of its connections.
            return cls(ONE, f"{scheme}://{head}?{urlencode(parameters)}".rstrip("?"), wait=wait)
        login, at, hosts = authority.rpartition("@")
        seeds = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
        master, database = _path(kind, path)
        own = {name: parameters.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        plain = f"redis{'s' * scheme.endswith('+tls')}://{login}{at}seed/{database}?{urlencode(parameters)}"
        options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
        # redis-py parses the login and the options of a URL; the host in it is a placeholder.
        for name in ("host", "db") if kind == CLUSTER else ("host",):
            del options[name]
        asking = {name: value for name, value in options.items() if name not in ("db", *own)}
        asking |= {name: value for name, value in own.items() if value}
        return cls(kind, "", seeds, options, options if kind == CLUSTER else asking, master, wait)


def without_password(url: str) -> str:
    """The URL for messages."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, login = head.partition("://")
    shown = f"{scheme}{slashes}{login.split(':')[0]}:…@{tail}" if at and ":" in login else url
    return _SECRET.sub(r"\1…", shown)


def _address(text: str, port: int) -> Address:
    found = _HOST.fullmatch(text)
    if not found or not 0 < int(found[3] or port) < 65_536:
        raise ValueError(
            f"got {text!r} for a server; expected HOST:PORT, or several with commas between them"
        )
    return unquote(found[1] or found[2]), int(found[3] or port)


def _path(kind: str, path: str) -> tuple[str, int]:
    """The name of Sentinel's master, empty for a cluster; and the number of the database."""
    name, _, database = path.partition("/") if kind == SENTINEL else ("", "", path)
    if kind == SENTINEL and not name:
        raise ValueError(
            "no master is named; expected sentinel://HOST:PORT/MASTER, with the name that Sentinel gives it"
        )
    if not re.fullmatch(r"\d{0,5}", database) or (kind == CLUSTER and int(database or 0)):
        before = "MASTER" if kind == SENTINEL else "HOST:PORT"
        most = f"expected the number of a database after {before}/"
        raise ValueError(
            f"got the database {database!r}; {'a cluster has only database 0' if kind == CLUSTER else most}"
        )
    return unquote(name), int(database or 0)


def _options(kind: str, scheme: str) -> tuple[str, ...]:
    """The parameters that a URL of this scheme may have."""
    return (
        *_OPTIONS,
        *(("db",) if kind != CLUSTER else ()),
        *(("socket_keepalive",) if scheme != "unix" else ()),
        *(_TLS_OPTIONS if scheme == "rediss" or scheme.endswith("+tls") else ()),
        *(("sentinel_username", "sentinel_password") if kind == SENTINEL else ()),
    )


def _check_options(kind: str, scheme: str, parameters: Mapping[str, str]) -> None:
    known = _options(kind, scheme)
    for name, value in parameters.items():
        if name in _TLS_OPTIONS and name not in known:
            raise ValueError(f"{name} is of TLS; expected rediss://, cluster+tls:// or sentinel+tls://")
        if name not in known:
            raise ValueError(f"got the parameter {name!r}; expected one of {listed(known, name)}")
        if not value:
            raise ValueError(f"got {name} without a value; expected {name}=VALUE")


def _replicas(text: str) -> int:
    if not re.fullmatch(r"\d{1,3}", text) or int(text) > MOST_REPLICAS:
        raise ValueError(f"got wait={text}; expected how many replicas confirm a write, 0 to {MOST_REPLICAS}")
    return int(text)


SLOTS = 16_384
REFRESH_S = 0.1
"""At most this often the servers are asked who holds what, while one of them fails."""
LONGEST_ASK_S = 1.0
"""How long one server is waited for while another may know."""
NEVER_AGAIN = Retry(NoBackoff(), 0)


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


class Nodes:
    """The masters of a cluster, by slot, as the servers said last. Thread safety: all methods, any thread.

    They are asked again once a server failed or sent a caller elsewhere; during a failover at most every REFRESH_S.
    """

    def __init__(self, url: StoreUrl, clock: Clock = SYSTEM) -> None:
        self._url = url
        self.masters: list[Address] = []
        """All masters, as known."""
        self._replicas: list[Address] = []
        self._by_slot: list[Address | None] = [None] * SLOTS
        self._lock = threading.Lock()
        self._is_stale = True
        self._clock = clock
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
            raise RedisConnectionError(
                f"no node of the cluster serves slot {slot}; `CLUSTER SLOTS` shows what is served"
            )
        return known

    def refresh(self, wait_s: float) -> None:
        """Ask who holds what, now. Raises as `address`."""
        until = time.monotonic() + wait_s
        errors: list[RedisError] = []
        # With the servers of the URL: all that were known may have been replaced. `sorted` is stable, so masters come
        # first, and those that failed last.
        askable = dict.fromkeys([*self.masters, *self._replicas, *self._url.seeds])
        for server in sorted(askable, key=lambda each: each in self._avoided):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                # Not all the time for one server: a dead one would leave none for those that know.
                self._learn(server, min(left_s, LONGEST_ASK_S))
            except NotThatKind:
                raise
            except RedisError as error:
                self._avoided.add(server)
                errors.append(error)
            else:
                self._avoided.discard(server)
                # A failure that another thread noted meanwhile is forgotten here; the next failure notes it again.
                self._is_stale = False
                return
        # Of several errors the one that the user can mend.
        errors.sort(key=lambda each: not isinstance(each, AuthenticationError))
        raise errors[0] if errors else RedisTimeoutError("no time was left to ask who holds the key")

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
        # One item of a list, which the interpreter replaces at once. If a refresh replaces the list at the same time,
        # the note is lost, and the next redirection repeats it.
        self._by_slot[slot] = address

    def _refresh_unless_just_done(self, wait_s: float) -> None:
        """Refresh, in one thread at a time; the others use what is known, if anything is."""
        now = self._clock.monotonic()
        # Only before the first answer does a thread wait for the lock: then there is nothing to go by.
        if now - self._asked_at < REFRESH_S or not self._lock.acquire(blocking=not self.masters):
            return
        try:
            # Once more: another thread may have asked while this one waited for the lock.
            if self._is_stale and self._clock.monotonic() - self._asked_at >= REFRESH_S:
                # Before asking: if no server answers, the next attempt has to wait as well.
                self._asked_at = self._clock.monotonic()
                self.refresh(wait_s)
        finally:
            self._lock.release()

    def _learn(self, server: Address, wait_s: float) -> None:
        """Ask one server over a connection that is used once, and remember its answer."""
        options = dict(self._url.options)
        kind = options.pop("connection_class", Connection)
        options |= {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "protocol": 2}
        # Not from a pool: its limit is that of this question.
        connection = kind(host=server[0], port=server[1], retry=NEVER_AGAIN, **options)
        try:
            connection.connect()
            connection.send_command("CLUSTER", "SLOTS")
            ranges = connection.read_response()
        except ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            raise NotThatKind(
                f"{server[0]}:{server[1]} is no node of a cluster; name it by redis://HOST:PORT"
            ) from None
        finally:
            connection.disconnect()
        # A new table that replaces the old one whole: a thread that reads meanwhile sees one or the other.
        by_slot: list[Address | None] = [None] * SLOTS
        replicas = dict[Address, None]()
        for first, last, *servers in ranges:
            # A node without a name of its own has that of the server that answered.
            there = [(host.decode() if host else server[0], port) for host, port, *_ in servers]
            # The first server of a range is its master, the others are its replicas.
            by_slot[first : last + 1] = [there[0]] * (last + 1 - first)
            replicas |= dict.fromkeys(there[1:])
        self._by_slot = by_slot
        self.masters = list(dict.fromkeys(filter(None, by_slot)))
        self._replicas = list(replicas)


class RoutedConnection(Connection):
    """A connection to the server that holds a slot. Once another one holds it, it connects to that."""

    def __init__(self, *, nodes: Nodes, slot: int = 0, fixed: Address | None = None, **options: Any) -> None:
        """fixed: the server, instead of the one that holds `slot`."""
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._nodes, self._slot, self._fixed = nodes, slot, fixed

    def _connect(self) -> Any:
        wait_s = float(self.socket_connect_timeout or LONGEST_ASK_S)
        # redis-py calls this for each connection that it opens or opens again: here a connection follows its slot.
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
        # It was the master and is a replica by now; the others know the new master.
        except ReadOnlyError as error:
            self._nodes.failed((self.host, self.port))
            raise self._rerouted(error) from error
        except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
            self._nodes.failed((self.host, self.port))
            raise

    def _rerouted(self, error: RedisError) -> Rerouted:
        # redis-py repeats what a ConnectionError ended, over a new connection: `_connect` opens it to the new holder.
        self.disconnect()  # type: ignore[no-untyped-call]
        return Rerouted(error)


class RoutedTlsConnection(RoutedConnection, SSLConnection):
    """The same over TLS."""


def sentinels_of(url: StoreUrl, wait_s: float) -> Sentinel:
    """redis-py's Sentinels of a URL. wait_s: for how long all of them together are waited for."""
    # redis-py asks one after the other: with several silent ones a read of a user would wait several times its budget.
    wait_s = min(wait_s / len(url.seeds), LONGEST_ASK_S)
    asking = url.asking | {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "protocol": 2}
    asking["ssl"] = asking.pop("connection_class", None) is SSLConnection
    return Sentinel(url.seeds, sentinel_kwargs=asking | {"retry": NEVER_AGAIN})  # type: ignore[no-untyped-call]


def check_sentinels(sentinels: Sentinel, master: str) -> None:
    """Raise what a user can mend, if the Sentinels name no master: NotThatKind, AuthenticationError; or redis-py's."""
    try:
        sentinels.discover_master(master)  # type: ignore[no-untyped-call]
    except (MasterNotFoundError, ResponseError):
        # redis-py found no master and does not say why: each Sentinel is asked what it knows.
        for each in sentinels.sentinels:
            at = each.connection_pool.connection_kwargs
            try:
                masters = each.sentinel_masters()
            except AuthenticationError:
                raise
            except (RedisConnectionError, RedisTimeoutError):
                continue
            except ResponseError as error:
                if "unknown command" not in str(error).lower():
                    raise
                raise NotThatKind(
                    f"{at['host']}:{at['port']} is no Sentinel; name its port, usually 26379, or the store by "
                    "redis://HOST:PORT"
                ) from None
            if master not in masters:
                names = ", ".join(map(str, masters)) or "none"
                raise NotThatKind(f"the Sentinel has no master {master!r}; it has: {names}") from None
        raise
