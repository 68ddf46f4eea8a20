"""How long to wait before trying again: twice as long each time, drawn at random so that not all come back at once.

"Full jitter": Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

_MOST_DOUBLINGS = 32


@dataclass
class Backoff:
    """Counts failures in a row. `first_s` and `longest_s` bound the waits, half of each at least. For one thread."""

    first_s: float = 0.1
    longest_s: float = 5.0
    failures: int = 0
    _random: random.Random = field(default_factory=random.Random, repr=False)

    def failed(self) -> float:
        """Count one failure; return how many seconds to wait."""
        self.failures += 1
        doublings = min(self.failures - 1, _MOST_DOUBLINGS)
        return min(self.first_s * 2.0**doublings, self.longest_s) * self._random.uniform(0.5, 1.0)

    def succeeded(self) -> bool:
        """Forget the failures; True if there were any."""
        had, self.failures = self.failures > 0, 0
        return had
