"""The kinds of fields: what a spec may say of a field, and the tokens that a value becomes.

A kind is one class and its name in KINDS; everything else asks the class. `trainer.examples.token_columns` has a faster
way for whole columns of some kinds; of the others it makes the tokens value by value, by `Kind.tokens`. A test compares
both.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from model_store.errors import FieldValueError
from model_store.spec.keys import escape
from model_store.spec.numbers import Buckets, Numbers, log2_squared, log2_squared_buckets, log_buckets
from model_store.spec.sections import LARGEST_RATE, SMALLEST_RATE, FieldSpec
from model_store.spec.values import (
    LARGEST_REAL,
    Value,
    category_text,
    checked_utf8,
    decoded,
    encoded,
    log_bucket,
    not_real,
    one_scalar,
    parse_number,
    set_members,
    text_of,
    time_part,
)

Form: TypeAlias = Literal["text", "number", "set"]
MISSING = b"missing"
"""The token of an absent number in a field with `missing = "key"`."""


class NoKind(ValueError):
    """A field names a kind that is not in KINDS."""


class Token(NamedTuple):
    """A value's escaped text in a key, and its real number x, which is 1 except for numbers and weighted sets."""

    text: bytes
    x: float


class Kind:
    """A kind of field; an instance is the kind of one field, with its options. Immutable.

    name: in a spec. options: the members of a FieldSpec that belong to this kind, and to others that list them too.
    form: how an event says a value: as a text, a number, or a set, which is a list, or an object of members and their
    x. is_list: whether a value may have several tokens. whole_keys: a token is a whole key that another system made,
    without a prefix, neither escaped nor crossed. token_is_text: a text without characters that keys escape is its own
    token. has_x: whether the one token of a value may have an x other than 1.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    form: ClassVar[Form] = "text"
    is_list: ClassVar[bool] = False
    whole_keys: ClassVar[bool] = False
    token_is_text: ClassVar[bool] = False
    has_x: bool = False

    def __init__(self, field: FieldSpec) -> None:
        self.field = field

    @classmethod
    def check(cls, field: FieldSpec) -> None:
        """Raise ValueError unless the field's options fit each other."""

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The tokens of a value, each once; none if it is missing or empty. Raises FieldValueError."""
        if value is None or value == "" or value == b"":
            return ()
        return tuple([Token(text, 1.0) for text in self.texts(decoded(one_scalar(value)))])

    def texts(self, text: str) -> Iterable[bytes]:
        """For `tokens` of values that are texts: the texts of the tokens, escaped. Raises FieldValueError."""
        raise NotImplementedError


class Category(Kind):
    """A value is one token."""

    name = "category"
    token_is_text = True

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The canonical text."""
        if isinstance(value, str):  # the fast path of a request
            text = encoded(value)
        elif value is None:
            return ()
        else:
            text = checked_utf8(text_of(one_scalar(value)))
        return (Token(escape(category_text(text)), 1.0),) if text else ()


class Set(Kind):
    """A value is several categories, which may have an x.

    With a scale or a bucket a set says how often or how much: a member's x is scaled, or becomes part of its token.
    """

    name = "set"
    options: ClassVar[tuple[str, ...]] = ("separator", "bucket", "scale")
    form = "set"
    is_list = True

    def __init__(self, field: FieldSpec) -> None:
        super().__init__(field)
        self.of_x = Number(field) if field.scale is not None or field.bucket is not None else None

    @classmethod
    def check(cls, field: FieldSpec) -> None:
        """The x of a member is transformed in one way, which learns nothing."""
        Number.check(field)
        if field.learns:
            way = f'scale = "{field.scale}"' if field.scale else f'bucket = "{field.bucket}"'
            raise ValueError(
                f'{way} belongs to kind = "number"; a set takes scale = "log1p" or "sqrt", or bucket = "log" or edges'
            )

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """A token for each member."""
        if (of_x := self.of_x) is not None:
            members = set_members(value, self.field.separator, counts=True)
            found = dict[bytes, float]()
            for member, x in members.items():
                text = category_text(member)
                found[text] = found.get(text, 0.0) + x
            ways = ((escape(text), of_x.tokens(x)[0]) for text, x in found.items() if x)
            pairs = (Token(text + b":" + way.text if way.text else text, way.x) for text, way in ways)
            return tuple(token for token in pairs if token.x)
        members, found = set_members(value, self.field.separator), dict[bytes, float]()
        # Two spellings of one member: twice in a plain set is once, in a weighted one their x add up.
        are_plain = all(x == 1.0 for x in members.values())
        for member, x in members.items():
            text = category_text(member)
            found[text] = x if are_plain else found.get(text, 0.0) + x
        return tuple(Token(escape(text), x) for text, x in found.items() if x)


