"""Parses what is read from the store: one parser for each family of keys (docs/redis_keys.md).

A single value that its key cannot hold raises `UnreadableValue`, which names the key, what stood there and the command
that repairs it. Members of a collection that cannot be read are left out and reported to an `on_junk` callback, so that
the others still count. Manifests (`manifest`) and experiments (`experiments`) take their numbers from here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.errors import UnreadableValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST = 2**53 - 1
"""Scripts in the store count in doubles: a larger number would be rounded there."""
MOST_COUNTED = 10**12
"""No version and no epoch is higher: a version a millisecond for thirty years."""

Report = Callable[[str], None]
Record = TypeVar("Record", bound="DataclassInstance")

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_MODEL_KEY = re.compile(r"ftrie:\{([A-Za-z0-9._-]+)\}:")
_LATEST_S = 253_402_300_799  # the end of the year 9999
_SHOWN_BYTES = 60


def silent(text: str) -> None:
    """The `on_junk` of a reader that has nobody to report to."""


# -- numbers


def number(value: str | bytes, least: int = 0, most: int = MOST) -> int:
    """A whole number as every writer writes it: decimal digits, no sign, no leading zero. Raises ValueError."""
    text = value if isinstance(value, str) else value.decode("ascii", "replace")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"got {shown(value)}, expected a whole number from {least} to {most}")
    return int(text)


def counter(key: str, value: bytes | None) -> int:
    """`sequence`, `epoch`, `active_epoch`: 0 where there is no key. Raises UnreadableValue."""
    return 0 if value is None else _checked(key, value, 0)


def version_number(key: str, value: bytes) -> int:
    """`active`, and whatever else names a version. Raises UnreadableValue."""
    return _checked(key, value, 1)


def version_numbers(key: str, values: Iterable[bytes], on_junk: Report) -> list[int]:
    """The members of `versions` and of `history` in their order; what is no version is left out and reported."""
    found = []
    for value in values:
        try:
            found.append(version_number(key, value))
        except UnreadableValue as error:
            on_junk(f"{error}; it is left out")
    return found


def time_of(seconds: float) -> datetime | None:
    """A score of `versions`, seconds since 1970; None for one that is no time."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= _LATEST_S else None


def _checked(key: str, value: bytes, least: int) -> int:
    try:
        return number(value, least, MOST_COUNTED)
    except ValueError as error:
        raise unreadable(key, str(error)) from None


# -- records


def record(key: str, found: Mapping[bytes, bytes], defaults: Record, on_junk: Report) -> Record:
    """A HASH of whole numbers and texts, such as the guard's, as the dataclass `defaults` has them.

    A field that is missing or cannot be read has its default; the latter is reported.
    """
    values: dict[str, Any] = {}
    for each in fields(defaults):
        raw, default = found.get(each.name.encode()), getattr(defaults, each.name)
        if raw is None:
            continue
        try:
            values[each.name] = number(raw) if isinstance(default, int) else raw.decode()
        except ValueError as error:
            why = f"field {each.name}: {error}"
            on_junk(f"{unreadable(key, why)}; {default!r} is taken in its place")
    return replace(defaults, **values)


def online_cell(key: str, field: bytes, value: bytes, members: Iterable[str]) -> tuple[int, str, list[int]]:
    """A field of an online HASH: version, variant, and the sums in the order of `members`. Raises UnreadableValue.

    Members that a later ftrie has added are left out.
    """
    name, _, variant = field.decode("utf-8", "surrogateescape").partition(":")
    try:
        version = number(name)
        sums = json.loads(value)
        numbers = [sums[each] for each in members]
        if not all(type(each) is int for each in numbers):
            raise ValueError("a sum is no whole number")
    except (KeyError, RecursionError, TypeError, ValueError):
        expected = "expected VERSION:VARIANT and sums as docs/redis_keys.md has them"
        why = f"field {shown(field)}: got {shown(value)}, {expected}"
        raise unreadable(key, why) from None
    return version, variant, numbers


# -- messages


def unreadable(key: str, why: str) -> UnreadableValue:
    """The error for a key that holds what it should not; `why` says what stood there and what is right."""
    return UnreadableValue(f"{key}: {why}; {cure(key)} repairs it")


def cure(key: str) -> str:
    """The command that repairs a key."""
    named = _MODEL_KEY.match(key)
    return f"`ftrie store check {named[1]} --repair`" if named else "`ftrie store check --repair`"


def shown(value: str | bytes) -> str:
    """The beginning of a stored value, for a message."""
    head = repr(value[:_SHOWN_BYTES])
    head = head.removeprefix("b")
    return head if len(value) <= _SHOWN_BYTES else f"{head}… ({len(value):,} bytes)"
