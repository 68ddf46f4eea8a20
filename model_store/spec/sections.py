"""The sections of a model spec: keys, their types and limits. `spec.spec.ModelSpec` combines and checks them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from model_store.errors import UsageError
from model_store.redis.redis_keys import check_model_name

MAX_CROSS_FIELDS = 4

Side = Literal["user", "item", "context"]
Kind = Literal["category", "set", "number", "time", "raw"]
TimePart = Literal["minute", "hour", "day", "weekday", "month"]
# Within these bounds no rate, weight or sum of a learner overflows, for any log (see `values.LARGEST_REAL`).
SMALLEST_RATE, LARGEST_RATE, LARGEST_PENALTY = 1e-12, 1e12, 1e24


def _not_tiny(beta: float) -> float:
    if 0.0 < beta < SMALLEST_RATE:
        raise ValueError(f"got {beta!r}; expected 0, or {SMALLEST_RATE:g} to {LARGEST_RATE:g}")
    return beta


def _model_name(name: str) -> str:
    try:
        return check_model_name(name)
    except UsageError as error:
        raise ValueError(str(error)) from None


Alpha = Annotated[float, Field(ge=SMALLEST_RATE, le=LARGEST_RATE, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False), AfterValidator(_not_tiny)]
Penalty = Annotated[float, Field(ge=0, le=LARGEST_PENALTY, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of a spec that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelSection(Section):
    """The model's name."""

    name: Annotated[str, AfterValidator(_model_name)]


class InputSection(Section):
    """How a log row becomes an example: the columns that are not features."""

    label: str
    weight: str | None = None
    timestamp: str | None = None
    request: str | None = None
    cookie: str | None = None
    item: str | None = None
    ignore: tuple[str, ...] = ()

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns this section names, without `ignore`."""
        names = (self.label, self.weight, self.timestamp, self.request, self.cookie, self.item)
        return tuple(name for name in names if name is not None)


class FieldSpec(Section):
    """One field. `side`: whether its value comes with the user, the item or the request's context."""

    side: Side = "context"
    kind: Kind = "category"
    bucket: Literal["log"] | None = None
    part: TimePart | None = None
    format: str | None = None
    column: str | None = None
    separator: str | None = Field(default=None, min_length=1)
    optional: bool = False

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> Self:
        if self.bucket is not None and self.kind != "number":
            raise ValueError(f'bucket belongs to kind = "number"; this field\'s kind is "{self.kind}"')
        if self.kind == "time" and self.part is None:
            raise ValueError('kind = "time" needs part = "minute" | "hour" | "day" | "weekday" | "month"')
        if self.kind != "time" and (self.part is not None or self.format is not None):
            raise ValueError(f'part and format belong to kind = "time"; this field\'s kind is "{self.kind}"')
        if self.separator is not None and self.kind not in ("set", "raw"):
            raise ValueError(
                f'separator belongs to kind = "set" or "raw"; this field\'s kind is "{self.kind}"'
            )
        return self


class Cross(Section):
    """A conjunction of fields: one key for each combination of their values."""

    fields: tuple[str, ...] = Field(min_length=2, max_length=MAX_CROSS_FIELDS)

    @model_validator(mode="after")
    def _fields_differ(self) -> Self:
        if len(set(self.fields)) != len(self.fields):
            raise ValueError(f"a cross names a field twice: {list(self.fields)}")
        return self


class Variant(Section):
    """A subset of the model: all features except those in `without` (fields, or crosses written `a*b`).

    With `values = "per_variant"` a variant may have its own parameters; None means those of `[learner]`.
    """

    share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    without: tuple[str, ...] = ()
    alpha: Alpha | None = None
    beta: Beta | None = None
    l1: Penalty | None = None
    l2: Penalty | None = None

    @property
    def own_parameters(self) -> dict[str, float]:
        """The learner's parameters that this variant does not share."""
        names = ("alpha", "beta", "l1", "l2")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class CalibrationSection(Section):
    """How predictions are corrected to observed click rates (the paper, section 7; docs/calibration.md).

    `by` names a field of the user's or the context's side; each value with enough examples gets its own curve.
    """

    kind: Literal["none", "power", "isotonic"] = "none"
    by: str | None = None

    @model_validator(mode="after")
    def _by_has_curves(self) -> Self:
        if self.kind == "none" and self.by is not None:
            raise ValueError(f'by = "{self.by}" needs kind = "power" or "isotonic"')
        return self


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,12})([smhd])")


def seconds_of(text: str) -> int:
    """The seconds of a time span such as "30d", "12h", "90m", "45s". Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f'got {text!r}; expected a time such as "30d", "12h", "90m", "45s"')
    return int(found[1]) * _UNITS_S[found[2]]


MOST_EXAMPLES = 100_000_000
OFF = "off"


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _checked_band(value: Any) -> Any:
    """A band or "off", checked as a whole, so that an error names a band, not a tuple."""
    if value == OFF:
        return value
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    if not numbers or not 0.0 < value[0] <= 1.0 <= value[1]:
        raise ValueError(f'got {value!r}; expected two numbers around 1, such as [0.8, 1.25], or "off"')
    return value


def _checked_bound(value: Any) -> Any:
    if value != OFF and (not _is_number(value) or value < 0.0):
        raise ValueError(f'got {value!r}; expected a number >= 0, or "off"')
    return value


Band = Annotated[tuple[float, float] | Literal["off"], BeforeValidator(_checked_band)]
Bound = Annotated[float | Literal["off"], BeforeValidator(_checked_bound)]
Time = Annotated[str, AfterValidator(_is_time)]


class GuardSection(Section):
    """Bounds that a version must meet to be activated (docs/guard.md). Without the section nothing is checked.

    A bound that is "off" is not checked. examples, min_examples and online_clicks are counts; cooldown is a time span.
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
        """Seconds after a rollback during which no version is activated."""
        return seconds_of(self.cooldown)


LONGEST_S = 366 * 86_400
MOST_PENDING = 100_000_000


def _is_short_span(text: str) -> str:
    if seconds_of(text) > LONGEST_S:
        raise ValueError(f'got {text!r}; expected at most "366d"')
    return text


ShortTime = Annotated[str, AfterValidator(_is_short_span)]


class JoinSection(Section):
    """How impressions and clicks are joined into examples (docs/join.md). Without the section the defaults apply."""

    window: ShortTime = "10m"
    lateness: ShortTime = "5s"
    late: Literal["count", "correct"] = "count"
    late_within: ShortTime = "1h"
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
        """Time after an impression in which its feedback counts, in microseconds."""
        return seconds_of(self.window) * 1_000_000

    @property
    def lateness_us(self) -> int:
        """How late events may arrive out of order, in microseconds."""
        return seconds_of(self.lateness) * 1_000_000

    @property
    def late_within_us(self) -> int:
        """How long a closed request is kept, in microseconds."""
        return seconds_of(self.late_within) * 1_000_000
