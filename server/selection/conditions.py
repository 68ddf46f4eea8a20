"""Conditions on candidates: which of them may be returned at all. One that fails any is left out before the order."""

from __future__ import annotations

import math
from collections.abc import Collection
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
    texts: Collection[str | bytes]

    def passes(self, candidates: Candidates) -> Array:
        """bool[candidates]."""
        return _has(candidates.texts(self.field), self.texts, len(candidates))


@dataclass(frozen=True)
class NoneOf:
    """The field has none of these texts; a candidate without a value passes."""

    field: str
    texts: Collection[str | bytes]

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


def _has(found: Texts, wanted: Collection[str | bytes], count: int) -> Array:
    has = np.zeros(count, np.bool_)
    has[found.owner[found.among(wanted)]] = True
    return has
