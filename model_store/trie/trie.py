"""FlatTrie: sorted keys as a radix trie in four arrays; it maps a key to its slot, its index among the sorted keys.

A `LabelTrie` is the same trie with the nodes' labels only, in a fraction of the bytes; servers hold their keys so.

Weights and variants are separate arrays over slots. docs/trie.md draws a trie and has the table of its bytes.

Thread safety: immutable; any number of threads may read it. Running times: L is a key's length in
bytes, and choosing among a node's children counts as one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError
from model_store.trie.trie_kernels import (
    CHILDREN_MASK,
    CHILDREN_SHIFT,
    LENGTH_MASK,
    SHAPE,
    SLOT,
    SORTED,
    TERMINAL_SHIFT,
    build_nodes,
    first_unsorted,
    measure_keys,
    pack_labels,
    position_of,
    slot_of,
    slots_of,
    write_keys,
)

MAX_DATA_BYTES = 2**32 - 1
MAX_KEYS = 2**31 - 1
MAX_KEY_BYTES = LENGTH_MASK

Array = npt.NDArray[Any]


class Cursor(NamedTuple):
    """The position of a prefix: `used` bytes into the label of `node`. The slots [begin, stop) are below."""

    node: int
    used: int
    begin: int
    stop: int


class PrefixStatistics(NamedTuple):
    """The keys under a prefix: their number, how many weigh other than 0, the sums of weights and of |weight|."""

    keys: int
    nonzero: int
    weight_sum: float
    absolute_sum: float


@dataclass(frozen=True, eq=False)
class FlatTrie:
    """A read-only map from byte strings to slots 0 … n-1, in sorted order.

    Invariants (`_check` asserts them):
    1. key_data uint8, key_offsets uint32[n + 1]: the keys concatenated, sorted bytewise, unique.
    2. nodes uint32[m, 4], breadth first; the root is node 0, its label empty. Columns: see `trie_kernels`.
    3. A node's children are consecutive, sorted by first_byte uint8[m], and follow those of the node before.
    4. Every node except the root has at least two children or ends a key: m ≤ 2 n + 1.
    5. The slots below a node are consecutive and begin with SLOT; a label is part of the key at SLOT.
    """

    key_data: Array
    key_offsets: Array
    nodes: Array
    first_byte: Array

    @classmethod
    def build(cls, key_data: Array, key_offsets: Array, *, trim: bool = True) -> FlatTrie:
        """Build from sorted, unique keys: uint8 data, int[n + 1] offsets into it. O(total key bytes).

        Without `trim` the nodes stay in their build buffer, of which up to two thirds is unused; for a trie that is
        copied at once. Raises ArtefactError naming the first row out of order, or the limit exceeded.
        """
        key_data, offsets = _checked(key_data, key_offsets)
        most = 2 * len(offsets) - 1
        nodes, first_byte = np.empty((most, 4), np.uint32), np.zeros(most, np.uint8)
        stops, depths = np.empty(most, np.uint32), np.empty(most, np.uint16)
        count = build_nodes(key_data, offsets, nodes, first_byte, stops, depths)
        used = nodes[:count], first_byte[:count]
        return cls(key_data, offsets, *(array.copy() if trim else array for array in used))

    @classmethod
    def of(cls, keys: list[bytes]) -> FlatTrie:
        """Build from a list of sorted, unique keys. O(total key bytes)."""
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=offsets[1:])
        return cls.build(np.frombuffer(bytearray(b"".join(keys)), np.uint8), offsets)

    def __len__(self) -> int:
        """The number of keys. O(1)."""
        return len(self.key_offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return sum(array.nbytes for array in self.arrays)

    def key(self, slot: int) -> bytes:
        """The key in `slot`. O(L). Raises IndexError unless 0 ≤ slot < n."""
        if not 0 <= slot < len(self):
            raise IndexError(f"slot {slot}: the trie has slots 0 to {len(self) - 1}")
        return self.key_data[self.key_offsets[slot] : self.key_offsets[slot + 1]].tobytes()

    def get(self, key: bytes) -> int:
        """The slot of `key`, or -1. O(L). For many keys use `get_many`."""
        text = np.frombuffer(bytearray(key), np.uint8)
        slot: int = slot_of(self.nodes, self.first_byte, self.key_data, len(self), text)
        return slot

    def get_many(self, key_data: Array, key_offsets: Array) -> Array:
        """Slots of k keys in any order: uint8 data, int[k + 1] offsets → int64[k], -1: absent. O(Σ L)."""
        out = np.empty(len(key_offsets) - 1, np.int64)
        data, offsets = _plain(key_data, np.uint8), _plain(key_offsets, np.int64)
        slots_of(self.nodes, self.first_byte, self.key_data, len(self), data, offsets, out)
        return out

    def cursor(self, prefix: bytes, start: Cursor | None = None) -> Cursor | None:
        """The position after `prefix`, from `start` or the root; None if no key has the prefix. O(L)."""
        node, used, _, stop = start or Cursor(0, 0, 0, len(self))
        text = np.frombuffer(bytearray(prefix), np.uint8)
        node, used, stop = position_of(self.nodes, self.first_byte, self.key_data, node, used, stop, text)
        if node < 0 or stop == 0:
            return None
        return Cursor(node, used, int(self.nodes[node, SLOT]), stop)

    def slot(self, cursor: Cursor) -> int:
        """The slot of the key that ends at `cursor`, or -1 if none does. O(1)."""
        shape = int(self.nodes[cursor.node, SHAPE])
        ends = shape >> TERMINAL_SHIFT and cursor.used == shape & LENGTH_MASK
        return cursor.begin if ends else -1

    def has_prefix(self, prefix: bytes) -> bool:
        """True if some key begins with `prefix`. O(L)."""
        text = np.frombuffer(bytearray(prefix), np.uint8)
        node, _, stop = position_of(self.nodes, self.first_byte, self.key_data, 0, 0, len(self), text)
        return bool(node >= 0 and stop > 0)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """(key, slot) of each key that begins with `prefix`, sorted. O(L) to start, then O(L) a key."""
        cursor = self.cursor(prefix)
        if cursor is not None:
            for slot in range(cursor.begin, cursor.stop):
                yield self.key(slot), slot

    def statistics(self, prefix: bytes, weights: Array) -> PrefixStatistics:
        """Count and weigh the keys under `prefix`; `weights` has a number a slot. O(L + keys below)."""
        cursor = self.cursor(prefix)
        if cursor is None:
            return PrefixStatistics(0, 0, 0.0, 0.0)
        below = weights[cursor.begin : cursor.stop].astype(np.float64)
        nonzero = int(np.count_nonzero(below))
        return PrefixStatistics(len(below), nonzero, float(below.sum()), float(np.abs(below).sum()))

    def branches(self, prefix: bytes) -> Iterator[tuple[bytes, int, int]]:
        """The next level below `prefix`: each branch's prefix with its slots [begin, stop), in key order.

        Branches are the longest prefixes shared by all keys that continue with the same byte. A key that ends where
        the others branch is a branch of its own. O(L) a branch.
        """
        cursor = self.cursor(prefix)
        if cursor is None:
            return
        child, _, slot, shape = self.nodes[cursor.node].tolist()
        depth = len(prefix) + (shape & LENGTH_MASK) - cursor.used
        if shape >> TERMINAL_SHIFT:
            yield self.key(slot), slot, slot + 1
        children = range(child, child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK))
        begins = [int(self.nodes[each, SLOT]) for each in children]
        for each, begin, stop in zip(children, begins, [*begins, cursor.stop][1:], strict=True):
            length = int(self.nodes[each, SHAPE]) & LENGTH_MASK
            yield self.key(begin)[: depth + length], begin, stop

    def into_labels(self) -> LabelTrie:
        """The same trie without whole keys. It takes over this trie's nodes, so this one must not be used again.

        O(nodes and their labels).
        """
        length = int((self.nodes[:, SHAPE] & np.uint32(LENGTH_MASK)).sum(dtype=np.int64))
        labels = np.empty(length, np.uint8)
        pack_labels(self.nodes, self.key_data, labels)
        return LabelTrie.of_arrays(labels, self.nodes, self.first_byte)

    @property
    def whole_keys(self) -> tuple[Array, Array]:
        """Every key: uint8 data, and uint32[n + 1] offsets into it."""
        return self.key_data, self.key_offsets

    @property
    def walked(self) -> tuple[Array, Array, Array]:
        """nodes, first_byte and key_data, which kernels walk."""
        return self.nodes, self.first_byte, self.key_data

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """key_data, key_offsets, nodes and first_byte: the whole trie."""
        return self.key_data, self.key_offsets, self.nodes, self.first_byte

    def _check(self) -> None:
        """Assert every invariant, slowly. O(total key bytes)."""
        assert first_unsorted(self.key_data, self.key_offsets) == SORTED
        assert self.key_offsets[0] == 0
        assert self.key_offsets[-1] == len(self.key_data)
        assert len(self.nodes) == len(self.first_byte) <= 2 * len(self) + 1
        next_child, ends_seen = 1, 0
        begins = {0: (0, len(self), 0)}  # node → first slot, stop, depth at which the label begins
        for node, (child, label, slot, shape) in enumerate(self.nodes.tolist()):
            first, stop, depth = begins.pop(node)
            length, ends = shape & LENGTH_MASK, shape >> TERMINAL_SHIFT
            children = range(child, child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK))
            assert (slot, child) == (first, next_child)
            assert node == 0 or len(children) >= 2 or ends
            assert node > 0 or length == 0
            next_child, ends_seen = children.stop, ends_seen + ends
            if first < stop:
                assert label == self.key_offsets[first] + depth
                inside = self.key(first)[: depth + length]
                assert all(self.key(s).startswith(inside) for s in (first, stop - 1))
                assert (self.key(first) == inside) == bool(ends)
            bounds = [int(self.nodes[c, SLOT]) for c in children] + [stop]
            assert bounds == sorted({first + ends, *bounds})
            bytes_below = [int(self.first_byte[c]) for c in children]
            assert bytes_below == sorted(set(bytes_below))
            for c, byte, begin, end in zip(children, bytes_below, bounds, bounds[1:], strict=False):
                assert self.key(begin)[depth + length] == byte
                begins[c] = (begin, end, depth + length)
        assert (next_child, len(begins), ends_seen) == (len(self.nodes), 0, len(self))


@dataclass(frozen=True, eq=False)
class LabelTrie(FlatTrie):
    """A FlatTrie without whole keys: `key_data` has the nodes' labels, in their order; `key_offsets` is empty.

    Walks, and the answers of every method, are the same. A key is put together from the labels on its way.
    """

    @classmethod
    def of_arrays(cls, labels: Array, nodes: Array, first_byte: Array) -> LabelTrie:
        """Bind what `labels` returned. O(1)."""
        return cls(labels, np.empty(0, np.uint32), nodes, first_byte)

    def __len__(self) -> int:
        """The number of keys. O(1)."""
        return self._count

    def key(self, slot: int) -> bytes:
        """The key in `slot`. O(L). Raises IndexError unless 0 ≤ slot < n."""
        if not 0 <= slot < len(self):
            raise IndexError(f"slot {slot}: the trie has slots 0 to {len(self) - 1}")
        node, labels = 0, []
        while True:
            child, label, first, shape = self.nodes[node].tolist()
            labels.append(self.key_data[label : label + (shape & LENGTH_MASK)].tobytes())
            if shape >> TERMINAL_SHIFT and first == slot:
                return b"".join(labels)
            below = self.nodes[child : child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK), SLOT]
            node = child + int(np.searchsorted(below, slot, "right")) - 1

    @property
    def whole_keys(self) -> tuple[Array, Array]:
        """Every key, put together: uint8 data, and uint32[n + 1] offsets into it. O(their bytes)."""
        stops, depths = np.empty(len(self.nodes), np.uint32), np.empty(len(self.nodes), np.uint16)
        offsets = np.zeros(len(self) + 1, np.uint32)
        measure_keys(self.nodes, len(self), stops, depths, offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        write_keys(self.nodes, self.key_data, stops, depths, offsets, data)
        return data, offsets

    @property
    def labels(self) -> tuple[Array, Array, Array]:
        """key_data, nodes and first_byte: the whole trie."""
        return self.key_data, self.nodes, self.first_byte

    @cached_property
    def _count(self) -> int:
        """One more than the last slot, which is that of the last leaf."""
        node = 0
        while True:
            child, _, slot, shape = self.nodes[node].tolist()
            children = shape >> CHILDREN_SHIFT & CHILDREN_MASK
            if not children:
                return int(slot) + (shape >> TERMINAL_SHIFT)
            node = child + children - 1


def _plain(array: Array, dtype: npt.DTypeLike) -> Array:
    """The array in the form kernels are compiled for: contiguous, writable, of this dtype; copied if necessary."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.writeable else array.copy()


