"""Feature hashing, `[learner] hash_bits` or `hash_buckets`: the keys of a group share buckets, each with one state.

Weinberger et al., *Feature Hashing for Large Scale Multitask Learning* (ICML 2009). A group is the keys that the same
variants use and that have the same l1 (for adpredictor, the same prior), so a bucket is a coordinate like any other: an
example's x in it is the sum of its keys' x, and every learner is exact on these sums. In: hashed rows. Out: rows of
buckets, which keys are new, and `Collisions`, which docs/formats/keys.md defines. Not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from model_store.errors import SpecError
from model_store.spec.learner_section import MOST_BUCKETS, MOST_HASH_BITS
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.table_kernels import BucketSpace, enter_hashes, fold_rows, move_hashes

_SMALLEST_SET = 1 << 12
_FULL = 0.7  # the largest load of the set of hashes

MOST_COLLISIONS = 0.001
"""The collision rate above which a run warns: the field's rule."""


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


class Collisions(BaseModel):
    """Whether keys share their state.

    probability: that two of the keys have the same 64-bit hash. The rest is None, or "", where keys are exact. setting:
    the spec's, such as "hash_bits = 22"; buckets: of all groups; used: buckets that have a key; rate: the share of the
    keys that came to a bucket which another key already had, 1 - used / keys; expected: the mean of that rate over
    uniform hashes; enough_bits: the hash_bits from which it is at most MOST_COLLISIONS, more than now if the rate is
    above; None if no allowed number is enough.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    keys: int
    probability: float
    setting: str = ""
    buckets: int | None = None
    used: int | None = None
    rate: float | None = None
    expected: float | None = None
    enough_bits: int | None = None

    @classmethod
    def of_exact(cls, keys: int) -> Collisions:
        """Of keys that have a slot each."""
        return cls(keys=keys, probability=any_collision(keys))

    @classmethod
    def of_buckets(cls, size: int, setting: str, keys_of_group: Sequence[int], used: int) -> Collisions:
        """Of groups of keys with `size` buckets each; used: buckets that have a key."""
        keys, groups = sum(keys_of_group), len(keys_of_group)
        rate = (keys - used) / keys if keys else 0.0
        least, most = (
            size.bit_length() if rate > MOST_COLLISIONS else 1,
            MOST_HASH_BITS - (groups - 1).bit_length(),
        )
        enough = (
            bits
            for bits in range(least, most + 1)
            if expected_rate(1 << bits, keys_of_group) <= MOST_COLLISIONS
        )
        return cls(
            keys=keys,
            probability=any_collision(keys),
            setting=setting,
            buckets=groups * size,
            used=used,
            rate=rate,
            expected=expected_rate(size, keys_of_group),
            enough_bits=next(enough, None),
        )

    def __str__(self) -> str:
        if self.buckets is None or self.rate is None or self.used is None:
            return f"keys are exact; the probability that two of them share a 64-bit hash is {self.probability:.1g}"
        return (
            f"{self.setting}: {self.used:,} of {self.buckets:,} buckets used "
            f"({self.used / self.buckets:.2%}); collision rate {self.rate:.3%}, expected {self.expected:.3%}"
        )

    @property
    def warning(self) -> str:
        """What to do about a rate above MOST_COLLISIONS; "" if it is not."""
        if self.rate is None or self.rate <= MOST_COLLISIONS:
            return ""
        remedy = f"set hash_bits = {self.enough_bits}, or " if self.enough_bits else ""
        return (
            f"learner.{self.setting}: {self.rate:.2%} of the {self.keys:,} keys collide with an earlier "
            f"key and share its weight, more than {MOST_COLLISIONS:.1%}; {remedy}leave it out: keys are exact "
            "without"
        )


def any_collision(keys: int) -> float:
    """The probability that two of so many keys share a 64-bit hash: 1 - exp(-n (n - 1) / 2^65)."""
    return -math.expm1(-keys * (keys - 1) / 2.0**65)


def expected_rate(size: int, keys_of_group: Sequence[int]) -> float:
    """The mean collision rate: n keys use m (1 - (1 - 1/m)^n) of m = `size` buckets, if hashes are uniform."""
    m, keys = float(size), sum(keys_of_group)
    used = sum(-m * math.expm1(n * math.log1p(-1.0 / m)) for n in keys_of_group)
    return max(0.0, 1.0 - used / keys) if keys else 0.0
