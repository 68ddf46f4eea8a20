"""The sections of a model spec: keys, their types and limits. `spec.spec.ModelSpec` combines and checks them."""

from __future__ import annotations

import itertools
import math
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from model_store.errors import UsageError
from model_store.keys import check_model_name

MAX_CROSS_FIELDS = 4

Side = Literal["user", "item", "context"]
TimePart = Literal["minute", "hour", "day", "weekday", "month"]
Scale = Literal["standard", "minmax", "log1p", "sqrt"]
ListMeasure = Literal["rank", "min", "max", "gap"]
Happening = Literal["seen", "clicked", "converted", "viewed"]
HistoryMeasure = Literal["last", "count", "age", "counts"]
MOST_EDGES = 1_000
MOST_HISTORY = 100
"""The most events of a kind that a user's history keeps."""
MOST_NGRAMS = 256
LONGEST_HALF_LIFE = 1e12
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
    """A frozen part of a spec that rejects unknown keys.

    ALWAYS: the members that its JSON holds even at their default.
    """

    ALWAYS: ClassVar[tuple[str, ...]] = ()
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelSection(Section):
    """The model's name."""

    name: Annotated[str, AfterValidator(_model_name)]


def _checked_examination(value: Any) -> Any:
    right = isinstance(value, list | tuple) and 1 <= len(value) <= MOST_EDGES
    if not right or not all(_is_number(each) and 0.001 <= each <= 10.0 for each in value):
        raise ValueError(f"got {value!r}; expected numbers from 0.001 to 10, one a position from 1")
    return tuple(map(float, value))


Examination = Annotated[tuple[float, ...], BeforeValidator(_checked_examination)]


