"""Candidate sets, read for one request and kept a second for the others; the last known serves while the store is away.

A set is asked for by page or placement, so that a few sets serve most requests. Nothing here ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from model_store.errors import StoreUnavailable
from server.stored import StoredReads

PART = "candidate_set"
FRESH_S = 1.0
MAX_IDS = 500_000
"""Ids kept at most, of all sets together."""
IDS_A_NAME = 100
"""What a set's name counts for, 4 KiB at most: names that no set has are remembered too, and callers choose them."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A set as it was read: None if there was none. read_at: seconds on the monotonic clock."""

    ids: Sequence[str] | None
    read_at: float

    @property
    def size(self) -> int:
        return len(self.ids or ()) + IDS_A_NAME


class CandidateSets:
    """A bounded memory of sets. Thread safety: any thread may ask; two may read the same set at a time."""

    def __init__(self, reads: StoredReads, now: Callable[[], float] = time.monotonic) -> None:
        self._reads = reads
        self._now = now
        self._kept: dict[str, _Kept] = {}
        self._ids = 0
        self._lock = threading.Lock()

    def members(self, name: str, context: grpc.ServicerContext) -> tuple[Sequence[str] | None, list[str]]:
        """The ids of a set, None if there is no such set; and what `degraded` must say.

        Raises StoreUnavailable if the store does not answer and never did for this set, StoreError for what is no set,
        DeadlinePassed.
        """
        kept = self._kept.get(name)
        if kept is not None and self._now() - kept.read_at < FRESH_S:
            return kept.ids, []
        try:
            ids = self._reads.candidates(name, context)
        except StoreUnavailable as error:
            if kept is None:
                raise
            return kept.ids, [f"{PART}: stale, read {self._now() - kept.read_at:.0f} s ago: {error}"]
        if ids is None and kept is not None and kept.ids and self._reads.lost_sets(kept.read_at, context):
            age_s = self._now() - kept.read_at  # not kept anew: each request looks whether it is there again
            return kept.ids, [f"{PART}: stale, read {age_s:.0f} s ago: the store lost its data"]
        self._keep(name, _Kept(ids, self._now()))
        return ids, []

    def forget(self) -> None:
        """Read every set again, and keep none that the store lacks."""
        with self._lock:
            self._kept, self._ids = {}, 0

    def _keep(self, name: str, kept: _Kept) -> None:
        with self._lock:
            before = self._kept.pop(name, None)
            self._ids += kept.size - (before.size if before is not None else 0)
            if self._ids > MAX_IDS:
                self._kept, self._ids = {}, kept.size  # simple, and right within a second
            self._kept[name] = kept
