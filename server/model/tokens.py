"""Tokens as arrays: what kernels read instead of Python objects. The feature plan says which tokens a value has.

`TokenTable` holds those of many rows, such as a catalogue's items; `RequestTokens` makes those of a request's features
for one plan, which stay the same from version to version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.kinds import Number, Token
from model_store.spec.values import Value
from server.errors import InvalidRequest

Array = npt.NDArray[Any]

NO_VALUE = -1
CACHED_VALUES = 512
"""Values of each field whose tokens are cached: most requests bring ages, cities and hours that came before."""
MOST_KEYS = 1_000_000
"""That crosses of several sets may make, for a request's own features and for all its inline items: 50 ms of walking.
Two sets of 10,000 members would make 10^8."""


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Rows of field values, and the tokens of each distinct value.

    values int32[rows, fields]: the number of each value, NO_VALUE where a row has none. The tokens of value v are
    value_start[v] … value_start[v + 1] - 1 (int64); token t is text[begin[t] : begin[t + 1] - 1], followed by a `*`,
    and carries x[t] (float64).
    """

    values: Array
    value_start: Array
    begin: Array
    x: Array
    text: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The group `tokens` of the scoring kernels."""
        return self.values, self.value_start, self.begin, self.x, self.text

    def at(self, values: Array) -> TokenTable:
        """A table of rows with these values of this table, int32[rows, fields]. O(bytes of these values)."""
        present = values != NO_VALUE
        chosen = values[present]
        numbered = np.full(values.shape, NO_VALUE, np.int32)
        numbered[present] = np.arange(len(chosen), dtype=np.int32)
        first, stop = self.value_start[chosen], self.value_start[chosen + 1]
        at, to = self.begin[first], self.begin[stop]
        value_start = _from_zero(stop - first)
        tokens = first if (stop - first == 1).all() else _ranges(first, stop - first)
        sizes = _from_zero(to - at)
        begin = self.begin[tokens] - np.repeat(at - sizes[:-1], stop - first)
        text = self.text[_ranges(at, to - at)]
        return TokenTable(numbered, value_start, np.append(begin, sizes[-1]), self.x[tokens], text)

    def followed_by(self, tail: TokenTable, values: Array) -> TokenTable:
        """A table of rows with `values`; those of `tail` are numbered after this table's."""
        return TokenTable(
            values,
            np.concatenate([self.value_start, tail.value_start[1:] + self.value_start[-1]]),
            np.concatenate([self.begin, tail.begin[1:] + self.begin[-1]]),
            np.concatenate([self.x, tail.x]),
            np.concatenate([self.text, tail.text]),
        )

    def tokens_at(self, value: int) -> tuple[Token, ...]:
        """The tokens of one value; none for NO_VALUE."""
        if value == NO_VALUE:
            return ()
        return tuple(
            Token(self.text[self.begin[at] : self.begin[at + 1] - 1].tobytes(), float(self.x[at]))
            for at in range(int(self.value_start[value]), int(self.value_start[value + 1]))
        )

    @property
    def is_empty(self) -> Array:
        """bool[values + 1]: whether a value has no token; True last, which NO_VALUE indexes."""
        return np.append(self.value_start[1:] == self.value_start[:-1], True)

    def __len__(self) -> int:
        """The number of values."""
        return len(self.value_start) - 1


