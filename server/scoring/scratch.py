"""Scratch space for the ranking kernels: one set a thread, for whatever model or version it ranks with.

A new version comes every second where deltas are published; scratch space of its own would be memory that is touched
for the first time in each.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec_sections import MAX_CROSS_FIELDS

Array = npt.NDArray[Any]
_local = threading.local()


def scratch(halves: int, wanted: int, groups: int, candidates: int) -> tuple[Array, ...]:
    """marks, wanted, sums, starts, choice, scores, order, ctr, score; each as large as it is asked for, or larger.

    marks is all 0, and kernels leave it so.
    """
    have: tuple[Array, ...] | None = getattr(_local, "scratch", None)
    if (
        have is None
        or len(have[0]) < halves
        or len(have[1]) < wanted
        or len(have[3]) <= groups
        or len(have[-1]) < candidates
    ):
        if have is not None:  # what was large enough before stays so
            halves, wanted = max(halves, len(have[0])), max(wanted, len(have[1]))
            groups, candidates = max(groups, len(have[3]) - 1), max(candidates, len(have[-1]))
        have = _local.scratch = (
            np.zeros(halves, np.int32),
            np.empty(wanted, np.int32),
            np.empty(wanted, np.float64),
            np.empty(groups + 1, np.int64),
            np.empty(MAX_CROSS_FIELDS, np.int64),
            np.empty(candidates, np.float64),
            np.empty(candidates, np.int64),
            np.empty(candidates, np.float64),
            np.empty(candidates, np.float64),
        )
    return have
