"""Prefix rules: which field or cross a key belongs to, told by the longest prefix of the key that a rule names."""

from __future__ import annotations

from collections.abc import Iterable

import pygtrie

from model_store.features import FeaturePlan
from model_store.keys import BIAS


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
