"""ValueTable: one open-addressing table of slots for all variants, and the arena of its keys' bytes.

Invariants: `key` 0 is free; a search for a key meets it before a free slot; no more slots are used than `Growth`
allows; the arena holds each admitted key once, in the order of admission, with the number of its feature. With
`[learner] hash_bits` a slot belongs to a bucket, which several keys may share: see `buckets.py`.

Not thread-safe: one thread learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.hash_kernels import hash_keys
from trainer.learn.arena import Arena, Write, allow_huge_pages, mapped, resized, touch
from trainer.learn.buckets import Buckets, Collisions
from trainer.learn.slots_kernels import COMPACT, OWN_ARRAYS, Full, Own, move, slot_type, spread
from trainer.learn.table_kernels import (
    ENTRY_HEAD,
    Exact,
    append_keys,
    arena_entries,
    arena_keys,
    claim_keys,
    compact_arena,
    find_keys,
)

SMALLEST_TABLE = 1 << 16
SMALLEST_COMPACT_TABLE = 1 << 10
_CACHE_LINE = 64
_BOUNDLESS = 1 << 62


@dataclass(frozen=True)
class Growth:
    """The largest load, and the factor by which a table grows beyond it; both in percent."""

    full: int
    by: int


DOUBLING = Growth(full=70, by=200)
CLOSE = Growth(full=88, by=110)  # once it has grown, a compact table is always at least 80 % full


@dataclass(frozen=True)
class TableKeys:
    """The keys of a table, in order of admission.

    data: bytes end to end; offsets int64[n + 1]; slots int64[n], a bucket's slot for each of its keys; features
    uint16[n], each key's feature.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    features: npt.NDArray[np.uint16]


