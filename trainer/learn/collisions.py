"""Whether keys share their state: the figures that a run reports, and what to expect of uniform hashes.

In: how many keys there are, and with `[learner] hash_bits` or `hash_buckets` how many buckets they use.
docs/formats/keys.md defines the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from model_store.spec.learner_section import MOST_HASH_BITS

MOST_COLLISIONS = 0.001
"""The collision rate above which a run warns: the field's rule."""


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
