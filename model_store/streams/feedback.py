"""Writing feedback: clicks, conversions, what was seen, and views, each added to the model's stream once.

One script takes a batch (feedback.lua): a new event is added to the stream and remembered for a day; a known one
changes nothing. So a batch may be repeated until it is answered. docs/events.md describes the events.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha1
from pathlib import Path
from typing import Any, Literal, NamedTuple

from model_store.errors import StoreError
from model_store.keys import ModelKeys
from model_store.records.lookups import Lookups, packed
from model_store.redis.connection import StoreConnection

LENGTH = 1_000_000
"""Approximate length of the stream."""
AGE_S = 86_400.0
KNOWN_S = 86_400.0
"""How long an event is remembered; reported again later, it counts as new."""
MOST_EVENTS = 1_000
CALL_BYTES = 8

Kind = Literal["click", "conversion", "seen", "activated", "view"]

_SCRIPT = Path(__file__).with_name("feedback.lua").read_bytes()
_SHA = sha1(_SCRIPT, usedforsecurity=False).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class Event:
    """A view, or what happened to one item of an answer; item is empty for `activated`, and for `seen` with a position.

    event_id: identifies the event when it is reported again; if empty, request, item, kind and position do. time_us:
    microseconds since 1970; None: the time of the report. value: of a conversion. position: from 1; 0 for none. A view
    has no request, but a cookie and the item's features; without an event_id its time identifies it too.
    """

    request_id: str
    item: str
    kind: Kind = "click"
    event_id: str = ""
    time_us: int | None = None
    value: float = 0.0
    position: int = 0
    cookie: str = ""
    features: Mapping[str, str] | None = None

    @property
    def digest(self) -> str:
        """The identity of the event: 32 hexadecimal digits."""
        # As JSON, so that the parts of different events cannot run into the same bytes.
        identity = [self.event_id] if self.event_id else [self.request_id, self.item, self.kind]
        if self.position and not self.event_id:
            identity.append(str(self.position))
        if self.kind == "view" and not self.event_id:
            identity += [self.cookie, str(self.time_us)]
        return blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()

    def to_json(self, now_us: int) -> bytes:
        """The event as written to the stream (docs/events.md)."""
        time_us = now_us if self.time_us is None else self.time_us
        own: dict[str, Any] = {"request_id": self.request_id, **({"item": self.item} if self.item else {})}
        if self.kind == "view":
            own = {"cookie": self.cookie, "items": [{"id": self.item, "features": self.features or {}}]}
        event = {**own, "ts": time_us / 1_000_000, "event": self.kind}
        if self.event_id:
            event["event_id"] = self.event_id
        if self.value:
            event["value"] = self.value
        if self.position:
            event["position"] = self.position
        return json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogateescape")


class Reported(NamedTuple):
    """How many events were new and are in the stream now, and how many were known."""

    accepted: int
    duplicates: int


class Feedback:
    """Writes feedback to one store. Thread safety: all methods, any thread; each thread has its own connection."""

    def __init__(
        self, connection: StoreConnection, wait_s: float, *, length: int = LENGTH, age_s: float = AGE_S
    ) -> None:
        """`wait_s` bounds a report; `length` and `age_s` bound the stream."""
        self.length = length
        self.age_s = age_s
        self._store = connection
        self._wait_s = wait_s
        self._lookups = Lookups(connection, wait_s)

    def report(self, model: str, events: Sequence[Event], wait_s: float | None = None) -> Reported:
        """Add up to 1,000 events to the stream of `model`, atomically; once this returns, the store has them.

        Raises StoreUnavailable if there is no answer in time or the store accepts no writes; then report them again.
        Raises StoreError if the key has another type. One round trip, O(n).
        """
        if not 0 < len(events) <= MOST_EVENTS:
            raise StoreError(f"got {len(events)} events; expected 1 to {MOST_EVENTS:,}")
        keys, now_us = ModelKeys(model), int(self._store.clock.time() * 1e6)
        names = [keys.clicks, *(keys.feedback_id(event.digest) for event in events)]
        bounds = [b"%d" % self.length, *(b"%d" % round(1000 * span) for span in (self.age_s, KNOWN_S))]
        words = [b"%d" % len(names), *(name.encode() for name in names), *bounds]
        # Made once: `DirectConnection` may send the call twice, and feedback.lua knows it by this.
        words += [os.urandom(CALL_BYTES), *(event.to_json(now_us) for event in events)]
        is_new = self._run(names[0].encode(), words, wait_s)
        return Reported(sum(is_new), len(is_new) - sum(is_new))

    def close(self) -> None:
        """Close the connections of all threads."""
        self._lookups.close()

    def _run(self, key: bytes, words: Sequence[bytes], wait_s: float | None) -> list[int]:
        waits = self._store.wait_words(self._wait_s if wait_s is None else wait_s)
        # WAIT is for this connection's writes; an event that another connection has written must be confirmed too.
        touch = [("PEXPIRE", words[2].decode(), round(1000 * KNOWN_S))] if waits else []
        confirm = [packed(*(str(word).encode() for word in each)) for each in (*touch, *waits)]
        answers = self._lookups.ask(key, [packed(b"EVALSHA", _SHA, *words), *confirm], wait_s)
        # EVAL also loads it: needed once after a start of the store, or on a new master.
        if isinstance(answers[0], Exception) and str(answers[0]).startswith("NOSCRIPT"):
            answers = self._lookups.ask(key, [packed(b"EVAL", _SCRIPT, *words), *confirm], wait_s)
        is_new: list[int] = self._lookups.checked(answers[0])
        if confirm:
            self._store.check_confirmed(self._lookups.checked(answers[-1]))
        return is_new
