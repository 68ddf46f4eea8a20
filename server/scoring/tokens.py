"""Tokens as arrays: what kernels read instead of Python objects. Which tokens a value has is the plan's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features import Token

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
