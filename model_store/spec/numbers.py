"""Buckets of numbers: each function exists for one number and for a column; both give the same, on every machine.

Only additions, divisions and comparisons are used, which IEEE 754 defines.
"""

from __future__ import annotations

import decimal
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from model_store.spec.values import BUCKETS_PER_OCTAVE

Numbers = npt.NDArray[np.float64]
Buckets = npt.NDArray[np.int64]

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
