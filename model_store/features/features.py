"""From one value to its tokens, and from one example to its keys: the rules that trainer and server share.

This is the only place that defines the key of a value. `trainer.examples.token_columns` applies the same rules to whole
columns; a test checks that both agree.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model_store.errors import FieldValueError, SpecError
from model_store.spec.keys import BIAS, MAX_KEY_BYTES, escape, prefix_of
from model_store.spec.numbers import MISSING, NumberRule
from model_store.spec.sections import FieldSpec, Side
from model_store.spec.spec import ModelSpec, cross_called
from model_store.spec.values import (
    Scalar,
    Value,
    category_text,
    checked_utf8,
    decoded,
    encoded,
    one_scalar,
    parse_number,
    set_members,
    text_of,
    time_part,
)


class Token(NamedTuple):
    """A value's escaped text in a key, and its real number x, which is 1 except for numbers and weighted sets."""

    text: bytes
    x: float


class Tokenised:
    """A value with its tokens made in advance; a base class for subclasses of the value types."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class FieldPlan:
    """A compiled field.

    prefix is `name=` (empty for raw keys); bit v of `mask` is set if variant v has keys of the field itself; number:
    what becomes of its values, for kind "number" only.
    """

    name: str
    index: int
    spec: FieldSpec
    prefix: bytes
    mask: int
    number: NumberRule | None
    _tokens: Callable[[Value], tuple[Token, ...]]

    @property
    def side(self) -> Side:
        """Whether the value comes with the user, the item or the request's context."""
        return self.spec.side

    @property
    def kind(self) -> str:
        """The kind of value: category, set, number, time, raw or text."""
        return self.spec.kind

    @property
    def column(self) -> str:
        """The log column that holds this field."""
        return self.spec.column or self.name

    @property
    def is_list(self) -> bool:
        """True if an example may have several tokens of this field."""
        return self.spec.kind in ("set", "raw", "text")

    @property
    def has_missing_key(self) -> bool:
        """True if an absent value has a token too."""
        return self.spec.missing is not None

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The tokens of one value; none if it is missing, null or empty, unless the field has a key for that.

        Raises FieldValueError if the value does not fit the field's kind, is not UTF-8, or makes a key over 4 KiB.
        """
        if isinstance(value, Tokenised):
            return value.tokens
        try:
            tokens = self._tokens(value)
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
        fields = tuple(_field(spec, index, name) for index, name in enumerate(spec.fields))
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
        return cls(fields, tuple(crosses), tuple(spec.variants), shares)

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


def _field(spec: ModelSpec, index: int, name: str) -> FieldPlan:
    field = spec.fields[name]
    if field.has_to_learn:
        raise SpecError(
            f"fields.{name}: has learned nothing yet; resolve the spec against a log, or set learned"
        )
    number = NumberRule.of(field) if field.kind == "number" else None
    mask = _mask(spec, name) if field.main else 0
    # Raw keys are used as they are: they were made by another system.
    prefix = b"" if field.kind == "raw" else prefix_of([name])
    return FieldPlan(name, index, field, prefix, mask, number, _tokenizer(field, number))


def _tokenizer(field: FieldSpec, number: NumberRule | None) -> Callable[[Value], tuple[Token, ...]]:
    if field.kind == "set":
        return lambda value: _set_tokens(value, field.separator)
    if field.kind == "raw":
        return lambda value: tuple(Token(*each) for each in set_members(value, field.separator).items())
    if field.kind == "time":
        part = field.part or "hour"
        return lambda value: _one_token(
            value, lambda v: Token(time_part(decoded(v), field.format, part), 1.0)
        )
    if field.kind == "text":
        ngrams, most = field.ngrams or DEFAULT_NGRAMS, field.most or DEFAULT_MOST

        def text_tokens(value: Value) -> tuple[Token, ...]:
            if value is None:
                return ()
            texts = ngrams_of(decoded(one_scalar(value)), ngrams, most)
            return tuple(
                Token(each.encode(), 1.0) for each in texts
            )  # words have no character that keys escape

        return text_tokens
    if number is not None:
        absent = (Token(MISSING, 1.0),) if field.missing is not None else ()

        def number_token(value: Scalar) -> Token:
            parsed = parse_number(value)
            return Token(number.text(parsed), number.x(parsed))

        return lambda value: _one_token(value, number_token) or absent
    return _category_token


def _category_token(value: Value) -> tuple[Token, ...]:
    if isinstance(value, str):  # the fast path of a request
        text = encoded(value)
    elif value is None:
        return ()
    else:
        text = checked_utf8(text_of(one_scalar(value)))
    return (Token(escape(category_text(text)), 1.0),) if text else ()


def _one_token(value: Value, make: Callable[[Scalar], Token]) -> tuple[Token, ...]:
    if value is None or value == "" or value == b"":
        return ()
    return (make(one_scalar(value)),)


def _set_tokens(value: Value, separator: str | None) -> tuple[Token, ...]:
    members, found = set_members(value, separator), dict[bytes, float]()
    # Two spellings of one member: twice in a plain set is once, in a weighted one their x add up.
    are_plain = all(x == 1.0 for x in members.values())
    for member, x in members.items():
        text = category_text(member)
        found[text] = x if are_plain else found.get(text, 0.0) + x
    return tuple(Token(escape(text), x) for text, x in found.items() if x)


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


# -- texts: the rules need no tables but Unicode's simple lower-case mapping, so that readers in other languages can
# repeat them

DEFAULT_NGRAMS = 2
DEFAULT_MOST = 64

# What separates words: ASCII without letters and digits, the punctuation and signs of Latin-1, spaces, general
# punctuation without the joiners U+200C and U+200D, and the punctuation of Chinese, Japanese and Korean.
_BETWEEN_WORDS = re.compile(
    "[\x00-/:-@\\[-`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7\u1680\u2000-\u200b\u200e-\u206f\u3000-\u303f\ufeff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+"
)
# Where str.lower is not Unicode's simple mapping of one character to one, whatever its neighbours are.
_SIMPLE = str.maketrans({"\u0130": "i", "\u03a3": "\u03c3"})


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased, in order."""
    return [word for word in _BETWEEN_WORDS.split(text.translate(_SIMPLE).lower()) if word]


def ngrams_of(text: str, ngrams: int, most: int) -> list[str]:
    """The distinct words of a text, then its distinct pairs of adjacent words, and so on up to `ngrams` words.

    Each in order of first appearance, joined by one space; `most` at most.
    """
    words = words_of(text)
    found = dict.fromkeys(words)
    for size in range(2, ngrams + 1):
        # Longer n-grams come last, so they are not made if shorter ones fill the list.
        if len(found) >= most:
            break
        found |= dict.fromkeys(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
    return list(found)[:most]
