"""The values of a model's keys, as arrays over a trie's slots, and the buffers that hold a base's values.

Buffers are used in turns, so that a delta costs what it changes: one is served, a delta is written into another one
that has caught up, and then that one is served. `Buffers.released` says when a buffer is not read any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.rows import ModelRows
from server.model.shared_memory import Shapes, SharedBlock

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Values:
    """Weights, rates and variants by slot.

    weights and rates float32[w, n]: w is 1, or the number of variants if each has its own. variants uint8[planes, n],
    bit v % 8 of plane v // 8: variant v uses the key (few models have more than eight variants). A removed key has 0 in
    all of them.
    """

    weights: Array
    variants: Array
    rates: Array

    @classmethod
    def of(cls, rows: ModelRows) -> Values:
        """The values of an artefact or a delta. Shares its arrays; a variant's column of weights becomes a row."""
        planes = planes_for(len(rows.spec.variants))
        # Little-endian, so that byte p of a key has the bits of plane p.
        by_byte = np.ascontiguousarray(rows.variants, "<u4").view(np.uint8).reshape(-1, 4)
        used = np.ascontiguousarray(by_byte[:, :planes].T)
        return cls(as_rows(rows.weight), used, as_rows(rows.rate))

    @classmethod
    def empty(cls, width: int, planes: int, keys: int) -> Values:
        """All 0."""
        numbers = (np.zeros((width, keys), np.float32) for _ in range(2))
        return cls(next(numbers), np.zeros((planes, keys), np.uint8), next(numbers))

    def zeros(self, keys: int) -> Values:
        """Values of the same shape for `keys` keys, all 0."""
        return Values.empty(self.width, len(self.variants), keys)

    @classmethod
    def of_part(cls, part: SharedBlock) -> Values:
        """Views of a block's arrays."""
        return cls(*(part.arrays[name] for name in ("weights", "variants", "rates")))

    @property
    def shapes(self) -> Shapes:
        """The shapes of a block that can hold these values."""
        return {name: (array.dtype, array.shape) for name, array in self.by_name().items()}

    def by_name(self) -> dict[str, Array]:
        """The arrays as their block names them."""
        return {"weights": self.weights, "variants": self.variants, "rates": self.rates}

    def fill(self, source: Values) -> None:
        """Become equal to `source`. O(n)."""
        for own, other in zip(self.by_name().values(), source.by_name().values(), strict=True):
            np.copyto(own, other)

    def take(self, slots: Array) -> Values:
        """Copies of the values in these slots."""
        return Values(self.weights[:, slots], self.variants[:, slots], self.rates[:, slots])

    def put(self, slots: Array, values: Values) -> None:
        """Write `values` into these slots."""
        self.weights[:, slots] = values.weights
        self.variants[:, slots] = values.variants
        self.rates[:, slots] = values.rates

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """weights, variants and rates."""
        return self.weights, self.variants, self.rates

    @property
    def used(self) -> Array:
        """bool[n]: whether any variant uses the key."""
        return np.asarray(self.variants.any(axis=0))

    @property
    def bits(self) -> Array:
        """uint32[n], bit v: variant v uses the key; same as in an artefact."""
        found = np.zeros(len(self), np.uint32)
        for plane, byte in enumerate(self.variants):
            found |= byte.astype(np.uint32) << np.uint32(8 * plane)
        return found

    def uses(self, slot: int, variant: int) -> bool:
        """Whether the variant uses the key in this slot."""
        return bool(self.variants[variant >> 3, slot] >> (variant & 7) & 1)

    @property
    def width(self) -> int:
        """How many weights a key has."""
        return len(self.weights)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return self.weights.nbytes + self.variants.nbytes + self.rates.nbytes

    def __len__(self) -> int:
        return int(self.variants.shape[1])


def as_rows(numbers: Array) -> Array:
    """float32[rows] or [rows, variants] as [1, rows] or [variants, rows], contiguous."""
    return np.ascontiguousarray(np.atleast_2d(numbers.T))


