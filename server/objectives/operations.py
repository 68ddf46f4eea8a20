"""What an objective can compute: every operator and function, over float64 arrays, NaN standing for "no value".

Nothing that a missing value goes into comes out as a number, except through `??`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Function(NamedTuple):
    """A function by its name, and how many arguments it takes. More than two: `apply` folds them from the left."""

    apply: Callable[..., Array]
    least: int
    most: int


def power(base: Array, exponent: Array) -> Array:
    """base ** exponent; NaN where either is, although IEEE says that NaN ** 0 is 1."""
    return np.where(np.isnan(base) | np.isnan(exponent), np.nan, np.power(base, exponent))


def otherwise(value: Array, default: Array) -> Array:
    """`value`, and `default` where there is none."""
    return np.where(np.isnan(value), default, value)


def sigmoid(value: Array) -> Array:
    """1 / (1 + exp(-value))."""
    return np.divide(1.0, 1.0 + np.exp(np.negative(value)))


def clip(value: Array, least: Array, most: Array) -> Array:
    """`value` brought between two bounds; the upper one counts where they cross."""
    return np.minimum(np.maximum(value, least), most)


MAX_ARGUMENTS = 8

FUNCTIONS: dict[str, Function] = {
    "min": Function(np.minimum, 2, MAX_ARGUMENTS),
    "max": Function(np.maximum, 2, MAX_ARGUMENTS),
    "abs": Function(np.abs, 1, 1),
    "exp": Function(np.exp, 1, 1),
    "log": Function(np.log, 1, 1),
    "sqrt": Function(np.sqrt, 1, 1),
    "sigmoid": Function(sigmoid, 1, 1),
    "clip": Function(clip, 3, 3),
}
"""docs/ranking.md tells what each one does; a test holds the two together."""

ADDITIVE: dict[str, Callable[..., Array]] = {"+": np.add, "-": np.subtract}
MULTIPLICATIVE: dict[str, Callable[..., Array]] = {"*": np.multiply, "/": np.divide}
