"""Exploration: scores moved by what the model is unsure of. What they are moved to depends on the request alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from server.ranking.select.select_kernels import draw_normals

Array = npt.NDArray[Any]

FARTHEST = 1e100


@dataclass(frozen=True)
class UpperConfidenceBound:
    """Scores are raised by `width` uncertainties."""

    width: float

    def explored(self, score: Array, uncertainty: Array, ids: Sequence[str], request_id: str) -> Array:
        """float64[candidates]."""
        return score + moves(self.width, uncertainty)


@dataclass(frozen=True)
class Thompson:
    """Scores are drawn from N(score, (width · uncertainty)²), each independently of the others.

    A draw is a function of the request's id and the candidate's: the order of candidates, and which of them the
    catalogue knows, change nothing. A candidate that comes twice is drawn twice.
    """

    width: float

    def explored(self, score: Array, uncertainty: Array, ids: Sequence[str], request_id: str) -> Array:
        """float64[candidates]."""
        drawn: Array = score + moves(self.width, uncertainty) * normals(request_id, ids)
        return drawn


Exploration = UpperConfidenceBound | Thompson


def moves(width: float, uncertainty: Array) -> Array:
    """How far one standard deviation, or the bound, lies from each score; finite whatever the width is."""
    with np.errstate(over="ignore"):
        bounded: Array = np.minimum(uncertainty * width, FARTHEST)
    return bounded


def normals(request_id: str, ids: Sequence[str]) -> Array:
    """A standard normal number for each id, float64: the same for the same request. O(bytes of the ids)."""
    texts = [item_id.encode("utf-8", "surrogatepass") for item_id in ids]
    offsets = np.array([0, *accumulate(map(len, texts))], np.int64)
    draws = np.empty(len(ids))
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    draw_normals(data, offsets, _repeats(ids), seeds(request_id), draws)
    return draws


def seeds(request_id: str) -> Array:
    """uint64[2]: what a request's draws begin with."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(bytearray(digest), "<u8").astype(np.uint64)


def _repeats(ids: Sequence[str]) -> Array:
    """How often each id came before, uint64."""
    repeats = np.zeros(len(ids), np.uint64)
    if len(set(ids)) < len(ids):
        seen: Counter[str] = Counter()
        for at, item_id in enumerate(ids):
            repeats[at] = seen[item_id]
            seen[item_id] += 1
    return repeats
