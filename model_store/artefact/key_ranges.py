"""Prefix rules: which field or cross a key belongs to, told by the longest prefix of the key that a rule names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pygtrie

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.keys import BIAS


class PrefixRules:
    """An immutable map from key prefixes to owners. Where prefixes nest, the longest one wins."""

    def __init__(self, rules: Iterable[tuple[bytes, str]], exact: Iterable[tuple[bytes, str]] = ()) -> None:
        """`rules`: (prefix, owner); the empty prefix takes what no other does. `exact`: keys owned as they stand."""
        self.prefixes = tuple(rules)
        self.exact = dict(exact)
        self._by_prefix = pygtrie.CharTrie((_text(prefix), owner) for prefix, owner in self.prefixes)

    @classmethod
    def of(cls, plan: FeaturePlan) -> PrefixRules:
        """The rules of a plan: each field and cross by its name, `bias`, and all other keys to the plan's raw field.

        If the plan has several raw fields, a key does not tell which of them it came with: it has no owner.
        """
        raw = [field for field in plan.fields if field.prefix == b""]
        rules = [(field.prefix, field.name) for field in plan.fields if field.prefix]
        rules += [(cross.prefix, cross.name) for cross in plan.crosses]
        rules += [(b"", field.name) for field in raw if len(raw) == 1]
        return cls(rules, [(BIAS, BIAS.decode())])

    def owner(self, key: bytes) -> str | None:
        """The name of the field or cross that `key` belongs to, or None. O(length of the key)."""
        if key in self.exact:
            return self.exact[key]
        step = self._by_prefix.longest_prefix(_text(key))
        owner: str | None = step.value if step else None
        return owner


def _text(key: bytes) -> str:
    """Latin-1 gives each byte a character of its own, so that CharTrie can hold every key."""
    return key.decode("latin-1")


# --- Which rows of an artefact belong to which field or cross ---
#
# Keys are sorted and owners are prefixes, so every owner has a range. Nothing here looks at weights.


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
