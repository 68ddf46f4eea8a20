"""Limits on the features of one request: how many, how long their names, how large a set. Each costs one comparison.

A message has at most 16 MiB; within it these keep a caller from having us make, hash and echo hundreds of thousands of
names. No real request comes near them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from server.errors import InvalidRequest

MAX_FIELDS = 1024
MAX_NAME_CHARACTERS = 256
MAX_MEMBERS = 10_000


def check_fields(path: str, fields: Mapping[str, object]) -> None:
    """Raise InvalidRequest for too many fields, or one with too long a name."""
    if len(fields) > MAX_FIELDS:
        raise InvalidRequest(f"{path}: {len(fields)} fields; the limit is {MAX_FIELDS}")
    if fields and max(map(len, fields)) > MAX_NAME_CHARACTERS:
        name = max(fields, key=len)
        raise InvalidRequest(
            f"{path}: the name of a field, {name[:20]!r}…, has {len(name)} characters; "
            f"the limit is {MAX_NAME_CHARACTERS}"
        )


def check_members(path: str, members: Sized) -> None:
    """Raise InvalidRequest for a set with too many members."""
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(f"{path}: {len(members)} members; the limit is {MAX_MEMBERS}")
