"""The sections of a model spec: what each key may hold. How they make a whole is in `model_store.spec`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from model_store.errors import UsageError
from model_store.redis_keys import check_model_name

MAX_CROSS_FIELDS = 4

Side = Literal["user", "item", "context"]
Kind = Literal["category", "set", "number", "time", "raw"]
TimePart = Literal["minute", "hour", "day", "weekday", "month"]
# Within these bounds no rate, weight or sum of a learner leaves the doubles, whatever the log (`values.LARGEST_REAL`).
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
    """A frozen part of a spec that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelSection(Section):
    """What the model is called."""

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
        """The columns this section names, `ignore` not among them."""
        names = (self.label, self.weight, self.timestamp, self.request, self.cookie, self.item)
        return tuple(name for name in names if name is not None)


class FieldSpec(Section):
    """One field. `side` says whether its value comes with the user, the item or the request's context."""

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
    """Fields whose values count together: one key for each combination."""

    fields: tuple[str, ...] = Field(min_length=2, max_length=MAX_CROSS_FIELDS)

    @model_validator(mode="after")
    def _fields_differ(self) -> Self:
        if len(set(self.fields)) != len(self.fields):
            raise ValueError(f"a cross names a field twice: {list(self.fields)}")
        return self


class Variant(Section):
    """A subset of the model: all features but those in `without` (fields, or crosses written `a*b`).

    With `values = "per_variant"` a variant may have parameters of its own; None stands for those of `[learner]`.
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
    """How predictions are brought to the click rates that came (the paper, section 7): see `docs/calibration.md`.

    `by` names a field of the user's or the context's side; each of its values with enough examples has its own curve.
    """

    kind: Literal["none", "power", "isotonic"] = "none"
    by: str | None = None

    @model_validator(mode="after")
    def _by_has_curves(self) -> Self:
        if self.kind == "none" and self.by is not None:
            raise ValueError(f'by = "{self.by}" needs kind = "power" or "isotonic"')
        return self
