"""Averaged variants: an average of another variant's weights over the examples so far.

With w_t the weight of the variant that is averaged, after example t, and 0 before the key is in the table:

    average_t = average_(t-1) + share_t (w_t - average_(t-1))

    by default     share_t = 10 / (t + 9)                  polynomial decay (Shamir and Zhang, ICML 2013, section 4):
                                                           w_s counts about s^9, half of all falls on the last 7 %
    half-life H    share_t = max(1 / t, 1 - 2^(-1/H))      the plain mean (Polyak and Juditsky, 1992) at first, then an
                                                           example counts half as much as one H examples later

A coordinate stores its gap at the last touch: average = w - gap. While w does not change gap_t = (1 - share_t)
gap_(t-1), whose product over the missed examples has a closed form, so an average is exact and only touched with its
key. That needs a variant whose untouched weights stay: of FTRL, or OGD without penalties. The average's a is the gap,
its n is not used; it predicts, but does not learn.

Oracle: `tests/trainer/oracles/dense.py`, which averages all weights at every example.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import exponential
from model_store.jit import bare_inline, bare_kernel
from trainer.learn.learners.fobos import powers
from trainer.learn.predictions_kernels import log
from trainer.learn.slots_kernels import put, seen_at, value_of

_POWER = 9


class Averages(NamedTuple):
    """All arrays are empty where no variant is an average.

    of: int64[variants], the variant that each averages, -1 if it learns; keep: float64[variants], 2^(-1/H), 0 for the
    default; first: int64[variants], the last t whose share is 1 / t.
    """

    of: Any
    keep: Any
    first: Any


@bare_kernel
def keep_of(half_lives: Any, keep: Any) -> None:
    """2^(-1/H) of each half-life, the same bits on every machine; 0 where it is NaN."""
    for v in range(keep.size):
        power = 1.0 / half_lives[v]
        if np.isnan(power):
            keep[v] = 0.0
        elif power == 1.0:
            keep[v] = 0.5
        else:
            keep[v] = math.sqrt(0.5) if power == 0.5 else exponential(-abs(power * log(0.5)))


@bare_inline
def gap(averages: Any, v: Any, last: Any, seen: Any, t: Any) -> Any:
    """How far average v is behind before example t; last: how far it was after example `seen`."""
    if last == 0.0:
        return last
    now, first = t - 1, averages.first[v]
    if averages.keep[v] == 0.0:
        before, after = 1.0, 1.0
        for j in range(_POWER + 1):
            before *= seen + j
            after *= now + j
        return last * (before / after)
    if now <= first:
        return last * (np.float64(seen) / now)
    begin = max(seen, first)
    return last * (np.float64(min(seen, first)) / first) * powers(averages.keep[v], now - begin)[0]


@bare_inline
def left_at(averages: Any, v: Any, t: Any) -> Any:
    """1 - share of example t."""
    if averages.keep[v] == 0.0:
        return np.float64(t - 1) / (t + _POWER)
    return 1.0 - 1.0 / t if t <= averages.first[v] else averages.keep[v]


@bare_inline
def add_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, i: Any, x: Any, scores: Any, t: Any
) -> None:
    """Add a key of class c to the scores of averages; w[v, i]: variant v's own weight before example t."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            scores[v] += (w[of, i] - behind) * x


@bare_inline
def update_averages(
    averages: Any, table: Any, slot: Any, uses: Any, c: Any, w: Any, new: Any, i: Any, t: Any
) -> None:
    """Follow the weights of a key of class c, w before and new after example t; to be called before `seen` is set."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0 and uses[c, of] != 0.0:
            moved, held = new[of, i] - w[of, i], value_of(table, slot, v)
            behind = gap(averages, v, held, seen_at(table, slot), t) + moved
            put(table, slot, v, left_at(averages, v, t) * behind, 0.0, t)


@bare_inline
def put_averages(averages: Any, table: Any, slot: Any, t: Any, out: Any, index: Any) -> None:
    """Replace the weights in out[index], one per variant, of averages, with those before example t."""
    for v in range(averages.of.size):
        of = averages.of[v]
        if of >= 0:
            behind = gap(averages, v, value_of(table, slot, v), seen_at(table, slot), t)
            out[index, v] = out[index, of] - behind


@bare_inline
def copy_to_averages(averages: Any, out: Any, index: Any) -> None:
    """Give averages in out[index] what the variants have that they average."""
    for v in range(averages.of.size):
        if averages.of[v] >= 0:
            out[index, v] = out[index, averages.of[v]]
