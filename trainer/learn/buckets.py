"""Feature hashing, `[learner] hash_bits` or `hash_buckets`: the keys of a group share buckets, each with one state.

Weinberger et al., *Feature Hashing for Large Scale Multitask Learning* (ICML 2009). A group is the keys that the same
variants use and that have the same l1 (for adpredictor, the same prior), so a bucket is a coordinate like any other: an
example's x in it is the sum of its keys' x, and every learner is exact on these sums. In: hashed rows. Out: rows of
buckets, and which keys are new. Not thread-safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.spec.learner_section import MOST_BUCKETS, MOST_HASH_BITS
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.buckets_kernels import BucketSpace, enter_hashes, fold_rows, move_hashes
from trainer.learn.collisions import Collisions

_SMALLEST_SET = 1 << 12
_FULL = 0.7  # the largest load of the set of hashes


class Buckets:
    """The buckets of a spec, and the keys seen. `size`: 2^k, at least their number; `space`: the kernels' view."""

    def __init__(self, buckets: int, setting: str, group_of: npt.NDArray[np.int64]) -> None:
        """buckets: of each group; setting: the spec's; group_of: int64[features], each feature's group, from 0 on.

        Raises SpecError for too many buckets.
        """
        self._buckets, self._setting, self.groups = buckets, setting, int(group_of.max()) + 1
        bits = (self.groups * buckets - 1).bit_length()
        if bits > MOST_HASH_BITS:
            raise SpecError(
                f"learner.{setting}: the variants' fields and the rules make {self.groups} groups of keys that cannot "
                f"share buckets, {self.groups * buckets:,} buckets in all; at most {MOST_BUCKETS:,} are possible: set "
                f"hash_bits = {MOST_HASH_BITS - (self.groups - 1).bit_length()} or lower"
            )
        self.size = 1 << bits
        self._group_of = group_of
        self.space = BucketSpace(np.uint64(buckets), (group_of * buckets).astype(np.uint64), np.uint64(bits))
        self._held = np.zeros(_SMALLEST_SET, np.uint64)
        self._keys_of_group = np.zeros(self.groups, np.int64)

    @classmethod
    def of(
        cls, buckets: int, setting: str, masks: npt.NDArray[np.uint32], l1: npt.NDArray[np.float64]
    ) -> Buckets:
        """masks: uint32[features], 0 where no variant uses a feature; l1: float64[own, features], or [own, 1]."""
        settings = np.column_stack([masks, *np.broadcast_to(l1, (len(l1), masks.size))])
        settings[masks == 0] = settings[0]  # features without keys are no group of their own
        return cls(buckets, setting, np.unique(settings, axis=0, return_inverse=True)[1].reshape(-1))

    @property
    def keys(self) -> int:
        """The number of distinct keys."""
        return int(self._keys_of_group.sum())

    @property
    def nbytes(self) -> int:
        """Memory of the set of the keys' hashes, in bytes."""
        return int(self._held.nbytes)

    def fold(self, rows: HashedRows, begin: int, end: int) -> HashedRows:
        """Rows begin to end, under the same numbers, with each bucket once in place of its keys."""
        starts = rows.starts
        size, longest = int(starts[end] - starts[begin]), int(np.diff(starts[begin : end + 1]).max(initial=0))
        out = rows._replace(
            starts=np.zeros_like(starts),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(max(size, 1)),  # never empty, which would mean that every x is 1
        )
        written = np.full(1 << (2 * longest).bit_length(), -1, np.int64)
        fold_rows(self.space, rows, begin, end, written, out)
        return out

    def enter(
        self, hashes: npt.NDArray[np.uint64], features: npt.NDArray[Any], first: int, end: int
    ) -> npt.NDArray[np.int64]:
        """The positions, from `first` to `end`, of keys that were not seen before; now they were. O(end - first)."""
        added = np.empty(end - first, np.int64)
        position, count = first, 0
        while position < end:
            free = int(_FULL * self._held.size) - self.keys - count
            if free <= 0:
                larger = np.zeros(2 * self._held.size, np.uint64)
                move_hashes(self._held, larger)
                self._held = larger
                continue
            position, count = enter_hashes(self._held, free, hashes, position, end, added, count)
        groups = self._group_of[features[added[:count]]]
        self._keys_of_group += np.bincount(groups, minlength=self.groups)
        return added[:count]

    def restore(self, hashes: npt.NDArray[np.uint64], features: npt.NDArray[Any]) -> None:
        """Have seen these keys and no others."""
        self._held = np.zeros(_SMALLEST_SET, np.uint64)
        self._keys_of_group = np.zeros(self.groups, np.int64)
        self.enter(hashes, features, 0, hashes.size)

    def collisions(self, used: int) -> Collisions:
        """How many keys collided; used: the number of buckets that have a key."""
        return Collisions.of_buckets(self._buckets, self._setting, self._keys_of_group.tolist(), used)
