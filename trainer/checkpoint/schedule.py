"""How often something is done: every N rows or every S seconds. Used for checkpoints and for publishing."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self

from model_store.errors import UsageError

_EVERY = re.compile(r"([0-9]+)(ms|[smh]?)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Every:
    """Either a number of `rows` or of `seconds`; the other one is None."""

    rows: int | None
    seconds: float | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `100000` (rows), `500ms`, `30s`, `5m` or `1h`. Raises UsageError for anything else."""
        found = _EVERY.fullmatch(text)
        if found is None or int(found[1]) == 0:
            raise UsageError(
                f"every {text!r}: expected a number of rows such as 100000, or a time such as 500ms, 30s, 5m, 1h"
            )
        number, unit = int(found[1]), found[2]
        return cls(None, number * _UNITS_S[unit]) if unit else cls(number, None)


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
