"""What operators changed about a model: who, with what tool, when, and how it was before and after.

A stream in the store, written after a change has succeeded by whoever made it for a person: the commands, the Python
library, the dashboard. docs/redis_keys.md describes the record.
"""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from model_store.errors import StoreError
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys
from model_store.redis.stored_values import Report, silent

KEPT = 10_000
"""Approximate length of the stream."""
MOST_TEXT = 4_096
"""How much of a value is kept."""


@dataclass(frozen=True)
class Change:
    """One change. when: by the store's clock; who: a person; tool: what they used; before, after: text, maybe empty."""

    who: str
    tool: str
    action: str
    before: str
    after: str
    when: datetime | None = None

    def plain(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "when": self.when and self.when.isoformat()}


class Audit:
    """The changes of one model."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_junk: Report = silent) -> None:
        """on_junk is called with a message for a change that could not be recorded, and for what cannot be read."""
        self._store, self._key, self._on_junk = connection, keys.audit, on_junk
        self._client = connection.at(keys.audit)

    def record(self, tool: str, action: str, before: object, after: object, *, who: str = "") -> None:
        """Record a change that was made. who: default the user of this process on this machine.

        A store that fails now is reported and raises nothing: the change has been made.
        """
        change = Change(who or this_user(), tool, action, as_text(before), as_text(after))
        words = [
            word for name in _FIELDS for word in (name, getattr(change, name).encode("utf-8", "replace"))
        ]
        try:
            self._store.write(self._key, [("XADD", self._key, "MAXLEN", "~", KEPT, "*", *words)])
        except StoreError as error:
            self._on_junk(f"the change was made, but not recorded in {self._key}: {error}")

    def latest(self, count: int) -> list[Change]:
        """The latest changes, latest first. An entry that cannot be read is left out and reported."""
        with self._store.answers(self._key):
            entries = self._client.xrevrange(self._key, count=count)
        return [change for entry, fields in entries if (change := self._read(entry, fields)) is not None]

    def _read(self, entry: bytes, fields: Mapping[bytes, bytes]) -> Change | None:
        try:
            texts = {name: fields[name.encode()].decode("utf-8", "replace") for name in _FIELDS}
            when = datetime.fromtimestamp(int(entry.partition(b"-")[0]) / 1000.0, UTC)
        except (KeyError, ValueError, OverflowError, OSError) as error:
            self._on_junk(f"{self._key}: entry {entry!r} cannot be read ({error}); it is left out")
            return None
        return Change(**texts, when=when)


_FIELDS = ("who", "tool", "action", "before", "after")


def this_user() -> str:
    """USER@HOST of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def as_text(value: object) -> str:
    """A value as it is recorded: a text as it is, None as nothing, anything else as JSON."""
    if value is None:
        return ""
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
    return text[:MOST_TEXT]


def shares_text(shares: Mapping[str, float] | Sequence[tuple[str, float]]) -> str:
    """Shares of the traffic as a text."""
    return ", ".join(f"{name} {share:.6g}" for name, share in dict(shares).items())
