"""Item halves: what follows the request's half in the keys of mixed crosses, numbered once a model.

`age*brand=25*nike` and `gender*brand=f*nike` end in the same half, `nike` of the group (brand,). With every key's half
known as a number, a candidate is matched by comparing integers, and each candidate's bytes are walked once, not once
a cross. Nothing here knows requests or weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features import CrossPlan, FeaturePlan
from server.interning.kernels import NO_HALF, intern_halves
from server.trie import Cursor, FlatTrie

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Halves:
    """The item halves of a model.

    groups: the distinct combinations of item fields that crosses end in, by name. trie: from group tag + half to the
    half's number. half int32[slots]: the number of the half that each key ends in, NO_HALF for other keys. Numbers
    rise with (group, half's bytes), so below one request half they rise with the slots.
    """

    groups: tuple[tuple[str, ...], ...]
    trie: FlatTrie
    half: Array

    @classmethod
    def of(cls, plan: FeaturePlan, trie: FlatTrie) -> Halves:
        """Number the halves of every mixed cross. O(bytes of their keys), and a sort of the distinct halves."""
        half = np.full(len(trie), NO_HALF, np.int32)
        by_group: dict[tuple[str, ...], list[tuple[CrossPlan, Cursor]]] = {}
        for cross in plan.crosses:
            cursor = trie.cursor(cross.prefix) if is_mixed(cross) else None
            if cursor is not None:
                by_group.setdefault(group_of(cross), []).append((cross, cursor))
        texts: list[bytes] = []
        for group, crosses in enumerate(by_group.values()):
            texts += _number_group(trie, crosses, half, _tag(group), len(texts))
        return cls(tuple(by_group), FlatTrie.of(texts), half)

    def cursor(self, group: int) -> Cursor | None:
        """Where the halves of a group begin in `trie`."""
        return self.trie.cursor(_tag(group))


def is_mixed(cross: CrossPlan) -> bool:
    """True if the cross has fields of the request and of the item."""
    return cross.fields[0].side != "item" and cross.fields[-1].side == "item"


def group_of(cross: CrossPlan) -> tuple[str, ...]:
    """The item fields of a cross, by name, in the order of its keys."""
    return tuple(field.name for field in cross.item_fields)


def _tag(group: int) -> bytes:
    return group.to_bytes(4, "big")


def _number_group(
    trie: FlatTrie, crosses: Sequence[tuple[CrossPlan, Cursor]], half: Array, tag: bytes, first: int
) -> list[bytes]:
    """Number one group's halves from `first` on, in `half`; return their tagged texts in that order."""
    slots = sum(cursor.stop - cursor.begin for _, cursor in crosses)
    table = np.full(1 << (2 * slots - 1).bit_length(), -1, np.int32)
    places, count = np.empty((slots, 2), np.int64), 0
    for cross, cursor in crosses:
        prefix, stars = len(cross.prefix), len(cross.request_fields)
        count = intern_halves(
            trie.key_data,
            trie.key_offsets,
            cursor.begin,
            cursor.stop,
            prefix,
            stars,
            table,
            places,
            count,
            half,
        )
    data = trie.key_data.data
    texts = [tag + bytes(data[begin:end]) for begin, end in places[:count].tolist()]
    order = sorted(range(count), key=texts.__getitem__)
    number = np.full(count + 1, NO_HALF, np.int32)  # the last one is where NO_HALF leads
    number[order] = np.arange(first, first + count, dtype=np.int32)
    for _, cursor in crosses:
        below = half[cursor.begin : cursor.stop]
        below[:] = number[below]
    return [texts[index] for index in order]
