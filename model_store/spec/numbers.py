"""Transforms of numbers: a number is clipped, then a bucket makes it a key or a scale makes it an x.

A `NumberRule` is compiled from a field of kind "number". Each of its steps exists for one number and for a column; both
give the same bits, on every machine. Only additions, divisions and comparisons are used, which IEEE 754 defines, and
`math.log1p` for both.
"""

from __future__ import annotations

import bisect
import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.spec.sections import FieldSpec
from model_store.spec.values import BUCKETS_PER_OCTAVE, LARGEST_REAL, log_bucket, not_real

Numbers = npt.NDArray[np.float64]
Buckets = npt.NDArray[np.int64]

MISSING = b"missing"
"""The token of an absent number in a field with `missing = "key"`."""
_UNSURE = 1e-6  # log2(x)² is below 1,050,000, and wrong by less than 1e-8 with any library's log2
_EXACT = decimal.Context(prec=120, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def log_buckets(numbers: Numbers) -> Buckets:
    """`values.log_bucket` of every number."""
    shift = 52 - (BUCKETS_PER_OCTAVE.bit_length() - 1)
    bits = (1.0 + np.abs(numbers)).view(np.int64)
    buckets = (bits >> shift) - 1023 * BUCKETS_PER_OCTAVE
    return np.where(numbers < 0, -buckets, buckets)


def log2_squared(number: float) -> int:
    """The bucket of a finite number x: floor(log2(x)²) for x > 2, but at least 2; x without its fraction below that.

    A negative number has the bucket of its size, negative. Exact: where a computed logarithm is too close to a whole
    number to tell, it is computed again with 120 digits.
    """
    # Of the size, and the sign put back: buckets are symmetric.
    size = abs(number)
    if size <= 2.0:
        return int(number)
    # The library's log2 may differ in the last bits by machine, which matters only near a whole number.
    square = math.log2(size) ** 2
    bucket = max(2, _exact_square(size) if abs(square - round(square)) < _UNSURE else math.floor(square))
    return -bucket if number < 0 else bucket


def log2_squared_buckets(numbers: Numbers) -> Buckets:
    """`log2_squared` of every number."""
    size = np.abs(numbers)
    square = np.log2(np.maximum(size, 1.0)) ** 2
    buckets = np.where(size > 2.0, np.maximum(np.floor(square), 2.0), np.trunc(size))
    unsure = np.flatnonzero((size > 2.0) & (np.abs(square - np.rint(square)) < _UNSURE))
    buckets[unsure] = [log2_squared(each) for each in size[unsure].tolist()]
    return np.where(numbers < 0, -buckets, buckets).astype(np.int64)


@lru_cache(maxsize=1 << 12)
def _exact_square(size: float) -> int:
    """floor(log2(size)²) of size > 1. It is a whole number only for powers of two: other logarithms are irrational."""
    mantissa, exponent = math.frexp(size)
    # Powers of two are exact; for all others 120 digits decide, since the square is never a whole number.
    if mantissa == 0.5:
        return (exponent - 1) ** 2
    log = _EXACT.divide(_EXACT.ln(decimal.Decimal(size)), _EXACT.ln(decimal.Decimal(2)))
    return int(_EXACT.multiply(log, log))


@dataclass(frozen=True)
class NumberRule:
    """What becomes of a field's numbers. Immutable.

    bucket, buckets: from a clipped number to its bucket, for one and for a column; None if the number is an x. The x is
    (number - shift) / divisor, or its logarithm with `log1p`.
    """

    clip: tuple[float, float] | None
    bucket: Callable[[float], int] | None
    buckets: Callable[[Numbers], Buckets] | None
    log1p: bool
    shift: float
    divisor: float

    @classmethod
    def of(cls, field: FieldSpec) -> NumberRule:
        """The rule of a field of kind "number" that has learned what it needs."""
        ways: tuple[Callable[[float], int] | None, Callable[[Numbers], Buckets] | None] = None, None
        if field.bucket == "log":
            ways = log_bucket, log_buckets
        elif field.bucket == "log2_squared":
            ways = log2_squared, log2_squared_buckets
        elif field.bucket is not None:
            edges = field.learned if isinstance(field.bucket, str) else field.bucket
            ways = _between(edges or ())
        shift, divisor = 0.0, 1.0
        if field.scale in ("standard", "minmax") and field.learned is not None:
            shift, divisor = field.learned
            divisor = divisor if field.scale == "standard" else divisor - shift
        return cls(field.clip, *ways, field.scale == "log1p", shift, divisor)

    @property
    def is_plain(self) -> bool:
        """True if the x is the number itself."""
        return self.clip is None and not self.log1p and (self.shift, self.divisor) == (0.0, 1.0)

    def text(self, number: float) -> bytes:
        """The token's text: the bucket, or nothing where the number is an x."""
        return b"" if self.bucket is None else b"%d" % self.bucket(self._clipped(number))

    def x(self, number: float) -> float:
        """The token's x. Raises FieldValueError where it is beyond LARGEST_REAL."""
        if self.bucket is not None:
            return 1.0
        x = number
        if not self.is_plain:
            x = self._clipped(number)
            x = math.copysign(math.log1p(abs(x)), x) if self.log1p else (x - self.shift) / self.divisor
            # -0.0 becomes 0.0, here and for columns: otherwise two equal numbers have different bits.
            x += 0.0
        if not abs(x) <= LARGEST_REAL:
            raise FieldValueError(self.not_real(number, x))
        return x

    def clipped(self, numbers: Numbers) -> Numbers:
        """Every number of a column within `clip`; NaN stays NaN."""
        if self.clip is None:
            return numbers
        low, high = self.clip
        # Not np.fmin, which would make a bound of an absent number.
        return np.minimum(np.maximum(numbers, low), high) + 0.0

    def xs(self, numbers: Numbers) -> Numbers:
        """The x of every number of a column, NaN where that is NaN; some may be beyond LARGEST_REAL."""
        if self.is_plain:
            return numbers
        numbers = self.clipped(numbers)
        if self.log1p:
            sizes = np.abs(numbers).tolist()
            # By `math`, one by one: numpy's log1p may differ in the last bit, by release and processor.
            logs = np.fromiter(map(math.log1p, sizes), np.float64, len(sizes))
            return np.copysign(logs, numbers) + 0.0
        # An x that overflows is infinite, and refused by its size.
        with np.errstate(over="ignore"):
            return (numbers - self.shift) / self.divisor + 0.0

    def not_real(self, number: float, x: float) -> str:
        """The message for a number whose x is beyond LARGEST_REAL."""
        return not_real(x) if self.is_plain else f"{not_real(x)}, which is what scale makes of {number!r}"

    def _clipped(self, number: float) -> float:
        if self.clip is None:
            return number
        low, high = self.clip
        return min(max(number, low), high) + 0.0


def _between(edges: tuple[float, ...]) -> tuple[Callable[[float], int], Callable[[Numbers], Buckets]]:
    """Buckets between ascending edges, numbered from 0: how many edges are not above the number."""
    array = np.array(edges, np.float64)
    return (
        lambda number: bisect.bisect_right(edges, number),
        lambda numbers: np.searchsorted(array, numbers, side="right"),
    )
