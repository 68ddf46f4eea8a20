"""The places of wanted values as the arrays that the scanning kernel walks by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from trainer.events.scanning.kernels import ITEMS_OR_NULL, OBJECT_OR_NULL, Tree
from trainer.events.scanning.literals.kernels import ESCAPED, FALSE, FRACTION, LIST, STRING, TRUE, WHOLE
from trainer.events.wanted import CONTEXT, FEATURES, ITEMS, RESERVED, USER, Path, Wanted

_IDS = (STRING, ESCAPED, WHOLE)
_SCALARS = (*_IDS, FRACTION, TRUE, FALSE)
_SETS = (*_SCALARS, LIST)
_RESERVED = {"text": _IDS, "whole": (WHOLE,), "number": (WHOLE, FRACTION)}
_MEMBERS: dict[Path, tuple[int, ...]] = {
    ("request_id",): _IDS,
    ("ts",): _SCALARS,
    ("item",): _IDS,
    ("event_id",): _IDS,
    ("event",): _IDS,
    (ITEMS, "id"): _IDS,
}
_WHOLE_BYTES, _ANY_BYTES = 18, 2**31 - 1  # what surely is an int64
_OBJECTS = {
    (ITEMS,): ITEMS_OR_NULL,
    (ITEMS, FEATURES): OBJECT_OR_NULL,
    (CONTEXT,): OBJECT_OR_NULL,
    (USER,): OBJECT_OR_NULL,
}


@dataclass
class _Node:
    """A name: what it holds, where it is an object, and its leaf, where it is wanted."""

    path: Path = ()
    names: dict[str, _Node] = field(default_factory=dict)
    leaf: int = -1

    def at(self, path: Iterable[str]) -> _Node:
        node = self
        for part in path:
            node = node.names.setdefault(part, _Node((*node.path, part)))
        return node


@dataclass(frozen=True)
class Compiled:
    """leaves: the number of each place that is looked at; a kind that one of its readers cannot take is not allowed."""

    tree: Tree
    leaves: dict[Path, int]

    @classmethod
    def of(cls, wanted: Wanted) -> Compiled:
        """For the columns that are wanted, and for all that an event is judged by."""
        allowed = dict[Path, set[int]]()
        for path, kinds in _readers(wanted):
            allowed[path] = allowed.get(path, set(kinds)) & set(kinds)
        root, leaves = _Node(), {path: leaf for leaf, path in enumerate(allowed)}
        for path in _OBJECTS:
            root.at(path)
        for path, leaf in leaves.items():
            root.at(path).leaf = leaf
        bits = [sum(1 << kind for kind in allowed[path]) for path in leaves]
        whole = {path for path, kind in RESERVED.values() if kind == "whole"}
        longest = [_WHOLE_BYTES if path in whole else _ANY_BYTES for path in leaves]
        return cls(_arrays(root, bits, longest, [path[0] == ITEMS for path in leaves]), leaves)


def _readers(wanted: Wanted) -> Iterable[tuple[Path, tuple[int, ...]]]:
    yield from _MEMBERS.items()
    for path, kind in RESERVED.values():
        yield path, _RESERVED[kind]
    for column in wanted.columns:
        for path in column.places:
            yield path, _SETS if column.form == "set" else _SCALARS


def _arrays(root: _Node, bits: list[int], longest: list[int], in_item: list[bool]) -> Tree:
    objects, first, names = [root], [0], list[_Node]()
    under = list[int]()
    for each in objects:  # grows: breadth first
        for node in each.names.values():
            names.append(node)
            is_object = bool(node.names) or node.path in _OBJECTS
            under.append(len(objects) if is_object else -1)
            if is_object:
                objects.append(node)
        first.append(len(names))
    texts = [node.path[-1].encode() for node in names]
    return Tree(
        first=np.array(first, np.int32),
        names=np.frombuffer(b"".join(texts), np.uint8),
        name_at=np.cumsum([0, *map(len, texts)], dtype=np.int32),
        leaf=np.array([node.leaf for node in names], np.int32),
        under=np.array(under, np.int32),
        must=np.array([_OBJECTS.get(node.path, 0) for node in names], np.uint8),
        allowed=np.array(bits, np.uint16),
        longest=np.array(longest, np.int32),
        in_item=np.array(in_item, np.uint8),
    )
