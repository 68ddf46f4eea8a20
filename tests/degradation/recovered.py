"""How long a system takes to be whole again: each test waits for it and notes the seconds; `measure` prints them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.waiting import WAIT_S, eventually

NOTED = "seconds until"


class Recovered:
    """Waits, and notes how long it took since the fault was mended."""

    def __init__(self, note: Callable[[str, object], None]) -> None:
        """note: pytest's `record_property`."""
        self._note = note
        self._mended = time.monotonic()

    def from_now(self) -> None:
        self._mended = time.monotonic()

    def when(self, holds: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
        eventually(holds, what, within_s)
        self._note(f"{NOTED} {what}", round(time.monotonic() - self._mended, 2))

    def then(self, holds: Callable[[], bool], what: str, within_s: float = WAIT_S) -> None:
        """The fault has just been mended: wait until `what` holds."""
        self.from_now()
        self.when(holds, what, within_s)
