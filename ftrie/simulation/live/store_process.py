"""The store of the loop: a Valkey in a folder, which this process holds, and brings back when it was killed."""

from __future__ import annotations

import os
from pathlib import Path

from model_store.errors import StoreError
from model_store.store import Store
from model_store.valkey_server import PID


class StoreProcess:
    """A Valkey that is there from `start` to `stop`, if need be again and again. One thread."""

    name = "store"

    def __init__(self, url: str) -> None:
        self.restarts = 0
        self._url = url
        self._store: Store | None = None

    def start(self) -> Store:
        """Start it, or join the one there is. Raises StoreError."""
        self._store = Store.open(self._url)
        return self._store

    @property
    def store(self) -> Store:
        """The open store."""
        assert self._store is not None
        return self._store

    @property
    def pid(self) -> int | None:
        """Its number while it lives."""
        try:
            number = int((Path(self._url.partition(":")[2]) / PID).read_text())
            os.kill(number, 0)
        except (OSError, ValueError):
            return None
        return number

    def keep_alive(self) -> str:
        """Start it again, with its data, if it has died; returns a sentence about what happened."""
        if self.pid is not None:
            return ""
        try:
            again = Store.open(self._url)
        except StoreError as error:
            return f"the store does not come back: {error}"
        self.restarts += 1
        before, self._store = self._store, again
        if before is not None:
            before.close()
        return "the store had ended; it is started again, with its data"

    def stop(self) -> None:
        """Let it go; it ends when nobody else holds it."""
        if self._store is not None:
            self._store.close()
            self._store = None
