"""Whether a log is sorted by its label: then a learner follows the order, and its figures say nothing of the fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import counted

_FEWEST = 100
_RARELY = 20
"""How many times less often than by chance the labels change. Where clicks come in bursts it may be some times."""


class LabelOrder:
    """Counts how often the label changes from one row to the next (Wald and Wolfowitz 1940, the runs test)."""

    def __init__(self) -> None:
        self.rows = self.clicks = self.changes = 0
        self._last = np.zeros(0, np.bool_)

    def add(self, labels: npt.NDArray[Any]) -> None:
        """Add the next rows' labels: above 0 for a click."""
        clicked = np.concatenate([self._last, labels > 0])
        self.rows += labels.size
        self.clicks += int(np.count_nonzero(labels > 0))
        self.changes += int(np.count_nonzero(clicked[1:] != clicked[:-1]))
        self._last = clicked[-1:]

    @property
    def expected(self) -> float:
        """How often the label would change if the rows came in any order."""
        return 2.0 * self.clicks * (self.rows - self.clicks) / max(self.rows, 1)

    @property
    def is_sorted(self) -> bool:
        """True if rows with a click come together, and those without, as they would not by chance."""
        few = min(self.clicks, self.rows - self.clicks) < _FEWEST
        return not few and _RARELY * self.changes < self.expected

    def warnings(self) -> tuple[str, ...]:
        """A warning if it is sorted."""
        if not self.is_sorted:
            return ()
        return (
            f"the log seems sorted by its label: it changes {counted(self.changes, 'time')} from row to row, "
            f"and would {self.expected:,.0f} times in another order; a learner follows the order, so its figures say "
            "nothing of the fields",
        )
