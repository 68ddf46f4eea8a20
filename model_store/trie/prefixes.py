"""What a model holds under a key prefix: counts and weights per variant, and the branches of its trie below.

`under_prefix` builds the trie of an artefact's keys and returns a `PrefixSummary` for `ftrie store inspect --prefix`.
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


def under_prefix(artefact: Artefact, pattern: str, top: int) -> PrefixSummary:
    """Summarize the keys that match `pattern`: a key prefix, after which one `*` is a wildcard and changes nothing.

    `age` and `age*` match `age=25` and `age*brand=25*nike`, `age**` only the crosses. O(key bytes of the artefact).
    """
    prefix = pattern.removesuffix("*").encode("utf-8", "surrogateescape")
    trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
    weights = {name: artefact.weights_of(bit) for bit, name in enumerate(artefact.spec.variants)}
    cursor = trie.cursor(prefix)
    begin, stop = (cursor.begin, cursor.stop) if cursor is not None else (0, 0)
    return PrefixSummary(
        prefix=key_text(prefix),
        keys=stop - begin,
        variants={name: trie.statistics(prefix, each) for name, each in weights.items()},
        branches=tuple(
            Branch(
                key_text(branch),
                last - first,
                {name: float(abs(each[first:last]).sum(dtype=float)) for name, each in weights.items()},
            )
            for branch, first, last in trie.branches(prefix)
        ),
        heaviest=tuple(heaviest(artefact, top, begin, stop)),
    )
