"""The model spec: which columns are features, which variants there are, how they learn. Read from TOML, kept as JSON.

This file knows the shape of a spec and nothing of data or keys. `resolve` is where a spec meets the columns of a log.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model_store.errors import SpecError

MAX_VARIANTS = 32
MAX_CROSS_FIELDS = 4
SHARE_TOLERANCE = 1e-6
MODEL_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"

Side = Literal["user", "item", "context"]
Kind = Literal["category", "set", "number", "time", "raw"]
TimePart = Literal["minute", "hour", "day", "weekday", "month"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelSection(_Section):
    """What the model is called."""

    name: str = Field(pattern=MODEL_NAME_PATTERN)


class InputSection(_Section):
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


class FieldSpec(_Section):
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


class Cross(_Section):
    """Fields whose values count together: one key for each combination."""

    fields: tuple[str, ...] = Field(min_length=2, max_length=MAX_CROSS_FIELDS)

    @model_validator(mode="after")
    def _fields_differ(self) -> Self:
        if len(set(self.fields)) != len(self.fields):
            raise ValueError(f"a cross names a field twice: {list(self.fields)}")
        return self


class Variant(_Section):
    """A subset of the model: all features but those in `without` (fields, or crosses written `a*b`)."""

    share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    without: tuple[str, ...] = ()


class Inclusion(_Section):
    """When a key that is not in the model may enter it (the paper, section 4.1)."""

    kind: Literal["none", "poisson", "bloom"] = "none"
    p: float | None = Field(default=None, gt=0, le=1)
    count: int | None = Field(default=None, ge=1)


class Subsample(_Section):
    """Which share of the requests without a click is learned from (the paper, section 4.5)."""

    unclicked: float = Field(gt=0, le=1)


class LearnerSection(_Section):
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


class ModelSpec(_Section):
    """A whole spec. Frozen; `resolve` returns a copy whose fields are all named."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    model: ModelSection
    input: InputSection
    fields: dict[str, FieldSpec] = Field(default_factory=dict)
    crosses: tuple[Cross, ...] = ()
    variants: dict[str, Variant] = Field(default_factory=lambda: {"base": Variant(share=1.0)})
    learner: LearnerSection = LearnerSection()

    @model_validator(mode="after")
    def _variants_are_sound(self) -> Self:
        if not 1 <= len(self.variants) <= MAX_VARIANTS:
            raise ValueError(f"variants: from 1 to {MAX_VARIANTS} are allowed, got {len(self.variants)}")
        if all("share" not in v.model_fields_set for v in self.variants.values()):
            even = 1.0 / len(self.variants)
            shared = {n: v.model_copy(update={"share": even}) for n, v in self.variants.items()}
            object.__setattr__(self, "variants", shared)
        total = sum(v.share for v in self.variants.values())
        if abs(total - 1.0) > SHARE_TOLERANCE:
            raise ValueError(f"variants: the shares must sum to 1, they sum to {total:.9g}")
        return self

    @model_validator(mode="after")
    def _crosses_are_sound(self) -> Self:
        if self.fields:
            check_crosses(self)
        return self

    def resolve(self, columns: Sequence[str]) -> ModelSpec:
        """Return this spec with every field named, checked against the log's `columns`.

        Raises SpecError naming a missing column and listing those there are. An optional field may be missing: it
        stays in the spec, and no example has a value of it.
        """
        fields = dict(self.fields) or {name: FieldSpec() for name in self._free_columns(columns)}
        optional = {f"fields.{name}" for name, field in fields.items() if field.optional}
        for name, column in (*self._named(), *self._wanted(fields)):
            if column not in columns and name not in optional:
                hint = _join_hint(name, fields)
                raise SpecError(
                    f"{name}: no column {column!r} in the log; it has: {', '.join(columns)}{hint}"
                )
        if not fields:
            raise SpecError(
                f"no feature is left: every column is named by [input]; columns: {', '.join(columns)}"
            )
        resolved = self.model_copy(update={"fields": fields})
        check_crosses(resolved)
        return resolved

    def wanted_columns(self) -> tuple[str, ...]:
        """The log columns a resolved spec reads, each once, in a fixed order."""
        return tuple(dict.fromkeys(column for _, column in self._wanted(self.fields)))

    def _free_columns(self, columns: Sequence[str]) -> Iterator[str]:
        taken = {*self.input.named_columns, *self.input.ignore, ""}
        return (name for name in columns if name not in taken)

    def _named(self) -> Iterator[tuple[str, str]]:
        for name in ("timestamp", "request", "cookie", "item"):
            if (column := getattr(self.input, name)) is not None:
                yield f"input.{name}", column

    def _wanted(self, fields: Mapping[str, FieldSpec]) -> Iterator[tuple[str, str]]:
        yield "input.label", self.input.label
        if self.input.weight is not None:
            yield "input.weight", self.input.weight
        for name, field in fields.items():
            yield f"fields.{name}", field.column or name

    def to_json(self) -> str:
        """Canonical JSON: the same spec gives the same text, so that its hash names it."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), sort_keys=False)

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _join_hint(name: str, fields: Mapping[str, FieldSpec]) -> str:
    field = fields.get(name.removeprefix("fields."))
    if field is None or field.side == "context":
        return ""
    return f" (columns of {field.side}s may come from a file of their own: --{field.side}s FILE)"


def check_crosses(spec: ModelSpec) -> None:
    """Raise SpecError unless crosses and `without` lists name things the spec has, each cross once."""
    seen: set[frozenset[str]] = set()
    for index, cross in enumerate(spec.crosses):
        for name in cross.fields:
            if name not in spec.fields:
                raise SpecError(f"crosses[{index}]: no field {name!r}; fields: {', '.join(spec.fields)}")
            if spec.fields[name].kind == "raw":
                raise SpecError(f'crosses[{index}]: {name!r} is of kind "raw"; raw keys cannot be crossed')
        if frozenset(cross.fields) in seen:
            raise SpecError(f"crosses[{index}]: {'*'.join(cross.fields)} is there twice")
        seen.add(frozenset(cross.fields))
    for variant, section in spec.variants.items():
        for name in section.without:
            if name not in spec.fields and frozenset(name.split("*")) not in seen:
                raise SpecError(
                    f"variants.{variant}.without: {name!r} is no field and no cross; "
                    f"fields: {', '.join(spec.fields)}; crosses: "
                    f"{', '.join('*'.join(c.fields) for c in spec.crosses) or 'none'}"
                )


def parse_spec(text: str, source: str = "spec") -> ModelSpec:
    """Parse a spec from TOML text. Raises SpecError naming the key, what stood there, and what is allowed."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{source}: not valid TOML: {error}") from None
    return _validate(document, source)


