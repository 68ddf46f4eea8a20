"""The pin of a model: an operator has chosen the version to serve, and the trainer is not to overrule that by itself.

activate.lua sets it, where the model has had a trainer; it outlives the trainer's process. Versions go on being
published meanwhile; what was chosen is served until someone says `ftrie store resume`.
"""

from __future__ import annotations

from model_store.connection import StoreConnection
from model_store.redis_keys import ModelKeys
from model_store.stored_values import version_number


class Pin:
    """The pin of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys) -> None:
        self._store = connection
        self._client = connection.client
        self._keys = keys
        self._resume = connection.script("resume")

    def version(self) -> int | None:
        """The version that an operator has chosen over the trainer's; None without one."""
        with self._store.answers(self._keys.trainer):
            pinned = self._client.hget(self._keys.trainer, "pinned")
        return version_number(f"{self._keys.trainer} pinned", pinned) if pinned else None

    def resume(self) -> int | None:
        """Let the trainer activate again, this one or the next; returns the version that was pinned."""
        return int(self._resume([self._keys.trainer, self._keys.active_epoch])) or None
