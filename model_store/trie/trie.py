"""FlatTrie: sorted keys as a radix trie in three arrays; it maps a key to its slot, its index among the sorted keys.

The keys themselves are not kept: a key is put together from the labels on the way to its slot, and `keys` writes all
of them. Weights and variants are separate arrays over slots. docs/formats/served_model.md draws one.

Thread safety: immutable; any number of threads may read it. Running times: L is a key's length in
bytes, and choosing among a node's children counts as one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError
from model_store.trie.trie_kernels import (
    CHILDREN_MASK,
    CHILDREN_SHIFT,
    LABEL,
    LENGTH_MASK,
    SHAPE,
    SLOT,
    SORTED,
    TERMINAL_SHIFT,
    build_nodes,
    first_unsorted,
    position_of,
    slot_of,
    slots_of,
    write_keys,
)

# Offsets are uint32 in the nodes, and 2 n + 1 nodes must be numbered by them.
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
    1. labels uint8: the nodes' labels concatenated, in the order of the nodes.
    2. nodes uint32[m, 4], breadth first; the root is node 0, its label empty. Columns: see `trie_kernels`.
    3. A node's children are consecutive, sorted by first_byte uint8[m], and follow those of the node before.
    4. Every node except the root has at least two children or ends a key: m ≤ 2 n + 1.
    5. The slots below a node are consecutive and begin with SLOT; keys are sorted bytewise and unique.
    """

    labels: Array
    nodes: Array
    first_byte: Array

    @classmethod
    def build(cls, key_data: Array, key_offsets: Array, *, trim: bool = True) -> FlatTrie:
        """Build from sorted, unique keys: uint8 data, int[n + 1] offsets into it. O(total key bytes).

        Without `trim` the arrays stay in their build buffers, of which most may be unused; for a trie that is copied
        at once. Raises ArtefactError naming the first row out of order, or the limit exceeded.
        """
        key_data, offsets = _checked(key_data, key_offsets)
        most = 2 * len(offsets) - 1
        # The most that can be needed: pages that are not written take no memory.
        nodes, first_byte = np.empty((most, 4), np.uint32), np.zeros(most, np.uint8)
        labels = np.empty(len(key_data), np.uint8)
        stops, depths = np.empty(most, np.uint32), np.empty(most, np.uint16)
        count, length = build_nodes(key_data, offsets, nodes, first_byte, labels, stops, depths)
        used = labels[:length], nodes[:count], first_byte[:count]
        return cls(*(array.copy() if trim else array for array in used))

    @classmethod
    def of(cls, keys: list[bytes]) -> FlatTrie:
        """Build from a list of sorted, unique keys. O(total key bytes)."""
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=offsets[1:])
        # A bytearray: arrays over bytes are read-only, for which kernels would be compiled again.
        return cls.build(np.frombuffer(bytearray(b"".join(keys)), np.uint8), offsets)

    def __len__(self) -> int:
        """The number of keys. O(1)."""
        return self._count

    @cached_property
    def _count(self) -> int:
        """One more than the last slot, which is that of the last leaf. O(L)."""
        node = 0
        while True:
            child, _, slot, shape = self.nodes[node].tolist()
            children = shape >> CHILDREN_SHIFT & CHILDREN_MASK
            if not children:
                return int(slot + (shape >> TERMINAL_SHIFT))
            node = child + children - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return sum(array.nbytes for array in self.arrays)

    def key(self, slot: int) -> bytes:
        """The key in `slot`. O(L). Raises IndexError unless 0 ≤ slot < n."""
        if not 0 <= slot < len(self):
            raise IndexError(f"slot {slot}: the trie has slots 0 to {len(self) - 1}")
        node, labels = 0, []
        while True:
            child, _, first, shape = self.nodes[node].tolist()
            labels.append(self._label(node))
            if shape >> TERMINAL_SHIFT and first == slot:
                return b"".join(labels)
            below = self.nodes[child : child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK), SLOT]
            node = child + int(np.searchsorted(below, slot, "right")) - 1

    def _label(self, node: int) -> bytes:
        begin = int(self.nodes[node, LABEL])
        return self.labels[begin : begin + (int(self.nodes[node, SHAPE]) & LENGTH_MASK)].tobytes()

    def keys(self, prefix: bytes = b"") -> tuple[Array, Array]:
        """The keys that begin with `prefix`, sorted: uint8 data, int64[k + 1] offsets into it. O(their bytes)."""
        cursor = self.cursor(prefix)
        if cursor is None:
            return np.empty(0, np.uint8), np.zeros(1, np.int64)
        depth, path = len(prefix) - cursor.used, np.empty(MAX_KEY_BYTES, np.uint8)
        path[:depth] = np.frombuffer(prefix, np.uint8, depth)
        offsets, data = np.empty(cursor.stop - cursor.begin + 1, np.int64), np.empty(0, np.uint8)
        waiting = np.empty((MAX_KEY_BYTES + 2, 3), np.int64)
        # Twice: with empty data it only measures, which gives the offsets and the size.
        write_keys(self.nodes, self.labels, cursor.node, depth, path, waiting, data, offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        write_keys(self.nodes, self.labels, cursor.node, depth, path, waiting, data, offsets)
        return data, offsets

    def get(self, key: bytes) -> int:
        """The slot of `key`, or -1. O(L). For many keys use `get_many`."""
        text = np.frombuffer(bytearray(key), np.uint8)
        slot: int = slot_of(self.nodes, self.first_byte, self.labels, len(self), text)
        return slot

    def get_many(self, key_data: Array, key_offsets: Array) -> Array:
        """Slots of k keys in any order: uint8 data, int[k + 1] offsets → int64[k], -1: absent. O(Σ L)."""
        out = np.empty(len(key_offsets) - 1, np.int64)
        data, offsets = plain(key_data, np.uint8), plain(key_offsets, np.int64)
        slots_of(self.nodes, self.first_byte, self.labels, len(self), data, offsets, out)
        return out

    def cursor(self, prefix: bytes, start: Cursor | None = None) -> Cursor | None:
        """The position after `prefix`, from `start` or the root; None if no key has the prefix. O(L)."""
        node, used, _, stop = start or Cursor(0, 0, 0, len(self))
        text = np.frombuffer(bytearray(prefix), np.uint8)
        node, used, stop = position_of(self.nodes, self.first_byte, self.labels, node, used, stop, text)
        # An empty trie has the root, but no key below it.
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
        node, _, stop = position_of(self.nodes, self.first_byte, self.labels, 0, 0, len(self), text)
        return bool(node >= 0 and stop > 0)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """(key, slot) of each key that begins with `prefix`, sorted. O(their bytes)."""
        cursor = self.cursor(prefix)
        if cursor is not None:
            data, offsets = self.keys(prefix)
            text, bounds = data.tobytes(), pairwise(offsets.tolist())
            for slot, (begin, end) in enumerate(bounds, cursor.begin):
                yield text[begin:end], slot

    def statistics(self, prefix: bytes, weights: Array) -> PrefixStatistics:
        """Count and weigh the keys under `prefix`; `weights` has a number a slot. O(L + keys below)."""
        cursor = self.cursor(prefix)
        if cursor is None:
            return PrefixStatistics(0, 0, 0.0, 0.0)
        # float64: the sum of a million float32 would lose digits.
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
        whole = prefix + self._label(cursor.node)[cursor.used :]
        if shape >> TERMINAL_SHIFT:
            yield whole, slot, slot + 1
        children = range(child, child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK))
        begins = [int(self.nodes[each, SLOT]) for each in children]
        for each, begin, stop in zip(children, begins, [*begins, cursor.stop][1:], strict=True):
            yield whole + self._label(each), begin, stop

    @property
    def walked(self) -> tuple[Array, Array, Array]:
        """nodes, first_byte and labels, which kernels walk."""
        return self.nodes, self.first_byte, self.labels

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """labels, nodes and first_byte: the whole trie."""
        return self.labels, self.nodes, self.first_byte

    def _check(self) -> None:
        """Assert every invariant, slowly. O(total key bytes)."""
        assert first_unsorted(*self.keys()) == SORTED
        assert [key for key, _ in self.items()] == [self.key(slot) for slot in range(len(self))]
        assert len(self.nodes) == len(self.first_byte) <= 2 * len(self) + 1
        next_child, ends_seen, next_label = 1, 0, 0
        begins = {0: (0, len(self), 0)}  # node → first slot, stop, depth at which the label begins
        for node, (child, label, slot, shape) in enumerate(self.nodes.tolist()):
            first, stop, depth = begins.pop(node)
            length, ends = shape & LENGTH_MASK, shape >> TERMINAL_SHIFT
            children = range(child, child + (shape >> CHILDREN_SHIFT & CHILDREN_MASK))
            assert (slot, child, label) == (first, next_child, next_label)
            assert node == 0 or len(children) >= 2 or ends
            assert node > 0 or length == 0
            next_child, ends_seen, next_label = children.stop, ends_seen + ends, label + length
            if first < stop:
                inside = self.key(first)[: depth + length]
                assert all(self.key(s).startswith(inside) for s in (first, stop - 1))
                assert inside[depth:] == self._label(node)
                assert (self.key(first) == inside) == bool(ends)
            bounds = [int(self.nodes[c, SLOT]) for c in children] + [stop]
            assert bounds == sorted({first + ends, *bounds})
            bytes_below = [int(self.first_byte[c]) for c in children]
            assert bytes_below == sorted(set(bytes_below))
            for c, byte, begin, end in zip(children, bytes_below, bounds, bounds[1:], strict=False):
                assert self.key(begin)[depth + length] == byte
                begins[c] = (begin, end, depth + length)
        assert (next_child, len(begins), ends_seen) == (len(self.nodes), 0, len(self))
        assert next_label == len(self.labels)


def plain(array: Array, dtype: npt.DTypeLike) -> Array:
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
    data, offsets = plain(key_data, np.uint8), plain(key_offsets, np.uint32)
    row = first_unsorted(data, offsets)
    if row != SORTED:
        keys = [data[offsets[r] : offsets[r + 1]].tobytes() for r in (row - 1, row)]
        raise ArtefactError(f"row {row}: key {keys[1]!r} must be greater than the one before, {keys[0]!r}")
    return data, offsets
