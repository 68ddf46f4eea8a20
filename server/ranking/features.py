"""Plain features: texts that stand in keys as they are, made into tokens without a Python object for any of them.

Eight fields cost about 8 µs as Python texts and tokens, and 2 here. `wire.fields` and the fields' own tokens say what
the tokens are; what is not plain (escapes, sets, numbers, times, names unknown, text beyond ASCII) is left to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan, Token
from model_store.features.values import Value
from model_store.records.lookups import HashFields
from server.errors import Degradation
from server.ranking.request import Received
from server.ranking.request_kernels import IRREGULAR, overlay, plain_tokens

Array = npt.NDArray[Any]
MAX_FIELDS = 63


@dataclass(frozen=True, slots=True)
class PlainFeatures:
    """A request's tokens. given: a bit for each of plan.request_fields that the request has.

    arrays are value_start, begin, x and text of a TokenTable, fit for `scoring_kernels.rank` with the plan
    that `reader` was made for, and with no other. user: whose stored features lie under the request's own, if any do.
    """

    reader: PlainReader
    given: int
    arrays: tuple[Array, Array, Array, Array]
    user: StoredUser | None = None


class PlainReader:
    """Reads the plain features of requests for one plan. Immutable; shared by all threads."""

    def __init__(self, plan: FeaturePlan, needs_values: bool = False) -> None:
        """`needs_values`: a curve is chosen by a field's value, so that tokens alone will not do."""
        fields = plan.request_fields
        names = [field.name.encode("utf-8", "surrogatepass") for field in fields]
        self._names = np.frombuffer(bytearray(b"".join(names)), np.uint8)
        self._name_start = np.array([0, *np.cumsum([len(name) for name in names])], np.int64)
        self._plain = np.array([field.kind == "category" for field in fields], np.bool_)
        self._x = np.ones(len(fields))
        self._reads = 0 < len(fields) <= MAX_FIELDS and not needs_values
        self._bits = {field.name: 1 << bit for bit, field in enumerate(fields)}

    def bits(self, names: frozenset[str]) -> int:
        """The bits that stand for these fields in `given`."""
        return sum(self._bits[name] for name in names)

    def read(self, message: Received) -> PlainFeatures | None:
        """The request's features, or None if one of them is not plain. O(bytes of user and context)."""
        found, size = message.found, len(self._x)
        if found is None or not self._reads:
            return None
        numbers, values = np.empty(2 * size + 2, np.int64), np.empty((size, 2), np.int32)
        room = int(found[2] - found[1] + found[4] - found[3])
        text = np.empty(room + size, np.uint8)
        starts, begin = numbers[: size + 1], numbers[size + 1 :]
        given = plain_tokens(
            message.text, found, self._names, self._name_start, self._plain, values, starts, begin, text
        )
        return None if given == IRREGULAR else PlainFeatures(self, given, (starts, begin, self._x, text))


# --- UserCache: so many users, the ones asked for lately. It knows no store and no clock; nothing in it
# expires ---
#
# Clock eviction (F. J. Corbató, "A Paging Experiment with the Multics System", 1968): a hit is one dict
# look-up and one mark, with no lock and no list to mend, and keeps about what least-recently-used would.


LONGEST_SWEEP = 128
"""Users passed over at most to evict one, some 8 µs, so that no request pays for many."""


class StoredUser:
    """One user's record as it was read, empty if there was none. Made ready when first used, in the form then needed.

    fresh_until: seconds on the monotonic clock. used: set by whoever uses it, taken back by the cache's hand.
    lost_at: when it was read last, if the store has lost it since; else 0.
    """

    __slots__ = ("_fields", "_tokens", "cookie", "fresh_until", "lost_at", "place", "used", "values")

    def __init__(
        self, cookie: str, values: Sequence[str | None], fresh_until: float, lost_at: float = 0.0
    ) -> None:
        self.cookie, self.values, self.fresh_until = cookie, tuple(values), fresh_until
        self.lost_at = lost_at
        self.used, self.place = False, -1
        self._fields: dict[str, Value] | None = None
        self._tokens: ReadyTokens | None = None

    def fields(self, wanted: WantedFields) -> dict[str, Value]:
        """The values by name; not to be changed."""
        fields = self._fields
        if fields is None:
            fields = self._fields = wanted.named(self.cookie, self.values)
        return fields

    def tokens(self, wanted: WantedFields) -> ReadyTokens:
        """The tokens."""
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = ReadyTokens.of(wanted, wanted.named(self.cookie, self.values))
        return tokens


