"""What the features page shows: the model as a prefix trie, branch by branch, and a search among its keys."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np

from ftrie.dashboard.feed import ModelState
from ftrie.dashboard.queries.models import Models
from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import WeightedKey, weighted_key
from model_store.errors import VersionNotFound
from model_store.trie.prefixes import Prefixes, PrefixSummary

MOST_FOUND = 100
TOP = 25


@dataclass(frozen=True)
class Found:
    """Keys that contain a text: how many, and the first of them."""

    keys: int
    first: tuple[WeightedKey, ...]


class Explorer:
    """The trie of one model's active version. Thread-safe. O(keys) once a version, then O(what is looked at)."""

    def __init__(self, models: Models) -> None:
        self._models, self._lock = models, Lock()
        self._version: int | None = None
        self._prefixes: Prefixes | None = None

    def under(self, state: ModelState, prefix: str) -> PrefixSummary:
        """What is below a prefix. Raises FtrieError."""
        return self._of(state).under(prefix, TOP)

    def search(self, state: ModelState, text: str) -> Found:
        """The keys that contain a text, in the order of the keys. O(key bytes). Raises FtrieError."""
        return containing(self._of(state).artefact, text, MOST_FOUND)

    def _of(self, state: ModelState) -> Prefixes:
        with self._lock:
            if state.active is None:
                raise VersionNotFound(f"no version of {state.name} is active")
            if self._prefixes is None or self._version != state.active:
                self._prefixes = Prefixes(self._models.artefact(state, state.active))
                self._version = state.active
            return self._prefixes


def containing(artefact: Artefact, text: str, most: int) -> Found:
    """The keys of a model that contain a text. O(key bytes)."""
    wanted = text.encode("utf-8", "surrogateescape")
    data, offsets = artefact.key_data.tobytes(), artefact.key_offsets
    rows: list[int] = []
    count, at = 0, data.find(wanted) if wanted else -1
    while at >= 0:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        if at + len(wanted) <= offsets[row + 1]:
            count += 1
            if len(rows) < most:
                rows.append(row)
            at = data.find(wanted, int(offsets[row + 1]))
        else:  # across two keys
            at = data.find(wanted, at + 1)
    return Found(count, tuple(weighted_key(artefact, row) for row in rows))
