"""Store URLs: which kind of store one names, its servers, and redis-py's options for connections to them.

    redis://[NAME:PASSWORD@]HOST[:PORT][/DB]                     one server; rediss:// over TLS, unix://SOCKET
    cluster://[NAME:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]         a Redis Cluster or Valkey Cluster
    sentinel://[NAME:PASSWORD@]HOST[:PORT][,…]/MASTER[/DB]       the master that Sentinel names
    cluster+tls://, sentinel+tls://                              the same over TLS
    embedded:DIR                                                 see `model_store.redis.embedded`

`?wait=N`: what is published or added to a stream counts as written once N replicas have it. All other parameters are
redis-py's, those of `_options`; `sentinel_username` and `sentinel_password` are those of the Sentinels themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from redis.connection import parse_url

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
            return cls(ONE, f"{scheme}://{head}?{urlencode(parameters)}".rstrip("?"), wait=wait)
        login, at, hosts = authority.rpartition("@")
        seeds = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
        master, database = _path(kind, path)
        own = {name: parameters.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        plain = f"redis{'s' * scheme.endswith('+tls')}://{login}{at}seed/{database}?{urlencode(parameters)}"
        options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
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
