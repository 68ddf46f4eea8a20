"""Several servers as one: the target of a gRPC channel, and its service config: balancing, health checks, retries.

gRPC does the work (its service config is https://grpc.io/docs/guides/service-config/): a channel holds a connection to
each server, watches `grpc.health.v1` on it, and calls only servers that say SERVING. `round_robin` takes them in turn.
`cookie` is gRPC's ring hash over the header COOKIE_HEADER: a user's calls go to one server, whose cache then holds that
user; when a server leaves, its users are divided among the others and all other users stay.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from typing import Any, Literal

from ctr.v1 import feedback_pb2, ranking_pb2
from model_store.errors import ServerError, listed

Balance = Literal["round_robin", "cookie"]
BALANCES: tuple[Balance, ...] = ("round_robin", "cookie")
COOKIE_HEADER = "ftrie-cookie-hash"
"""The metadata key whose value chooses the server; proxies hash it too (deploy/envoy)."""
HASH_DIGITS = 16
RETRY = {
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
