"""A checkpoint's bytes: what was written comes back, what was not is never taken for it; they are as documented."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.errors import CheckpointError
from trainer.checkpoint import Description
from trainer.checkpoint.file import (
    ALIGNMENT,
    END,
    FORMAT_VERSION,
    MAGIC,
    START,
    Damaged,
    read,
    read_description,
    write,
)

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "checkpoint.md").read_text("utf-8")
RECORD = np.dtype([("key", np.uint64), ("small", np.int8), ("z", np.float64)], align=True)


def arrays() -> dict[str, Any]:
    records = np.zeros(5, RECORD)
    records["key"], records["z"] = np.arange(5), np.linspace(-1, 1, 5)
    return {
        "records": records,
        "grid": np.arange(12, dtype=np.float32).reshape(3, 4),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "empty": np.empty((0, 7), np.uint16),
        "one": np.array(2**63, np.uint64),
        "flags": np.array([True, False]),
    }


def written(path: Path) -> bytes:
    with path.open("wb") as file:
        write(file, {"rows": 7}, arrays())
    return path.read_bytes()


def table(heading: str) -> list[list[str]]:
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "c")
    description, found = read(tmp_path / "c")
    assert description == read_description(tmp_path / "c") == {"rows": 7}
    assert list(found) == list(arrays())
    for name, array in arrays().items():
        assert (
            found[name].dtype == array.dtype
            and found[name].dtype.isalignedstruct == array.dtype.isalignedstruct
        )
        assert found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()
        assert found[name].size == 0 or found[name].ctypes.data % ALIGNMENT == 0
        assert not found[name].flags.writeable


def test_no_changed_byte_and_no_shorter_or_longer_file_is_read(tmp_path: Path) -> None:
    data, path = written(tmp_path / "c"), tmp_path / "c"
    changed = [data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :] for at in range(len(data))]
    shorter = [data[:size] for size in range(0, len(data), 5)]
    for damaged in (*changed, *shorter, data[:-1], data + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"is damaged|cut short"):
            read(path)
    with pytest.raises(Damaged, match="No such file"):
        read(tmp_path / "nowhere")


def test_a_sound_file_of_another_format_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    data = written(tmp_path / "c")
    start = START.pack(MAGIC, FORMAT_VERSION + 1)
    length, _, _ = END.unpack(data[-END.size :])
    rest = start + data[-END.size - length : -END.size + 8]
    (tmp_path / "c").write_bytes(start + data[START.size : -40] + hashlib.sha256(rest).digest() + MAGIC)
    with pytest.raises(
        CheckpointError, match=f"format {FORMAT_VERSION + 1}, this ftrie reads format"
    ) as caught:
        read(tmp_path / "c")
    assert not isinstance(caught.value, Damaged)


def test_a_large_array_is_written_without_a_copy(tmp_path: Path) -> None:
    large = np.zeros(16 << 20, np.uint8)
    tracemalloc.start()
    try:
        with (tmp_path / "c").open("wb") as file:
            write(file, {}, {"large": large})
        assert tracemalloc.get_traced_memory()[1] < large.nbytes / 8
    finally:
        tracemalloc.stop()


def test_objects_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError), (tmp_path / "c").open("wb") as file:
        write(file, {}, {"bad": np.array([{}, []], object)})


def test_the_start_and_the_end_are_as_documented(tmp_path: Path) -> None:
    data = written(tmp_path / "c")
    places = {name.strip("`"): (int(at), int(size), says) for at, size, name, says in table("| offset |")}
    assert [(at, size) for at, size, _ in places.values()] == [(0, 8), (8, 4), (12, START.size - 12)]
    assert bytes.fromhex(places["magic"][2].split(",")[0].strip("`")) == MAGIC == data[:8]
    assert int(places["version"][2]) == FORMAT_VERSION == int.from_bytes(data[8:12], "little")
    assert data[12 : START.size] == bytes(START.size - 12)
    ends = {name.strip("`"): (int(back), int(size)) for back, size, name, _ in table("| from the end |")}
    assert sum(size for _, size in ends.values()) == END.size == ends["length"][0]

    def field(name: str) -> bytes:
        back, size = ends[name]
        return data[len(data) - back : len(data) - back + size]

    text = data[-END.size - int.from_bytes(field("length"), "little") : -END.size]
    assert field("sha256") == hashlib.sha256(data[:64] + text + field("length")).digest()
    assert field("magic") == MAGIC


def test_arrays_lie_and_are_hashed_as_documented(tmp_path: Path) -> None:
    data = written(tmp_path / "c")
    length = END.unpack(data[-END.size :])[0]
    entries = json.loads(data[-END.size - length : -END.size])["arrays"]
    assert [set(entry) for entry in entries] == [{"name", "dtype", "shape", "at", "sha256"}] * len(arrays())
    stops = [*(entry["at"] for entry in entries[1:]), len(data) - END.size - length]
    assert entries[0]["at"] == START.size
    for entry, array, stop in zip(entries, arrays().values(), stops, strict=True):
        whole = np.ascontiguousarray(array).tobytes()
        piece = data[entry["at"] : stop]
        assert piece == whole + bytes(-len(whole) % ALIGNMENT)
        assert entry["sha256"] == hashlib.sha256(piece).hexdigest()


def test_the_description_holds_the_documented_keys() -> None:
    cells = [row[0] for row in table("| key | holds |")]
    keys = [name.strip("` ") for cell in cells for name in cell.split(",")]
    assert keys == ["arrays", *(field.name for field in dataclasses.fields(Description))]