def _from_zero(sizes: Array) -> Array:
    """Where parts of these sizes begin, and where the last one ends."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _ranges(first: Array, sizes: Array) -> Array:
    """The numbers first[i] … first[i] + sizes[i] - 1 for each i, one range after the other."""
    starts = _from_zero(sizes)
    numbers: Array = np.arange(starts[-1]) + np.repeat(first - starts[:-1], sizes)
    return numbers


def number_tokens(field: FieldPlan, numbers: Array) -> TokenTable:
    """The tokens of a number field's values, one for each row, NaN where absent: `FieldPlan.tokens` for a column.

    Raises ValueError if an x is beyond what a model takes.
    """
    assert isinstance(field.kind, Number)
    rule, present = field.kind, ~np.isnan(numbers)
    values = np.full((len(numbers), 1), NO_VALUE, np.int32)
    writer = TokenWriter()
    if field.spec.missing is not None:
        values[~present, 0] = writer.add(field.tokens(None))
    found, first = numbers[present], len(writer.value_start) - 1
    if rule.buckets is None:
        values[present, 0] = first + np.arange(len(found))
        head, count = writer.table(values), len(found)
        starts = np.arange(count + 1)
        # Each token is the empty text and its `*`: a number without buckets is in x alone.
        tail = TokenTable(values, starts, starts, rule.xs(found), np.full(count, ord("*"), np.uint8))
        return head.followed_by(tail, values)
    buckets, codes = np.unique(rule.buckets(rule.clipped(found)), return_inverse=True)
    for bucket in buckets.tolist():
        writer.add([Token(b"%d" % bucket, 1.0)])
    values[present, 0] = first + codes.reshape(-1)
    return writer.table(values)


@dataclass(slots=True)
class TokenWriter:
    """Collects the tokens of values, numbering the values from 0."""

    texts: list[bytes] = field(default_factory=list)
    xs: list[float] = field(default_factory=list)
    value_start: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Iterable[Token]) -> int:
        """Add one value's tokens; returns the value's number, NO_VALUE if it has no token."""
        number = self.put(tokens)
        if self.value_start[-1] > self.value_start[-2]:
            return number
        self.value_start.pop()
        return NO_VALUE

    def put(self, tokens: Iterable[Token]) -> int:
        """Add one value's tokens; returns the value's number, also if it has no token."""
        for text, x in tokens:
            self.texts.append(text)
            self.xs.append(x)
        self.value_start.append(len(self.texts))
        return len(self.value_start) - 2

    def tokens_of(self, number: int) -> int:
        """How many tokens the value of this number has."""
        return 0 if number == NO_VALUE else self.value_start[number + 1] - self.value_start[number]

    def table(self, values: Array) -> TokenTable:
        """The table of these values' rows."""
        begin = np.zeros(len(self.texts) + 1, np.int64)
        np.cumsum([len(text) + 1 for text in self.texts], out=begin[1:])
        text = np.frombuffer(bytearray(b"*".join([*self.texts, b""])), np.uint8)
        return TokenTable(
            values, np.array(self.value_start, np.int64), begin, np.array(self.xs, np.float64), text
        )


class RequestTokens:
    """Makes the tokens of requests for one plan. Thread safety: any method, any thread.

    values: int32[1, fields], the first of the group `tokens` of the scoring kernels; the same for every request.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        request_fields = plan.request_fields
        self._fields = tuple(
            (field.name, field.tokens, lru_cache(CACHED_VALUES)(field.tokens), field.tokens(None))
            for field in request_fields
        )
        self._names = frozenset(field.name for field in request_fields)
        self._item_names = frozenset(field.name for field in plan.item_fields)
        self._set_crosses = SetCrosses(plan, request_fields)
        self.values = np.arange(len(request_fields), dtype=np.int32).reshape(1, -1)

    def of(self, fields: Mapping[str, Value]) -> tuple[Array, Array, Array, Array]:
        """The group `tokens` without `values`.

        Raises FieldValueError for a value that does not fit its field, InvalidRequest for sets that make too many keys.
        """
        texts, xs, starts = [], [], [0]
        for name, tokens_of, cached, absent in self._fields:
            value = fields.get(name)
            tokens = absent
            if value is not None:
                # Exactly str: a StoredText equals the plain text, and the cache would give one the tokens of the other.
                tokens = cached(value) if type(value) is str else tokens_of(value)
            for text, x in tokens:
                texts.append(text)
                xs.append(x)
            starts.append(len(texts))
        if self._set_crosses:
            self._set_crosses.count([after - before for before, after in pairwise(starts)])
        begin = [0, *accumulate(len(text) + 1 for text in texts)]
        # One array for both, cut below: each array that is made from a list costs a call.
        numbers = np.array(starts + begin, np.int64)
        # A bytearray: an array over bytes is read-only, which is another type to the compiled kernels.
        data = np.frombuffer(bytearray(b"*".join([*texts, b""])), np.uint8)
        return numbers[: len(starts)], numbers[len(starts) :], np.array(xs, np.float64), data

    def unknown(self, fields: Mapping[str, Value]) -> list[str]:
        """The names that the plan does not have. Raises FieldValueError for an item's field."""
        if fields.keys() <= self._names:
            return []
        for name in fields:
            if name in self._item_names:
                raise FieldValueError(
                    "belongs to the item, and came with the request; give it with an item spelled out", name
                )
        return [name for name in fields if name not in self._names]


class SetCrosses:
    """The crosses of a plan that have two sets or more among one side's fields. Immutable; false if there are none."""

    def __init__(self, plan: FeaturePlan, side: Sequence[FieldPlan]) -> None:
        self._crosses = tuple(
            (names, indices)
            for cross in plan.crosses
            if (names := tuple(field.name for field in cross.fields))
            and len(indices := [at for at, f in enumerate(side) if f.name in names and f.kind.is_list]) > 1
        )

    def __bool__(self) -> bool:
        return bool(self._crosses)

    def count(self, tokens: Sequence[int], before: int = 0) -> int:
        """Add to `before` the keys that this many tokens of each field make. Raises InvalidRequest for too many."""
        for names, indices in self._crosses:
            before += prod(tokens[index] for index in indices)
            if before > MOST_KEYS:
                raise InvalidRequest(
                    (),
                    f"the sets of {'*'.join(names)}: they make more than {MOST_KEYS:,} keys; send smaller ones",
                )
        return before
