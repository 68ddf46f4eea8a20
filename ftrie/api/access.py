"""How a client reaches a server, or several as one: the channel, the token of each call, the error of a failed one.

A token is sent over TLS or to this machine, never unencrypted over a network.

gRPC divides the calls among several servers (its service config is https://grpc.io/docs/guides/service-config/): a
channel holds a connection to each server, watches `grpc.health.v1` on it, and calls only servers that say SERVING.
`round_robin` takes them in turn. `cookie` is gRPC's ring hash over the header COOKIE_HEADER: a user's calls go to one
server, whose cache then holds that user; when a server leaves, its users are divided among the others and all other
users stay.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from ctr.v1 import feedback_pb2, ranking_pb2
from model_store.errors import ServerError, listed
from server.settings import is_loopback

SYSTEM = "system"
# gRPC's own limit of a received message is 4 MiB.
MAX_ANSWER_BYTES = 16 << 20
# gRPC tells these apart only in the text of a status: the code is UNAVAILABLE for all of them.
_AWAY = re.compile("Connection refused|No route to host|Network is unreachable|DNS resolution failed")

Balance = Literal["round_robin", "cookie"]
BALANCES: tuple[Balance, ...] = ("round_robin", "cookie")
COOKIE_HEADER = "ftrie-cookie-hash"
"""The metadata key whose value chooses the server; proxies hash it too (deploy/envoy)."""
# 64 bits: gRPC hashes the header again, so more digits would only make it longer.
HASH_DIGITS = 16
RETRY = {
    # gRPC takes more than 5 as 5 (gRFC A6).
    "maxAttempts": 5,
    "initialBackoff": "0.02s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
}
"""Rank and Explain read only, and a repeated report counts once: all may be called again (docs/protocol.md). CANCELLED
is the status of a call that reached a server in the moment in which it stopped; the caller's own cancellation ends all.
"""
RETRY_BYTES = 16 << 20
"""The longest request that is made again: as long as a server takes. gRPC's own limit is 256 KiB."""
RECONNECT_MS = {"initial": 200, "min": 1_000, "max": 5_000}
"""Pauses between attempts to connect. gRPC's own grow to two minutes, and `min`, which also bounds an attempt, is 20 s:
with ring hash the users of a machine that vanished would wait that long for the next server."""
RESOLVE_MS = 5_000
"""At least this long between two look-ups of a name; gRPC's own 30 s miss servers that are replaced faster."""

