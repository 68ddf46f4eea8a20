"""What a model wants of a user's record, and a record as the ranker takes it. Nothing here reads a store or a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features import FeaturePlan, FieldPlan, Token
from model_store.lookups import HashFields
from model_store.values import Value
from server.receiving.plain_features import PlainFeatures
from server.user_records.kernels import overlay

if TYPE_CHECKING:
    from server.user_records.cache import StoredUser

Array = npt.NDArray[Any]

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

    def problems(self, given: int, part: str) -> list[str]:
        """What `degraded` says of stored values that were left out: those that nothing inline replaces."""
        return [f"{part}: left out {text}" for bit, text in self.misfits if not given & bit]


def _maker(plan: FieldPlan, is_cookie: bool) -> TokenMaker:
    """What makes a field's tokens; most users have ages and cities that others had just now."""
    return plan.tokens if is_cookie or plan.is_list else lru_cache(REMEMBERED_VALUES)(plan.tokens)


_ONES = np.ones(64)


def _xs(tokens: Sequence[Token]) -> Array:
    """The x of each token; the same array for all users whose tokens count once."""
    if len(tokens) <= len(_ONES) and all(x == 1.0 for _, x in tokens):
        return _ONES
    return np.array([x for _, x in tokens], np.float64)
