"""How many keys the crosses of several sets make: bounded, since two sets of 10,000 members would make 10^8.

A plan without such crosses, and most are, costs nothing here. What the store holds is its owner's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from model_store.features import FeaturePlan, FieldPlan
from server.errors import InvalidRequest

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
