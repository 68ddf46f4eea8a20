"""The content digest: what a model's rows are, in 128 bits, whatever their order.

A row's key, variants, weights and rates are mixed into two words of 64 bits, and those of all rows are added up. So
who changes a few rows takes off what stood for them before and adds what stands for them now, and knows without
looking at the other rows whether it has come to the model that was published. Against damage and deceit there is
SHA-256; this digest finds what was put together wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError

_MODULUS = 1 << 64
_DIGITS = 32


@dataclass(frozen=True)
class Content:
    """The digest of some rows; `+` and `-` are those of the rows. `str` gives 32 hexadecimal digits."""

    first: int = 0
    second: int = 0

    @classmethod
    def of(
        cls,
        key_data: npt.NDArray[np.uint8],
        key_offsets: npt.NDArray[np.int64],
        weight: npt.NDArray[np.float32],
        variants: npt.NDArray[np.uint32],
        rate: npt.NDArray[np.float32],
    ) -> Content:
        """The digest of rows, those that no variant uses left out. O(rows + key bytes).

        Shapes as in an artefact: weight and rate [rows] or [rows, variants].
        """
        from model_store.kernels import content_sums

        sums = np.zeros(2, np.uint64)
        content_sums(key_data, key_offsets, _bits(weight), variants, _bits(rate), sums)
        return cls(int(sums[0]), int(sums[1]))

    @classmethod
    def parse(cls, text: str) -> Content:
        """Read back `str`. Raises ArtefactError for anything else."""
        try:
            if len(text) != _DIGITS:
                raise ValueError
            return cls(*divmod(int(text, 16), _MODULUS))
        except ValueError:
            raise ArtefactError(
                f"got the content digest {text[:40]!r}; expected {_DIGITS} hexadecimal digits"
            ) from None

    def __add__(self, other: Content) -> Content:
        return Content((self.first + other.first) % _MODULUS, (self.second + other.second) % _MODULUS)

    def __sub__(self, other: Content) -> Content:
        return Content((self.first - other.first) % _MODULUS, (self.second - other.second) % _MODULUS)

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"


def _bits(numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """The bits of numbers as uint32[rows, width]."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return bits.reshape(len(numbers), bits.shape[1] if bits.ndim == 2 else 1)
