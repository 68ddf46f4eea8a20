"""`[guard]` of a model spec: what a version must be like to be served. docs/guard.md says how it is judged."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from model_store.durations import seconds_of
from model_store.spec_sections import Section

MOST_EXAMPLES = 100_000_000
OFF = "off"


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _checked_band(value: Any) -> Any:
    """A band, or "off": checked whole, so that an error speaks of bands and not of tuples."""
    if value == OFF:
        return value
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    if not numbers or not 0.0 < value[0] <= 1.0 <= value[1]:
        raise ValueError(f'got {value!r}; expected two numbers around 1, such as [0.8, 1.25], or "off"')
    return value


def _checked_bound(value: Any) -> Any:
    if value != OFF and (not _is_number(value) or value < 0.0):
        raise ValueError(f'got {value!r}; expected a number from 0 up, or "off"')
    return value


Band = Annotated[tuple[float, float] | Literal["off"], BeforeValidator(_checked_band)]
Bound = Annotated[float | Literal["off"], BeforeValidator(_checked_bound)]
Time = Annotated[str, AfterValidator(_is_time)]


class GuardSection(Section):
    """Bounds. Without the section nothing is judged; with it, even an empty one, every version is.

    A bound that is "off" is not looked at. examples, min_examples and online_clicks are counts; cooldown a time.
    """

    examples: int = Field(default=10_000, ge=100, le=MOST_EXAMPLES)
    min_examples: int = Field(default=1_000, ge=1, le=MOST_EXAMPLES)
    logloss_rise: Bound = 0.1
    calibration: Band = (0.8, 1.25)
    keys_fall: Bound = 0.5
    keys_rise: Bound = 4.0
    min_keys: int = Field(default=1, ge=0)
    online_calibration: Band = (0.5, 2.0)
    online_clicks: int = Field(default=200, ge=1)
    cooldown: Time = "10m"

    @model_validator(mode="after")
    def _window_holds_enough(self) -> Self:
        if self.min_examples > self.examples:
            raise ValueError(
                f"min_examples: got {self.min_examples:,}, more than the window of examples = {self.examples:,}"
            )
        return self

    @property
    def cooldown_s(self) -> int:
        """How long after a rollback no version is activated, in seconds."""
        return seconds_of(self.cooldown)
