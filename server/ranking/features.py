"""Features as tokens without a Python object for each: those of a request's plain texts, and those of a user's record.

Eight fields cost about 8 µs as Python texts and tokens, and 2 here. A value is plain if it is an ASCII text that
appears in keys unchanged. A request with anything else (escapes, sets, numbers, times, unknown names) is read by
`request.read_features` and tokenized in Python; `FieldPlan.tokens` says what the tokens are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.features.history import HistoryPlan
from model_store.records.lookups import HashFields
from model_store.spec.kinds import Token
from model_store.spec.values import Value
from server.ranking.query import TokenArrays
from server.ranking.request import Received, Request
from server.ranking.request_kernels import CONTEXT, IRREGULAR, USER, overlay, plain_tokens, stored_tokens

Array = npt.NDArray[Any]
MAX_PLAIN_FIELDS = 63
"""Fields of a plan whose requests are read here: a bit each in an int64."""


class PlainTokens(NamedTuple):
    """Tokens of a request's own features. given: a bit for each of plan.request_fields that the request has."""

    given: int
    tokens: TokenArrays


class PlainReader:
    """Reads the plain features of requests for one plan. Immutable; shared by all threads."""

    def __init__(self, plan: FeaturePlan) -> None:
        fields = plan.request_fields
        names = [field.name.encode("utf-8", "surrogatepass") for field in fields]
        self._names = np.frombuffer(bytearray(b"".join(names)), np.uint8)
        self._name_start = np.array([0, *np.cumsum([len(name) for name in names])], np.int64)
        self._fields = [field.name for field in fields]
        self._bits = {field.name: 1 << bit for bit, field in enumerate(fields) if field.kind.token_is_text}
        self._plain = np.array([field.kind.token_is_text for field in fields], np.bool_)
        self._every = np.ones(len(fields), np.bool_)
        self._x = np.ones(len(fields))
        # A field with a key for a missing value has a token that no text of the request makes.
        complete = not any(field.spec.missing for field in fields)
        self._reads = complete and 0 < len(fields) <= MAX_PLAIN_FIELDS

    def read(self, request: Request) -> PlainTokens | None:
        """The request's features, or None if one of them is not plain. O(bytes of user and context)."""
        if not self._reads:
            return None
        if not isinstance(request, Received):
            return self._of_texts(request)
        found, size = request.found, len(self._x)
        if found is None:
            return None
        starts, begin, values = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64), _spans(size)
        user, user_end, context, context_end = found.tolist()[USER : CONTEXT + 2]
        # Room for all of both messages, and for the `*` after each field's token.
        text = np.empty(user_end - user + context_end - context + size, np.uint8)
        given = plain_tokens(
            request.text, found, self._names, self._name_start, self._plain, values, starts, begin, text
        )
        return None if given == IRREGULAR else PlainTokens(given, (starts, begin, self._x, text))

    def _of_texts(self, request: Request) -> PlainTokens | None:
        """The same where the values are Python's: a line each, as those of a user's record."""
        user, context = request.sides()
        texts, given = {**user.values, **context.values}, 0
        for name, value in texts.items():
            bit = self._bits.get(name)
            if bit is None or type(value) is not str:
                return None
            given |= bit
        # A value with a line feed makes one line too many, which the kernel answers with IRREGULAR.
        lines = "\n".join([texts.get(name) or "" for name in self._fields])  # type: ignore[misc]
        if user.raw_keys or context.raw_keys or not lines.isascii():
            return None
        starts = len(self._fields) + 1
        places, text = np.empty(2 * starts, np.int64), np.empty(len(lines) + 1, np.uint8)
        made = stored_tokens(np.frombuffer(lines.encode("ascii"), np.uint8), self._every, places, text)
        return (
            None
            if made == IRREGULAR
            else PlainTokens(given, (places[:starts], places[starts:], self._x, text))
        )


_local = threading.local()


def _spans(fields: int) -> Array:
    """This thread's scratch of `plain_tokens`, int32[fields, 2]."""
    have: Array | None = getattr(_local, "spans", None)
    if have is None or len(have) != fields:
        have = _local.spans = np.empty((fields, 2), np.int32)
    return have


# -- what a model reads of a user's record


TokenMaker = Callable[[Value], tuple[Token, ...]]
REMEMBERED_PLANS = 64
REMEMBERED_VALUES = 512


