"""How often something is done: every N rows or every S seconds. Used for checkpoints and for publishing."""

from __future__ import annotations

import time

from trainer.settings import Every


class Schedule:
    """Counts from the last attempt, successful or not, so that a full disk is not tried again at every batch."""

    def __init__(self, every: Every, rows: int) -> None:
        self._every = every
        self.restart(rows)

    def restart(self, rows: int) -> None:
        """Count from here: `rows` rows of the run are learned."""
        self._rows, self._began = rows, time.monotonic()

    def is_due(self, rows: int) -> bool:
        """True if enough rows, or enough time, have passed."""
        if self._every.rows is not None:
            return rows - self._rows >= self._every.rows
        assert self._every.seconds is not None
        return time.monotonic() - self._began >= self._every.seconds