def spec_from_json(text: str, source: str = "spec") -> ModelSpec:
    """Read back what `ModelSpec.to_json` wrote. Raises SpecError."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{source}: not valid JSON: {error}") from None
    return _validate(document, source)


def load_spec(path: str | Path) -> ModelSpec:
    """Read and check the spec file at `path`. Raises SpecError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read the spec {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: a spec is UTF-8 text; byte {error.start} is not") from None
    return parse_spec(text, str(path))


def _validate(document: Any, source: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(document)
    except ValidationError as error:
        lines = [_explain(detail) for detail in error.errors(include_url=False)]
        raise SpecError("\n".join(f"{source}: {line}" for line in lines)) from None
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None


def _explain(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "spec"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{path}: no such key; {_allowed_beside(detail['loc'])}"
    if detail["type"] == "missing":
        return f"{path}: missing; it is required"
    if detail["type"] == "value_error":
        return message if path == "spec" else f"{path}: {message}"
    return f"{path}: got {detail['input']!r}; {message[0].lower()}{message[1:]}"


def _allowed_beside(location: Sequence[str | int]) -> str:
    section: Any = ModelSpec
    for part in location[:-1]:
        section = _SECTIONS.get(str(part), section)
    return f"allowed here: {', '.join(section.model_fields)}"


_SECTIONS: dict[str, type[_Section]] = {
    "model": ModelSection,
    "input": InputSection,
    "fields": FieldSpec,
    "crosses": Cross,
    "variants": Variant,
    "learner": LearnerSection,
    "inclusion": Inclusion,
    "subsample": Subsample,
}