@dataclass(frozen=True, eq=False)
class UserFields:
    """The user's fields of a plan. Successive versions with equal request fields share one object: see `of`.

    fields: all of the request's, in the plan's order. users: places among them of those that the record may fill;
    hash_fields names these, in the same order. cookies: those whose value is the cookie itself, unless the record has
    one. histories: what is read of the user's history; None for nothing.
    Sets of fields are also given as integers with a bit for each of `fields`.
    """

    fields: tuple[FieldPlan, ...]
    users: tuple[int, ...]
    cookies: tuple[str, ...]
    histories: HistoryPlan | None = None
    hash_fields: HashFields = field(init=False)
    makers: tuple[tuple[str, TokenMaker], ...] = field(init=False)
    """The name of each of `fields`, and what makes its tokens."""
    user_bits: int = field(init=False)
    """The fields that the record may fill."""
    stored_bits: int = field(init=False)
    """Those of them that only the record can fill: all but the cookie's own."""
    takes: Array | None = field(init=False)
    """bool[fields]: those that the record may fill; None unless all of them take plain texts as they are."""
    _bits: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(self.fields[place].name for place in self.users)
        bind = object.__setattr__
        bind(self, "hash_fields", HashFields(names))
        bind(self, "makers", tuple((f.name, _maker(f, f.name in self.cookies)) for f in self.fields))
        bind(self, "_bits", {f.name: 1 << bit for bit, f in enumerate(self.fields)})
        bind(self, "user_bits", self.bits(names))
        bind(self, "stored_bits", self.user_bits & ~self.bits(self.cookies))
        plain = all(self.fields[place].kind.token_is_text for place in self.users)
        takes = np.isin(np.arange(len(self.fields)), self.users)
        bind(self, "takes", takes if plain and 0 < len(self.fields) <= MAX_PLAIN_FIELDS else None)

    @classmethod
    def of(
        cls, plan: FeaturePlan, cookie_column: str | None, histories: HistoryPlan | None = None
    ) -> UserFields:
        """The plan's; the same object for plans with equal request fields and histories."""
        fields = plan.request_fields
        # By the fields' specs, since every version has a plan of its own.
        key = (cookie_column, histories, *((field.name, field.spec.model_dump_json()) for field in fields))
        with _made_lock:
            # Taken out and put back below: the dict's order is that of the latest use.
            made = _made.pop(key, None)
            if made is None:
                users = tuple(
                    place
                    for place, field in enumerate(fields)
                    if field.side == "user" and field.spec.history is None
                )
                cookies = tuple(
                    fields[place].name for place in users if fields[place].column == cookie_column
                )
                made = cls(fields, users, cookies, histories)
            _made[key] = made
            if len(_made) > REMEMBERED_PLANS:
                del _made[next(iter(_made))]
        return made

    def bits(self, names: Iterable[str]) -> int:
        """The bits of those of these names that are fields of the request."""
        bits, found = self._bits, 0
        for name in names:
            found |= bits.get(name, 0)
        return found

    def named(self, cookie: str, values: Sequence[str | None]) -> dict[str, Value]:
        """A record's values by name, with the cookie's own fields. `values` in the order of hash_fields."""
        fields: dict[str, Value] = dict.fromkeys(self.cookies, cookie)
        fields.update(
            (name, value)
            for name, value in zip(self.hash_fields.names, values, strict=True)
            if value is not None
        )
        return fields


_made: dict[tuple[Any, ...], UserFields] = {}
_made_lock = threading.Lock()


def _maker(plan: FieldPlan, is_cookie: bool) -> TokenMaker:
    """What makes a field's tokens. It remembers the latest values: most users share their age and city with others."""
    return plan.tokens if is_cookie or plan.kind.is_list else lru_cache(REMEMBERED_VALUES)(plan.tokens)


