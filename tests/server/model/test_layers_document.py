"""docs/formats/served_model.md says what the code does: the header of a block, and the arrays of each part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.model.live_model import FEWEST_FRESH, FRESH_SHARE
from server.model.shared_memory import ALIGNMENT, CHECKED_FROM, FORMAT_VERSION, MAGIC, START, SharedBlock
from tests.server.model.models import SHOP, SHOP_WEIGHTS, loaded, parse
from tests.server.slow_ranker import artefact_of

PAGE = (Path(__file__).resolve().parents[3] / "docs/formats/served_model.md").read_text("utf-8")
PAGE = PAGE.partition("\n## Layers and parts\n")[2]


def table(heading: str) -> list[list[str]]:
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_header_is_as_written(tmp_path: Path) -> None:
    rows = [[cell.strip("`") for cell in row] for row in table("| offset | size |")]
    places = {name: (int(offset), int(size)) for offset, size, name, _ in rows}
    assert sum(size for _, size in places.values()) == START.size
    SharedBlock.write({}, {}).save(tmp_path / "block")
    data = (tmp_path / "block").read_bytes()

    def number(name: str) -> int:
        offset, size = places[name]
        return int.from_bytes(data[offset : offset + size], "little")

    assert bytes.fromhex(rows[0][3].split(",")[0].strip("`")) == MAGIC == data[:8]
    assert number("version") == FORMAT_VERSION == int(rows[1][3])
    assert number("start") == START.size == int(rows[2][3].split(",")[0])
    assert f"from offset {CHECKED_FROM}" in rows[3][3]
    assert data[START.size :].startswith(b'{"head":{},"arrays":[]}')
    assert (number("text"), number("bytes")) == (len(b'{"head":{},"arrays":[]}'), len(data))
    assert f"multiple of {ALIGNMENT} bytes" in PAGE


@pytest.mark.parametrize("learner", ["ftrl", "adpredictor"])
def test_the_arrays_are_as_written(learner: str) -> None:
    spec = parse(SHOP, [["age", "brand"]], learner={"algorithm": learner})
    both = (SHOP_WEIGHTS, SHOP_WEIGHTS | {b"age=31": (1.0, 1)})
    before, after = (artefact_of(spec, weights) for weights in both)
    model = loaded(before, [("shoe", {"brand": "nike"})])
    parts = model.apply(2, "", after.changes_since(before, version=1))
    written: dict[str, dict[str, str]] = {"base": {}, "values": {}, "items": {}}
    for part, arrays, kinds, _ in table("| part | array |"):
        names, types = re.findall(r"`(\w+)`", arrays), re.findall(r"`(\w+\[.*?\])`", kinds)
        if part.strip("`") in written:
            typed = types if len(types) == len(names) else [""] * len(names)
            written[part.strip("`")] |= dict(zip(names, typed, strict=True))
    if learner != "adpredictor":
        del written["items"]["unknown"]
    for part, names in written.items():
        block: SharedBlock = getattr(parts, part)
        assert set(block.arrays) == set(names), part
        for name, kind in names.items():
            if kind:
                array = block.arrays[name]
                assert kind.split("[")[0] == array.dtype.name, name
                assert kind.count(",") + 1 == array.ndim, name
    assert parts.fresh is not None
    assert set(parts.fresh.arrays) == set(written["base"]) | set(written["values"])


def test_the_numbers_in_the_text_are_the_codes() -> None:
    assert f"{FRESH_SHARE:.0%} of the base's".replace("%", " %") in PAGE
    assert f"more than {FEWEST_FRESH:,}" in PAGE
