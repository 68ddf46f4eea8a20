"""Labelled rows in files that grow: the same rows as `ftrie train` reads, from any position, however written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import InputError, SpecError
from trainer.events.events import SourcePosition
from trainer.formats.batch import RowBatch
from trainer.formats.reader import LogReader
from trainer.formats.row_file import Header
from trainer.sources import file_tracker
from trainer.sources.files import RowSource

WANTED = ("click", "age", "tags")
# A row over two lines, a blank line, a row that is too short.
CSV = b'click,age,tags\n1,25,"a\nb"\n0,,x\n\n1,7\n0,9,"say ""hi"""\n1,1,z\n'
TSV = b"click\tage\ttags\n1\t25\ta b\n0\t\tx\n\n1\t7\n0\t9\t\xff\n"
JSONL = (
    b'{"click": 1, "age": 25, "tags": ["a", "b"]}\n{"click": 0}\n\nnot json\n'
    b'{"click": 0, "age": 7.5, "tags": null}\r\n{"click": 1, "age": "old", "tags": ["c"]}\n'
)
LOGS = {"log.csv": CSV, "log.tsv": TSV, "log.jsonl": JSONL}
Told = tuple[list[tuple[Any, ...]], list[tuple[int, str]]]


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tracker, "RESTS", 0.0)


def told(batches: Iterable[RowBatch]) -> Told:
    """Rows with their lines, and rejects. Values as text: their Arrow types depend on where batches end."""
    rows: list[tuple[Any, ...]] = []
    rejects: list[tuple[int, str]] = []
    for batch in batches:
        columns = [map(_text, batch.columns[name].to_pylist()) for name in WANTED]
        rows += zip(batch.lines.tolist(), *columns, strict=True)
        rejects += [(reject.line, reject.reason) for reject in batch.rejects]
    return rows, rejects


def _text(value: Any) -> str:
    try:
        return str(float(value))
    except (TypeError, ValueError):
        return str(value)


def read_at_once(path: Path, **options: Any) -> Told:
    with LogReader([str(path)], **options) as reader:
        return told(reader.batches(WANTED))


class Reading:
    def __init__(self, name: Path, *, position: SourcePosition | None = None, **options: Any) -> None:
        self.notes: list[str] = []
        self.position: SourcePosition = json.loads(json.dumps(position or {}))
        self.source = RowSource(str(name), self.position, self.notes.append, **options)
        self.batches: list[RowBatch] = []

    def all(self) -> Told:
        while (rows := self.source.read(WANTED)) is not None:
            self.batches.append(rows.batch)
            self.position = rows.after
        return told(self.batches)


@pytest.mark.parametrize("name", LOGS)
def test_a_file_gives_the_rows_that_training_reads(name: str, tmp_path: Path) -> None:
    log = tmp_path / name
    log.write_bytes(LOGS[name])
    reading = Reading(log, once=True)
    assert reading.source.columns() == WANTED and reading.all() == read_at_once(log)
    assert reading.source.ended


def grown(log: Path, data: bytes, cuts: Iterable[int], **options: Any) -> tuple[Told, list[str]]:
    """What is read of a file that grows by these cuts, by a new reader each time, as after a kill; what was said."""
    batches, notes, position = list[RowBatch](), list[str](), SourcePosition()
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data), len(data)]
    for number, (start, stop) in enumerate(pairwise(bounds), 2):
        with log.open("ab") as file:
            file.write(data[start:stop])
        reading = Reading(log, position=position, once=number == len(bounds), **options)
        reading.all()
        batches += reading.batches
        notes += reading.notes
        position = reading.position
        reading.source.close()
    return told(batches), notes


@pytest.mark.parametrize("name", LOGS)
@given(cuts=st.lists(st.integers(0, 200), max_size=6))
def test_a_file_that_grows_by_any_steps_gives_the_same_rows_once(name, cuts, tmp_path_factory):
    log = tmp_path_factory.mktemp("rows") / name
    assert grown(log, LOGS[name], cuts)[0] == read_at_once(log)