class StoredUser:
    """One user's record as it was read, empty if there was none. Its tokens are made when they are first used.

    history: the record of the user's earlier events, as bytes since many users are kept; empty for no events, None if
    it is not known. fresh_until: seconds on the monotonic clock. lost_at: when it was read last, if the store has lost
    it since; else 0.
    place and used belong to the cache that keeps it; a request that uses the user sets `used`.
    """

    __slots__ = ("_tokens", "cookie", "fresh_until", "history", "lost_at", "place", "used", "values")

    def __init__(
        self,
        cookie: str,
        values: Sequence[str | None],
        fresh_until: float,
        lost_at: float = 0.0,
        history: bytes | None = None,
    ) -> None:
        self.history = history
        self.cookie, self.values, self.fresh_until = cookie, tuple(values), fresh_until
        self.lost_at = lost_at
        self.used, self.place = False, -1
        self._tokens: UserTokens | None = None

    def tokens(self, wanted: UserFields) -> UserTokens:
        """The tokens. `wanted`: the fields that `values` were read for."""
        # Without a lock: two threads at worst make the same tokens.
        tokens = self._tokens
        if tokens is None:
            tokens = UserTokens.of_plain(wanted, self.cookie, self.values)
            if tokens is None:
                tokens = UserTokens.of(wanted, wanted.named(self.cookie, self.values))
            self._tokens = tokens
        return tokens

    def fields(self, wanted: UserFields) -> dict[str, Value]:
        """The values by name, without those that do not fit their field. A new dict."""
        fields = wanted.named(self.cookie, self.values)
        for bit, _ in self.tokens(wanted).misfits:
            fields.pop(wanted.fields[bit.bit_length() - 1].name, None)
        return fields


@dataclass(frozen=True, slots=True)
class UserTokens:
    """A user's tokens for every request field of a `UserFields`, in few objects because many users are kept.

    places int64: value_start, then begin, of a TokenTable, whose x and text follow. misfits: the bit of each field
    whose stored value does not fit it, and the error's text.
    """

    places: Array
    x: Array
    text: Array
    misfits: tuple[tuple[int, str], ...]

    @classmethod
    def of_plain(cls, wanted: UserFields, cookie: str, values: Sequence[str | None]) -> UserTokens | None:
        """The tokens of a record's values, the same as by `of`; None unless all values are plain. O(bytes)."""
        if wanted.takes is None:
            return None
        names, own = wanted.hash_fields.names, wanted.cookies
        if own:
            values = [
                cookie if v is None and name in own else v for name, v in zip(names, values, strict=True)
            ]
        record = "\n".join([value or "" for value in values])
        if not record.isascii():
            return None
        places = np.empty(len(wanted.fields) + len(names) + 2, np.int64)
        text = np.empty(len(record) + 1, np.uint8)
        lines = np.frombuffer(record.encode("ascii"), np.uint8)
        made = stored_tokens(lines, wanted.takes, places, text)
        return None if made == IRREGULAR else cls(places, _ONES, text, ())

    @classmethod
    def of(cls, wanted: UserFields, fields: Mapping[str, Value]) -> UserTokens:
        """Tokenize values; those that do not fit their field are left out. O(values)."""
        tokens, starts, misfits = list[Token](), [0], list[tuple[int, str]]()
        for place, (name, make) in enumerate(wanted.makers):
            if (value := fields.get(name)) is not None:
                try:
                    tokens += make(value)
                except FieldValueError as error:
                    misfits.append((1 << place, str(error)))
            starts.append(len(tokens))
        texts = [text for text, _ in tokens]
        begin = accumulate((len(text) + 1 for text in texts), initial=0)
        # Copied, since kernels are compiled for writable arrays.
        text = np.frombuffer(b"*".join([*texts, b""]), np.uint8).copy()
        return cls(np.array([*starts, *begin], np.int64), _xs(tokens), text, tuple(misfits))

    def under(self, inline: PlainTokens) -> TokenArrays:
        """The request's own tokens over these, field by field. O(bytes)."""
        given, arrays = inline
        fields = len(arrays[0])
        most = fields + len(self.places)
        places = np.empty(most, np.int64)
        made = (
            places[:fields],
            places[fields:],
            np.empty(most, np.float64),
            np.empty(len(self.text) + len(arrays[3]), np.uint8),
        )
        overlay(given, *arrays, self.places, self.x, self.text, *made)
        return made


_ONES = np.ones(64)


def _xs(tokens: Sequence[Token]) -> Array:
    """The x of each token; one shared array for all users whose tokens have x = 1."""
    if len(tokens) <= len(_ONES) and all(x == 1.0 for _, x in tokens):
        return _ONES
    return np.array([x for _, x in tokens], np.float64)
