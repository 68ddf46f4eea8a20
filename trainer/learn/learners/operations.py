"""The operations of a learner, called by the loops; each algorithm's own file implements them.

A learner is a NamedTuple of parameters, `rate` among them. The state of a coordinate is (a, n): a is w for gradient
descent and its kin, z for FTRL, G for RDA; n determines the learning rate (`rates.py`).

A textbook learner changes every coordinate at every example. These change a coordinate when an example touches it, and
apply then what it missed (lazy regularization): from `seen`, the last example that touched it, where the rate is per
coordinate; from running totals where the rate is global. A running total is a sum or product over all examples, such as
the total shrinkage of a weight; a coordinate stores its value at the last touch in n.

`lazy` is float64[variants, LAZY_SIZE], the present running totals: the only state of a learner that belongs to no
coordinate.

l1 is an argument, since `[rules]` may set it by prefix.
"""

from __future__ import annotations

from typing import Any

from model_store.jit import implements, stub

LAZY_SIZE = 2


@stub
def weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, lazy: Any, v: Any) -> Any:
    """The coordinate's weight before example t: a, after all that examples seen + 1 to t - 1 do to it."""


@stub
def step(learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, lazy: Any, v: Any) -> Any:
    """a after example t, for the weight w and the gradient g; r and new_r belong to n before and after it."""


@stub
def advance(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    """Advance variant v's running totals by example t; called before the example's steps."""


@stub
def running_total(learner: Any, lazy: Any, v: Any) -> Any:
    """The running total that a coordinate stores in n where the rate is global."""


@stub
def pack(learner: Any, a: Any, r: Any) -> Any:
    """a scaled to the size of a weight, which is then rounded to q2.13."""


@stub
def unpack(learner: Any, value: Any, r: Any) -> Any:
    """a from a q2.13 value."""


@stub
def needs_rebase(learner: Any, lazy: Any) -> Any:
    """True if the running totals are about to leave the range of float64, and every coordinate must catch up first."""


@stub
def reset_lazy(learner: Any, lazy: Any, v: Any) -> Any:
    """Set variant v's running totals to their initial values."""


@stub
def with_own_parameters(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    """The same learner with a variant's own parameters."""


def stores_weights(*learners: type) -> None:
    """Declare learners whose a is a weight, and is rounded to q2.13 as it is."""
    implements(pack, *learners)(_pack_weight)
    implements(unpack, *learners)(_unpack_weight)


def has_no_lazy_state(*learners: type) -> None:
    """Declare learners whose untouched coordinates do not change."""
    implements(advance, *learners)(_advance_nothing)
    implements(running_total, *learners)(_no_total)
    implements(needs_rebase, *learners)(_never)
    implements(reset_lazy, *learners)(_reset_nothing)


def _pack_weight(learner: Any, a: Any, r: Any) -> Any:
    return a


def _unpack_weight(learner: Any, value: Any, r: Any) -> Any:
    return value


def _advance_nothing(learner: Any, t: Any, lazy: Any, v: Any) -> Any:
    pass


def _no_total(learner: Any, lazy: Any, v: Any) -> Any:
    return 0.0


def _never(learner: Any, lazy: Any) -> Any:
    return False


def _reset_nothing(learner: Any, lazy: Any, v: Any) -> Any:
    pass
