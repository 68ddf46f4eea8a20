"""`[guard]` of a model spec: what a version must be like to be served. docs/guard.md says how it is judged."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from model_store.spec_sections import Section

MOST_EXAMPLES = 100_000_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"(\d+)([smhd])")


def seconds_of(text: str) -> int:
    """Seconds of `"90s"`, `"10m"`, `"12h"` or `"1d"`. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f'got {text!r}; expected a time such as "90s", "10m", "12h" or "1d"')
    return int(found[1]) * _UNITS[found[2]]


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


def _is_band(band: tuple[float, float]) -> tuple[float, float]:
    low, high = band
    if not 0.0 < low <= 1.0 <= high:
        raise ValueError(f"got {list(band)}; expected two numbers around 1, such as [0.8, 1.25]")
    return band


Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Band = Annotated[
    tuple[
        Annotated[float, Field(allow_inf_nan=False)],
        Annotated[float, Field(allow_inf_nan=False)],
    ],
    AfterValidator(_is_band),
]
Time = Annotated[str, AfterValidator(_is_time)]
Off = Literal["off"]


class GuardSection(Section):
    """Bounds. Without the section nothing is judged; with it, even an empty one, every version is.

    A bound that is "off" is not looked at. examples, min_examples and online_clicks are counts; cooldown a time.
    """

    examples: int = Field(default=10_000, ge=100, le=MOST_EXAMPLES)
    min_examples: int = Field(default=1_000, ge=1, le=MOST_EXAMPLES)
    logloss_rise: Bound | Off = 0.1
    calibration: Band | Off = (0.8, 1.25)
    keys_change: Bound | Off = 0.5
    min_keys: int = Field(default=1, ge=0)
    online_calibration: Band | Off = (0.5, 2.0)
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
