"""From one example to its keys: the rules that trainer and server share. What the tokens of a value are, its kind says.

This is the only place that defines the key of a value. `trainer.examples.token_columns` applies the same rules to whole
columns; a test checks that both agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from model_store.errors import FieldValueError, SpecError
from model_store.spec.keys import BIAS, MAX_KEY_BYTES, prefix_of
from model_store.spec.kinds import KINDS, Kind, Token
from model_store.spec.sections import FieldSpec, Side
from model_store.spec.spec import ModelSpec, cross_called
from model_store.spec.values import Value


class Tokenised:
    """A value with its tokens made in advance; a base class for subclasses of the value types."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class FieldPlan:
    """A compiled field.

    prefix is `name=` (empty for whole keys); bit v of `mask` is set if variant v has keys of the field itself.
    """

    name: str
    index: int
    spec: FieldSpec
    prefix: bytes
    mask: int
    kind: Kind

    @property
    def side(self) -> Side:
        """Whether the value comes with the user, the item or the request's context."""
        return self.spec.side

    @property
    def column(self) -> str:
        """The log column that holds this field."""
        return self.spec.column or self.name

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The tokens of one value; none if it is missing, null or empty, unless the field has a key for that.

        Raises FieldValueError if the value does not fit the field's kind, is not UTF-8, or makes a key over 4 KiB.
        """
        if isinstance(value, Tokenised):
            return value.tokens
        try:
            tokens = self.kind.tokens(value)
        except FieldValueError as error:
            raise FieldValueError(str(error), self.name) from None
        for token in tokens:
            # Checked here, so that the error names the field; a key of a cross is checked where it is made.
            if len(token.text) + len(self.prefix) > MAX_KEY_BYTES:
                size = len(token.text) + len(self.prefix)
                raise FieldValueError(
                    f"the key would be {size} bytes long; the limit is {MAX_KEY_BYTES}", self.name
                )
        return tokens


class _Sides:
    """Fields by the side that their values come with."""

    fields: tuple[FieldPlan, ...]

    @property
    def request_fields(self) -> tuple[FieldPlan, ...]:
        """Those that come with the request or the user's record, known once per request."""
        return tuple(field for field in self.fields if field.side != "item")

    @property
    def item_fields(self) -> tuple[FieldPlan, ...]:
        """Those that come with each candidate."""
        return tuple(field for field in self.fields if field.side == "item")


@dataclass(frozen=True)
class CrossPlan(_Sides):
    """A compiled cross. Fields of the request (user, context) come first, in the spec's order."""

    name: str
    fields: tuple[FieldPlan, ...]
    prefix: bytes
    mask: int


@dataclass(frozen=True)
class FeaturePlan(_Sides):
    """A compiled, resolved spec: every field and cross in the order of a row's keys."""

    fields: tuple[FieldPlan, ...]
    crosses: tuple[CrossPlan, ...]
    variants: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> FeaturePlan:
        """Compile a resolved spec (`ModelSpec.resolve`). Raises SpecError for a field that has yet to learn."""
        fields = list[FieldPlan]()
        for name, field in spec.fields.items():
            if field.has_to_learn:
                raise SpecError(
                    f"fields.{name}: has learned nothing yet; resolve the spec against a log, or set learned"
                )
            kind, mask = KINDS[field.kind](field), _mask(spec, name) if field.main else 0
            prefix = b"" if kind.whole_keys else prefix_of([name])
            fields.append(FieldPlan(name, len(fields), field, prefix, mask, kind))
        by_name = {field.name: field for field in fields}
        crosses = []
        for cross in spec.crosses:
            # Stable: within a side the order of the spec. The request's half first, so that its bytes are made once
            # for all candidates.
            ordered = sorted((by_name[name] for name in cross.fields), key=lambda field: field.side == "item")
            names = [field.name for field in ordered]
            mask = _mask(spec, *names)
            crosses.append(CrossPlan("*".join(names), tuple(ordered), prefix_of(names), mask))
        shares = tuple(variant.share for variant in spec.variants.values())
        return cls(tuple(fields), tuple(crosses), tuple(spec.variants), shares)

    @property
    def all_variants(self) -> int:
        """The mask of a key that every variant uses."""
        return (1 << len(self.variants)) - 1

    def field(self, name: str) -> FieldPlan | None:
        """The field of this name, or None."""
        return next((field for field in self.fields if field.name == name), None)

    def keys(self, example: Mapping[str, Value]) -> list[tuple[bytes, float, int]]:
        """Every (key, x, variant mask) of an example, a mapping of field names to values. The slow reference.

        Raises FieldValueError where a value does not fit or a cross's key is over 4 KiB.
        """
        tokens = {field.name: field.tokens(example.get(field.name)) for field in self.fields}
        keys = []
        for name, key, x, mask in self.keys_of(tokens):
            if len(key) > MAX_KEY_BYTES:
                raise FieldValueError(
                    f"{name}: the key would be {len(key)} bytes long; the limit is {MAX_KEY_BYTES}"
                )
            keys.append((key, x, mask))
        return keys

    def keys_of(self, tokens: Mapping[str, Sequence[Token]]) -> Iterator[tuple[str, bytes, float, int]]:
        """(field or cross, key, x, variant mask) of every key made from the fields' tokens; the bias comes first.

        A cross's key may exceed 4 KiB; no model has such a key.
        """
        # This order is that of a row's keys in every path: sums of floats depend on it (ADR 0002).
        yield BIAS.decode(), BIAS, 1.0, self.all_variants
        for field in self.fields:
            for token in tokens[field.name] if field.spec.main else ():
                yield field.name, field.prefix + token.text, token.x, field.mask
        for cross in self.crosses:
            for chosen in itertools.product(*(tokens[field.name] for field in cross.fields)):
                key = cross.prefix + b"*".join(token.text for token in chosen)
                yield cross.name, key, math.prod(token.x for token in chosen), cross.mask


def _mask(spec: ModelSpec, *names: str) -> int:
    """The variants that use this field or cross. A variant without a field is also without its crosses."""
    mask = 0
    for bit, variant in enumerate(spec.variants.values()):
        left_out = {
            name if name in spec.fields else cross_called(name, spec.crosses) for name in variant.without
        }
        if frozenset(names) not in left_out and not any(name in left_out for name in names):
            mask |= 1 << bit
    return mask
