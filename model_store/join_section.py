"""`[join]` of a model spec: how impressions and clicks become examples. docs/join.md says what becomes of which."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from model_store.durations import seconds_of
from model_store.spec_sections import Section

LONGEST_S = 366 * 86_400
MOST_PENDING = 100_000_000


def _is_time(text: str) -> str:
    if seconds_of(text) > LONGEST_S:
        raise ValueError(f'got {text!r}; expected at most "366d"')
    return text


Time = Annotated[str, AfterValidator(_is_time)]


class JoinSection(Section):
    """Without the section the defaults hold. max_pending is a number of requests, the others but two are times."""

    window: Time = "10m"
    lateness: Time = "5s"
    late: Literal["count", "correct"] = "count"
    late_within: Time = "1h"
    positive: Literal["click", "conversion"] = "click"
    max_pending: int = Field(default=2_000_000, ge=1, le=MOST_PENDING)
    unknown_items: Literal["skip", "learn"] = "skip"

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if not self.window_us:
            raise ValueError(f'window: got "{self.window}"; expected a time longer than 0')
        return self

    @property
    def window_us(self) -> int:
        """How long after an impression its feedback counts, in microseconds."""
        return seconds_of(self.window) * 1_000_000

    @property
    def lateness_us(self) -> int:
        """How far events may come out of order, in microseconds."""
        return seconds_of(self.lateness) * 1_000_000

    @property
    def late_within_us(self) -> int:
        """How long a closed request is remembered, in microseconds."""
        return seconds_of(self.late_within) * 1_000_000
