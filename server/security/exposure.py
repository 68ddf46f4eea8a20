"""Warnings of what stands open: a port beyond this machine without protection, a secret that others may read."""

from __future__ import annotations

import ipaddress
import os
import stat

import structlog

_log = structlog.get_logger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`: an address or a name, [::1] too. A name is not looked up."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def warn_if_exposed(host: str, *, tls: bool, callers_known: bool) -> None:
    """Log loudly that anybody on the network may read or call."""
    if is_loopback(host):
        return
    if not tls:
        _log.warning(
            "NO TLS: whoever is on the network can read and change every request, tokens too; "
            "give --tls-cert and --tls-key, or listen on 127.0.0.1",
            host=host,
        )
    if not callers_known:
        _log.warning(
            "NO TOKENS: whoever reaches this port may call it; give --tokens or --tls-client-ca", host=host
        )


def warn_if_others_read(path: str) -> None:
    """Log that a file with a secret can be read by others than its owner."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("others may read this secret", file=path, mode=f"{mode:04o}", remedy=f"chmod 600 {path}")
