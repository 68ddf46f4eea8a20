"""Buffers: the values of a base in memory that is used in turns, so that a delta costs what it changes.

One buffer is served; a delta is written into another, after that has caught up, and then that one is served. Which
buffers are still read is told from outside. Nothing here knows keys.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from server.layers.values import Values
from server.mapped import Mapped

Slots = npt.NDArray[np.int64]
_TORN = -1
_COPY_ALL = 4  # more than one slot in four to catch up on: copying everything is quicker


class _Buffer:
    """turn: the block under the uid of its present use. written: up to which delta; _TORN if nobody knows."""

    def __init__(self, block: Mapped, written: int) -> None:
        self.turn, self.values, self.written = block, Values.of_part(block), written
        self.read, self.held = False, False

    @property
    def free(self) -> bool:
        """Whether it may be written, unless it is the one that is served."""
        return not (self.read or self.held)


class Buffers:
    """The buffers of one base. For one thread.

    Invariants:
    1. `served` is never written, nor is any other buffer that was served and not released since.
    2. A buffer whose `written` is w equals the served one but for the slots in `_log` after w.
    """

    def __init__(self, first: Mapped) -> None:
        """`first`: a block with the arrays of `Values.shapes`, filled."""
        self._served = _Buffer(first, 0)
        self._served.read = True
        self._all = [self._served]
        self._log: deque[tuple[int, Slots]] = deque()
        self._next, self._slots = self._served, np.empty(0, np.int64)
        self._held_uid = ""

    @property
    def served(self) -> Mapped:
        """The block whose values are those of the present version."""
        return self._served.turn

    @property
    def values(self) -> Values:
        """Its arrays."""
        return self._served.values

    def __len__(self) -> int:
        return len(self._all)

    def released(self, uid: str) -> None:
        """Nobody reads the block of this uid any more. A uid of an earlier turn changes nothing."""
        for buffer in self._all:
            if buffer.turn.uid == uid:
                buffer.read = False

    def hold(self) -> str:
        """Keep what is served now from being written, for a reader of one's own, until `let_go` of the uid returned."""
        self._served.held, self._held_uid = True, self._served.turn.uid
        return self._held_uid

    def let_go(self, uid: str) -> None:
        """That reader has ended."""
        for buffer in self._all:
            if buffer.held and self._held_uid == uid:
                buffer.held = False

    def prepare(self, slots: Slots, values: Values) -> Values:
        """The present values with these in these slots, in a buffer that `serve` will serve; nothing changes till then.

        O(slots written since that buffer was served). Raises OSError if it takes another buffer and memory is short.
        """
        buffer = self._next = self._spare()
        self._catch_up(buffer)
        buffer.values.put(slots, values)
        self._slots = slots
        return buffer.values

    def serve(self) -> None:
        """Serve what was prepared."""
        buffer, latest = self._next, self._served.written + 1
        self._log.append((latest, self._slots))
        buffer.turn, buffer.written, buffer.read = buffer.turn.anew(), latest, True
        before, self._served = self._served, buffer
        self._forget(before)

    def _spare(self) -> _Buffer:
        """A buffer that nobody reads, the one with least to catch up on; a new one if there is none."""
        free = [buffer for buffer in self._all if buffer.free and buffer is not self._served]
        if free:
            return max(free, key=lambda buffer: buffer.written)
        values = self._served.values
        block = Mapped.empty(self._served.turn.head, values.shapes)
        buffer = _Buffer(block, _TORN)
        self._all.append(buffer)
        return buffer

    def _catch_up(self, buffer: _Buffer) -> None:
        """Make it equal to the served one; torn while that is being done, and until it is served."""
        missed = [slots for written, slots in self._log if written > buffer.written]
        whole = buffer.written == _TORN or sum(map(len, missed)) > len(self.values) // _COPY_ALL
        buffer.written = _TORN
        if whole:
            buffer.values.fill(self.values)
        else:
            for slots in missed:
                buffer.values.put(slots, self.values.take(slots))

    def _forget(self, next_spare: _Buffer) -> None:
        """Drop every other buffer that nobody reads, and of the log what none has to catch up on."""
        self._all = [buffer for buffer in self._all if not buffer.free or buffer is next_spare]
        oldest = min(buffer.written for buffer in self._all)
        while self._log and self._log[0][0] <= oldest:
            self._log.popleft()