class UserCache:
    """Bounded. Thread safety: any thread may call anything. `get` takes no lock."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._users: dict[str, StoredUser] = {}
        self._ring: list[StoredUser] = []
        self._hand = 0
        self._lock = threading.Lock()
        self.get = self._users.get
        """The user of a cookie, or None. O(1)."""

    def __len__(self) -> int:
        return len(self._users)

    def put(self, user: StoredUser) -> None:
        """Keep a user in the place of the one before of the same cookie, or of one not used lately. O(1)."""
        if not self._capacity:
            return
        with self._lock:
            before = self._users.get(user.cookie)
            if before is not None:
                user.place = before.place
            elif len(self._ring) < self._capacity:
                user.place = len(self._ring)
                self._ring.append(user)
            else:
                user.place = self._victim()
                del self._users[self._ring[user.place].cookie]
            self._ring[user.place] = self._users[user.cookie] = user

    def _victim(self) -> int:
        """The place of a user who has not been used since the hand was here before."""
        for _ in range(LONGEST_SWEEP):
            place = self._hand
            self._hand = (place + 1) % self._capacity
            if not self._ring[place].used:
                break
            self._ring[place].used = False
        return place

    def check(self) -> None:
        """Assert what always holds."""
        assert len(self._users) == len(self._ring) <= self._capacity
        for place, user in enumerate(self._ring):
            assert user.place == place
            assert self._users[user.cookie] is user


# --- What a model wants of a user's record, and a record as the ranker takes it. Nothing here reads a store
# or a clock ---


TokenMaker = Callable[[Value], tuple[Token, ...]]

REMEMBERED_PLANS = 64
REMEMBERED_VALUES = 512


@dataclass(frozen=True)
class WantedFields:
    """The user's fields of a plan. Successive versions whose request fields are alike share one: `of` sees to that.

    fields: all of the request's, in the plan's order. users: places of those the record may fill; hash_fields names
    them in the same order. cookies: those whose value is the cookie itself, unless the record has one.
    """

    fields: tuple[FieldPlan, ...]
    users: tuple[int, ...]
    cookies: tuple[str, ...]
    hash_fields: HashFields = field(init=False)
    makers: tuple[tuple[str, TokenMaker], ...] = field(init=False)
    """The name of each of `fields`, and what makes its tokens."""

    def __post_init__(self) -> None:
        names = tuple(self.fields[place].name for place in self.users)
        object.__setattr__(self, "hash_fields", HashFields(names))
        makers = tuple((field.name, _maker(field, field.name in self.cookies)) for field in self.fields)
        object.__setattr__(self, "makers", makers)

    @classmethod
    def of(cls, plan: FeaturePlan, cookie_column: str | None) -> WantedFields:
        """The plan's; the same object for plans whose request fields are alike."""
        fields = plan.request_fields
        key = (cookie_column, *((field.name, field.spec.model_dump_json()) for field in fields))
        with _made_lock:
            wanted = _made.pop(key, None)
            if wanted is None:
                users = tuple(place for place, field in enumerate(fields) if field.side == "user")
                cookies = tuple(
                    fields[place].name for place in users if fields[place].column == cookie_column
                )
                wanted = cls(fields, users, cookies)
            _made[key] = wanted
            if len(_made) > REMEMBERED_PLANS:
                del _made[next(iter(_made))]
        return wanted

    def named(self, cookie: str, values: Sequence[str | None]) -> dict[str, Value]:
        """A record's values by name, the cookie's own fields too. `values` in the order of hash_fields."""
        fields: dict[str, Value] = dict.fromkeys(self.cookies, cookie)
        fields.update(
            (name, value)
            for name, value in zip(self.hash_fields.names, values, strict=True)
            if value is not None
        )
        return fields


_made: dict[tuple[Any, ...], WantedFields] = {}
_made_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ReadyTokens:
    """A user's tokens for every request field of one `WantedFields`, in few objects, since many users are kept.

    places int64: value_start and then begin of a TokenTable, whose x and text follow. misfits: (bit of the field, what
    is wrong with its value).
    """

    places: Array
    x: Array
    text: Array
    misfits: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, wanted: WantedFields, fields: Mapping[str, Value]) -> ReadyTokens:
        """A value that does not fit its field is left out, and told in `misfits`. O(values)."""
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
        text = np.frombuffer(b"*".join([*texts, b""]), np.uint8).copy()
        return cls(np.array([*starts, *begin], np.int64), _xs(tokens), text, tuple(misfits))

    def under(self, inline: PlainFeatures, user: StoredUser) -> PlainFeatures:
        """The request's own features over these, the user's, field by field. O(bytes)."""
        fields = len(inline.arrays[0])
        most = fields + len(self.places)
        places = np.empty(most, np.int64)
        made = (
            places[:fields],
            places[fields:],
            np.empty(most, np.float64),
            np.empty(len(self.text) + len(inline.arrays[3]), np.uint8),
        )
        overlay(inline.given, *inline.arrays, self.places, self.x, self.text, *made)
        return PlainFeatures(inline.reader, inline.given, made, user)

    def problems(self, given: int, part: str) -> list[Degradation]:
        """What `degraded` says of stored values that were left out: those that nothing inline replaces."""
        return [Degradation.left_out(part, text) for bit, text in self.misfits if not given & bit]


def _maker(plan: FieldPlan, is_cookie: bool) -> TokenMaker:
    """What makes a field's tokens; most users have ages and cities that others had just now."""
    return plan.tokens if is_cookie or plan.is_list else lru_cache(REMEMBERED_VALUES)(plan.tokens)


_ONES = np.ones(64)


def _xs(tokens: Sequence[Token]) -> Array:
    """The x of each token; the same array for all users whose tokens count once."""
    if len(tokens) <= len(_ONES) and all(x == 1.0 for _, x in tokens):
        return _ONES
    return np.array([x for _, x in tokens], np.float64)
