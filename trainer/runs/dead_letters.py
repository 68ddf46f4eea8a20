"""What could not be learned from: numbered in the order of the events, and put into the store's dead-letter stream.

The numbers are the trainer's own and part of its checkpoint, so after a crash the same letters get the same numbers,
and the stream, which takes each number once, holds none twice. Letters wait here while the store is away.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from model_store.streams.dead_letters import JSON_BYTES, DeadLetters, Letter

MOST_WAITING = 1_000
A_WRITE = 500
MOST_SAID = 10
"""Reasons that are said aloud: a source of rubbish has as many as it likes."""


class Letters:
    """The letters of one model's trainer. For one thread.

    count: of all, ever. reasons: by category, which is a reason up to its colon. lost: those that came while too many
    waited for a store that was away; they are counted, and only their text is gone.
    """

    def __init__(
        self,
        stream: DeadLetters | None,
        state: Mapping[str, Any] | None = None,
        on_first: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Without a stream letters are only counted. `state`: what `state` gave.

        `on_first` is told of the first of each category, of the first ten categories.
        A trainer that begins anew numbers its letters behind those in the stream. Raises StoreUnavailable.
        """
        self._stream = stream
        self._on_first = on_first
        begun = {"before": stream.last() if stream is not None else 0}
        kept: Mapping[str, Any] = state if state is not None else begun
        self._before = int(kept.get("before", 0))
        self.count = int(kept.get("count", 0))
        self.lost = int(kept.get("lost", 0))
        self.reasons: Counter[str] = Counter(kept.get("reasons", {}))
        self._waiting: deque[tuple[int, Letter]] = deque(
            (number, Letter(source, place, reason, b64decode(json)))
            for number, source, place, reason, json in kept.get("waiting", ())
        )

    def add(self, source: str, place: str, reason: str, json: bytes) -> None:
        """Number a letter, and let it wait for `send`."""
        self.count += 1
        self._count(source, reason)
        if self._stream is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        kept = json[:JSON_BYTES]  # a line may have 16 MiB, and a thousand of them may wait
        self._waiting.append((self._before + self.count, Letter(source, place, reason, kept)))

    def _count(self, source: str, reason: str) -> None:
        category = reason.partition(":")[0]
        if category not in self.reasons and len(self.reasons) < MOST_SAID:
            self._on_first(f"{source}: not learned from: {reason}; others like it are only counted")
        self.reasons[category] += 1

    def send(self) -> None:
        """Put what waits into the stream. Raises StoreUnavailable, StoreError; what was not taken waits on."""
        while self._waiting and self._stream is not None:
            some = [self._waiting[index] for index in range(min(A_WRITE, len(self._waiting)))]
            self._stream.add(some[0][0], [letter for _, letter in some])
            for _ in some:
                self._waiting.popleft()

    def state(self) -> dict[str, Any]:
        """For the checkpoint, as JSON: the counts, and the letters that wait."""
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
