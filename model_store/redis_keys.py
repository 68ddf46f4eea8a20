"""The name of every key ftrie has in Redis. docs/redis_keys.md says what each holds, who writes it, how long it lives.

A model's keys share the hash tag `{model}`, so that one script may touch them all on a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from model_store.errors import StoreError

MAX_ID_BYTES = 4096
USER = b"ftrie:user:"
ITEM = b"ftrie:item:"
CANDIDATES = b"ftrie:candidates:"
ITEMS_GENERATION = b"ftrie:items:generation"

_MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class ModelKeys:
    """The keys of one model. Raises StoreError for a name that cannot stand between braces."""

    model: str

    def __post_init__(self) -> None:
        if not _MODEL_NAME.fullmatch(self.model):
            raise StoreError(
                f"got the model name {self.model!r}; expected 1 to 128 letters, digits, dots, dashes or underscores"
            )

    def _key(self, name: str) -> str:
        return f"ftrie:{{{self.model}}}:{name}"

    @property
    def versions(self) -> str:
        return self._key("versions")

    @property
    def sequence(self) -> str:
        return self._key("sequence")

    @property
    def epoch(self) -> str:
        return self._key("epoch")

    @property
    def active(self) -> str:
        return self._key("active")

    @property
    def active_epoch(self) -> str:
        return self._key("active_epoch")

    @property
    def history(self) -> str:
        return self._key("history")

    @property
    def events(self) -> str:
        return self._key("events")

    def manifest(self, version: int) -> str:
        return self._key(f"version:{version}")

    def chunk(self, version: int, index: int) -> str:
        return self._key(f"version:{version}:chunk:{index}")

    def chunks(self, version: int, count: int) -> list[str]:
        return [self.chunk(version, index) for index in range(count)]


def record_key(prefix: bytes, record_id: str) -> bytes:
    """The key of a user, an item or a candidate set. Raises StoreError for an empty or over-long id."""
    encoded = record_id.encode("utf-8", "surrogateescape")
    if not 0 < len(encoded) <= MAX_ID_BYTES:
        raise StoreError(f"got an id of {len(encoded)} bytes; expected 1 to {MAX_ID_BYTES}")
    return prefix + encoded
