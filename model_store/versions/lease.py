"""The trainer's lease: one trainer at a time learns and publishes a model, fenced by an epoch.

A lease expires by the store's clock unless renewed. After it expired another trainer may take it, with a higher epoch;
from then on publish.lua and activate.lua refuse the former holder. Until then the holder may still renew it.
docs/redis_keys.md describes the record.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Any

from model_store.errors import LeaseHeld, StaleEpoch
from model_store.keys import EPOCH_STEP, ModelKeys
from model_store.redis.connection import StoreConnection

# How long a model is without a trainer after its machine died: a spare waits until the lease expires.
TTL_S = 10.0


class TrainerLease:
    """One trainer's lease of one model. Every method raises StoreUnavailable if the store does not answer.

    partition: the one that is learned, where several trainers learn the model; the first one publishes it.

    owner: the holder's name. A process with the same name takes the lease over at once, so that a killed trainer
    resumes without waiting; running trainers need distinct names, such as that of their locked checkpoint folder.
    Thread safety: all methods, any thread.
    """

    def __init__(
        self, connection: StoreConnection, model: str, owner: str, ttl_s: float = TTL_S, *, partition: int = 1
    ) -> None:
        self.model = model if partition == 1 else f"partition {partition} of {model}"
        self.owner = owner
        self.ttl_s = ttl_s
        self.epoch = 0
        """The fencing token for publishing and activating; 0 before `take`."""
        self.earlier_rows = 0
        """The `rows` that this owner last passed to `renew` before this `take`; 0 if another owner held it since."""
        self.losses = 0
        """How many renewals found that the store had lost the lease, and with it all or its latest data."""
        keys = ModelKeys(model)
        self.keys = (keys.lease(partition), keys.epoch)
        self._rows = 0
        self._store, self._clock = connection, connection.clock
        # The lease of another owner as last found: its until_ms, how long it had left, and when that was by this
        # process's clock.
        self._until_ms, self._left_ms, self._looked_s = 0, 0, 0.0
        self._run = connection.script("lease")

    def take(self) -> int:
        """Take the lease; returns the epoch, higher than any before.

        Raises LeaseHeld while another owner's lease is valid.
        """
        answer = self._ask("take", 0)
        if answer[0] == b"held":
            *words, self._until_ms, self._left_ms = answer[1:]
            self._looked_s = self._clock.monotonic()
            raise LeaseHeld(held(self.model, *words))
        _, self.epoch, self.earlier_rows, _ = answer
        self._rows, self._until_ms = self.earlier_rows, 0
        return self.epoch

    def renew(self, *, rows: int | None = None) -> None:
        """Extend the lease by `ttl_s`, and record `rows`, the examples learned at the last publication.

        Raises StaleEpoch if another trainer has taken it.
        """
        # Sent with each renewal: a store that lost its data gets it back.
        self._rows = self._rows if rows is None else rows
        answer = self._ask("renew", self.epoch)
        self._checked(answer)
        # lease.lua has restored the record. Other data may be lost too, which the trainer learns by this count.
        if answer[3]:  # not += of 0, which may undo that of another thread
            self.losses += 1

    def release(self, *, rows: int | None = None) -> None:
        """End the lease now, and record `rows` as `renew` does. Raises StaleEpoch if another trainer has it."""
        self._rows = self._rows if rows is None else rows
        self._checked(self._ask("release", self.epoch))

    def has_forgotten(self, entry: str) -> None:
        """Record up to which entry of `forget` the holder has forgotten."""
        with self._store.answers(self.keys[0]):
            self._store.at(self.keys[0]).hset(self.keys[0], "forgot", entry)

    def forgot(self) -> str:
        """The entry last recorded, by this holder or one before; empty if there is none."""
        with self._store.answers(self.keys[0]):
            found: bytes | None = self._store.at(self.keys[0]).hget(self.keys[0], "forgot")
        return (found or b"").decode("ascii", "replace")

    def refuse_while_held(self) -> None:
        """Raise LeaseHeld while another owner's lease is valid; changes nothing."""
        answer = self._ask("look", 0)
        if answer[0] == b"held":
            raise LeaseHeld(held(self.model, *answer[1:4]))

    def _ask(self, verb: str, epoch: int) -> list[Any]:
        words = [
            verb,
            self.owner,
            epoch,
            round(self.ttl_s * 1000),
            socket.gethostname(),
            os.getpid(),
            self._rows,
            self._until_ms or "",
            round((self._clock.monotonic() - self._looked_s) * 1000),
            self._left_ms,
            epoch_step(),
        ]
        answer: list[Any] = self._run(self.keys, words)
        return answer

    def _checked(self, answer: list[Any]) -> None:
        if answer[0] == b"stale":
            raise StaleEpoch(taken_over(self.model, *answer[1:]))


def epoch_step() -> int:
    """How far a new epoch is above the last one; see EPOCH_STEP."""
    return random.randint(1, EPOCH_STEP)


def held(model: str, host: bytes, process: bytes, silent_ms: int) -> str:
    """The message that another trainer holds a model."""
    return (
        f"{model} has a trainer: process {_text(process)} on {_text(host)}, last seen {silent_ms / 1000:.1f} s ago; "
        "stop it first, or wait until its lease expires"
    )


def taken_over(model: str, epoch: int, host: bytes, process: bytes) -> str:
    """The message for a trainer that has lost its lease."""
    return (
        f"another trainer has taken over {model}: process {_text(process)} on {_text(host)}, epoch {epoch}; "
        "this trainer no longer publishes"
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
