"""Conditions on candidates: which of them may be returned at all. One that fails any is left out before the order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from server.selection.candidates import Candidates, Texts

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AnyOf:
    """The field has one of these texts; of a set, some member is one of them."""

    field: str
    texts: frozenset[bytes]

    def passes(self, candidates: Candidates) -> Array:
        """bool[candidates]."""
        return _has(candidates.texts(self.field), self.texts, len(candidates))


@dataclass(frozen=True)
class NoneOf:
    """The field has none of these texts; a candidate without a value passes."""

    field: str
    texts: frozenset[bytes]

    def passes(self, candidates: Candidates) -> Array:
        """bool[candidates]."""
        return ~_has(candidates.texts(self.field), self.texts, len(candidates))


@dataclass(frozen=True)
class InRange:
    """The field's number lies between two bounds, both allowed."""

    field: str
    least: float = -math.inf
    most: float = math.inf

    def passes(self, candidates: Candidates) -> Array:
        """bool[candidates]; False where there is no number."""
        numbers = candidates.numbers(self.field)
        return (numbers >= self.least) & (numbers <= self.most)


Condition = AnyOf | NoneOf | InRange


def _has(found: Texts, wanted: frozenset[bytes], count: int) -> Array:
    codes = [found.code_of(text) for text in wanted]
    has = np.zeros(count, np.bool_)
    has[found.owner[np.isin(found.code, codes)]] = True
    return has
