"""Vectors and matrices as they travel between members: float32 with indices where that is shorter, and float16."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_LARGEST_HALF = 60_000.0


class Sparse(NamedTuple):
    """A float32 vector: `values` at `at` (uint32), 0 elsewhere; or all of it where `at` is None."""

    size: int
    at: npt.NDArray[np.uint32] | None
    values: npt.NDArray[np.float32]

    @property
    def where(self) -> Any:
        """What indexes the values in a vector of this size."""
        return slice(None) if self.at is None else self.at

    def dense(self) -> npt.NDArray[np.float64]:
        """All of it: float64[size]."""
        out = np.zeros(self.size)
        out[self.where] = self.values
        return out


def sparse(vector: npt.NDArray[np.float64]) -> Sparse:
    """The vector as it travels, rounded to float32: indices and values, or all values where that is no longer."""
    values = vector.astype(np.float32)
    index = np.flatnonzero(values)
    if 2 * index.size >= values.size:
        return Sparse(values.size, None, values)
    return Sparse(values.size, index.astype(np.uint32), values[index])


class Triangle(NamedTuple):
    """The upper triangle of a symmetric matrix: which entries are not 0, as bits, and these as scale x float16."""

    size: int
    bits: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float16]
    scale: float

    def full(self) -> npt.NDArray[np.float64]:
        """The matrix: float64[size, size]."""
        rows, columns = np.triu_indices(self.size)
        where = np.unpackbits(self.bits, count=rows.size).view(bool)
        out = np.zeros((self.size, self.size))
        out[rows[where], columns[where]] = self.values.astype(np.float64) * self.scale
        return out + np.triu(out, 1).T


def triangle(matrix: npt.NDArray[np.float64]) -> Triangle:
    """A symmetric matrix as it travels, to three digits."""
    entries = matrix[np.triu_indices(len(matrix))]
    scale = float(np.abs(entries).max(initial=0.0)) / _LARGEST_HALF or 1.0
    values = (entries / scale).astype(np.float16)
    return Triangle(len(matrix), np.packbits(values != 0.0), values[values != 0.0], scale)


def nbytes(part: Any) -> int:
    """The bytes of the arrays in a part."""
    if isinstance(part, np.ndarray):
        return int(part.nbytes)
    if isinstance(part, Mapping):
        part = part.values()
    return sum(map(nbytes, part)) if isinstance(part, Iterable) and not isinstance(part, str) else 0
