"""Where windows of rows end: at row numbers fixed beforehand, wherever batches end. What is summed lives elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 1_000
PARTS = 100


@dataclass(frozen=True)
class Windows:
    """Windows of `size` rows; where it is None they grow with the log.

    Growing windows have 1,000 rows at first, and twice as many whenever 100 of them would be all rows so far. So the
    last windows are 1 to 2 % of a long log each, and their number grows with its logarithm: 10,000 rows have 10, 500
    million 712.
    """

    size: int | None = None

    def end(self, begin: int) -> int:
        """Where the window ends that begins behind row `begin`."""
        if self.size is not None:
            return begin + self.size
        rows = FIRST
        while begin >= rows * PARTS:
            rows *= 2
        return begin + rows

    def doubles(self, end: int) -> bool:
        """Whether the rows up to the end of a window are 1, 2, 4, 8, … times the first window's."""
        times = end // (self.size or FIRST)
        return times & (times - 1) == 0

    def __str__(self) -> str:
        return "no --window" if self.size is None else f"--window {self.size}"
