"""The model spec: which columns are features, which variants there are, how they learn. Read from TOML, stored as JSON.

`parse_spec` and `load_spec` check a spec; `ModelSpec.resolve` adapts it to the columns of a log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from model_store.bounded import NESTING, json_value, toml_document
from model_store.errors import SpecError, listed
from model_store.spec.kinds import KINDS, NoKind, check_kind
from model_store.spec.learner_section import Inclusion, LearnerSection, Rule, Subsample
from model_store.spec.sections import (
    CalibrationSection,
    ChosenSection,
    Cross,
    FieldSpec,
    GuardSection,
    InputSection,
    JoinSection,
    ModelSection,
    Section,
    Variant,
)

MAX_VARIANTS = 32
# Shares are decimals: three of 0.3333333 do not sum to 1.
SHARE_TOLERANCE = 1e-6
WEIGHT = "weight"
# Immutable, since it is the default of an argument.
_CATEGORIES: Mapping[str, str | None] = MappingProxyType({})
_OF_DERIVATION = {
    *(
        "column",
        "side",
        "ratio",
        "difference",
        "list",
        "best",
        "history",
        "measure",
        "of",
        "last",
        "within",
        "half_life",
    )
}


class ModelSpec(Section):
    """A model spec. Frozen; `resolve` returns a copy in which every field is named."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    model: ModelSection
    input: InputSection
    fields: dict[str, Annotated[FieldSpec, AfterValidator(check_kind)]] = Field(default_factory=dict)
    crosses: tuple[Cross, ...] = ()
    variants: dict[str, Variant] = Field(default_factory=lambda: {"base": Variant(share=1.0)})
    learner: LearnerSection = LearnerSection()
    rules: dict[str, Rule] = Field(default_factory=dict)
    calibration: CalibrationSection = CalibrationSection()
    join: JoinSection = JoinSection()
    guard: GuardSection | None = None
    chosen: ChosenSection | None = None

    ALWAYS = ("fields", "crosses", "variants", "learner", "rules", "calibration")

    @model_validator(mode="after")
    def _variants_are_sound(self) -> Self:
        if not 1 <= len(self.variants) <= MAX_VARIANTS:
            raise ValueError(f"variants: from 1 to {MAX_VARIANTS} are allowed, got {len(self.variants)}")
        # A share of 0 that is given is not the default 0.
        if all("share" not in v.model_fields_set for v in self.variants.values()):
            even = 1.0 / len(self.variants)
            shared = {n: v.model_copy(update={"share": even}) for n, v in self.variants.items()}
            # The model is frozen; a validator runs before anybody has seen it.
            object.__setattr__(self, "variants", shared)
        total = sum(v.share for v in self.variants.values())
        if abs(total - 1.0) > SHARE_TOLERANCE:
            raise ValueError(f"variants: the shares must sum to 1, they sum to {total:.9g}")
        return self

    @model_validator(mode="after")
    def _names_are_sound(self) -> Self:
        for section, names in (("fields", self.fields), ("variants", self.variants)):
            if "" in names:
                raise ValueError(f"{section}: a name may not be empty")
        return self

    @model_validator(mode="after")
    def _averages_are_sound(self) -> Self:
        for name, variant in self.variants.items():
            if variant.average is None:
                continue
            if why_not := self._why_no_average(name, variant.average):
                raise ValueError(f"variants.{name}.average: {why_not}")
            without = self.variants[variant.average].without
            if "without" not in variant.model_fields_set:
                inherited = variant.model_copy(update={"without": without})
                object.__setattr__(self, "variants", self.variants | {name: inherited})
            elif variant.without != without:
                raise ValueError(
                    f"variants.{name}.without: an average has the fields and crosses of {variant.average!r}; "
                    "leave it out"
                )
        return self

    def _why_no_average(self, name: str, of: str) -> str:
        """Why variant `name` cannot be the average of variant `of`; "" if it can."""
        learning = [other for other, variant in self.variants.items() if variant.average is None]
        if of not in learning:
            return f"got {of!r}; expected a variant that learns: {', '.join(learning) or 'there is none'}"
        section = self.learner
        if section.values != "per_variant":
            return 'an average has weights of its own; set learner.values = "per_variant"'
        if section.precision != "f64":
            return f'precision = "{section.precision}" cannot hold an average; set precision = "f64"'
        if section.algorithm != "ftrl" and (section.algorithm != "ogd" or self.shrinks_untouched):
            return (
                f'algorithm = "{section.algorithm}"{" with a penalty" if section.algorithm == "ogd" else ""} changes '
                'weights, or their meaning, between two examples of a key; expected "ftrl", or "ogd" without l1 '
                'and l2, or with shrink = "touched"'
            )
        return ""

    @property
    def shrinks_untouched(self) -> bool:
        """True if a penalty acts on keys that an example does not have."""
        return self.has_penalties and self.learner.shrink != "touched"

    @property
    def has_penalties(self) -> bool:
        """True if any key of any variant has a penalty, l1 or l2."""
        own = [each for variant in self.variants.values() for each in variant.own_parameters.items()]
        penalties = [value for name, value in own if name in ("l1", "l2")]
        return any((self.learner.l1, self.learner.l2, *penalties, *(rule.l1 for rule in self.rules.values())))

    @model_validator(mode="after")
    def _own_parameters_have_values(self) -> Self:
        for name, variant in self.variants.items():
            if variant.own_parameters and self.learner.values != "per_variant":
                raise ValueError(
                    f"variants.{name}: {', '.join(variant.own_parameters)} of its own, but the variants share their "
                    'values; a variant has its own with learner.values = "per_variant"'
                )
            own = variant.own_parameters
            for regularizer in ("l1", "l2"):
                if own.get(regularizer) and (why_not := self.learner.why_not(regularizer)):
                    raise ValueError(f"variants.{name}.{regularizer}: {why_not}")
            if own:
                self._check_first_rate(f"variants.{name}", own)
        return self

    def _check_first_rate(self, setting: str, own: Mapping[str, float]) -> None:
        """Raise ValueError naming the setting unless the first rate is finite with these parameters of its own."""
        try:
            self.learner.check_first_rate(
                *(own.get(name, getattr(self.learner, name)) for name in ("alpha", "beta", "l2"))
            )
        except ValueError as error:
            raise ValueError(f"{setting}: {error}") from None

    @model_validator(mode="after")
    def _rules_fit_the_learner(self) -> Self:
        for prefix, rule in self.rules.items():
            if rule.l1 is not None and (why_not := self.learner.why_not("l1")):
                raise ValueError(f'rules."{prefix}".l1: {why_not}')
            if rule.alpha is not None and (why_not := self.learner.why_no_alpha):
                raise ValueError(f'rules."{prefix}".alpha: {why_not}')
            own = {"alpha": rule.alpha} if rule.alpha is not None else {}
            for variant in self.variants.values() if own else ():
                self._check_first_rate(f'rules."{prefix}".alpha', variant.own_parameters | own)
            included = rule.inclusion is not None and rule.inclusion.kind != "none"
            if included and self.learner.hashing:
                raise ValueError(
                    f'rules."{prefix}".inclusion does not go with learner.{self.learner.hashing}: every '
                    "key has a bucket from its first occurrence; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _fixed_weights_are_exact(self) -> Self:
        for name, field in self.fields.items():
            weight = field.fixed_weight
            if weight is None or self.learner.precision != "q2.13":
                continue
            # In steps of 2^-13 within the range of q2.13: a fixed weight must not be rounded when it is published.
            if not -4.0 <= weight < 4.0 or weight * 8192.0 % 1.0:
                raise ValueError(
                    f'fields.{name}.fixed_weight: got {weight:g}; with learner.precision = "q2.13" it must be a '
                    'multiple of 2^-13 from -4 to below 4; take precision = "f64", or scale the column'
                )
        return self

    @model_validator(mode="after")
    def _joined_rows_have_outcomes(self) -> Self:
        if self.input.rows == "clicked" and self.join.positive != "conversion":
            raise ValueError(
                'input.rows = "clicked" learns what follows a click: set join.positive = "conversion", else every row '
                "is a positive"
            )
        if self.input.rows == "clicked" and self.input.examination is not None:
            raise ValueError(
                'input.examination is of clicks: with rows = "clicked" each row was looked at; leave it out'
            )
        if self.join.late == "weigh" and self.learner.link != "logit":
            raise ValueError(
                f'join.late = "weigh" weighs the gradient of the log-loss, and learner.algorithm = '
                f'"{self.learner.algorithm}" has none; take "correct", or another algorithm'
            )
        return self

    @model_validator(mode="after")
    def _ttl_has_a_clock(self) -> Self:
        if self.learner.ttl_seconds is not None and self.input.timestamp is None:
            raise ValueError(
                f"learner.ttl: {self.learner.ttl!r} is a time span and needs the log's timestamps: set input.timestamp"
            )
        return self

    @model_validator(mode="after")
    def _ids_are_never_missing(self) -> Self:
        for name, field in self.fields.items():
            if field.missing is not None and (field.column or name) == self.input.item:
                raise ValueError(
                    f"fields.{name}: missing: the column of the item itself; no item is without it"
                )
        return self

    @model_validator(mode="after")
    def _crosses_are_sound(self) -> Self:
        # Without [fields] the columns of the log decide: `resolve` checks then.
        if self.fields:
            check_crosses(self)
            check_derived(self)
            check_calibration(self)
        return self

    def resolve(self, columns: Sequence[str], kinds: Mapping[str, str | None] = _CATEGORIES) -> ModelSpec:
        """Return this spec with every field named, checked against the log's `columns`.

        Without [fields] every free column is a field: a category, or of its kind in `kinds`; None there means no field.
        A column of kind WEIGHT is the weight, unless the spec names or ignores one.

        Raises SpecError naming a missing column and listing those that exist. An optional field may be missing: it
        stays in the spec, without values.
        """
        taken = {*self.input.named_columns, *self.input.ignore, ""}
        fields = dict(self.fields) or {
            name: FieldSpec.model_validate({"kind": kind})
            for name in columns
            if name not in taken and (kind := kinds.get(name, "category")) not in (None, WEIGHT)
        }
        optional = {f"fields.{name}" for name, field in fields.items() if field.optional or field.is_derived}
        named = self._columns({}, ("timestamp", "request", "cookie", "item", "position"))
        for name, column in (*named, *self._columns(fields)):
            if column not in columns and name not in optional:
                field, hint = fields.get(name.removeprefix("fields.")), ""
                if field is not None and field.side != "context":
                    hint = f" (columns of {field.side}s may come from a separate file: --{field.side}s FILE)"
                raise SpecError(
                    f"{name}: no column {column!r} in the log; it has: {listed(columns, column)}{hint}"
                )
        if not fields:
            raise SpecError(f"no feature left: [input] names every column; columns: {', '.join(columns)}")
        weights = (name for name, kind in kinds.items() if kind == WEIGHT and name not in self.input.ignore)
        section = self.input.model_copy(update={"weight": self.input.weight or next(weights, None)})
        resolved = self.model_copy(update={"fields": fields, "input": section})
        check_crosses(resolved)
        check_derived(resolved)
        check_calibration(resolved)
        return resolved

    @property
    def has_to_learn(self) -> bool:
        """True if a field's bucket or scale has yet to learn from a log."""
        return any(field.has_to_learn for field in self.fields.values())

    def with_learned_of(self, others: Sequence[ModelSpec]) -> ModelSpec:
        """This spec with what the first of `others` with the same field and transform has learned, where it has not.

        Parameters that are left to be chosen are those of the first of `others`.
        """
        fields = dict(self.fields)
        for name, field in self.fields.items():
            same = (
                (other.fields[name] for other in others if name in other.fields) if field.has_to_learn else ()
            )
            for each in same:
                if each.learned is not None and each.transform == field.transform:
                    fields[name] = field.model_copy(update={"learned": each.learned})
                    break
        learner = self.learner
        # A model that has chosen is followed: its state was learned with these parameters.
        if learner.auto and others:
            chosen: dict[str, object] = {name: getattr(others[0].learner, name) for name in learner.auto}
            learner = learner.model_copy(update=chosen | {"auto": others[0].learner.auto})
        return self.model_copy(update={"fields": fields, "learner": learner})

    def warnings(self) -> tuple[str, ...]:
        """Messages about settings that are allowed but rarely intended."""
        real = [name for name, field in self.fields.items() if field.is_number]
        if not real or self.learner.rate != "counts":
            return ()
        return (
            f'learner.rate = "counts" treats every x as 1, but fields.{real[0]} is a real number, so its rate has '
            'the wrong scale; give the field bucket = "log", or use rate = "gradients"',
        )

    def wanted_columns(self) -> tuple[str, ...]:
        """The log columns a resolved spec reads, each once, in a fixed order."""
        return tuple(dict.fromkeys(column for _, column in self._columns(self.fields)))

    def _columns(
        self, fields: Mapping[str, FieldSpec], names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """(setting, column) of every column that is read, or of the named ones of [input]."""
        if names is None:
            histories = any(field.history is not None for field in fields.values())
            times = histories or self.learner.ttl_seconds is not None
            names = ("label", "views", "weight", "request", *(("cookie", "item") if histories else ()))
            # Only where the time is used: a log without it can be learned otherwise.
            names = (*names, "timestamp") if times else names
            names = (*names, "position") if self.input.examination is not None else names
        for name in names:
            if (column := getattr(self.input, name)) is not None:
                yield f"input.{name}", column
        for name, field in fields.items():
            yield f"fields.{name}", field.column or name

    def to_json(self) -> str:
        """Canonical JSON: the same spec gives the same text, hence the same hash.

        Members are included only if they differ from their default, besides those of `Section.ALWAYS`, so that a
        member that is added does not change the hash of any spec without it.
        """
        # In the order of declaration, not sorted: the order of fields and variants is part of the spec.
        return json.dumps(_written(self, self.model_dump(mode="json")), separators=(",", ":"))

    @cached_property
    def derivation(self) -> str:
        """Identifies how derived fields are computed, 16 hex digits; empty if there are none.

        A logged answer carries it, so that a trainer with the same fields takes an absent value as absent.
        """
        derived = [
            # What is made of the number afterwards (bucket, scale) is left out: it may differ between trainer and
            # answer.
            (name, field.model_dump(mode="json", include=_OF_DERIVATION))
            for name, field in self.fields.items()
            if field.is_derived
        ]
        return hashlib.sha256(json.dumps(derived).encode()).hexdigest()[:16] if derived else ""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy. Pydantic's would keep what the cached properties were of this spec."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("derivation", "sha256"):
            copied.__dict__.pop(name, None)
        return copied

    def with_columns(self, columns: tuple[str, ...] | None) -> ModelSpec:
        """This spec with the columns of a log without a header, unless it names them; None: the log has a header."""
        if columns is None or self.input.columns is not None:
            return self
        return self.model_copy(update={"input": self.input.model_copy(update={"columns": columns})})

    def without_guard(self) -> ModelSpec:
        """This spec without the guard section, which does not affect learning."""
        return self.model_copy(update={"guard": None})

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _written(value: Any, document: Any) -> Any:
    """What the JSON of a spec holds of one value in it, given all that it could hold."""
    if isinstance(value, Section):
        members = type(value).model_fields
        return {
            name: _written(getattr(value, name), document[name])
            for name, field in members.items()
            if name in value.ALWAYS or getattr(value, name) != field.get_default(call_default_factory=True)
        }
    if isinstance(value, dict):
        return {name: _written(each, document[name]) for name, each in value.items()}
    if isinstance(value, tuple):
        return list(map(_written, value, document))
    return document


def cross_called(name: str, crosses: Sequence[Cross]) -> frozenset[str] | None:
    """The fields of the cross written `a*b`, in any order, or None. Field names may contain `*` too."""
    for cross in crosses:
        # At most 4! orders. Splitting the name would not do: field names may contain *.
        if any("*".join(order) == name for order in permutations(cross.fields)):
            return frozenset(cross.fields)
    return None


def check_crosses(spec: ModelSpec) -> None:
    """Raise SpecError unless crosses and `without` lists name existing fields and crosses, each cross once."""
    seen: set[frozenset[str]] = set()
    for index, cross in enumerate(spec.crosses):
        for name in cross.fields:
            if name not in spec.fields:
                raise SpecError(f"crosses[{index}]: no field {name!r}; fields: {listed(spec.fields, name)}")
            if KINDS[spec.fields[name].kind].whole_keys:
                raise SpecError(f'crosses[{index}]: {name!r} is of kind "raw"; raw keys cannot be crossed')
        if frozenset(cross.fields) in seen:
            raise SpecError(f"crosses[{index}]: {'*'.join(cross.fields)} occurs twice")
        seen.add(frozenset(cross.fields))
    for variant, section in spec.variants.items():
        for name in section.without:
            if name not in spec.fields and cross_called(name, spec.crosses) is None:
                known = [*spec.fields, *("*".join(cross.fields) for cross in spec.crosses)]
                raise SpecError(
                    f"variants.{variant}.without: {name!r} is neither a field nor a cross; "
                    f"fields and crosses: {listed(known, name)}"
                )


def check_derived(spec: ModelSpec) -> None:
    """Raise SpecError unless derived fields are computed from fields that are there and fit."""
    for name, field in spec.fields.items():
        for source in field.inputs:
            given = spec.fields.get(source)
            if given is None:
                raise SpecError(f"fields.{name}: no field {source!r}; fields: {listed(spec.fields, source)}")
            if field.history is None and given.kind != "number":
                raise SpecError(f"fields.{name}: {source!r} is of kind {given.kind!r}; expected a number")
            if (
                given.history is not None
                or given.list is not None
                or (given.is_derived and field.list is None)
            ):
                raise SpecError(
                    f"fields.{name}: {source!r} is derived itself; only list can be of a ratio or a difference"
                )
            if given.side == "item" and field.side != "item" and field.history is None:
                raise SpecError(
                    f'fields.{name}: {source!r} is a field of the item, so this one is too: set side = "item"'
                )
        if field.is_derived and (reader := _also_reads(spec, name)) is not None:
            raise SpecError(
                f"fields.{name}: {reader} reads its column {field.column or name!r} too; a derived field has a "
                "column of its own: rename one of them"
            )
        sides = {spec.fields[source].side for source in field.ratio or field.difference or ()}
        if field.side == "item" and sides and "item" not in sides:
            raise SpecError(
                f"fields.{name}: neither {' nor '.join(map(repr, field.inputs))} is a field of the item, so this one "
                'is not either: set side = "user" or "context"'
            )
        if field.list is not None and spec.fields[field.of or ""].side != "item":
            raise SpecError(
                f"fields.{name}: {field.of!r} is the same for all candidates; expected a field of the item"
            )
        if field.history is None:
            continue
        if field.of is not None and (kept := spec.fields[field.of]).side != "item":
            raise SpecError(
                f"fields.{name}: history keeps values of items; {field.of!r} is not a field of the item"
            )
        if field.of is not None and kept.kind != "category":
            raise SpecError(f"fields.{name}: history keeps categories; {field.of!r} is of kind {kept.kind!r}")
        if spec.input.cookie is None:
            raise SpecError(f"fields.{name}: history needs the user: set input.cookie")
        if spec.input.timestamp is None:
            raise SpecError(f"fields.{name}: history needs the time: set input.timestamp")
        if field.of is None and spec.input.item is None:
            raise SpecError(f"fields.{name}: history of items needs the item: set input.item, or of = FIELD")


def _also_reads(spec: ModelSpec, name: str) -> str | None:
    """What else reads the column of a field, or None."""
    column = spec.fields[name].column or name
    if column in spec.input.named_columns:
        return "[input]"
    others = (
        other for other, field in spec.fields.items() if other != name and (field.column or other) == column
    )
    return next((f"fields.{other}" for other in others), None)


def check_calibration(spec: ModelSpec) -> None:
    """Raise SpecError unless `calibration.by` is a single-valued field of the request."""
    by = spec.calibration.by
    if by is None:
        return
    field = spec.fields.get(by)
    if field is None:
        raise SpecError(f"calibration.by: no field {by!r}; fields: {listed(spec.fields, by)}")
    if field.side == "item":
        raise SpecError(
            f"calibration.by: {by!r} is a field of the item; expected one of the user's or the context's side"
        )
    if KINDS[field.kind].is_list or field.is_number:
        raise SpecError(
            f"calibration.by: {by!r} is of kind {field.kind!r}; expected a category, a time, or a number in buckets"
        )


def parse_spec(text: str, source: str = "spec") -> ModelSpec:
    """Parse a spec from TOML text. Raises SpecError naming the key, its value, and what is allowed."""
    try:
        document = toml_document(text)
    except ValueError as error:
        raise SpecError(f"{source}: not valid TOML: {error}") from None
    return spec_from_document(document, source)


def spec_from_json(text: str, source: str = "spec") -> ModelSpec:
    """Read what `ModelSpec.to_json` wrote. Raises SpecError."""
    try:
        document = json_value(text)
    except ValueError as error:
        raise SpecError(f"{source}: not valid JSON: {error}") from None
    return _validate(document, source)


def spec_from_document(document: Any, source: str = "spec") -> ModelSpec:
    """A spec from what its TOML or JSON holds, as dictionaries and lists. Raises SpecError."""
    spec = _validate(document, source)
    for name, field in spec.fields.items():  # not where a model is read: what it learned stays
        if (field.column or name) in spec.input.ignore and not field.is_derived:
            raise SpecError(
                f"{source}: fields.{name}: input.ignore says that column {field.column or name!r} is no feature; "
                "remove the field, or take the column out of ignore"
            )
    return spec


def load_spec(path: str | Path) -> ModelSpec:
    """Read and check the spec file at `path`. Raises SpecError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read the spec {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: expected UTF-8; byte {error.start} is not") from None
    return parse_spec(text, str(path))


def _validate(document: Any, source: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(document)
    except ValidationError as error:
        lines = [_explain(detail) for detail in error.errors(include_url=False)]
        raise SpecError("\n".join(f"{source}: {line}" for line in lines)) from None
    # From a validator, such as `check_crosses`: pydantic only wraps ValueErrors.
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    except RecursionError:
        raise SpecError(f"{source}: {NESTING}") from None


def _explain(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "spec"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{path}: no such key; {_allowed_beside(detail['loc'])}"
    if detail["type"] == "missing":
        return f"{path}: missing; it is required"
    if detail["type"] == "value_error":
        path = f"{path}.kind" if isinstance(detail["ctx"]["error"], NoKind) else path
        return message if path == "spec" else f"{path}: {message}"
    return f"{path}: got {detail['input']!r}; {message[0].lower()}{message[1:]}"


def _allowed_beside(location: Sequence[str | int]) -> str:
    section: Any = ModelSpec
    for part in location[:-1]:
        # Names of fields and variants, and indexes, are no sections: they stay at the one before.
        section = _SECTIONS.get(str(part), section)
    return f"allowed here: {listed(section.model_fields, str(location[-1]))}"


_SECTIONS: dict[str, type[Section]] = {
    "model": ModelSection,
    "input": InputSection,
    "fields": FieldSpec,
    "crosses": Cross,
    "variants": Variant,
    "learner": LearnerSection,
    "inclusion": Inclusion,
    "rules": Rule,
    "calibration": CalibrationSection,
    "join": JoinSection,
    "guard": GuardSection,
    "subsample": Subsample,
}