def _checked(key_data: Array, key_offsets: Array) -> tuple[Array, Array]:
    if len(key_data) > MAX_DATA_BYTES:
        raise ArtefactError(f"{len(key_data)} bytes of keys; a trie holds at most {MAX_DATA_BYTES}")
    if not 1 <= len(key_offsets) <= MAX_KEYS:
        raise ArtefactError(f"{len(key_offsets)} key offsets; expected 1 to {MAX_KEYS}")
    lengths = np.diff(key_offsets)
    if key_offsets[0] != 0 or key_offsets[-1] != len(key_data) or (lengths < 0).any():
        raise ArtefactError(f"key offsets must ascend from 0 to {len(key_data)}, the number of key bytes")
    if lengths.size and lengths.max() > MAX_KEY_BYTES:
        row = int(lengths.argmax())
        raise ArtefactError(f"row {row}: a key of {lengths[row]} bytes; the limit is {MAX_KEY_BYTES}")
    data, offsets = _plain(key_data, np.uint8), _plain(key_offsets, np.uint32)
    row = first_unsorted(data, offsets)
    if row != SORTED:
        keys = [data[offsets[r] : offsets[r + 1]].tobytes() for r in (row - 1, row)]
        raise ArtefactError(f"row {row}: key {keys[1]!r} must be greater than the one before, {keys[0]!r}")
    return data, offsets
