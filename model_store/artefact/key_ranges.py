"""Which field or cross owns a key: prefix rules, and the ranges of an artefact's rows that each owner has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pygtrie

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.keys import BIAS


class PrefixRules:
    """An immutable map from key prefixes to owners; the longest matching prefix wins."""

    def __init__(self, rules: Iterable[tuple[bytes, str]], exact: Iterable[tuple[bytes, str]] = ()) -> None:
        """`rules`: (prefix, owner); the empty prefix matches all other keys. `exact`: (key, owner)."""
        self.prefixes = tuple(rules)
        self.exact = dict(exact)
        self._by_prefix = pygtrie.CharTrie((_text(prefix), owner) for prefix, owner in self.prefixes)

    @classmethod
    def of(cls, plan: FeaturePlan) -> PrefixRules:
        """The rules of a plan: fields and crosses by name, `bias`, and the plan's raw field for all other keys.

        With several raw fields their keys have no owner, since a key does not tell which field it came from.
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
    """The key as text for CharTrie: Latin-1 maps each byte to one character."""
    return key.decode("latin-1")


OTHER = "other"


def key_ranges(artefact: Artefact) -> list[tuple[str, int, int]]:
    """The owners of all rows, as (name, first row, row after the last), in row order, without gaps.

    Names are fields, crosses and `bias`; a key without a rule belongs to the raw field if there is exactly one, else to
    `other`. Keys are sorted and rules are prefixes, so each rule matches one range.
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
    """The sorted keys of an artefact as a sequence, for bisection, without copying them."""

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
        """The first row after all keys with `prefix`. Keys are UTF-8, so the byte 0xFF sorts after any continuation."""
        return bisect_left(self, prefix + b"\xff")
