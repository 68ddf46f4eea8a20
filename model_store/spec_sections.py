"""The sections of a model spec: what each key may hold. How they make a whole is in `model_store.spec`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CROSS_FIELDS = 4
MODEL_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"

Side = Literal["user", "item", "context"]
Kind = Literal["category", "set", "number", "time", "raw"]
TimePart = Literal["minute", "hour", "day", "weekday", "month"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of a spec that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelSection(Section):
    """What the model is called."""

    name: str = Field(pattern=MODEL_NAME_PATTERN)


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
    """A subset of the model: all features but those in `without` (fields, or crosses written `a*b`)."""

    share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    without: tuple[str, ...] = ()


class Inclusion(Section):
    """When a key that is not in the model may enter it (the paper, section 4.1)."""

    kind: Literal["none", "poisson", "bloom"] = "none"
    p: float | None = Field(default=None, gt=0, le=1)
    count: int | None = Field(default=None, ge=1)


class Subsample(Section):
    """Which share of the requests without a click is learned from (the paper, section 4.6)."""

    unclicked: float = Field(gt=0, le=1)


class LearnerSection(Section):
    """The learner and its parameters, named as in the paper.

    `rate_scale` and `rate_decay` are the other form of the rate, eta = rate_scale / (1 + rate_decay sqrt(n)): alpha is
    rate_scale / rate_decay, and beta is 1 / rate_decay.
    """

    algorithm: Literal["ogd", "truncation", "truncated_gradient", "fobos", "rda", "ftrl"] = "ftrl"
    alpha: Positive = 0.1
    beta: NotNegative = 1.0
    l1: NotNegative = 1.0
    l2: NotNegative = 0.0
    values: Literal["single", "per_variant"] = "single"
    rate: Literal["gradients", "counts"] = "gradients"
    precision: Literal["f64", "q2.13"] = "f64"
    inclusion: Inclusion = Inclusion()
    subsample: Subsample | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_the_other_rate_form(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not {"rate_scale", "rate_decay"} & data.keys():
            return data
        data = dict(data)
        scale, decay = data.pop("rate_scale", None), data.pop("rate_decay", None)
        if scale is None or decay is None or {"alpha", "beta"} & data.keys():
            raise ValueError("give either alpha and beta, or rate_scale and rate_decay, both of the pair")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in (scale, decay)):
            raise ValueError(f"rate_scale and rate_decay must be numbers > 0, got {scale!r} and {decay!r}")
        return data | {"alpha": scale / decay, "beta": 1.0 / decay}

    @model_validator(mode="after")
    def _is_learnable(self) -> Self:
        if self.beta == 0 and self.l2 == 0 and self.algorithm == "ftrl":
            raise ValueError(
                "beta and l2 are both 0: an unseen key's learning rate would be infinite; set beta > 0"
            )
        return self
