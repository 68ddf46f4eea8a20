"""Being the one trainer of a model: the lease in the store, renewed by a thread of its own.

A lease that could not be renewed in time may be taken by another trainer; then its epoch is higher, the store refuses
what this one publishes (the fence), and this one ends. Learning needs no lease, so a store that is away stops nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from model_store.backoff import Backoff
from model_store.errors import StaleEpoch, StoreError, StoreUnavailable
from model_store.versions.lease import TrainerLease

RENEWALS_A_TERM = 4


class Tenure:
    """Holds a lease while entered. `check` raises StaleEpoch once another trainer has taken over."""

    def __init__(self, lease: TrainerLease, rows: Callable[[], int]) -> None:
        """`rows`: how many examples the last version that was published had been learned from."""
        self._lease = lease
        self._rows = rows
        self._over = threading.Event()
        self._taken: StaleEpoch | None = None
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._renew_all, name="lease", daemon=True)

    def check(self) -> None:
        """Raise StaleEpoch if this is not the model's trainer any more."""
        if self._taken is not None:
            raise self._taken

    def confirm(self) -> None:
        """Renew now if that is overdue, as after this process was stopped. Raises StaleEpoch, StoreUnavailable.

        To be called before what no fence in the store holds back is written.
        """
        self.check()
        if time.monotonic() - self._renewed_s > 2 * self._lease.ttl_s / RENEWALS_A_TERM:
            self._renew()

    def __enter__(self) -> Tenure:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._taken is None:
            try:
                self._lease.release()
            except StoreError:
                return  # it runs out by itself

    def _renew_all(self) -> None:
        while not self._over.wait(self._lease.ttl_s / RENEWALS_A_TERM):
            try:
                self._renew()
            except StaleEpoch:
                return
            except StoreError:
                continue  # the term may end meanwhile: the fence decides

    def _renew(self) -> None:
        try:
            self._lease.renew(rows=self._rows())
        except StaleEpoch as error:
            self._taken = error
            raise
        self._renewed_s = time.monotonic()


# --- What a trainer does with the store every few seconds, beside learning; a store that is away holds
# nothing up ---
#
# A chore that fails is tried again later, after a pause that grows; the store is not asked meanwhile.


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
