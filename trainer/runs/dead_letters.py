"""Events and rows that could not be learned from: numbered in the order of the events, sent to the dead-letter stream.

The numbers are part of the trainer's checkpoint, so after a crash the same letters get the same numbers again; the
stream accepts each number once and so holds no letter twice. While the store is unavailable letters wait here.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model_store.streams.event_streams import JSON_BYTES, DeadLetters, Letter

MOST_WAITING = 1_000
LETTERS_A_WRITE = 500
MOST_CATEGORIES = 10
"""Categories that are reported: a source of garbage may have any number."""


class DeadLetterOutbox:
    """The dead letters of one trainer. For one thread.

    count: all letters so far. reasons: their number by category, the reason up to its colon. lost: letters dropped
    because too many were waiting for the store; they are counted like the others.
    """

    def __init__(
        self,
        stream: DeadLetters | None,
        state: Mapping[str, Any] | None = None,
        on_first: Callable[[str], None] = lambda text: None,
        *,
        relays: bool = False,
    ) -> None:
        """Without a stream letters are only counted, or with `relays` kept for `take`.

        state: of `state`, or None to number after the stream's letters. `on_first` gets the first letter of each of the
        first ten categories. Raises StoreUnavailable.
        """
        self._stream = stream
        self._relays = relays
        self._on_first = on_first
        new = {"before": stream.last() if stream is not None else 0}
        kept: Mapping[str, Any] = state if state is not None else new
        self._before = int(kept.get("before", 0))
        self.count = int(kept.get("count", 0))
        self.lost = int(kept.get("lost", 0))
        self._forwarded = int(kept.get("forwarded", 0))
        self.reasons: Counter[str] = Counter(kept.get("reasons", {}))
        self._waiting: deque[tuple[int, Letter]] = deque(
            (number, Letter(source, place, reason, b64decode(json)))
            for number, source, place, reason, json in kept.get("waiting", ())
        )

    def add(self, source: str, place: str, reason: str, json: bytes) -> None:
        """Number a letter and keep it for `send`."""
        self.count += 1
        self._count(source, reason)
        if self._stream is not None or self._relays:
            self._keep(Letter(source, place, reason, json[:JSON_BYTES]))  # a line may have 16 MiB

    def take(self) -> list[Any]:
        """The letters kept since the last call, as JSON, for another partition's `forward`."""
        waiting: list[Any] = self.state()["waiting"]
        self._waiting.clear()
        return waiting

    def forward(self, letters: Sequence[Any]) -> None:
        """Number and keep letters that another partition has taken, and counted."""
        for _, source, place, reason, json in letters:
            self._forwarded += 1
            self._keep(Letter(source, place, reason, b64decode(json)))

    def send(self) -> None:
        """Write the waiting letters to the stream. Raises StoreError; letters that were not accepted keep waiting."""
        while self._waiting and self._stream is not None:
            some = [self._waiting[index] for index in range(min(LETTERS_A_WRITE, len(self._waiting)))]
            self._stream.add(some[0][0], [letter for _, letter in some])
            for _ in some:
                self._waiting.popleft()

    def state(self) -> dict[str, Any]:
        """For the checkpoint, as JSON: the counts, and the waiting letters."""
        waiting = [
            [number, letter.source, letter.place, letter.reason, b64encode(letter.json).decode()]
            for number, letter in self._waiting
        ]
        return {
            "before": self._before,
            "count": self.count,
            "lost": self.lost,
            "forwarded": self._forwarded,
            "reasons": dict(self.reasons),
            "waiting": waiting,
        }

    def _keep(self, letter: Letter) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append((self._before + self.count + self._forwarded, letter))

    def _count(self, source: str, reason: str) -> None:
        category = reason.partition(":")[0]
        if category not in self.reasons and len(self.reasons) < MOST_CATEGORIES:
            self._on_first(f"{source}: not learned from: {reason}; others like it are only counted")
        self.reasons[category] += 1
