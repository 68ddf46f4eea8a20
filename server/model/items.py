"""Tokens as arrays: what kernels read instead of Python objects. Which tokens a value has is the plan's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import Token
from model_store.spec.sections import MAX_CROSS_FIELDS
from server.model.items_kernels import code_items, sum_items

if TYPE_CHECKING:
    from server.model.model import Model


Array = npt.NDArray[Any]
NO_VALUE = -1


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Rows of field values, and the tokens of each distinct value.

    values int32[rows, fields]: numbers of values, NO_VALUE where a row has none. The tokens of value v are
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

    def extended(self, more: TokenWriter, values: Array) -> TokenTable:
        """A table of other rows; `more` adds values, numbered on from this table's."""
        tail = more.table(values)
        return TokenTable(
            values,
            np.concatenate([self.value_start, tail.value_start[1:] + self.value_start[-1]]),
            np.concatenate([self.begin, tail.begin[1:] + self.begin[-1]]),
            np.concatenate([self.x, tail.x]),
            np.concatenate([self.text, tail.text]),
        )


@dataclass(slots=True)
class TokenWriter:
    """Collects the tokens of values, numbering the values from 0."""

    texts: list[bytes] = field(default_factory=list)
    xs: list[float] = field(default_factory=list)
    value_start: list[int] = field(default_factory=lambda: [0])

    def add(self, tokens: Iterable[Token]) -> int:
        """Take in one value's tokens; return the value's number, NO_VALUE if it has none."""
        for text, x in tokens:
            self.texts.append(text)
            self.xs.append(x)
        if self.value_start[-1] == len(self.texts):
            return NO_VALUE
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


# --- What a model knows of items: each one's own sums for every variant, and its halves as numbers. Made from
# tokens ---


_NAMES = ("own", "unsure", "codes", "run_start", "run_half", "run_x")


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Items as the ranking kernels read them: codes int32[rows, groups], the runs, and two sums a variant and row.

    own float64[variants, rows] is Σ w·x over the keys that the item makes alone, unsure Σ rate·|x| over the same. With
    a `variant`, row 0 is that one's and there is no other.

    A code is a half, NO_HALF, or FIRST_RUN - r for run r: the pairs run_start[r] … run_start[r + 1] - 1 of
    run_half (int32) and run_x (float64), for items with several halves in a group, or with an x other than 1.
    """

    own: Array
    unsure: Array
    codes: Array
    run_start: Array
    run_half: Array
    run_x: Array

    @classmethod
    def of(cls, model: Model, tokens: TokenTable, variants: range) -> ItemTable:
        """Look every row up. O(tokens); `variants` are those whose sums will be needed."""
        return cls(*sums_of(model, tokens, variants), *codes_of(model, tokens))

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> ItemTable:
        """The table whose arrays these are, by name."""
        return cls(*(arrays[name] for name in _NAMES))

    @property
    def by_name(self) -> dict[str, Array]:
        """The arrays as a part has them."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def code_arrays(self) -> tuple[Array, ...]:
        """The group `items` of the scoring kernels without the sums."""
        return self.codes, self.run_start, self.run_half, self.run_x

    @cached_property
    def longest_run(self) -> int:
        """The most halves any row has in a group, at least 1."""
        return int(np.diff(self.run_start).max(initial=1))


def sums_of(model: Model, tokens: TokenTable, variants: range) -> tuple[Array, Array]:
    """own and unsure of an ItemTable."""
    own, unsure = (np.zeros((len(variants), len(tokens.values)), np.float64) for _ in range(2))
    choice = np.empty(MAX_CROSS_FIELDS, np.int64)
    sum_items(
        *model.base.trie.walked, *model.base.values.arrays, *model.fresh.trie.walked, *model.fresh.values.arrays,
        model.terms.item, *tokens.arrays, variants.start, choice, own, unsure,
    )  # fmt: skip
    return own, unsure


def codes_of(model: Model, tokens: TokenTable) -> tuple[Array, Array, Array, Array]:
    """Codes and runs. Runs are rare: the first pass counts them, a second one follows only if there are any."""
    codes = np.empty((len(tokens.values), len(model.terms.groups)), np.int32)
    base, fresh = model.base.halves, model.fresh.halves
    runs = pairs = 0
    while True:
        arrays = codes, np.zeros(runs + 1, np.int64), np.empty(pairs, np.int32), np.empty(pairs, np.float64)
        found = code_items(
            *base.trie.walked, *fresh.trie.walked, fresh.first, model.terms.groups,
            *tokens.arrays, np.empty(MAX_CROSS_FIELDS, np.int64), *arrays,
        )  # fmt: skip
        if found == (runs, pairs):
            return arrays
        runs, pairs = found
