"""Values: what a model says of each key, as arrays over a trie's slots. Nothing here knows keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.model_rows import ModelRows
from server.mapped import Mapped, Shapes

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Values:
    """What each slot's key is worth.

    weights and rates float32[w, n], with w = 1 or, where each variant has its own, a row a variant; variants
    uint8[planes, n], bit v % 8 of plane v // 8: variant v uses the key (few models have more than eight
    variants). A key that was taken out has 0 in all of them.
    """

    weights: Array
    variants: Array
    rates: Array

    @classmethod
    def of(cls, rows: ModelRows) -> Values:
        """Those of an artefact or a delta: shared with it, but a column of weights a variant becomes a row."""
        planes = planes_for(len(rows.spec.variants))
        by_byte = np.ascontiguousarray(rows.variants, "<u4").view(np.uint8).reshape(-1, 4)
        used = np.ascontiguousarray(by_byte[:, :planes].T)
        return cls(as_rows(rows.weight), used, as_rows(rows.rate))

    @classmethod
    def empty(cls, width: int, planes: int, keys: int) -> Values:
        """All 0."""
        numbers = (np.zeros((width, keys), np.float32) for _ in range(2))
        return cls(next(numbers), np.zeros((planes, keys), np.uint8), next(numbers))

    def zeros(self, keys: int) -> Values:
        """Values of this shape for `keys` keys, all 0."""
        return Values.empty(self.width, len(self.variants), keys)

    @classmethod
    def of_part(cls, part: Mapped) -> Values:
        """Views of a part's arrays."""
        return cls(*(part.arrays[name] for name in ("weights", "variants", "rates")))

    @property
    def shapes(self) -> Shapes:
        """The arrays of a part that holds as many values."""
        return {name: (array.dtype, array.shape) for name, array in self.by_name().items()}

    def by_name(self) -> dict[str, Array]:
        """The arrays as a part has them."""
        return {"weights": self.weights, "variants": self.variants, "rates": self.rates}

    def fill(self, source: Values) -> None:
        """Become equal to `source`. O(n)."""
        for own, other in zip(self.by_name().values(), source.by_name().values(), strict=True):
            np.copyto(own, other)

    def take(self, slots: Array) -> Values:
        """Copies of the values in these slots."""
        return Values(self.weights[:, slots], self.variants[:, slots], self.rates[:, slots])

    def put(self, slots: Array, values: Values) -> None:
        """Write `values` into these slots."""
        self.weights[:, slots] = values.weights
        self.variants[:, slots] = values.variants
        self.rates[:, slots] = values.rates

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """weights, variants and rates."""
        return self.weights, self.variants, self.rates

    @property
    def used(self) -> Array:
        """bool[n]: whether any variant uses the key."""
        return np.asarray(self.variants.any(axis=0))

    @property
    def bits(self) -> Array:
        """uint32[n], bit v: variant v uses the key; as an artefact has them."""
        found = np.zeros(len(self), np.uint32)
        for plane, byte in enumerate(self.variants):
            found |= byte.astype(np.uint32) << np.uint32(8 * plane)
        return found

    def uses(self, slot: int, variant: int) -> bool:
        """Whether the variant uses the key in this slot."""
        return bool(self.variants[variant >> 3, slot] >> (variant & 7) & 1)

    @property
    def width(self) -> int:
        """How many weights a key has."""
        return len(self.weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return self.weights.nbytes + self.variants.nbytes + self.rates.nbytes

    def __len__(self) -> int:
        return int(self.variants.shape[1])


def as_rows(numbers: Array) -> Array:
    """float32[rows] or [rows, variants] as [1, rows] or [variants, rows], whose rows lie together."""
    return np.ascontiguousarray(np.atleast_2d(numbers.T))


def planes_for(variants: int) -> int:
    """How many bytes hold a bit for each of so many variants."""
    return -(-variants // 8)