@pytest.mark.parametrize("name", LOGS)
def test_a_file_rotated_and_compressed_is_read_on_with_its_header(name: str, tmp_path: Path) -> None:
    log, whole, data = tmp_path / name, tmp_path / f"whole{Path(name).suffix}", LOGS[name]
    log.write_bytes(data[:-4])
    first = Reading(log)
    first.all()
    whole.write_bytes(data)
    Path(f"{log}.1.gz").write_bytes(gzip.compress(data))
    log.unlink()
    log.write_bytes(data.replace(b"25", b"26"))
    second = Reading(log, position=first.position, once=True)
    second.all()
    rows, _ = told(first.batches + second.batches)
    assert rows == read_at_once(whole)[0] + read_at_once(log)[0]


def test_a_header_alone_is_no_row_and_two_files_with_one_header_are_two(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"click,age,tags\n")
    (tmp_path / "b.csv").write_bytes(b"click,age,tags\n1,2,x\n")
    reading = Reading(tmp_path)
    assert reading.all()[0] == [(2, "1.0", "2.0", "b'x'")]
    with (tmp_path / "a.csv").open("ab") as file:
        file.write(b"0,3,y\n")
    assert len(reading.all()[0]) == 2


def test_nothing_there_has_no_columns_and_a_last_row_without_a_line_end_waits_for_it(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    reading = Reading(log)
    assert reading.source.columns() is None and reading.all() == ([], [])
    log.write_bytes(b"click,age,tags\n1,2,x\n0,3,y")
    assert reading.source.columns() == WANTED and len(reading.all()[0]) == 1
    assert len(Reading(log, once=True).all()[0]) == 2


def test_a_file_that_lacks_a_column_or_is_of_a_format_that_does_not_grow_is_refused(tmp_path: Path) -> None:
    log, sparse = tmp_path / "log.csv", tmp_path / "log.vw"
    log.write_bytes(b"click,age\n1,2\n")
    with pytest.raises(SpecError, match=r"log\.csv has no column 'tags'; it has click, age"):
        Reading(log).all()
    sparse.write_bytes(b"1 |a b\n-1 |a c\n")
    with pytest.raises(InputError, match="is vw: a trainer reads rows on from CSV, TSV and JSON lines"):
        Reading(sparse).all()


def test_a_file_may_lack_an_optional_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"click,age,tags\n1,2,x\n")
    (tmp_path / "b.csv").write_bytes(b"click,age\n0,3\n")
    rows, _ = Reading(tmp_path, optional=frozenset({"tags"})).all()
    assert [row[-1] for row in rows] == ["b'x'", "None"]


def test_a_column_that_stands_in_the_path_is_read_from_there(tmp_path: Path) -> None:
    for tag, name, data in (
        ("a%20b", "1.csv", b"click,age\n1,2\n"),
        ("c", "2.jsonl", b'{"click": 0, "age": 3}\n'),
    ):
        (tmp_path / f"tags={tag}").mkdir()
        (tmp_path / f"tags={tag}" / name).write_bytes(data)
    reading = Reading(tmp_path / "*" / "*")
    assert reading.source.columns() == WANTED
    assert [row[1:] for row in reading.all()[0]] == [("1.0", "2.0", "b'a b'"), ("0.0", "3.0", "b'c'")]


BARE = b"\xef\xbb\xbf1\t25\ta b\n0\t\tx\n\n1\t7\n0\t9\t\xff\n1\t25\ta b\n"


@given(cuts=st.lists(st.integers(5, 60), max_size=4))
def test_a_file_without_a_header_grows_and_is_read_once(cuts: list[int], tmp_path_factory) -> None:
    """Its name tells the wrong separator too; the columns are those of the spec."""
    log, header = tmp_path_factory.mktemp("bare") / "log.csv", Header(WANTED)
    found, notes = grown(log, BARE, cuts, header=header)
    said = f"{log}: its cells are separated by tabs: read as tsv; --format csv reads it as its name says"
    assert said in notes and found == read_at_once(log, header=header) and len(found[0]) == 4
