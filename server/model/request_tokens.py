"""A request's features as tokens. What stands here is the plan's alone, so it stays from version to version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.features.values import Value
from server.errors import InvalidRequest

Array = npt.NDArray[Any]

# Values of each field whose tokens are kept: most requests bring ages, cities and hours that were just asked for.
REMEMBERED_VALUES = 512


class RequestTokens:
    """Makes a request's tokens for one plan. Safe for any number of threads.

    values: int32[1, fields], the first of the group `tokens` of the scoring kernels, the same for every request.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        request_fields = plan.request_fields
        self._fields = tuple(
            (field.name, field.tokens, lru_cache(REMEMBERED_VALUES)(field.tokens)) for field in request_fields
        )
        self._names = frozenset(field.name for field in request_fields)
        self._item_names = frozenset(field.name for field in plan.item_fields)
        self._set_crosses = SetCrosses(plan, request_fields)
        self.values = np.arange(len(request_fields), dtype=np.int32).reshape(1, -1)

    def of(self, fields: Mapping[str, Value]) -> tuple[Array, Array, Array, Array]:
        """All of the group `tokens` but `values`. Raises FieldValueError for a value that does not fit its field.

        Raises InvalidRequest for sets whose crosses are too many keys.
        """
        texts, xs, starts = [], [], [0]
        for name, tokens_of, remembered in self._fields:
            value = fields.get(name)
            if value is not None:
                for text, x in remembered(value) if type(value) is str else tokens_of(value):
                    texts.append(text)
                    xs.append(x)
            starts.append(len(texts))
        if self._set_crosses:
            self._set_crosses.count([after - before for before, after in pairwise(starts)])
        begin = [0, *accumulate(len(text) + 1 for text in texts)]
        numbers = np.array(starts + begin, np.int64)
        data = np.frombuffer(bytearray(b"*".join([*texts, b""])), np.uint8)
        return numbers[: len(starts)], numbers[len(starts) :], np.array(xs, np.float64), data

    def unknown(self, fields: Mapping[str, Value]) -> list[str]:
        """The names that the plan does not have. Raises FieldValueError for one of an item's."""
        if fields.keys() <= self._names:
            return []
        for name in fields:
            if name in self._item_names:
                raise FieldValueError(
                    f"{name}: belongs to the item, and came with the request; give it with an item spelled out"
                )
        return [name for name in fields if name not in self._names]


# --- How many keys the crosses of several sets make: bounded, since two sets of 10,000 members would make
# 10^8 ---
#
# A plan without such crosses, and most are, costs nothing here. What the store holds is its owner's affair.


MOST_KEYS = 1_000_000
"""For a request's own features, and for all items that it spells out: some 50 ms of walking."""


class SetCrosses:
    """The crosses of a plan that take two sets or more of one side's fields. Immutable; true if there are any."""

    def __init__(self, plan: FeaturePlan, side: Sequence[FieldPlan]) -> None:
        self._crosses = tuple(
            (names, places)
            for cross in plan.crosses
            if (names := tuple(field.name for field in cross.fields))
            and len(places := _sets_among(side, names)) > 1
        )

    def __bool__(self) -> bool:
        return bool(self._crosses)

    def count(self, tokens: Sequence[int], before: int = 0) -> int:
        """The keys that these many tokens of each field make, added to `before`. Raises InvalidRequest for too many."""
        for names, places in self._crosses:
            before += prod(tokens[place] for place in places)
            if before > MOST_KEYS:
                raise InvalidRequest(
                    f"the sets of {'*'.join(names)}: they make more than {MOST_KEYS:,} keys; send smaller ones"
                )
        return before


def _sets_among(side: Sequence[FieldPlan], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(place for place, field in enumerate(side) if field.name in names and field.is_list)
