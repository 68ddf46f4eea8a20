"""What a trainer does with the store every few seconds, beside learning; a store that is away holds nothing up.

A chore that fails is tried again later, after a pause that grows; the store is not asked meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from model_store.backoff import Backoff
from model_store.errors import StaleEpoch, StoreError, StoreUnavailable

Chore = Callable[[], object]


class Chores:
    """Runs all chores when they are due. For one thread."""

    def __init__(self, every_s: float, on_warning: Callable[[str], None]) -> None:
        """`on_warning` is told when the store fails, and when it is back."""
        self._every_s = every_s
        self._warn = on_warning
        self._chores: list[Chore] = []
        self._backoff = Backoff(first_s=0.5, longest_s=10.0)
        self._next = 0.0

    def add(self, chore: Chore) -> None:
        """One more. It may raise StoreError, and loses nothing by it."""
        self._chores.append(chore)

    @property
    def failing(self) -> bool:
        """Whether the last attempt has failed."""
        return self._backoff.failures > 0

    def run_due(self) -> None:
        """Run them, if they are due. Raises nothing that a store may cause."""
        now = time.monotonic()
        if now < self._next:
            return
        try:
            self.run()
        except StoreError as error:
            if not self._backoff.failures:
                self._warn(f"{error}; learning goes on, and the store will be told later")
            self._next = time.monotonic() + max(self._every_s, self._backoff.failed())
            return
        if self._backoff.succeeded():
            self._warn("the store is back and has been told")
        self._next = now + self._every_s

    def run(self) -> None:
        """Run them all now, in order; one that the store refuses holds up no other. Raises StoreError."""
        refused: StoreError | None = None
        for chore in self._chores:
            try:
                chore()
            except (StoreUnavailable, StaleEpoch):
                raise
            except StoreError as error:
                refused = refused or error
        if refused is not None:
            raise refused
