"""The lease of a model's trainer: one at a time learns and publishes. Who lost it is fenced off by its epoch.

A lease runs by the store's clock and must be renewed. One that ran out may be taken by another trainer, whose epoch is
higher; from then on publish.lua and activate.lua refuse the former one, however long it slept. While nobody has taken
it, its holder may renew it, late as it is. docs/redis_keys.md has the record.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from model_store.errors import LeaseHeld, StaleEpoch
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys

TTL_S = 10.0


class TrainerLease:
    """One trainer's lease of one model. Every method raises StoreUnavailable if the store does not answer.

    owner: whose lease it is: who comes with the same name takes it over at once, so a trainer that was killed goes on
    without waiting. No two that run may have the same: a checkpoint folder, which is locked, has a name of its own.
    Thread safety: all methods, any thread.
    """

    def __init__(self, connection: StoreConnection, model: str, owner: str, ttl_s: float = TTL_S) -> None:
        self.model = model
        self.owner = owner
        self.ttl_s = ttl_s
        self.epoch = 0
        """The fencing token to publish and activate with; 0 before `take`."""
        self.earlier_rows = 0
        """Examples that this owner's last published version had learned, as `renew` told before this `take`.

        0 where another owner was the last to hold the lease.
        """
        self.losses = 0
        """How often a renewal found that the store had lost the lease, and with it all data or the latest of it."""
        self._keys = ModelKeys(model)
        self._rows = 0
        self._run = connection.script("lease")

    def take(self) -> int:
        """Become the model's trainer; returns the epoch, higher than any before.

        Raises LeaseHeld while another owner's lease runs.
        """
        answer = self._ask("take", 0)
        if answer[0] == b"held":
            raise LeaseHeld(held(self.model, *answer[1:]))
        _, self.epoch, self.earlier_rows, _ = answer
        self._rows = self.earlier_rows
        return self.epoch

    def renew(self, *, rows: int | None = None) -> None:
        """Hold it for another `ttl_s`, and note `rows`, examples learned at the last publication.

        Raises StaleEpoch if another trainer has taken it.
        """
        self._rows = self._rows if rows is None else rows
        answer = self._ask("renew", self.epoch)
        self._checked(answer)
        self.losses += answer[3]

    def release(self) -> None:
        """Give it back, so that nobody has to wait. Raises StaleEpoch if another trainer has it."""
        self._checked(self._ask("release", self.epoch))

    def refuse_while_held(self) -> None:
        """Raise LeaseHeld while another owner's lease runs. Takes nothing."""
        answer = self._ask("look", 0)
        if answer[0] == b"held":
            raise LeaseHeld(held(self.model, *answer[1:]))

    def _ask(self, verb: str, epoch: int) -> list[Any]:
        words = [
            verb,
            self.owner,
            epoch,
            round(self.ttl_s * 1000),
            socket.gethostname(),
            os.getpid(),
            self._rows,
        ]
        answer: list[Any] = self._run([self._keys.trainer, self._keys.epoch], words)
        return answer

    def _checked(self, answer: list[Any]) -> None:
        if answer[0] == b"stale":
            raise StaleEpoch(taken_over(self.model, *answer[1:]))


def held(model: str, host: bytes, process: bytes, silent_ms: int) -> str:
    """What to say where another trainer holds a model."""
    return (
        f"{model} has a trainer: process {_text(process)} on {_text(host)}, heard of {silent_ms / 1000:.1f} s ago; "
        "stop that one first, or wait until its lease has run out"
    )


def taken_over(model: str, epoch: int, host: bytes, process: bytes) -> str:
    """What to say to a trainer that has lost its model."""
    return (
        f"another trainer has taken over {model}: process {_text(process)} on {_text(host)}, epoch {epoch}; "
        "this one publishes nothing any more"
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
