"""Kernels of the flat trie: check keys, build nodes, walk.

A node is a row of uint32[nodes, 4] (16 bytes; docs/formats/served_model.md has the table):

    CHILD  number of its first child; its children are CHILD … CHILD + children - 1, sorted by first byte
    LABEL  where its label begins in `labels`
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
def build_nodes(
    key_data: Any, key_offsets: Any, nodes: Any, first_byte: Any, labels: Any, stops: Any, depths: Any
) -> Any:
    """Build the nodes of sorted, unique keys in breadth-first order; return their number, and that of label bytes.

    nodes uint32[m, 4], first_byte uint8[m], stops uint32[m], depths uint16[m], all with m ≥ 2 · keys + 1,
    since each node has two children or ends a key; labels uint8[key bytes], as each label is part of one key alone.
    Invariant: rows before `count` have their slots [SLOT, stop) and the depth at which their label begins; rows before
    `node` are complete, and their labels have `used` bytes.
    """
    nodes[0, SLOT], stops[0], depths[0] = 0, key_offsets.size - 1, 0
    count, node, used = 1, 0, 0
    while node < count:
        at, stop, depth = np.int64(nodes[node, SLOT]), np.int64(stops[node]), np.int64(depths[node])
        nodes[node, CHILD], nodes[node, LABEL] = count, used
        length = _common_length(key_data, key_offsets, at, stop - 1, depth) if node > 0 else 0
        label = np.int64(key_offsets[at]) + depth
        for byte in range(length):
            labels[used + byte] = key_data[label + byte]
        used += length
        depth += length
        terminal = np.int64(at < stop and np.int64(key_offsets[at + 1]) - np.int64(key_offsets[at]) == depth)
        at += terminal
        children = 0
        while at < stop:
            first = key_data[np.int64(key_offsets[at]) + depth]
            nodes[count, SLOT], depths[count], first_byte[count] = at, depth, first
            at = _end_of_run(key_data, key_offsets, at, stop, depth, first)
            stops[count] = at
            count += 1
            children += 1
        nodes[node, SHAPE] = length | children << CHILDREN_SHIFT | terminal << TERMINAL_SHIFT
        node += 1
    return count, used


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
def write_keys(
    nodes: Any, labels: Any, node: Any, depth: Any, path: Any, waiting: Any, key_data: Any, offsets: Any
) -> None:
    """Write the keys below a node in their order: offsets int64[k + 1] and, unless it is empty, key_data uint8.

    path uint8[MAX_KEY_BYTES] begins with the `depth` bytes before the node's label. waiting int64[MAX_KEY_BYTES + 2, 3]
    is scratch, a row a level of the trie: its next node, one past its last one, and the depth at which labels begin.
    O(nodes below), and the bytes written.
    """
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = node, node + 1, depth
    level, row = 0, 0
    offsets[0] = 0
    while level >= 0:
        node, depth = waiting[level, 0], waiting[level, 2]
        if node == waiting[level, 1]:
            level -= 1
            continue
        waiting[level, 0] = node + 1
        label, shape = np.int64(nodes[node, LABEL]), np.int64(nodes[node, SHAPE])
        length = shape & LENGTH_MASK
        if key_data.size > 0:
            for byte in range(length):
                path[depth + byte] = labels[label + byte]
        depth += length
        if shape >> TERMINAL_SHIFT:
            to = offsets[row]
            if key_data.size > 0:
                for byte in range(depth):
                    key_data[to + byte] = path[byte]
            row += 1
            offsets[row] = to + depth
        children = (shape >> CHILDREN_SHIFT) & CHILDREN_MASK
        if children > 0:
            level += 1
            first = np.int64(nodes[node, CHILD])
            waiting[level, 0], waiting[level, 1], waiting[level, 2] = first, first + children, depth


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
    nodes: Any, first_byte: Any, labels: Any, node: Any, used: Any, stop: Any, text: Any, at: Any, end: Any
) -> Any:
    """Walk text[at:end] from the position (node, used, stop); return the position reached."""
    while True:
        shape, label = np.int64(nodes[node, SHAPE]), np.int64(nodes[node, LABEL])
        length = shape & LENGTH_MASK
        while used < length and at < end:
            if labels[label + used] != text[at]:
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
def position_of(nodes: Any, first_byte: Any, labels: Any, node: Any, used: Any, stop: Any, text: Any) -> Any:
    """`walk` over the whole of `text` (uint8), for callers in Python."""
    return walk(nodes, first_byte, labels, node, used, stop, text, 0, text.size)


@bare_kernel
def slot_of(nodes: Any, first_byte: Any, labels: Any, stop: Any, key: Any) -> Any:
    """The slot of one key (uint8); -1 if there is no such key."""
    node, used, _ = walk(nodes, first_byte, labels, 0, 0, stop, key, 0, key.size)
    return slot_at(nodes, node, used)


@bare_kernel
def slots_of(nodes: Any, first_byte: Any, labels: Any, stop: Any, data: Any, offsets: Any, out: Any) -> None:
    """Look up many keys: data uint8, offsets int64[n + 1] into it, out int64[n], -1 where one is absent."""
    for row in range(out.size):
        node, used, _ = walk(nodes, first_byte, labels, 0, 0, stop, data, offsets[row], offsets[row + 1])
        out[row] = slot_at(nodes, node, used)
