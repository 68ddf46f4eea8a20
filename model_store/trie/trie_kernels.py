"""Kernels of the flat trie: check keys, build nodes, walk.

A node is a row of uint32[nodes, 4] (16 bytes; docs/trie.md has the table):

    CHILD  number of its first child; its children are CHILD … CHILD + children - 1, sorted by first byte
    LABEL  where its label begins in the key bytes, or in the labels (see `trie.LabelTrie`)
    SLOT   the first slot in its subtree; its own slot, if a key ends here, because a prefix sorts first
    SHAPE  bits 0–15 label length, 16–24 number of children, 31 set if a key ends here

A position in the trie is (node, used, stop): `used` bytes of the node's label have matched, and the slots below are
SLOT … stop - 1. Node -1 means that no key has the prefix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel

CHILD, LABEL, SLOT, SHAPE = 0, 1, 2, 3
LENGTH_MASK = 0xFFFF
CHILDREN_SHIFT = 16
CHILDREN_MASK = 0x1FF
TERMINAL_SHIFT = 31

SORTED = -1
NODE_BYTES, CACHE_LINE_BYTES = 16, 64
_PREFETCH_BYTES = 4 * CACHE_LINE_BYTES
_LINEAR = 16  # up to this many children, a linear scan of their first bytes is faster than a binary search


@bare_kernel
def first_unsorted(key_data: Any, key_offsets: Any) -> Any:
    """The first row whose key is not greater than the one before it, bytewise; SORTED if there is none."""
    for row in range(1, key_offsets.size - 1):
        before, begin, end = key_offsets[row - 1], key_offsets[row], key_offsets[row + 1]
        if not _is_less(key_data, before, begin, begin, end):
            return row
    return SORTED


@bare_inline
def _is_less(data: Any, a: Any, a_end: Any, b: Any, b_end: Any) -> Any:
    while a < a_end and b < b_end:
        if data[a] != data[b]:
            return bool(data[a] < data[b])
        a += 1
        b += 1
    return a == a_end and b < b_end


@bare_kernel
def build_nodes(key_data: Any, key_offsets: Any, nodes: Any, first_byte: Any, stops: Any, depths: Any) -> Any:
    """Build the nodes of sorted, unique keys in breadth-first order; return their number.

    nodes uint32[m, 4], first_byte uint8[m], stops uint32[m], depths uint16[m], all with m ≥ 2 · keys + 1,
    since each node has two children or ends a key. Invariant: rows before `count` have their slots [SLOT, stop) and the
    depth at which their label begins; rows before `node` are complete.
    """
    nodes[0, SLOT], stops[0], depths[0] = 0, key_offsets.size - 1, 0
    count, node = 1, 0
    while node < count:
        at, stop, depth = np.int64(nodes[node, SLOT]), np.int64(stops[node]), np.int64(depths[node])
        nodes[node, CHILD], nodes[node, LABEL] = count, np.int64(key_offsets[at]) + depth
        length = _common_length(key_data, key_offsets, at, stop - 1, depth) if node > 0 else 0
        depth += length
        terminal = np.int64(at < stop and np.int64(key_offsets[at + 1]) - np.int64(key_offsets[at]) == depth)
        at += terminal
        children = 0
        while at < stop:
            byte = key_data[np.int64(key_offsets[at]) + depth]
            nodes[count, SLOT], depths[count], first_byte[count] = at, depth, byte
            at = _end_of_run(key_data, key_offsets, at, stop, depth, byte)
            stops[count] = at
            count += 1
            children += 1
        nodes[node, SHAPE] = length | children << CHILDREN_SHIFT | terminal << TERMINAL_SHIFT
        node += 1
    return count


@bare_inline
def _common_length(data: Any, offsets: Any, first: Any, last: Any, depth: Any) -> Any:
    """Length of the prefix after `depth` shared by keys `first` and `last`, hence by all between them."""
    a, b = np.int64(offsets[first]) + depth, np.int64(offsets[last]) + depth
    limit = min(np.int64(offsets[first + 1]) - a, np.int64(offsets[last + 1]) - b)
    if first == last:
        return limit
    length = 0
    while length < limit and data[a + length] == data[b + length]:
        length += 1
    return length


@bare_inline
def _end_of_run(data: Any, offsets: Any, at: Any, stop: Any, depth: Any, byte: Any) -> Any:
    """One past the last key in [at, stop) that has `byte` at `depth`, by galloping and binary search."""
    step, inside, outside = 1, at, stop
    while inside + step < stop:
        if data[np.int64(offsets[inside + step]) + depth] != byte:
            outside = inside + step
            break
        inside += step
        step *= 2
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if data[np.int64(offsets[middle]) + depth] == byte:
            inside = middle
        else:
            outside = middle
    return outside


@bare_kernel
def pack_labels(nodes: Any, key_data: Any, labels: Any) -> None:
    """Copy every node's label into `labels` (uint8), one after another, and let LABEL point there."""
    at = 0
    for node in range(nodes.shape[0]):
        label, length = np.int64(nodes[node, LABEL]), np.int64(nodes[node, SHAPE]) & LENGTH_MASK
        for byte in range(length):
            labels[at + byte] = key_data[label + byte]
        nodes[node, LABEL] = at
        at += length


