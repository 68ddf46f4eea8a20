"""What a replay did, whatever its log: how much, how fast, what the predictions were worth, which model came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.model import LearningModel


@dataclass(frozen=True)
class Replayed:
    """A replay that has come to its end.

    kind: events or rows. counts: of events, by name; empty for rows. join: what became of them, empty for rows.
    examples: learned from; rejected: events and rows that could not be. reasons: of these, by category. span_s: from
    the log's first time to its last, None where it has no times.
    """

    kind: str
    model: LearningModel
    examples: int
    rejected: int
    seconds: float
    span_s: float | None
    counts: Mapping[str, int] = field(default_factory=dict)
    join: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def speed(self) -> float | None:
        """How many times faster than the log was written."""
        return self.span_s / self.seconds if self.span_s and self.seconds else None

    def as_dict(self) -> dict[str, object]:
        """The JSON form, without the model's bytes."""
        return {
            "kind": self.kind,
            "events": dict(self.counts) or None,
            "join": dict(self.join) or None,
            "examples": self.examples,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "seconds": round(self.seconds, 6),
            "span_s": self.span_s,
            "speed": self.speed and round(self.speed, 1),
            "keys": self.model.table.used,
            "variants": {name: metrics.as_dict() for name, metrics in self.model.metrics.summary().items()},
        }
