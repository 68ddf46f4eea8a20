"""Every limit on a ranking request, and the checks that three or more places share.

A message has at most 16 MiB. Within it these limits keep a caller from making the server build, hash and echo hundreds
of thousands of names. No real request comes near them, and each check costs one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from model_store.keys import MAX_ID_BYTES as MAX_ID_BYTES
from server.errors import InvalidRequest

MAX_CANDIDATES = 10_000
MAX_EXPLAINED = 100
"""Candidates of an Explain request."""

MAX_FIELDS = 1024
"""Fields of the user and the context together, and of one inline item."""
MAX_NAME_CHARACTERS = 256
MAX_MEMBERS = 10_000
"""Members of one set."""

MAX_FILTERS = 32
MAX_FILTER_VALUES = 10_000
MAX_CAPS = 8

MAX_LOOKUPS = 512
"""Unknown items that one request has looked up in the store."""
MAX_ECHOED_BYTES = 64 << 10
"""Of the unknown items, and of the unknown fields, that an answer lists."""
MAX_DEGRADED = 100


def is_id(value: str) -> bool:
    """Whether it is at most MAX_ID_BYTES long."""
    return len(value) * 4 <= MAX_ID_BYTES or len(value.encode("utf-8", "surrogatepass")) <= MAX_ID_BYTES


def check_id(path: str, value: str) -> str:
    """`value`. Raises InvalidRequest if it is longer than MAX_ID_BYTES."""
    if not is_id(value):
        raise InvalidRequest(path, f"longer than {MAX_ID_BYTES} bytes")
    return value


def check_fields(path: str | tuple[str, ...], fields: Mapping[str, object]) -> None:
    """Raise InvalidRequest for too many fields, or for a name that is too long."""
    if len(fields) > MAX_FIELDS:
        raise InvalidRequest(path, f"{len(fields)} fields; the limit is {MAX_FIELDS}")
    if fields and max(map(len, fields)) > MAX_NAME_CHARACTERS:
        name = max(fields, key=len)
        raise InvalidRequest(
            path,
            f"the name of a field, {name[:20]!r}…, has {len(name)} characters; "
            f"the limit is {MAX_NAME_CHARACTERS}",
        )


def check_members(path: str | tuple[str, ...], members: Sized) -> None:
    """Raise InvalidRequest for a set with too many members."""
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(path, f"{len(members)} members; the limit is {MAX_MEMBERS}")
