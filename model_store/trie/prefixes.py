"""What a model holds under a key prefix: counts and weights per variant, and the branches of its trie below.

`Prefixes` builds the trie of an artefact's keys; `under` summarizes a part of it, for `ftrie store inspect --prefix`
and for the dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import WeightedKey, heaviest, key_text
from model_store.trie.trie import FlatTrie, PrefixStatistics


@dataclass(frozen=True)
class Branch:
    """The keys that continue the prefix in one way: their common `prefix`, their number, and per variant sum |w|."""

    prefix: str
    keys: int
    absolute_sums: Mapping[str, float]


@dataclass(frozen=True)
class PrefixSummary:
    """The keys under a prefix. `branches` partition them, in key order; `heaviest` are those of largest |w|."""

    prefix: str
    keys: int
    variants: Mapping[str, PrefixStatistics]
    branches: tuple[Branch, ...]
    heaviest: tuple[WeightedKey, ...]


class Prefixes:
    """A model as the trie of its keys. Immutable; any thread. Making one is O(key bytes)."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self._trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
        self._weights = {name: artefact.weights_of(bit) for bit, name in enumerate(artefact.spec.variants)}

    def under(self, pattern: str, top: int) -> PrefixSummary:
        """Summarize the keys that match `pattern`: a key prefix, after which one `*` is a wildcard and changes nothing.

        `age` and `age*` match `age=25` and `age*brand=25*nike`, `age**` only the crosses. O(keys under the prefix).
        """
        prefix = pattern.removesuffix("*").encode("utf-8", "surrogateescape")
        cursor = self._trie.cursor(prefix)
        begin, stop = (cursor.begin, cursor.stop) if cursor is not None else (0, 0)
        return PrefixSummary(
            prefix=key_text(prefix),
            keys=stop - begin,
            variants={name: self._trie.statistics(prefix, each) for name, each in self._weights.items()},
            branches=tuple(
                Branch(
                    key_text(branch),
                    last - first,
                    {
                        name: float(abs(each[first:last]).sum(dtype=float))
                        for name, each in self._weights.items()
                    },
                )
                for branch, first, last in self._trie.branches(prefix)
            ),
            heaviest=tuple(heaviest(self.artefact, top, begin, stop)),
        )
