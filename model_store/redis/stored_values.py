"""Parses values read from the store, one function per family of keys (docs/redis_keys.md).

An invalid single value raises `UnreadableValue`, which names the key, the value and the command that repairs it.
Invalid members of a collection are skipped and reported to an `on_junk` callback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.bounded import json_object
from model_store.errors import UnreadableValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST = 2**53 - 1
"""Lua counts in doubles and would round larger numbers."""
MOST_COUNTED = 10**12
"""The maximum of versions and epochs: one per millisecond for thirty years."""

Report = Callable[[str], None]
Record = TypeVar("Record", bound="DataclassInstance")

_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_MODEL_KEY = re.compile(r"ftrie:\{([A-Za-z0-9._-]+)\}:")
_LATEST_S = 253_402_300_799  # the end of the year 9999
_SHOWN_BYTES = 60


def silent(text: str) -> None:
    """An `on_junk` callback that ignores reports."""


# -- numbers


def number(value: str | bytes, least: int = 0, most: int = MOST) -> int:
    """An integer as all writers write it: decimal digits, no sign, no leading zero. Raises ValueError."""
    text = value if isinstance(value, str) else value.decode("ascii", "replace")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"got {shown(value)}, expected a whole number from {least} to {most}")
    return int(text)


def counter(key: str, value: bytes | None) -> int:
    """The value of `sequence`, `epoch` or `active_epoch`; 0 if the key is missing. Raises UnreadableValue."""
    return 0 if value is None else _checked(key, value, 0)


def version_number(key: str, value: bytes) -> int:
    """A version number, as in `active`. Raises UnreadableValue."""
    return _checked(key, value, 1)


def version_numbers(key: str, values: Iterable[bytes], on_junk: Report) -> list[int]:
    """The members of `versions` or `history` in order; invalid ones are skipped and reported."""
    found = []
    for value in values:
        try:
            found.append(version_number(key, value))
        except UnreadableValue as error:
            on_junk(f"{error}; it is skipped")
    return found


def time_of(seconds: float) -> datetime | None:
    """A score of `versions`, seconds since 1970; None if it is out of range."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= _LATEST_S else None


def _checked(key: str, value: bytes, least: int) -> int:
    try:
        return number(value, least, MOST_COUNTED)
    except ValueError as error:
        raise unreadable(key, str(error)) from None


# -- records


def record(key: str, found: Mapping[bytes, bytes], defaults: Record, on_junk: Report) -> Record:
    """A HASH of integers and texts, such as the guard record, with the fields of the dataclass `defaults`.

    Missing and invalid fields have their default; invalid ones are reported.
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
            on_junk(f"{unreadable(key, why)}; {default!r} is used instead")
    return replace(defaults, **values)


def online_cell(
    key: str, field: bytes, value: bytes, members: Sequence[str], buckets: int
) -> tuple[str, tuple[int, int], list[list[int]]]:
    """A field of a HASH of outcomes: variant, first and last version, and a list of each member's sums by bucket.

    Members added by a later ftrie are ignored. Raises UnreadableValue.
    """
    try:
        parts = json_object(value)
        sums = [parts[name] for name in members]
        first, last = parts["versions"]
        if not all(isinstance(each, list) and len(each) == buckets for each in sums):
            raise ValueError("a sum has another number of buckets")
        numbers = [first, last, *chain.from_iterable(sums)]
        if set(map(type, numbers)) != {int} or max(map(abs, numbers)) > MOST:
            raise ValueError("a sum is not a whole number")
    except (KeyError, TypeError, ValueError):
        expected = f"expected versions and sums of {buckets} buckets as docs/redis_keys.md has them"
        why = f"field {shown(field)}: got {shown(value)}, {expected}"
        raise unreadable(key, why) from None
    return field.decode("utf-8", "surrogateescape"), (first, last), sums


AUDIT_TEXTS = ("who", "tool", "action", "before", "after")
"""The fields of an entry of `audit`."""


def audit_entry(key: str, entry: bytes, found: Mapping[bytes, bytes]) -> tuple[datetime, list[str]]:
    """An entry of `audit`: its time, from its id, and its texts in the order of AUDIT_TEXTS. Raises UnreadableValue.

    Bytes that are not UTF-8 are escaped.
    """
    at = time_of(int(entry.partition(b"-")[0]) / 1000)
    missing = [name for name in AUDIT_TEXTS if name.encode() not in found]
    if at is None or missing:
        why = f"entry {shown(entry)}: " + (
            f"{missing[0]} is missing" if missing else "its time is out of range"
        )
        raise unreadable(key, why)
    return at, [found[name.encode()].decode("utf-8", "backslashreplace") for name in AUDIT_TEXTS]


# -- messages


def unreadable(key: str, why: str) -> UnreadableValue:
    """The error for a key with an invalid value; `why` names the value and what is expected."""
    return UnreadableValue(f"{key}: {why}; {cure(key)} repairs it")


def cure(key: str) -> str:
    """The command that repairs a key."""
    named = _MODEL_KEY.match(key)
    return f"`ftrie store check {named[1]} --repair`" if named else "`ftrie store check --repair`"


def shown(value: str | bytes) -> str:
    """The beginning of a value, for a message."""
    head = repr(value[:_SHOWN_BYTES])
    head = head.removeprefix("b")
    return head if len(value) <= _SHOWN_BYTES else f"{head}… ({len(value):,} bytes)"
