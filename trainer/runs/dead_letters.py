"""Events and rows that could not be learned from: numbered in the order of the events, sent to the dead-letter stream.

The numbers are part of the trainer's checkpoint, so after a crash the same letters get the same numbers again; the
stream accepts each number once and so holds no letter twice. While the store is unavailable letters wait here.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from model_store.streams.dead_letters import JSON_BYTES, DeadLetters, Letter

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
    ) -> None:
        """Without a stream letters are only counted. state: of `state`, or None to number after the stream's letters.

        `on_first` gets the first letter of each of the first ten categories. Raises StoreUnavailable.
        """
        self._stream = stream
        self._on_first = on_first
        new = {"before": stream.last() if stream is not None else 0}
        kept: Mapping[str, Any] = state if state is not None else new
        self._before = int(kept.get("before", 0))
        self.count = int(kept.get("count", 0))
        self.lost = int(kept.get("lost", 0))
        self.reasons: Counter[str] = Counter(kept.get("reasons", {}))
        self._waiting: deque[tuple[int, Letter]] = deque(
            (number, Letter(source, place, reason, b64decode(json)))
            for number, source, place, reason, json in kept.get("waiting", ())
        )

    def add(self, source: str, place: str, reason: str, json: bytes) -> None:
        """Number a letter and keep it for `send`."""
        self.count += 1
        self._count(source, reason)
        if self._stream is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        kept = json[:JSON_BYTES]  # a line may have 16 MiB, and a thousand may wait
        self._waiting.append((self._before + self.count, Letter(source, place, reason, kept)))

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
            "reasons": dict(self.reasons),
            "waiting": waiting,
        }

    def _count(self, source: str, reason: str) -> None:
        category = reason.partition(":")[0]
        if category not in self.reasons and len(self.reasons) < MOST_CATEGORIES:
            self._on_first(f"{source}: not learned from: {reason}; others like it are only counted")
        self.reasons[category] += 1
