"""What a learner is to the loop that feeds it: the operations below, each given a body in the learner's own file.

A learner is a NamedTuple of parameters, `rate` among them, and keeps no state. The state of a coordinate is (a, n): a
is w for gradient descent and its kin, z for FTRL, G for RDA; n is for the rate (`rates.py`).

A dense textbook learner changes every coordinate at every example. These change it when it is touched, and work out
then what it missed: from `seen`, the example that touched it last, where its rate is its own; from marks where the rate
is global. A mark is a number that runs over the examples, such as all that a weight would have shrunk by; a coordinate
keeps the mark of its last touch in n.

`marks` is float64[variants, MARKS], the present sums: a learner's only state that is no coordinate's.

l1 comes with the coordinate, since `[rules]` may set it by prefix.
"""

from __future__ import annotations

from typing import Any

from model_store.jit import implements, stub

MARKS = 2


@stub
def weight(learner: Any, l1: Any, a: Any, r: Any, seen: Any, t: Any, marks: Any, v: Any) -> Any:
    """The coordinate's weight when example t comes: a, with all that examples seen + 1 to t - 1 did to it."""


@stub
def step(
    learner: Any, l1: Any, a: Any, w: Any, g: Any, r: Any, new_r: Any, t: Any, marks: Any, v: Any
) -> Any:
    """a after example t, which found the weight w and gave the gradient g; r and new_r: the rate before and after."""


@stub
def tick(learner: Any, t: Any, marks: Any, v: Any) -> Any:
    """Move variant v's marks over example t; called before the example's steps."""


@stub
def mark(learner: Any, marks: Any, v: Any) -> Any:
    """What a coordinate keeps in n where the rate is global."""


@stub
def pack(learner: Any, a: Any, r: Any) -> Any:
    """a in the form in which it is rounded to q2.13: a number of a weight's size."""


@stub
def unpack(learner: Any, value: Any, r: Any) -> Any:
    """a of a q2.13 value."""


@stub
def worn(learner: Any, marks: Any) -> Any:
    """True if the marks are about to leave the range of numbers, and every coordinate must be settled first."""


@stub
def fresh_marks(learner: Any, marks: Any, v: Any) -> Any:
    """Set variant v's marks to where they begin."""


@stub
def with_own(learner: Any, alpha: Any, beta: Any, l1: Any, l2: Any) -> Any:
    """The same learner with a variant's own parameters."""


def keeps_weights(*learners: type) -> None:
    """Say of learners that their a is a weight, which is what rounding to q2.13 takes."""
    implements(pack, *learners)(_as_it_is)
    implements(unpack, *learners)(_as_it_is_stored)


def keeps_no_marks(*learners: type) -> None:
    """Say of learners that nothing happens to a coordinate but what its own numbers tell."""
    implements(tick, *learners)(_no_tick)
    implements(mark, *learners)(_no_mark)
    implements(worn, *learners)(_never_worn)
    implements(fresh_marks, *learners)(_no_marks)


def _as_it_is(learner: Any, a: Any, r: Any) -> Any:
    return a


def _as_it_is_stored(learner: Any, value: Any, r: Any) -> Any:
    return value


def _no_tick(learner: Any, t: Any, marks: Any, v: Any) -> Any:
    pass


def _no_mark(learner: Any, marks: Any, v: Any) -> Any:
    return 0.0


def _never_worn(learner: Any, marks: Any) -> Any:
    return False


def _no_marks(learner: Any, marks: Any, v: Any) -> Any:
    pass
