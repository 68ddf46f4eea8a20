"""A rebuild beside the deltas: the new base is built in another thread while versions go on, then brought up to them.

What it reads is held as it was when it began: base and fresh layer are immutable, and its buffer of values is not given
to be written before the end.
"""

from __future__ import annotations

import threading
from functools import reduce

from model_store.delta import Delta
from server.layers.state import State


class Rebuilding:
    """One rebuild. `run` in any thread, once; everything else in the thread that owns the states."""

    def __init__(self, state: State) -> None:
        self._state, self._values = state, state.buffers.values
        self._uid = state.buffers.hold()
        self._since: list[Delta] = []
        self._made: State | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Build. O(bytes + items). Never raises: `finished` does."""
        try:
            self._made = self._state.rebuilt(self._values)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether `run` has ended."""
        return self._done.is_set()

    def follow(self, delta: Delta) -> None:
        """A delta was applied meanwhile."""
        self._since.append(delta)

    def finished(self, now: State) -> State:
        """The state `now`, on the new base. O(rows of the deltas since + items). Raises what `run` met, or OSError."""
        self.let_go()
        if self._error is not None:
            raise self._error
        assert self._made is not None
        made = self._made
        if self._since:
            before = made.buffers.served.uid
            # Each of these deltas was accepted when it was applied: equal candidates are no reason to refuse it now.
            made = made.changed(reduce(Delta.followed_by, self._since), allow_equal=True)
            made.buffers.released(before)  # nobody was ever given it
        return made if made.items is now.items else made.with_items(now.items)

    def let_go(self) -> None:
        """The buffer that it read may be written again, for its part."""
        self._state.buffers.let_go(self._uid)
