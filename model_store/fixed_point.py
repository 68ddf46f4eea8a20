"""q2.13: weights in 16 bits, a sign, two integer and thirteen fraction bits (McMahan et al., KDD 2013, section 4.2).

How a learner rounds while it learns is the learner's; here are the published form and its way back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

STEP = 2.0**-13
SMALLEST, LARGEST = -4.0, 4.0 - STEP
_STEPS_PER_UNIT = 8192.0


def nearest(weights: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Every weight at the nearest multiple of 2^-13 in [-4, 4); a tie goes to the even one. float32, exact."""
    steps = np.rint(np.asarray(weights, np.float64) * _STEPS_PER_UNIT)
    return np.asarray(np.clip(steps * STEP, SMALLEST, LARGEST) + 0.0, np.float32)  # + 0.0: no -0.0


def fits(weights: npt.NDArray[np.float32]) -> bool:
    """True if `to_int16` keeps every weight exactly."""
    return bool((nearest(weights) == weights).all()) and not bool(
        (np.signbit(weights) & (weights == 0)).any()
    )


def to_int16(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The weights in steps of 2^-13. They must fit."""
    return (weights * np.float32(_STEPS_PER_UNIT)).astype(np.int16)


def from_int16(steps: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """The weights that `to_int16` was given."""
    return steps.astype(np.float32) * np.float32(STEP)
