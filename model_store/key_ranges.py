"""Which rows of an artefact belong to which field or cross.

Keys are sorted and owners are prefixes, so every owner has a range. Nothing here looks at weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from model_store.artefact import Artefact
from model_store.features import FeaturePlan
from model_store.prefixes import PrefixRules

OTHER = "other"


def key_ranges(artefact: Artefact) -> list[tuple[str, int, int]]:
    """Who owns which rows, as (name, first row, row after the last), rows ascending, every row once.

    Names are fields, crosses and `bias`; a key under no prefix belongs to the raw field if there
    is just one, else to `other`.
    """
    rules = PrefixRules.of(FeaturePlan.of(artefact.spec))
    rows = SortedKeys(artefact)
    owned = [(name, rows.at_least(key), rows.at_least(key + b"\0")) for key, name in rules.exact.items()]
    owned += [(name, rows.at_least(prefix), rows.beyond(prefix)) for prefix, name in rules.prefixes if prefix]
    rest = next((name for prefix, name in rules.prefixes if not prefix), OTHER)
    return list(_without_gaps(sorted(owned, key=lambda each: each[1:]), rest, artefact.rows))


def _without_gaps(
    owned: Sequence[tuple[str, int, int]], rest: str, rows: int
) -> Iterator[tuple[str, int, int]]:
    reached = 0
    for name, begin, end in [*owned, ("", rows, rows)]:
        if reached < begin:
            yield rest, reached, begin
        if begin < end:
            yield name, begin, end
        reached = max(reached, end)


class SortedKeys(Sequence[bytes]):
    """The sorted keys of an artefact, for bisection. Keys are read where they lie: O(1) each."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact

    def __len__(self) -> int:
        return self._artefact.rows

    def __getitem__(self, row: Any) -> Any:
        return self._artefact.key(row)

    def at_least(self, key: bytes) -> int:
        """The first row whose key is not less than `key`. O(log rows)."""
        return bisect_left(self, key)

    def beyond(self, prefix: bytes) -> int:
        """The first row after all that begin with `prefix`. Keys are UTF-8, so 0xFF follows all that go on from it."""
        return bisect_left(self, prefix + b"\xff")
