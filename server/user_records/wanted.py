"""What a model wants of a user's record, and a record as the ranker takes it. Nothing here reads a store or a clock."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features import FeaturePlan, FieldPlan, Token
from model_store.lookups import HashFields
from model_store.values import Value
from server.receiving.plain_features import PlainFeatures
from server.user_records.kernels import overlay

Array = npt.NDArray[Any]
Tokens = tuple[Array, Array, Array, Array]

REMEMBERED_PLANS = 64


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

    def __post_init__(self) -> None:
        names = tuple(self.fields[place].name for place in self.users)
        object.__setattr__(self, "hash_fields", HashFields(names))

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
    """A user's tokens for every request field of one `WantedFields`; misfits: (bit of the field, what is wrong)."""

    arrays: Tokens
    misfits: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, wanted: WantedFields, fields: Mapping[str, Value]) -> ReadyTokens:
        """A value that does not fit its field is left out, and told in `misfits`. O(values)."""
        tokens, starts, misfits = list[Token](), [0], list[tuple[int, str]]()
        for bit, plan in enumerate(wanted.fields):
            try:
                tokens += plan.tokens(fields.get(plan.name))
            except FieldValueError as error:
                misfits.append((1 << bit, str(error)))
            starts.append(len(tokens))
        begin = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum([len(token.text) + 1 for token in tokens], out=begin[1:])
        text = np.frombuffer(bytearray(b"*".join([*(token.text for token in tokens), b""])), np.uint8)
        xs = np.array([token.x for token in tokens], np.float64)
        return cls((np.array(starts, np.int64), begin, xs, text), tuple(misfits))

    def under(self, inline: PlainFeatures) -> PlainFeatures:
        """The request's own features over these, field by field. O(bytes)."""
        starts, begin, _, text = self.arrays
        size, most = len(starts), len(starts) + len(begin)
        numbers = np.empty(size + most, np.int64)
        made = (
            numbers[:size],
            numbers[size:],
            np.empty(most, np.float64),
            np.empty(len(text) + len(inline.arrays[3]), np.uint8),
        )
        overlay(inline.given, *inline.arrays, *self.arrays, *made)
        return PlainFeatures(inline.reader, inline.given, made)

    def problems(self, given: int, part: str) -> list[str]:
        """What `degraded` says of stored values that were left out: those that nothing inline replaces."""
        return [f"{part}: left out {text}" for bit, text in self.misfits if not given & bit]
