"""The cache of a log's rows: the same rows as the log's, and never others, whatever happened to the file."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from model_store.errors import InputError
from tests.trainer.formats.reading import Everything, read_all
from trainer.formats.batch import ReadFile
from trainer.formats.stored_rows import CachedLog

LOGS = {
    "a.csv": 'y,a,b\n1,x,"q,q"\n0,,z\n1,x\n' + "".join(f"{i % 2},v{i % 7},{i}\n" for i in range(300)),
    "b.tsv": "y\ta\tb\n" + "".join(f"{i % 2}\tv{i % 7}\tü{i}\n" for i in range(300)),
    "c.jsonl": "".join(f'{{"y": 1, "a": "v{i % 7}", "b": {i if i % 3 else "null"}}}\n' for i in range(300))
    + '{"y": 1,\n{"y": 0, "a": ["s", "t"], "b": 1.5}\n',
    "d.vw": "".join(f"{1 if i % 2 else -1} 't{i} |a x{i % 5}:0.5 y |b z\n" for i in range(300)),
}
WANTED = {"d.vw": ["label", "tag", "a", "b"]}


def read(
    path: Path, cache: Path, notes: list[str], piece_rows: int = 100
) -> tuple[Everything, tuple[ReadFile, ...]]:
    """All that a log says, and where its reading ended."""
    wanted = WANTED.get(path.name, ["y", "a", "b"])
    options: dict[str, Any] = {"batch_bytes": 700, "on_note": notes.append}
    with CachedLog([str(path), str(path)], cache, piece_rows, {}, **options) as reader:
        return read_all(reader, wanted), reader.bookmarks.until(None)


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(LOGS[name], encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "piece_rows"), [*((name, 40) for name in LOGS), ("a.csv", 1), ("d.vw", 16_384)]
)
def test_the_cache_has_what_the_log_has(tmp_path: Path, name: str, piece_rows: int) -> None:
    log, notes = written(tmp_path, name), list[str]()
    expected = read(log, tmp_path / "cache", notes, piece_rows)
    assert len(expected[0].rows) >= 600 and "kept in" in notes[0]
    notes.clear()
    assert read(log, tmp_path / "cache", notes, piece_rows) == expected
    assert [note for note in notes if "kept in" in note] == []


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    log, cache, draw = written(tmp_path, "a.csv"), tmp_path / "cache", Random(7)
    expected = read(log, cache, [])
    data, found = cache.read_bytes(), set()
    cuts = [data[:end] for end in (0, 1, 11, 12, len(data) - 1, *draw.sample(range(len(data)), 6))]
    flips = [
        data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        for at in (0, 9, len(data) - 1, len(data) - 9, *draw.sample(range(len(data)), 30))
    ]
    for damaged in (*cuts, *flips, data + b"x", bytes(len(data))):
        cache.write_bytes(damaged)
        notes: list[str] = []
        try:
            assert read(log, cache, notes) == expected
        except InputError as error:
            found.add(str(error).partition("; ")[2])
            continue
        assert "kept in" in notes[0]  # it was made again
        found.add("made again")
    remedies = {"delete the file, and the log is read again", "delete the file, or name another one"}
    assert found == {*remedies, "made again"}