@bare_kernel
def measure_keys(nodes: Any, keys: Any, stops: Any, depths: Any, offsets: Any) -> None:
    """Where each key begins once they are all put together: offsets uint32[keys + 1], 0 at first.

    stops uint32[nodes], depths uint16[nodes]: one past the slots below each node, and where its label begins in these
    keys; both are filled. A node comes after its parent.
    """
    stops[0], depths[0] = keys, 0
    for node in range(nodes.shape[0]):
        shape = np.int64(nodes[node, SHAPE])
        end = np.int64(depths[node]) + (shape & LENGTH_MASK)
        if shape >> TERMINAL_SHIFT:
            offsets[np.int64(nodes[node, SLOT]) + 1] = end
        first, children = np.int64(nodes[node, CHILD]), (shape >> CHILDREN_SHIFT) & CHILDREN_MASK
        for child in range(first, first + children):
            depths[child] = end
            stops[child] = nodes[child + 1, SLOT] if child + 1 < first + children else stops[node]
    for slot in range(keys):
        offsets[slot + 1] += offsets[slot]


@bare_kernel
def write_keys(nodes: Any, labels: Any, stops: Any, depths: Any, offsets: Any, key_data: Any) -> None:
    """Write every key's bytes, label by label; see `measure_keys`. O(their bytes)."""
    for node in range(nodes.shape[0]):
        label, length = np.int64(nodes[node, LABEL]), np.int64(nodes[node, SHAPE]) & LENGTH_MASK
        for slot in range(nodes[node, SLOT], stops[node]):
            at = np.int64(offsets[slot]) + np.int64(depths[node])
            for byte in range(length):
                key_data[at + byte] = labels[label + byte]


@bare_inline
def child_with(first_byte: Any, child: Any, children: Any, byte: Any) -> Any:
    """The child, among `children` starting at `child`, whose label begins with `byte`; -1 if there is none."""
    end = child + children
    while end - child > _LINEAR:
        middle = (child + end) // 2
        if first_byte[middle] <= byte:
            child = middle
        else:
            end = middle
    while child < end:
        if first_byte[child] == byte:
            return child
        child += 1
    return -1


@bare_inline
def _prefetch_nodes(nodes: Any, first: Any, children: Any) -> None:
    """Prefetch the children's rows while their first bytes are read: one memory wait per level instead of two."""
    address = nodes.ctypes.data + first * NODE_BYTES
    end = min(address + children * NODE_BYTES, address + _PREFETCH_BYTES)
    while address < end:
        prefetch(address)
        address += CACHE_LINE_BYTES


@bare_inline
def walk(
    nodes: Any, first_byte: Any, key_data: Any, node: Any, used: Any, stop: Any, text: Any, at: Any, end: Any
) -> Any:
    """Walk text[at:end] from the position (node, used, stop); return the position reached."""
    while True:
        shape, label = np.int64(nodes[node, SHAPE]), np.int64(nodes[node, LABEL])
        length = shape & LENGTH_MASK
        while used < length and at < end:
            if key_data[label + used] != text[at]:
                return -1, 0, 0
            used += 1
            at += 1
        if at == end:
            return node, used, stop
        first, children = np.int64(nodes[node, CHILD]), (shape >> CHILDREN_SHIFT) & CHILDREN_MASK
        _prefetch_nodes(nodes, first, children)
        child = child_with(first_byte, first, children, text[at])
        if child < 0:
            return -1, 0, 0
        if child + 1 < first + children:
            stop = np.int64(nodes[child + 1, SLOT])
        node, used = child, 1
        at += 1


@bare_inline
def slot_at(nodes: Any, node: Any, used: Any) -> Any:
    """The slot of the key that ends exactly at this position; -1 if none does."""
    if node < 0:
        return -1
    shape = np.int64(nodes[node, SHAPE])
    if shape >> TERMINAL_SHIFT == 0 or used != shape & LENGTH_MASK:
        return -1
    return np.int64(nodes[node, SLOT])


@bare_kernel
def position_of(
    nodes: Any, first_byte: Any, key_data: Any, node: Any, used: Any, stop: Any, text: Any
) -> Any:
    """`walk` over the whole of `text` (uint8), for callers in Python."""
    return walk(nodes, first_byte, key_data, node, used, stop, text, 0, text.size)


@bare_kernel
def slot_of(nodes: Any, first_byte: Any, key_data: Any, stop: Any, key: Any) -> Any:
    """The slot of one key (uint8); -1 if there is no such key."""
    node, used, _ = walk(nodes, first_byte, key_data, 0, 0, stop, key, 0, key.size)
    return slot_at(nodes, node, used)


@bare_kernel
def slots_of(
    nodes: Any, first_byte: Any, key_data: Any, stop: Any, data: Any, offsets: Any, out: Any
) -> None:
    """Look up many keys: data uint8, offsets int64[n + 1] into it, out int64[n], -1 where one is absent."""
    for row in range(out.size):
        node, used, _ = walk(nodes, first_byte, key_data, 0, 0, stop, data, offsets[row], offsets[row + 1])
        out[row] = slot_at(nodes, node, used)
