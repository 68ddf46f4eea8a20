"""Paired differences: sums of each candidate's losses by blocks of rows, and how sure a difference of two is.

All candidates predict the same rows, so the difference of two has far less noise than either loss. Rows near each other
are not independent: a user's rows, a request's candidates and what a learner knows at the time all last for a while.
So a block of consecutive rows counts as one observation. Blocks grow with the log: 16 rows at first; whenever 256 are
full, neighbours are merged, so a log of more than 2,048 rows has 128 to 256.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.ratios import t_quantile

FIRST_BLOCK_ROWS = 16
MOST_BLOCKS = 256
LEAST_BLOCKS = 8

Floats = npt.NDArray[np.float64]


class BlockSums:
    """Sums of columns of numbers by blocks of consecutive rows. Memory: 256 numbers a column."""

    def __init__(self, columns: int) -> None:
        self.block_rows = FIRST_BLOCK_ROWS
        self._rows = 0
        self._sums = np.zeros((MOST_BLOCKS, columns))

    def add(self, numbers: Floats) -> None:
        """Add the next rows: float64[rows, columns]."""
        first, end = self._rows, self._rows + numbers.shape[0]
        if first == end:
            return
        while end > self.block_rows * MOST_BLOCKS:
            half = MOST_BLOCKS // 2
            self._sums[:half] = self._sums[::2] + self._sums[1::2]
            self._sums[half:] = 0.0
            self.block_rows *= 2
        blocks = np.arange(first // self.block_rows, (end - 1) // self.block_rows + 1)
        starts = np.maximum(blocks * self.block_rows - first, 0)
        self._sums[blocks] += np.add.reduceat(numbers, starts, axis=0)
        self._rows = end

    def sums(self) -> Floats:
        """The sums of the blocks so far: float64[blocks, columns]."""
        return self._sums[: -(-self._rows // self.block_rows)].copy()


@dataclass(frozen=True)
class Difference:
    """The mean of a paired difference by row, and its standard error over `blocks` blocks; None where too few."""

    mean: float
    error: float | None
    blocks: int

    @classmethod
    def of(cls, one: Floats, other: Floats, weights: Floats) -> Difference:
        """`one` minus `other`, each a sum by block; weights: the sum of each block's weights.

        The error is that of a ratio of sums over clusters, linearised (Cochran 1977, section 6.3).
        """
        total, blocks = float(weights.sum()), int(np.count_nonzero(weights))
        mean = float((one - other).sum()) / total if total else 0.0
        if blocks < LEAST_BLOCKS:
            return cls(mean, None, blocks)
        residuals = one - other - mean * weights
        variance = float(residuals @ residuals) * blocks / (blocks - 1)
        return cls(mean, math.sqrt(variance) / total, blocks)

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The two-sided confidence interval; None where there are too few blocks."""
        if self.error is None:
            return None
        half = t_quantile(0.5 + level / 2.0, self.blocks - 1) * self.error
        return self.mean - half, self.mean + half

    def is_above_zero(self, error_rate: float) -> bool:
        """Whether the one-sided t test at this error rate says that the mean is above 0."""
        if not self.error:
            return False
        return self.mean / self.error > t_quantile(1.0 - error_rate, self.blocks - 1)

    @property
    def may_be_zero(self) -> bool:
        """True unless the 95 % interval excludes 0."""
        interval = self.interval()
        return interval is None or interval[0] <= 0.0 <= interval[1]

    def as_dict(self) -> dict[str, float | None]:
        """The mean and its 95 % interval."""
        low, high = self.interval() or (None, None)
        return {"mean": self.mean, "low": low, "high": high}