class InputSection(Section):
    """How a log row becomes an example: the columns that are not features."""

    label: str
    weight: str | None = None
    timestamp: str | None = None
    request: str | None = None
    cookie: str | None = None
    item: str | None = None
    ignore: tuple[str, ...] = ()
    positive: str | tuple[str, ...] | None = None
    views: str | None = None
    rows: Literal["shown", "clicked"] = "shown"
    position: str | None = None
    examination: Examination | None = None
    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    quote: Literal["", '"', "'"] | None = None
    escape: Literal["", "\\"] | None = None
    nulls: tuple[str, ...] | None = None
    decimal: Literal[".", ","] | None = None
    grouping: str | None = Field(default=None, max_length=1)

    ALWAYS = ("weight", "timestamp", "request", "cookie", "item", "ignore")

    @model_validator(mode="after")
    def _labels_are_one_kind(self) -> Self:
        if self.views is not None and self.positive is not None:
            raise ValueError(
                "views says that the label is a count of clicks, positive that it is a value; leave one of them out"
            )
        values = (self.positive,) if isinstance(self.positive, str) else self.positive
        if values is not None and (not values or "" in values):
            raise ValueError(
                "positive: expected values that are not empty; a row without a value is no click"
            )
        if self.examination is not None and self.position is None:
            raise ValueError("examination needs position, the column that says where an item was shown")
        if self.columns is not None and "" in self.columns:
            raise ValueError("columns: a name may not be empty")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError(f"columns: a name occurs twice: {list(self.columns)}")
        return self

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns this section names, without `ignore`."""
        outcome, keys = (self.label, self.views, self.weight), (self.request, self.cookie, self.item)
        names = (*outcome, self.timestamp, *keys, self.position)
        return tuple(name for name in names if name is not None)


_QUANTILES = re.compile(r"quantile:([0-9]{1,4})")


def quantiles_of(bucket: object) -> int | None:
    """The number of buckets of `quantile:N`, or None for another bucket."""
    found = _QUANTILES.fullmatch(bucket) if isinstance(bucket, str) else None
    return int(found[1]) if found else None


def _checked_bucket(value: Any) -> Any:
    """A bucket, checked as a whole, so that an error names a bucket, not a member of a union."""
    # Before pydantic: the error of a union would name each of its members.
    if value is None or value in ("log", "log2_squared"):
        return value
    count = quantiles_of(value)
    if count is not None and 2 <= count <= MOST_EDGES:
        return value
    if isinstance(value, list | tuple) and 1 <= len(value) <= MOST_EDGES and all(map(_is_number, value)):
        edges = tuple(map(float, value))
        if all(low < high for low, high in itertools.pairwise(edges)):
            return edges
    raise ValueError(
        f'got {value!r}; expected "log", "log2_squared", "quantile:N" with N from 2 to {MOST_EDGES}, or up to '
        f"{MOST_EDGES} edges in ascending order"
    )


def _checked_range(value: Any) -> Any:
    if value is not None and not (_are_two(value) and value[0] < value[1]):
        raise ValueError(f"got {value!r}; expected two numbers, the lower one first")
    return value and tuple(map(float, value))


def _is_number(value: Any) -> bool:
    # TOML and JSON have true and inf, which are numbers to isinstance and to the comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_two(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))


Bucket = Annotated[str | tuple[float, ...] | None, BeforeValidator(_checked_bucket)]
Range = Annotated[tuple[float, float] | None, BeforeValidator(_checked_range)]


class FieldSpec(Section):
    """One field. `side`: whether its value comes with the user, the item or the request's context.

    A field with `ratio`, `difference`, `list` or `history` is derived: its value is computed from other fields, from
    the other candidates of the request, or from the user's earlier events, unless the log has it. `learned`: what a
    bucket or scale has learned from the log: the edges of quantiles, [mean, deviation] or [min, max].
    """

    side: Side = "context"
    kind: str = "category"
    bucket: Bucket = None
    scale: Scale | None = None
    learned: tuple[float, ...] | None = None
    clip: Range = None
    missing: Literal["key"] | None = None
    main: bool = True
    fixed_weight: float | None = Field(default=None, allow_inf_nan=False)
    ngrams: int | None = Field(default=None, ge=1, le=3)
    most: int | None = Field(default=None, ge=1, le=MOST_NGRAMS)
    ratio: tuple[str, str] | None = None
    difference: tuple[str, str] | None = None
    list: ListMeasure | None = None
    best: Literal["min", "max"] | None = None
    history: Happening | None = None
    measure: HistoryMeasure | None = None
    of: str | None = None
    last: int | None = Field(default=None, ge=1, le=MOST_HISTORY)
    within: str | None = None
    half_life: str | None = None
    part: TimePart | None = None
    format: str | None = None
    column: str | None = None
    separator: str | None = Field(default=None, min_length=1)
    optional: bool = False

    ALWAYS = ("side", "kind", "bucket", "part", "format", "column", "separator", "optional")

    def check_derivation(self) -> None:
        """Raise ValueError unless the members that derive a value fit each other and the kind."""
        ways = [name for name in DERIVATIONS if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are two ways to compute one value; leave one of them out")
        if self.best is not None and self.list not in ("rank", "gap"):
            raise ValueError('best belongs to list = "rank" or "gap"')
        if self.of is not None and self.list is None and self.history is None:
            raise ValueError("of belongs to list and to history")
        if self.list is not None and self.of is None:
            raise ValueError("list needs of, the number that the candidates of a request are compared by")
        for name in ("measure", "last", "within", "half_life"):
            if getattr(self, name) is not None and self.history is None:
                raise ValueError(f"{name} belongs to history")
        if self.history is not None and self.measure is None:
            raise ValueError('history needs measure = "last", "count", "age" or "counts"')
        if self.last is not None and self.measure != "last":
            raise ValueError('last belongs to measure = "last"')
        if self.half_life is not None and self.measure != "counts":
            raise ValueError('half_life belongs to measure = "counts"')
        for name in ("within", "half_life"):
            if (span := getattr(self, name)) is not None and not seconds_of(span) and name == "half_life":
                raise ValueError(f'half_life: got "{span}"; expected a time longer than 0')
        is_set = self.measure in ("last", "counts")
        wanted = "set" if is_set else "number"
        if ways and self.kind != wanted:
            raise ValueError(f'{ways[0]} gives a {wanted}: set kind = "{wanted}"; got "{self.kind}"')
        if self.list is not None and self.side != "item":
            raise ValueError(f'list compares candidates: set side = "item"; got "{self.side}"')
        if self.history is not None and self.side == "context":
            raise ValueError(
                'history is of a user, or of a user and a candidate: set side = "user" or "item"; got "context"'
            )
        if is_set and self.side != "user":
            raise ValueError(f'measure = "{self.measure}" belongs to side = "user"; got "{self.side}"')
        if None not in (self.history, self.of) and self.side == "user" and not is_set:
            raise ValueError(
                f'of with measure = "{self.measure}" is of a candidate that shares the value: set side = "item"'
            )

    @property
    def is_derived(self) -> bool:
        """True if its value is computed where the log has none."""
        return any(getattr(self, name) is not None for name in DERIVATIONS)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The fields that a derived field is computed from."""
        return tuple(name for name in (*(self.ratio or self.difference or ()), self.of) if name is not None)

    @property
    def transform(self) -> tuple[Any, ...]:
        """What decides what the field learns, besides the log."""
        return self.column, self.clip, self.bucket, self.scale

    @property
    def has_to_learn(self) -> bool:
        """True if its bucket or scale needs what is learned from a log, and has not learned it."""
        return self.learned is None and self.learns

    @property
    def learns(self) -> bool:
        """True if its bucket or scale depends on the log; "log" and log1p are the same for every log."""
        return quantiles_of(self.bucket) is not None or self.scale in ("standard", "minmax")

    @property
    def is_number(self) -> bool:
        """True if its number is the x of one key."""
        return self.kind == "number" and self.bucket is None


