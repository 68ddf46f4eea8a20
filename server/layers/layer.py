"""Layer: a trie with what belongs to its slots. A model has a base, and a fresh one for keys that the base lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from server.interning.halves import Halves
from server.layers.values import Values
from server.mapped import Mapped
from server.trie import FlatTrie

Array = npt.NDArray[Any]
_TRIE = ("key_data", "key_offsets", "nodes", "first_byte")


@dataclass(frozen=True, eq=False)
class Layer:
    """Keys, the item halves of their crosses, and their values, all by the trie's slots. Immutable while served."""

    trie: FlatTrie
    halves: Halves
    values: Values

    @classmethod
    def none(cls, values: Values, first_half: int) -> Layer:
        """A fresh layer without keys, over a base with these values and `first_half` halves."""
        return cls(FlatTrie.of([]), Halves.none(first_half), values.zeros(0))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        keys = self.trie.nbytes + self.halves.half.nbytes + self.halves.at.nbytes
        return keys + self.halves.trie.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.trie)


def keys_by_name(trie: FlatTrie, halves: Halves) -> dict[str, Array]:
    """A layer's arrays without the values, as a part has them."""
    arrays = dict(zip(_TRIE, trie.arrays, strict=True))
    arrays |= {f"halves_{name}": array for name, array in zip(_TRIE, halves.trie.arrays, strict=True)}
    return arrays | {"half": halves.half, "at": halves.at}


def keys_of_part(part: Mapped, first_half: int = 0) -> tuple[FlatTrie, Halves]:
    """Views of a part's arrays: the trie and its halves."""
    arrays = part.arrays
    trie, halves_trie = (FlatTrie(*(arrays[prefix + name] for name in _TRIE)) for prefix in ("", "halves_"))
    return trie, Halves(halves_trie, arrays["half"], arrays["at"], first_half)
