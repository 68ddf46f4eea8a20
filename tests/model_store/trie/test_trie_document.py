"""docs/formats/served_model.md says what the code does: the drawn trie and the rows of nodes."""

from __future__ import annotations

from pathlib import Path

from model_store.trie.trie import Cursor, FlatTrie
from model_store.trie.trie_kernels import (
    CHILD,
    CHILDREN_MASK,
    CHILDREN_SHIFT,
    LABEL,
    LENGTH_MASK,
    SHAPE,
    SLOT,
    TERMINAL_SHIFT,
)

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "served_model.md").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells, without backticks, of the table whose text begins with `heading`."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def drawn_keys() -> list[bytes]:
    lines = PAGE[PAGE.index("slot  key") :].splitlines()[1:6]
    return [line.split()[1].encode() for line in lines]


def test_the_drawn_trie_is_the_one_that_is_built() -> None:
    trie = FlatTrie.of(drawn_keys())
    expected = []
    for node, (child, label, slot, shape) in enumerate(trie.nodes.tolist()):
        length = shape & LENGTH_MASK
        text = trie.labels[label : label + length].tobytes().decode()
        below, terminal = shape >> CHILDREN_SHIFT & CHILDREN_MASK, shape >> TERMINAL_SHIFT
        numbers = map(str, (node, child, label, slot, length, below, terminal))
        expected.append([*numbers, text[:1], text])
    assert table("| node | `CHILD`") == expected
    assert trie.cursor(b"age*brand=25*") == Cursor(node=3, used=10, begin=0, stop=2)


def test_the_rows_of_nodes_are_as_written() -> None:
    rows = table("| offset | size | field | meaning |\n|---|---|---|---|\n| 0 | 4 |")
    columns = {"CHILD": CHILD, "LABEL": LABEL, "SLOT": SLOT, "SHAPE": SHAPE}
    assert [(int(offset), int(size), columns[name]) for offset, size, name, _ in rows] == [
        (4 * column, 4, column) for column in range(4)
    ]