def planes_for(variants: int) -> int:
    """How many bytes hold one bit for each variant."""
    return -(-variants // 8)


Slots = npt.NDArray[np.int64]
_TORN = -1
_COPY_ALL = 4
"""To catch up on more than one slot in four, copying everything is faster."""


class _Buffer:
    """turn: the block under the uid of its present use. written: the last delta in it; _TORN if that is unknown."""

    def __init__(self, block: SharedBlock, written: int) -> None:
        self.turn, self.values, self.written = block, Values.of_part(block), written
        self.read, self.held = False, False

    @property
    def free(self) -> bool:
        """Whether the buffer may be written, unless it is served."""
        return not (self.read or self.held)


class Buffers:
    """The buffers of one base. For one thread.

    Invariants:
    1. `served` is never written, nor is a buffer that was served and has not been released since.
    2. A buffer whose `written` is w equals the served one except for the slots in `_log` after w.
    """

    def __init__(self, first: SharedBlock) -> None:
        """first: a filled block with the arrays of `Values.shapes`."""
        self._served = _Buffer(first, 0)
        self._served.read = True
        self._all = [self._served]
        self._log: deque[tuple[int, Slots]] = deque()
        self._next, self._slots = self._served, np.empty(0, np.int64)
        self._held_uid = ""

    @property
    def served(self) -> SharedBlock:
        """The block with the values of the present version."""
        return self._served.turn

    @property
    def values(self) -> Values:
        """Its arrays."""
        return self._served.values

    def __len__(self) -> int:
        return len(self._all)

    def released(self, uid: str) -> None:
        """Note that the block of this uid is not read any more. A uid of an earlier turn changes nothing."""
        for buffer in self._all:
            if buffer.turn.uid == uid:
                buffer.read = False

    def hold(self) -> str:
        """Keep the served buffer from being written until `let_go` is called with the uid that is returned."""
        self._served.held, self._held_uid = True, self._served.turn.uid
        return self._held_uid

    def let_go(self, uid: str) -> None:
        """End the `hold` of this uid."""
        for buffer in self._all:
            if buffer.held and self._held_uid == uid:
                buffer.held = False

    def prepare(self, slots: Slots, values: Values) -> Values:
        """The present values with `values` in `slots`, in a buffer that `serve` will serve; until then nothing changes.

        O(slots written since that buffer was served). Raises OSError if it needs a new buffer and memory is short.
        """
        buffer = self._next = self._spare()
        self._catch_up(buffer)
        buffer.values.put(slots, values)
        self._slots = slots
        return buffer.values

    def serve(self) -> None:
        """Serve the buffer that was prepared."""
        buffer, latest = self._next, self._served.written + 1
        self._log.append((latest, self._slots))
        # A uid for each turn: a release of an earlier turn that comes late must not free the buffer in this one.
        buffer.turn, buffer.written, buffer.read = buffer.turn.reused(), latest, True
        before, self._served = self._served, buffer
        self._forget(before)

    def _spare(self) -> _Buffer:
        """The free buffer with the least to catch up on; a new one if none is free."""
        free = [buffer for buffer in self._all if buffer.free and buffer is not self._served]
        if free:
            return max(free, key=lambda buffer: buffer.written)
        values = self._served.values
        # A third buffer, while a request or a slow worker still reads the second: deltas wait for nobody. `_forget`
        # drops it.
        block = SharedBlock.empty(self._served.turn.head, values.shapes)
        buffer = _Buffer(block, _TORN)
        self._all.append(buffer)
        return buffer

    def _catch_up(self, buffer: _Buffer) -> None:
        """Make a buffer equal to the served one. It counts as torn until it is served."""
        missed = [slots for written, slots in self._log if written > buffer.written]
        whole = buffer.written == _TORN or sum(map(len, missed)) > len(self.values) // _COPY_ALL
        # Until `serve`: whatever raises in between leaves a mixture of two versions.
        buffer.written = _TORN
        if whole:
            buffer.values.fill(self.values)
        else:
            for slots in missed:
                buffer.values.put(slots, self.values.take(slots))

    def _forget(self, next_spare: _Buffer) -> None:
        """Drop the other free buffers, and the part of the log that no buffer has to catch up on."""
        # Two buffers are enough while requests are short, and each is as large as all values.
        self._all = [buffer for buffer in self._all if not buffer.free or buffer is next_spare]
        oldest = min(buffer.written for buffer in self._all)
        while self._log and self._log[0][0] <= oldest:
            self._log.popleft()
