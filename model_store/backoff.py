"""How long to wait before trying again: twice as long after each failure, with jitter so that not all retry at once.

`Pauses` is the rule, `Backoff` the rule with a count of failures. "Full jitter": Brooker, Exponential Backoff and
Jitter, AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_MOST_DOUBLINGS = 32


@dataclass(frozen=True)
class Pauses:
    """Waits from `first_s` on, doubling up to `longest_s`. With `jitter` each is drawn between half and all of that."""

    first_s: float = 0.1
    longest_s: float = 5.0
    jitter: bool = True

    def after(self, failures: int) -> float:
        """Seconds to wait after `failures` in a row, from 1 on."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        longest = min(self.first_s * 2.0**doublings, self.longest_s)
        return longest * random.uniform(0.5, 1.0) if self.jitter else longest


class Backoff:
    """Counts failures in a row; `failures` is their number. For one thread."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 5.0) -> None:
        self.failures = 0
        self._pauses = Pauses(first_s, longest_s)

    def failed(self) -> float:
        """Count a failure; return the seconds to wait."""
        self.failures += 1
        return self._pauses.after(self.failures)

    def succeeded(self) -> bool:
        """Reset the count; True if there were failures."""
        had, self.failures = self.failures > 0, 0
        return had
