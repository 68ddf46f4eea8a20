"""The trainer's lease of a model: held in the store, renewed by a thread of its own.

If it is not renewed in time, another trainer may take it and gets a higher epoch; the store then refuses what this one
publishes (fencing), and this one ends. Learning needs no lease, so an unavailable store does not stop it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from model_store.errors import CheckpointError, StaleEpoch, StoreError
from model_store.files import write_whole
from model_store.versions.lease import TrainerLease

OWNER = "owner"
RENEWALS_A_TERM = 4


class LeaseHolder:
    """Renews a lease while entered, and releases it at the end. `check` raises StaleEpoch once it is lost."""

    def __init__(self, lease: TrainerLease, published_rows: Callable[[], int]) -> None:
        """published_rows: how many examples the last published version had learned; stored with the lease."""
        self._lease = lease
        self._published_rows = published_rows
        self._ended = threading.Event()
        self._lost: StaleEpoch | None = None
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._renew_until_ended, name="lease", daemon=True)

    def check(self) -> None:
        """Raise StaleEpoch if another trainer has taken the lease."""
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Renew now if that is overdue, as after the process was suspended. Raises StaleEpoch, StoreUnavailable.

        To be called before a write that the store does not fence.
        """
        self.check()
        if time.monotonic() - self._renewed_s > 2 * self._lease.ttl_s / RENEWALS_A_TERM:
            self._renew()

    def __enter__(self) -> LeaseHolder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost is None:
            try:
                self._lease.release()
            except StoreError:
                return  # it expires

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._lease.ttl_s / RENEWALS_A_TERM):
            try:
                self._renew()
            except StaleEpoch:
                return
            except StoreError:
                continue  # the lease may expire meanwhile: the next renewal, or the fence, tells

    def _renew(self) -> None:
        try:
            self._lease.renew(rows=self._published_rows())
        except StaleEpoch as error:
            self._lost = error
            raise
        self._renewed_s = time.monotonic()


def lease_owner(folder: Path) -> str:
    """The name under which the trainer of this folder holds its lease: random, created once, kept in the folder.

    Raises CheckpointError if it cannot be read.
    """
    path = folder / OWNER
    try:
        owner = path.read_text("ascii").strip()
    except FileNotFoundError:
        owner = secrets.token_hex(8)
        write_whole(path, owner.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: {error}; expected a name in ASCII: delete the file to create a new one"
        ) from error
    if not owner:
        raise CheckpointError(
            f"{path} is empty; expected a name in ASCII: delete the file to create a new one"
        )
    return owner
