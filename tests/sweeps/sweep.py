"""Every failure of an operation, one by one: the n-th call fails, n = 0, 1, … until all have failed in every way.

After each fault a reader finds the state from before or the one from after, whole; the error is one of ours; the same
operation then succeeds; and no thread, descriptor or temporary file is left.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from redis import Redis

from model_store.errors import FtrieError
from tests.sweeps.failing import FAILURES, REFUSALS, Failing, Fault, nothing_left

W = TypeVar("W")


@dataclass(frozen=True)
class Operation(Generic[W]):
    """What persists or publishes something.

    world: makes a fresh place of work, and takes it away. act: the operation. state: what a reader finds, read without
    faults and verified; raises where something is not whole. leaves: what else is to be seen after a fault and not
    wanted, such as temporary files. raises: the errors that its contract names. between: of an operation of several
    steps, what the first ones do: their states may be found too. is_best_effort: it tells of a fault in another way
    than by an error, such as a warning or a count. store: that which it uses. is_long: see `thinned`.
    """

    name: str
    world: Callable[[], AbstractContextManager[W]]
    act: Callable[[W], object]
    state: Callable[[W], object]
    leaves: Callable[[W], list[str]] = lambda world: []
    raises: tuple[type[BaseException], ...] = (FtrieError,)
    between: tuple[Callable[[W], object], ...] = ()
    is_best_effort: bool = False
    store: Redis[bytes] | None = None
    is_long: bool = False


def faults(calls: Sequence[str]) -> Iterator[Fault]:
    """Each call, failing in each way, once and for good."""
    for at, kind in enumerate(calls):
        for failure, for_good in itertools.product(FAILURES[kind], (False, True)):
            yield Fault(at, kind, failure, for_good)


def thinned(calls: Sequence[str]) -> Iterator[Fault]:
    """Each call once, for runs that take long: all ways to fail of a kind in turn, and once or for good.

    With FTRIE_ALL_FAULTS set, all of them.
    """
    if os.environ.get("FTRIE_ALL_FAULTS"):
        yield from faults(calls)
        return
    turns = {kind: itertools.cycle(itertools.product(FAILURES[kind], (False, True))) for kind in FAILURES}
    for at, kind in enumerate(calls):
        failure, for_good = next(turns[kind])
        yield Fault(at, kind, failure, for_good)


def counted_as(name: str, calls: Sequence[str], tried: Sequence[Fault]) -> str:
    """How many calls of each kind an operation has, and how many faults are tried."""
    points = ", ".join(f"{count} {kind}" for kind, count in Counter(calls).items())
    return f"{name}: {points}; {len(tried)} faults tried"


def sweep(operation: Operation[W]) -> None:
    """Try each fault, after printing how many calls of each kind the operation has."""
    with operation.world() as world:
        before = operation.state(world)
        with Failing() as counted:
            operation.act(world)
        after = operation.state(world)
    allowed = [before, after]
    for part in operation.between:
        with operation.world() as world:
            part(world)
            allowed.append(operation.state(world))
    assert after != before, f"{operation.name} changes nothing that `state` shows"
    assert counted.calls, f"{operation.name} makes no call that can fail"
    tried = list(thinned(counted.calls) if operation.is_long else faults(counted.calls))
    if operation.store is None:
        tried = [fault for fault in tried if fault.failure not in REFUSALS]
    print(counted_as(operation.name, counted.calls, tried))
    for fault in tried:
        try:
            _try(operation, fault, allowed)
        except BaseException as error:
            error.add_note(f"{operation.name}: {fault} of {counted.calls}")
            raise


def _check_text(text: str, fault: Fault) -> None:
    """An error's text is ours, and its advice fits: no other file or folder helps where descriptors are lacking."""
    assert text and "Errno" not in text, text
    elsewhere = re.search("writable|can be written|make room|another", text)
    assert elsewhere is None or fault.failure not in ("EMFILE", "ENOLCK"), text


def _try(operation: Operation[W], fault: Fault, allowed: list[object]) -> None:
    before, after, *_ = allowed
    with operation.world() as world, nothing_left():
        text: str | None = None  # not the error itself, whose frames keep files open
        with Failing(fault, operation.store):
            try:
                operation.act(world)
            except operation.raises as raised:
                text = str(raised)
                if isinstance(raised, FtrieError):
                    _check_text(text, fault)
        assert text != "", "an error without a text"
        found = operation.state(world)
        if text is None and not operation.is_best_effort:
            assert found == after, "no error, and the operation is not done"
        assert found in allowed, f"neither the old state nor the new one: {found}\n{before}\n{after}"
        left = operation.leaves(world)
        assert not left, f"left: {left}"
        operation.act(world)
        found = operation.state(world)
        assert found == after, f"the next try did not succeed: {found}, expected {after}"
