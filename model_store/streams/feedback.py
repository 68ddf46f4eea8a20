"""Feedback as it is written: events of a model, each into the model's stream once. Who may report it is not known here.

One script takes a batch (feedback.lua): an event that is new goes into the stream and is known from then on, for a
day; one that is known changes nothing. So a batch may be repeated until it is answered. docs/feedback.md has the form.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha1
from pathlib import Path
from typing import Literal, NamedTuple

from model_store.errors import StoreError
from model_store.records.lookups import Lookups, packed
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys

LENGTH = 1_000_000
"""Entries the stream keeps, about."""
AGE_S = 86_400.0
KNOWN_S = 86_400.0
"""How long an event is known: reported again later, it is a new one."""
MOST_EVENTS = 1_000

Kind = Literal["click", "conversion"]

_SCRIPT = Path(__file__).with_name("feedback.lua").read_bytes()
_SHA = sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one item of one answer.

    event_id: the same whenever the event is reported again; empty: request, item and kind stand for it. time_us: when,
    microseconds since 1970; None: when it is reported. value: what a conversion was worth.
    """

    request_id: str
    item: str
    kind: Kind = "click"
    event_id: str = ""
    time_us: int | None = None
    value: float = 0.0

    @property
    def digest(self) -> str:
        """What it is known by: 32 hexadecimal digits."""
        identity = [self.event_id] if self.event_id else [self.request_id, self.item, self.kind]
        return blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()

    def to_json(self, now_us: int) -> bytes:
        """As it stands in the stream: docs/events.md."""
        time_us = now_us if self.time_us is None else self.time_us
        event: dict[str, str | float] = {
            "request_id": self.request_id,
            "item": self.item,
            "ts": time_us / 1_000_000,
            "event": self.kind,
        }
        if self.event_id:
            event["event_id"] = self.event_id
        if self.value:
            event["value"] = self.value
        return json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogateescape")


class Reported(NamedTuple):
    """How many events are new and in the stream now, and how many were known."""

    accepted: int
    duplicates: int


class Feedback:
    """Writes feedback to one store. Thread safety: all methods, any thread; each thread has a connection of its own."""

    def __init__(
        self, connection: StoreConnection, wait_s: float, *, length: int = LENGTH, age_s: float = AGE_S
    ) -> None:
        """`wait_s` bounds a report; `length` and `age_s` the stream."""
        self.length = length
        self.age_s = age_s
        self._store = connection
        self._asks = Lookups(connection, wait_s)

    def report(self, model: str, events: Sequence[Event], wait_s: float | None = None) -> Reported:
        """Put up to 1,000 events into the stream of `model`. Returned: the store has them.

        All of them or none. Raises StoreUnavailable if there is no answer in time, or the store takes no writes now:
        then report them again. Raises StoreError where something else stands at the key. One round trip, O(n).
        """
        if not 0 < len(events) <= MOST_EVENTS:
            raise StoreError(f"got {len(events)} events; expected 1 to {MOST_EVENTS:,}")
        keys, now_us = ModelKeys(model), time.time_ns() // 1000
        names = [keys.clicks, *(keys.feedback_id(event.digest) for event in events)]
        bounds = [b"%d" % self.length, *(b"%d" % round(1000 * span) for span in (self.age_s, KNOWN_S))]
        words = [b"%d" % len(names), *(name.encode() for name in names), *bounds]
        words += [event.to_json(now_us) for event in events]
        is_new = self._run(words, wait_s)
        return Reported(sum(is_new), len(is_new) - sum(is_new))

    def close(self) -> None:
        """Close the connections of all threads."""
        self._asks.close()

    def _run(self, words: Sequence[bytes], wait_s: float | None) -> list[int]:
        (answer,) = self._asks.ask(packed(b"EVALSHA", _SHA, *words), 1, wait_s)
        if isinstance(answer, Exception) and str(answer).startswith("NOSCRIPT"):
            (answer,) = self._asks.ask(packed(b"EVAL", _SCRIPT, *words), 1, wait_s)
        is_new: list[int] = self._asks.checked(answer)
        return is_new
