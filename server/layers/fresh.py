"""The fresh layer: keys that came after the base was built, in a small trie that each delta replaces whole."""

from __future__ import annotations

from server.interning.halves import Halves
from server.layers.base import Base
from server.layers.layer import Layer, keys_by_name, keys_of_part
from server.layers.merging import Rows, merged
from server.layers.values import Values
from server.mapped import Mapped
from server.trie import FlatTrie


def no_fresh(base: Base, values: Values) -> Layer:
    """The fresh layer while there is none, over a base with these values."""
    return Layer.none(values, len(base.halves.trie))


def fresh_of_part(base: Base, values: Values, part: Mapped | None) -> Layer:
    """Bind a part over its base. O(1)."""
    if part is None:
        return no_fresh(base, values)
    trie, halves = keys_of_part(part, len(base.halves.trie))
    return Layer(trie, halves, Values.of_part(part))


def part_of_fresh(layer: Layer) -> Mapped:
    """A block with all of a layer. O(bytes)."""
    return Mapped.write({}, keys_by_name(layer.trie, layer.halves) | layer.values.by_name())


def with_rows(base: Base, fresh: Layer, rows: Rows) -> Layer:
    """`fresh` with these keys, none of which `base` has; those that no variant uses taken out. O(key bytes of both)."""
    slots = fresh.trie.get_many(rows.key_data, rows.key_offsets)
    known = slots >= 0
    own = fresh.values.zeros(len(fresh))
    own.fill(fresh.values)
    own.put(slots[known], rows.values.take(known.nonzero()[0]))
    both = merged(Rows(fresh.trie.key_data, fresh.trie.key_offsets, own), rows.at((~known).nonzero()[0]))
    trie = FlatTrie.build(both.key_data, both.key_offsets)
    return Layer(trie, Halves.fresh(base.plan, trie, base.halves), both.values)