DERIVATIONS = ("ratio", "difference", "list", "history")


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

    With `values = "per_variant"` a variant may have its own parameters; None means those of `[learner]`. It may also be
    an average of another variant's weights, most of it over the last tenth of the examples so far; with a `half_life`,
    an example counts half as much as one `half_life` examples later.
    """

    share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    without: tuple[str, ...] = ()
    alpha: Alpha | None = None
    beta: Beta | None = None
    l1: Penalty | None = None
    l2: Penalty | None = None
    average: str | None = None
    half_life: float | None = Field(default=None, ge=1, le=LONGEST_HALF_LIFE, allow_inf_nan=False)

    ALWAYS = ("share", "without", "alpha", "beta", "l1", "l2")

    @model_validator(mode="after")
    def _average_learns_nothing(self) -> Self:
        if self.half_life is not None and self.average is None:
            raise ValueError("half_life belongs to average, the variant whose weights are averaged")
        if self.average is not None and self.own_parameters:
            raise ValueError(
                f"{', '.join(self.own_parameters)}: an average does not learn; set them for variants.{self.average}"
            )
        return self

    @property
    def own_parameters(self) -> dict[str, float]:
        """The learner's parameters that this variant does not share."""
        names = ("alpha", "beta", "l1", "l2")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class CalibrationSection(Section):
    """How predictions are corrected to observed click rates (the paper, section 7; docs/evaluate.md).

    `by` names a field of the user's or the context's side; each value with enough examples gets its own curve.
    """

    kind: Literal["none", "power", "isotonic"] = "none"
    by: str | None = None

    ALWAYS = ("kind", "by")

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


def _is_short(text: str) -> str:
    if seconds_of(text) > LONGEST_S:
        raise ValueError(f'got {text!r}; expected at most "366d"')
    return text


Time = Annotated[str, AfterValidator(_is_time)]
ShortTime = Annotated[str, AfterValidator(_is_short)]


def _checked_band(value: Any) -> Any:
    """A band or "off", checked as a whole, so that an error names a band, not a tuple."""
    if value != OFF and not (_are_two(value) and 0.0 < value[0] <= 1.0 <= value[1]):
        raise ValueError(f'got {value!r}; expected two numbers around 1, such as [0.8, 1.25], or "off"')
    return value


def _checked_bound(value: Any) -> Any:
    if value != OFF and (not _is_number(value) or value < 0.0):
        raise ValueError(f'got {value!r}; expected a number >= 0, or "off"')
    return value


Band = Annotated[tuple[float, float] | Literal["off"], BeforeValidator(_checked_band)]
Bound = Annotated[float | Literal["off"], BeforeValidator(_checked_bound)]


class ChosenStep(Section):
    """A step of a choice, judged on rows that chose nothing. weights: those that are not 0."""

    step: str
    logloss: float
    auc: float | None = None
    mrr: float | None = None
    weights: int = Field(ge=0)

    ALWAYS = ("auc", "mrr")


class ChosenSection(Section):
    """How `ftrie init` chose the spec, for people and reports; what learns and serves does not read it.

    rows: those it was chosen on; judged_rows: those after them, by which the steps are judged.
    """

    rows: int = Field(ge=0)
    judged_rows: int = Field(ge=0)
    steps: tuple[ChosenStep, ...] = ()

    ALWAYS = ("steps",)


class GuardSection(Section):
    """Bounds that a version must meet to be activated (docs/trainer.md). Without the section nothing is checked.

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

    ALWAYS = (
        *("examples", "min_examples", "logloss_rise", "calibration", "keys_fall", "keys_rise", "min_keys"),
        *("online_calibration", "online_clicks", "cooldown"),
    )

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


class JoinSection(Section):
    """How impressions and clicks are joined into examples (docs/join.md). Without the section the defaults apply."""

    window: ShortTime = "10m"
    lateness: ShortTime = "5s"
    late: Literal["count", "correct", "weigh"] = "count"
    late_within: ShortTime = "1h"
    positive: Literal["click", "conversion", "view"] = "click"
    alternatives: int = Field(default=20, ge=1, le=1_000)
    max_pending: int = Field(default=2_000_000, ge=1, le=MOST_PENDING)
    negatives: Literal["shown", "seen"] = "shown"
    unknown_items: Literal["skip", "learn"] = "skip"

    ALWAYS = ("window", "lateness", "late", "late_within", "positive", "max_pending")

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if not self.window_us:
            raise ValueError(f'window: got "{self.window}"; expected a time longer than 0')
        if self.late == "weigh" and self.negatives == "seen":
            raise ValueError(
                'late = "weigh" learns a row when it is shown, negatives = "seen" one that was seen: take late = '
                '"correct", or negatives = "shown"'
            )
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