_RING_HASH_SWITCH = "GRPC_EXPERIMENTAL_RING_HASH_SET_REQUEST_HASH_KEY"
_SERVICES = [
    service.full_name
    for wire in (ranking_pb2, feedback_pb2)
    for service in wire.DESCRIPTOR.services_by_name.values()
]


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field that is at fault, by its path in the request, and what is wrong with it."""

    field: str
    description: str


class CallFailed(ServerError):
    """The server answered with an error, or did not answer.

    code: the gRPC status. reason: of google.rpc.ErrorInfo, such as "STORE_UNAVAILABLE"; "" if the server did not
    answer. metadata: also of ErrorInfo. violations: the fields at fault. retry_after_s: when the server asks for the
    call to be tried again; None if that would not help or is not stated.
    """

    code: grpc.StatusCode
    reason: str = ""
    metadata: Mapping[str, str] = MappingProxyType({})
    violations: tuple[FieldViolation, ...] = ()
    retry_after_s: float | None = None

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, address: str, error: Any) -> Self:
        """From the grpc.RpcError of a call to `address`."""
        status = rpc_status.from_call(error)  # None if no server of ftrie answered
        is_away = status is None and error.code() is grpc.StatusCode.UNAVAILABLE
        away = _AWAY.search(error.details() or "") if is_away else None
        text = (
            f"no server at {address}: {away[0]}"
            if away
            else f"{address}: {error.code().name}: {error.details()}"
        )
        made = cls(text, error.code())
        for detail in status.details if status is not None else ():
            made._read(detail)
        return made

    def _read(self, detail: Any) -> None:
        info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
        if detail.Unpack(info):
            self.reason, self.metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            self.violations = tuple(FieldViolation(v.field, v.description) for v in bad.field_violations)
        elif detail.Unpack(retry):
            self.retry_after_s = float(retry.retry_delay.ToMilliseconds() / 1000)


@dataclass(frozen=True)
class Access:
    """The credentials of a client. ca: a PEM file of authorities, or "system"; "" means no TLS.

    cert, key: the client's own PEM files, for mutual TLS. token: hidden by repr.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise ServerError for an incomplete or malformed combination."""
        if bool(self.cert) != bool(self.key):
            raise ServerError("--tls-cert and --tls-key, in Python cert and key, belong together")
        if self.cert and not self.ca:
            raise ServerError(
                f"--tls-cert needs --tls-ca (in Python, ca): the server's authorities, or {SYSTEM!r} for those of "
                "this system"
            )
        # The token is part of an HTTP/2 header, where gRPC takes ASCII only.
        if not self.token.isascii() or any(letter.isspace() for letter in self.token):
            raise ServerError("the token has spaces or non-ASCII characters; expected one ASCII word")

    def channel(
        self, address: str, *, balance: Balance | None = None, own_connection: bool = False
    ) -> grpc.Channel:
        """A channel to HOST:PORT, to several with commas between them, or to a gRPC target such as dns:///HOST:PORT.

        balance: how calls are divided among several servers (`Balance`); None: in turn if it is a list.
        own_connection: do not share a connection with this process's other channels to the same address. Raises
        ServerError if the token would be sent unencrypted, a file is missing, or the address is malformed.
        """
        target, credentials, options = self._reach(address, balance, own_connection)
        if credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, credentials, options=options)

    def aio_channel(self, address: str, *, balance: Balance | None = None) -> grpc.aio.Channel:
        """The same for asyncio. Call it where the event loop runs that uses the channel."""
        target, credentials, options = self._reach(address, balance, own_connection=False)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, credentials, options=options)

    def _reach(
        self, address: str, balance: Balance | None, own_connection: bool
    ) -> tuple[str, grpc.ChannelCredentials | None, list[tuple[str, str | int]]]:
        """The target, the credentials (None without TLS) and the options of a channel. Raises ServerError."""
        options: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            # By default gRPC shares one connection among a process's channels to an address: a load generator would
            # then reach one worker only.
            ("grpc.use_local_subchannel_pool", int(own_connection)),
        ]
        target, hosts = target_of(address)
        local = all(map(is_loopback, hosts))
        if local:  # a proxy of the environment reaches its own loopback
            options.append(("grpc.enable_http_proxy", 0))
        divided = balance_of(address, balance)
        if divided is not None:
            options += channel_options(divided)
        if self.ca:
            if len(hosts) > 1:
                raise ServerError(
                    f"got {address!r} and --tls-ca; a certificate is checked against one name: give a name that stands "
                    "for all servers, dns:///ftrie.example:50051"
                )
            return target, self._credentials(), options
        if self.token and not local:
            raise ServerError(
                f"the token would be sent to {address} unencrypted; give --tls-ca, in Python ca"
            )
        return target, None, options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call."""
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
"""No TLS and no token, for a server on this machine."""


class Connection:
    """What clients of threads have beside their calls: a channel that is closed at the end of a `with` block."""

    address: str
    _channel: grpc.Channel

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self, failed: type[CallFailed], method: Any, request: Any, keywords: Mapping[str, Any]
    ) -> Any:
        """The answer to one call. Raises `failed`."""
        try:
            return method(request, **keywords)
        except grpc.RpcError as error:
            raise failed.of(self.address, error) from error


# -- several servers as one


def target_of(address: str) -> tuple[str, list[str]]:
    """The gRPC target of HOST:PORT, of a list of IP:PORT with commas, or of any gRPC target; and the hosts in it.

    Raises ServerError for a list with anything but IP addresses of one family: gRPC resolves no names in a list.
    """
    if "," not in address:
        return address, [address.rpartition(":")[0]]
    scheme, listed = next(
        ((s, address[5:]) for s in ("ipv4", "ipv6") if address.startswith(f"{s}:")), ("", address)
    )
    servers = [each.strip() for each in listed.split(",")]
    hosts = [_ip(server) for server in servers]
    families = {f"ipv{host.version}" for host in hosts} | ({scheme} if scheme else set())
    if len(families) > 1:
        raise ServerError(f"got {address!r}; a list of servers has IPv4 or IPv6 addresses, not both")
    return f"{families.pop()}:{','.join(servers)}", [str(host) for host in hosts]


def _ip(server: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    host, _, port = server.rpartition(":")
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if (found.version == 6) == host.startswith("[") and 0 < int(port) < 65_536:
            return found
    except ValueError:
        pass
    raise ServerError(
        f"got {server!r} in a list of servers; expected IP:PORT, such as 10.0.0.5:50051 or [fd00::5]:50051. "
        "One name that stands for all servers is given alone: dns:///ftrie.example:50051"
    )


def balance_of(address: str, wanted: Balance | None) -> Balance | None:
    """How calls to `address` are divided: as wanted, else in turn if it is a list; None: one server, nothing is."""
    if wanted is not None and wanted not in BALANCES:
        raise ServerError(f"got balance={wanted!r}, expected one of {listed(BALANCES, str(wanted))}")
    return wanted or ("round_robin" if "," in address else None)


def channel_options(balance: Balance) -> list[tuple[str, str | int]]:
    """The options of a channel to several servers."""
    if balance == "cookie":
        # In gRPC's C core, on which Python's is built, the field requestHashHeader (gRFC A76) is behind this switch,
        # read when a channel parses its config. Without it each call fails: "hash attribute not present".
        os.environ.setdefault(_RING_HASH_SWITCH, "true")
    return [
        ("grpc.service_config", json.dumps(service_config(balance))),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS["initial"]),
        ("grpc.min_reconnect_backoff_ms", RECONNECT_MS["min"]),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS["max"]),
        ("grpc.per_rpc_retry_buffer_size", RETRY_BYTES),
        ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS),
    ]


def service_config(balance: Balance) -> dict[str, Any]:
    """gRPC's service config, the same in every language (docs/serving.md)."""
    ring = {"ring_hash_experimental": {"requestHashHeader": COOKIE_HEADER}}
    return {
        "loadBalancingConfig": [{"round_robin": {}} if balance == "round_robin" else ring],
        # One service is enough: a server has one status for all of them (server.serve.health).
        "healthCheckConfig": {"serviceName": _SERVICES[0]},
        "methodConfig": [{"name": [{"service": service} for service in _SERVICES], "retryPolicy": RETRY}],
    }


def cookie_metadata(cookie: str) -> tuple[tuple[str, str], ...]:
    """The header of a user's calls: the first digits of the SHA-256, since a cookie may be long or not ASCII.

    Nothing without a cookie: gRPC then takes any server.
    """
    if not cookie:
        return ()
    digest = hashlib.sha256(cookie.encode()).hexdigest()
    return ((COOKIE_HEADER, digest[:HASH_DIGITS]),)