class ValueTable:
    """A growing table. `layout` is the kernels' view: a NamedTuple of `slots_kernels` over the table's arrays.

    Slots are aligned to cache lines, so that a slot of 32 or 16 bytes never spans two.
    """

    def __init__(
        self,
        layout: type = Full,
        *,
        variants: int = 1,
        keep_seen: bool = False,
        seed: int = 1,
        capacity: int | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        """`variants`: how many have values of their own; `keep_seen`: whether compact slots have `seen`.

        buckets: of the keys, if they share slots; the table then never has more slots than buckets.
        """
        self._kind = layout
        self.buckets = buckets
        self.space = buckets.space if buckets is not None else Exact()
        self._variants = variants
        self._slot = slot_type(layout, keep_seen)
        self._seed = np.uint64(seed)
        self._growth = CLOSE if layout in COMPACT else DOUBLING
        smallest = SMALLEST_COMPACT_TABLE if layout in COMPACT else SMALLEST_TABLE
        self.layout = self._empty(self._at_most(capacity or smallest))
        self._smallest = self.slots.size
        self.used = 0
        self.moves = 0  # incremented whenever all keys get other slots
        self._arena = Arena()

    @property
    def slots(self) -> Any:
        """The slots, a structured array of the layout's type."""
        return self.layout.slots

    @property
    def arena(self) -> npt.NDArray[np.uint8]:
        """The bytes of the admitted keys, and free space."""
        return self._arena.memory

    @property
    def arena_bytes(self) -> int:
        """How many bytes of the arena are used."""
        return self._arena.end

    @property
    def room(self) -> int:
        """How many more slots can be used before the table must grow."""
        return self._allowed(self.slots.size) - self.used

    @property
    def count(self) -> int:
        """The number of keys; they use `used` slots, one each unless they share buckets."""
        return self.used if self.buckets is None else self.buckets.keys

    @property
    def table_bytes(self) -> int:
        """Memory of the slots and of the per-variant arrays, in bytes."""
        return int(sum(getattr(self.layout, name).nbytes for name in ("slots", *self._own_names())))

    @property
    def nbytes(self) -> int:
        """Memory of the table and the arena, in bytes."""
        return self.table_bytes + int(self.arena.nbytes)

    def grow(self) -> None:
        """Make room for more keys; every key keeps its state. O(slots).

        Full slots double in place: half as much fresh memory is touched as for a copy, and no second table is held.
        """
        capacity = self._at_most(self.slots.size * self._growth.by // 100)
        if self._growth is not DOUBLING or capacity != 2 * self.slots.size or not self._double():
            self._move_to(capacity, before=0)

    def evict(
        self, before: int, about_to_drop: Callable[[npt.NDArray[np.bool_]], None] = lambda kept: None
    ) -> int:
        """Drop the keys that no example from number `before` on has touched; return how many. O(slots + key bytes).

        Before that it calls `about_to_drop` with a mask of the keys that are kept, in the order of admission.
        """
        keys = self.keys()
        kept = self.slots["seen"][keys.slots] >= before
        dropped = int(kept.size - np.count_nonzero(kept))
        if dropped:
            about_to_drop(kept)
            self._arena.truncate(int(compact_arena(self.arena, kept.view(np.uint8))))
            self._move_to(self._capacity_for(self.used - dropped), before)
        return dropped

    def append(self, write: Write, *, later: bool = False) -> None:
        """Append the bytes of admitted keys to the arena; see `Arena.append`."""
        self._arena.append(write, later=later)

    def settle(self) -> None:
        """Wait until the bytes of all keys are in the arena."""
        self._arena.settle()

    def add(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], features: Any) -> Any:
        """Admit keys that are not in the table; return their slots, int64[n]. The state of new slots is 0."""
        while self.room < features.size:
            self.grow()
        self._arena.reserve(data.size + ENTRY_HEAD * features.size)
        hashes, slots = np.empty(features.size, np.uint64), np.empty(features.size, np.int64)
        hash_keys(data, offsets, hashes)
        if self.buckets is not None:
            self.buckets.enter(hashes, features, 0, features.size)
        self.used += int(claim_keys(self.layout, self.space, hashes, features, slots))
        self._arena.append(lambda arena, end: int(append_keys(arena, end, data, offsets, features)))
        return slots

    def find(self, hashes: npt.NDArray[np.uint64], features: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The slots of keys by their hashes and features, -1 for one that has none: int64[n]."""
        slots = np.empty(hashes.size, np.int64)
        find_keys(self.layout, self.space, hashes, features, slots)
        return slots

    def read(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """a of every variant with values of its own, then n of each: float64[slots, 2 own]. Layouts Full and Own."""
        own = self._kind is Own
        columns = (self.layout.z, self.layout.n) if own else (self.slots["z"], self.slots["n"])
        return np.hstack([column[slots].reshape(slots.size, self._variants) for column in columns])

    def write(self, slots: npt.NDArray[np.int64], values: npt.NDArray[np.float64], seen: int) -> None:
        """Store what `read` returned, as touched by example number `seen`. Layouts Full and Own."""
        if self._kind is Own:
            self.layout.z[slots], self.layout.n[slots] = np.hsplit(values, 2)
        else:
            self.slots["z"][slots], self.slots["n"][slots] = values.T
        self.slots["seen"][slots] = seen

    def keys(self) -> TableKeys:
        """Every admitted key with the slot that holds it. O(keys)."""
        data, offsets, features, hashes = self._arena_content(self.count)
        return TableKeys(data, offsets, self.find(hashes, features), features)

    def used_slots(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
        """Every used slot once, and the feature of its first key. O(keys)."""
        keys = self.keys()
        if self.buckets is None:
            return keys.slots, keys.features
        slots, first = np.unique(keys.slots, return_index=True)
        return slots, keys.features[first]

    def collisions(self) -> Collisions:
        """Whether keys share their state."""
        if self.buckets is None:
            return Collisions.of_exact(self.used)
        return self.buckets.collisions(self.used)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The table's whole content, as plain arrays."""
        own = {name: getattr(self.layout, name) for name in self._own_names()}
        slots = self.slots.view(np.uint64).reshape(self.slots.size, -1)
        used = np.array([self.used], np.int64)
        state = {"slots": slots, "used": used, "arena": self.arena[: self.arena_bytes], **own}
        return state if self.buckets is None else state | {"keys": np.array([self.count], np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a `state` of the same layout, whether or not its slots have `seen`, the last word.

        Raises ValueError for slots of another size.
        """
        self.layout = self._empty(len(state["slots"]))
        self.moves += 1
        words = self.slots.view(np.uint64).reshape(self.slots.size, -1)
        known = state["slots"].shape[1] if self._kind in COMPACT else words.shape[1]
        if abs(state["slots"].shape[1] - words.shape[1]) > (self._kind in COMPACT):
            raise ValueError(f"slots of {state['slots'].shape[1]} words, expected {words.shape[1]}")
        words[:, :known] = state["slots"][:, : words.shape[1]]
        for name in self._own_names():
            getattr(self.layout, name)[:] = state[name]
        self.used = int(state["used"][0])
        self._arena.restore(state["arena"])
        if self.buckets is not None:
            *_, features, hashes = self._arena_content(int(state["keys"][0]))
            self.buckets.restore(hashes, features)

    def _arena_content(self, count: int) -> tuple[Any, Any, Any, Any]:
        """The bytes, offsets, features and hashes of the first `count` keys."""
        lengths, features = np.empty(count, np.int64), np.empty(count, np.uint16)
        arena_entries(self.arena, lengths, features)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        arena_keys(self.arena, np.ones(count, np.uint8), data)
        hashes = np.empty(count, np.uint64)
        hash_keys(data, offsets, hashes)
        return data, offsets, features, hashes

    def _at_most(self, capacity: int) -> int:
        return capacity if self.buckets is None else min(capacity, self.buckets.size)

    def _allowed(self, capacity: int) -> int:
        if self.buckets is not None and capacity == self.buckets.size:
            return _BOUNDLESS  # every bucket has a slot
        return capacity * self._growth.full // 100

    def _capacity_for(self, keys: int) -> int:
        """The number of slots to which a table of this many keys would have grown."""
        capacity = self._smallest
        while self._allowed(capacity) <= keys:
            capacity = capacity * self._growth.by // 100
        return int(capacity)

    def _empty(self, capacity: int) -> Any:
        if self._growth is DOUBLING and (capacity < 2 or capacity & (capacity - 1)):
            raise ValueError(f"capacity must be a power of two, got {capacity}")
        self._memory = [mapped(size) for size in self._sizes(capacity)]
        return self._view(capacity)

    def _sizes(self, capacity: int) -> list[int]:
        """The bytes of the slots and of each per-variant array."""
        own = [self._variants * np.dtype(kind).itemsize for _, kind in OWN_ARRAYS.get(self._kind, ())]
        return [capacity * size for size in (self._slot.itemsize, *own)]

    def _view(self, capacity: int) -> Any:
        """The layout of so many slots over the memory."""
        slots, *memory = self._memory
        kinds = [kind for _, kind in OWN_ARRAYS.get(self._kind, ())]
        own = [
            np.frombuffer(each, kind, capacity * self._variants).reshape(capacity, self._variants)
            for each, kind in zip(memory, kinds, strict=True)
        ]
        seed = [self._seed] if "seed" in self._kind._fields else []  # type: ignore[attr-defined]
        return self._kind(np.frombuffer(slots, self._slot, capacity), *own, *seed)

    def _own_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in OWN_ARRAYS.get(self._kind, ()))

    def _own_bytes(self) -> Any:
        """The bytes of the arrays beside the slots, as `move` and `spread` take them."""
        slots, nothing = self.slots.size, np.empty((self.slots.size, 0), np.uint8)
        own = [np.frombuffer(memory, np.uint8).reshape(slots, -1) for memory in self._memory[1:]]
        return (*own, nothing, nothing)[:2]

    def _move_to(self, capacity: int, before: int) -> None:
        old, old_bytes = self.layout, self._own_bytes()
        self.layout = self._empty(capacity)
        self.used = int(move(old, self.layout, before, old_bytes, self._own_bytes()))
        for memory in self._memory:
            allow_huge_pages(memory)
        self.moves += 1

    def _double(self) -> bool:
        """Double the table in place; False if something else has a view of it, or the system cannot."""
        half = self.slots.size
        self.layout = None  # memory with views cannot be resized
        sizes = self._sizes(2 * half)
        if not all(resized(memory, size) for memory, size in zip(self._memory, sizes, strict=True)):
            self.layout = self._view(half)
            return False
        self.layout = self._view(2 * half)
        for memory, size in zip(self._memory, sizes, strict=True):
            touch(memory, size // 2)
        words = self.slots.view(np.uint64).reshape(2 * half, -1)
        spread(self.layout, half, words, self._own_bytes())
        for memory in self._memory:
            allow_huge_pages(memory)
        self.moves += 1
        return True

    def _check(self) -> None:
        """Assert the invariants above."""
        occupied = self.slots["key"] != 0
        assert int(occupied.sum()) == self.used
        assert self.slots.ctypes.data % _CACHE_LINE == 0
        keys = self.keys()
        assert (keys.slots >= 0).all()
        assert np.unique(keys.slots).size == self.used
        assert self.used <= self._allowed(self.slots.size)


def part_of(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a state whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
