"""The names of all keys in Redis; docs/redis_keys.md describes their contents and lifetimes.

A model's keys share the hash tag `{model}`, so that one script may use them all on a cluster.
"""

from __future__ import annotations

import re

from model_store.errors import StoreError, UsageError

MAX_ID_BYTES = 4096
USER = b"ftrie:user:"
HISTORY_OF = b"ftrie:{ftrie:user:"
"""The prefix of the keys of histories; see `history_key`."""
ITEM = b"ftrie:item:"
CANDIDATES = b"ftrie:candidates:"
ITEMS_GENERATION = b"ftrie:items:generation"
ITEMS_CHANGES = b"ftrie:items:changes"
ITEMS_EPOCH = b"ftrie:items:epoch"

_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_model_name(model: str) -> str:
    """The name, if it is valid as a hash tag and as a folder's name. Raises UsageError."""
    if not _MODEL_NAME.fullmatch(model) or model in (".", ".."):
        raise UsageError(
            f"got the model name {model!r}; expected 1 to 128 letters, digits, dots, dashes or underscores, "
            "and neither '.' nor '..'"
        )
    return model


class ModelKeys:
    """The keys of one model. Raises UsageError for a name that `check_model_name` refuses."""

    def __init__(self, model: str) -> None:
        check_model_name(model)
        self._prefix = f"ftrie:{{{model}}}:"
        self.versions = self._prefix + "versions"
        self.sequence = self._prefix + "sequence"
        self.epoch = self._prefix + "epoch"
        self.active = self._prefix + "active"
        self.active_epoch = self._prefix + "active_epoch"
        self.history = self._prefix + "history"
        self.events = self._prefix + "events"
        self.experiment = self._prefix + "experiment"
        self.impressions = self._prefix + "impressions"
        self.clicks = self._prefix + "clicks"
        self.dead = self._prefix + "dead"
        self.audit = self._prefix + "audit"
        self.trainer = self._prefix + "trainer"
        self.guard = self._prefix + "guard"
        self.partitions = self._prefix + "partitions"

    def manifest(self, version: int) -> str:
        """The key of a version's manifest."""
        return f"{self._prefix}version:{version}"

    def chunks(self, version: int, count: int) -> list[str]:
        """The keys of a version's chunks, in order."""
        return [f"{self._prefix}version:{version}:chunk:{index}" for index in range(count)]

    def lease(self, partition: int) -> str:
        """The key of the lease of a partition's trainer. The first one publishes: its lease is the model's."""
        return self.trainer if partition == 1 else f"{self.trainer}:{partition}"

    def round_part(self, start: int, number: int, part: str) -> str:
        """The key of a part of a round: a partition's contribution or state, or the merged model."""
        return f"{self._prefix}round:{start}:{number}:{part}"

    def feedback_id(self, digest: str) -> str:
        """The key that exists while an event is known as reported; `digest` is that of its id."""
        return f"{self._prefix}feedback:{digest}"

    def outcomes(self, minute: int) -> str:
        """The key of one minute's outcomes; minutes count from 1970."""
        return f"{self._prefix}outcomes:{minute}"

    def outcomes_of_hour(self, hour: int) -> str:
        """The key of one hour's outcomes; hours count from 1970."""
        return f"{self._prefix}outcomes:hour:{hour}"


def answer_key(key: str, call: str) -> str:
    """The key of the answer to one call of a script that uses `key`, a key of a model."""
    return f"{key.partition('}:')[0]}}}:answer:{call}"


def is_id(record_id: str) -> bool:
    """True if the text can be the id of a user, an item or a candidate set."""
    return 0 < len(record_id.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES


def record_key(prefix: bytes, record_id: str) -> bytes:
    """The key of a user, an item or a candidate set. Raises StoreError if the id is empty or too long."""
    encoded = record_id.encode("utf-8", "surrogateescape")
    if not 0 < len(encoded) <= MAX_ID_BYTES:
        raise StoreError(f"got an id of {len(encoded)} bytes; expected 1 to {MAX_ID_BYTES}")
    return prefix + encoded


def history_key(model: str, cookie: bytes) -> bytes:
    """The key of a user's history for a model.

    Its hash tag is the key of the user's record, so that a cluster holds both in one slot and a server reads them in
    one round trip. (For a cookie with a brace the slots differ.) Raises StoreError as `record_key`.
    """
    if not 0 < len(cookie) <= MAX_ID_BYTES:
        raise StoreError(f"got an id of {len(cookie)} bytes; expected 1 to {MAX_ID_BYTES}")
    return HISTORY_OF + cookie + b"}:history:" + model.encode()