class Number(Kind):
    """A value is a number: it is clipped, then a bucket makes it a key, or a scale makes it an x.

    Each step exists for one number and for a column; both give the same bits, on every machine. Only additions,
    divisions, square roots and comparisons are used, which IEEE 754 defines, and `math.log1p` for both. bucket,
    buckets: from a clipped number to its bucket, for one and for a column; None if the number is an x, which is
    (number - shift) / divisor, or its logarithm or root.
    """

    name = "number"
    options = ("bucket", "scale", "clip", "missing", "learned", "fixed_weight")
    form = "number"

    def __init__(self, field: FieldSpec) -> None:
        super().__init__(field)
        self.bucket: Callable[[float], int] | None = None
        self.buckets: Callable[[Numbers], Buckets] | None = None
        if field.bucket == "log":
            self.bucket, self.buckets = log_bucket, log_buckets
        elif field.bucket == "log2_squared":
            self.bucket, self.buckets = log2_squared, log2_squared_buckets
        elif field.bucket is not None:
            # Between ascending edges, numbered from 0: how many edges are not above the number.
            edges = (field.learned if isinstance(field.bucket, str) else field.bucket) or ()
            self.bucket = lambda number: bisect.bisect_right(edges, number)
            self.buckets = lambda numbers: np.searchsorted(np.array(edges, np.float64), numbers, side="right")
        self.has_x = self.buckets is None
        self._root, self._shift, self._divisor = _ROOTS.get(field.scale), 0.0, 1.0
        if field.scale in ("standard", "minmax") and field.learned is not None:
            self._shift, end = field.learned
            self._divisor = end if field.scale == "standard" else end - self._shift
        transform = field.clip, self._root, self._shift, self._divisor
        self.is_unscaled = transform == (None, None, 0.0, 1.0)
        self._absent = (Token(MISSING, 1.0),) if field.missing is not None else ()

    @classmethod
    def check(cls, field: FieldSpec) -> None:
        """A number is transformed in one way, and learns only what depends on the log."""
        if field.scale is not None and field.bucket is not None:
            raise ValueError("scale makes a number an x, bucket makes it a key; leave one of them out")
        if field.learned is not None and not field.learns:
            raise ValueError('learned belongs to bucket = "quantile:N" and to scale = "standard" or "minmax"')
        if field.learned is not None and not _fits(field.learned, field.scale):
            raise ValueError(
                f"learned: got {list(field.learned)}; expected ascending edges for a quantile, [mean, deviation] with "
                "a deviation above 0, or [min, max] with min below max"
            )
        if (weight := field.fixed_weight) is None:
            return
        if field.bucket is not None or field.missing is not None:
            raise ValueError("fixed_weight multiplies the number itself; bucket and missing make keys of it")
        # Within the bounds under which no sum overflows (`LARGEST_RATE`).
        if not SMALLEST_RATE <= abs(weight) <= LARGEST_RATE:
            raise ValueError(
                f"fixed_weight: got {weight!r}; expected a weight other than 0, from {SMALLEST_RATE:g} to "
                f"{LARGEST_RATE:g} in size"
            )
        if not field.main:
            raise ValueError("fixed_weight belongs to the field's own key, main = false leaves it out")

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The bucket, or an empty text and the x."""
        if value is None or value == "" or value == b"":
            return self._absent
        x = number = parse_number(one_scalar(value))
        if self.field.clip is not None:
            low, high = self.field.clip
            x = min(max(x, low), high) + 0.0
        if self.bucket is not None:
            return (Token(b"%d" % self.bucket(x), 1.0),)
        if not self.is_unscaled:
            root = self._root
            x = math.copysign(root(abs(x)), x) if root is not None else (x - self._shift) / self._divisor
            # -0.0 becomes 0.0, here and for columns: otherwise two equal numbers have different bits.
            x += 0.0
        if not abs(x) <= LARGEST_REAL:
            raise FieldValueError(self.not_real(number, x))
        return (Token(b"", x),)

    def clipped(self, numbers: Numbers) -> Numbers:
        """Every number of a column within `clip`; NaN stays NaN."""
        if self.field.clip is None:
            return numbers
        low, high = self.field.clip
        # Not np.fmin, which would make a bound of an absent number.
        return np.minimum(np.maximum(numbers, low), high) + 0.0

    def xs(self, numbers: Numbers) -> Numbers:
        """The x of every number of a column, NaN where that is NaN; some may be beyond LARGEST_REAL."""
        if self.is_unscaled:
            return numbers
        numbers = self.clipped(numbers)
        if self._root is not None:
            sizes = np.abs(numbers).tolist()
            # By `math`, one by one: numpy's log1p may differ in the last bit, by release and processor.
            roots = np.fromiter(map(self._root, sizes), np.float64, len(sizes))
            return np.copysign(roots, numbers) + 0.0
        # An x that overflows is infinite, and refused by its size.
        with np.errstate(over="ignore"):
            return (numbers - self._shift) / self._divisor + 0.0

    def not_real(self, number: float, x: float) -> str:
        """The message for a number whose x is beyond LARGEST_REAL."""
        return not_real(x) if self.is_unscaled else f"{not_real(x)}, which is what scale makes of {number!r}"


_ROOTS: dict[str | None, Callable[[float], float]] = {"log1p": math.log1p, "sqrt": math.sqrt}


def _fits(learned: tuple[float, ...], scale: str | None) -> bool:
    if not all(map(math.isfinite, learned)):
        return False
    if scale is None:
        return all(low < high for low, high in itertools.pairwise(learned))
    low, high = learned if len(learned) == 2 else (0.0, 0.0)
    return high > (0.0 if scale == "standard" else low)


class Time(Kind):
    """A value is a time, of which one part is a token."""

    name = "time"
    options = ("part", "format")

    @classmethod
    def check(cls, field: FieldSpec) -> None:
        """A time has a part."""
        if field.part is None:
            raise ValueError('kind = "time" needs part = "minute" | "hour" | "day" | "weekday" | "month"')

    def texts(self, text: str) -> Iterable[bytes]:
        """The part."""
        return (time_part(text, self.field.format, self.field.part or "hour"),)


class Raw(Set):
    """A value is several keys."""

    name = "raw"
    options = ("separator",)
    whole_keys = True

    def tokens(self, value: Value) -> tuple[Token, ...]:
        """The keys as they are."""
        return tuple(Token(*each) for each in set_members(value, self.field.separator).items())


# The rules of texts need no tables but Unicode's simple lower-case mapping, so that readers in other languages can
# repeat them.
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


class Text(Kind):
    """A value is a text: its words, its pairs of adjacent words, and so on up to `ngrams` words, are tokens."""

    name = "text"
    options = ("ngrams", "most")
    is_list = True

    def texts(self, text: str) -> Iterable[bytes]:
        """The distinct words, then pairs and so on, in order of first appearance and joined by one space; `most`."""
        words, most = words_of(text), self.field.most or 64
        found = dict.fromkeys(words)
        for size in range(2, (self.field.ngrams or 2) + 1):
            # Longer n-grams come last, so they are not made if shorter ones fill the list.
            if len(found) >= most:
                break
            found |= dict.fromkeys(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
        return map(str.encode, list(found)[:most])  # words have no character that keys escape


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Category, Set, Number, Time, Raw, Text)}


def check_kind(field: FieldSpec) -> FieldSpec:
    """The field, whose options fit its kind and each other. Raises ValueError."""
    kind = KINDS.get(field.kind)
    if kind is None:
        *most, last = map(repr, KINDS)
        text = f"got {field.kind!r}; input should be {', '.join(most)} or {last}"
        raise NoKind(text)
    for name in type(field).model_fields:
        kinds = [f'"{each.name}"' for each in KINDS.values() if name in each.options]
        if kinds and name not in kind.options and getattr(field, name) is not None:
            raise ValueError(
                f'{name} belongs to kind = {" or ".join(kinds)}; this field\'s kind is "{field.kind}"'
            )
    kind.check(field)
    field.check_derivation()
    return field
