"""CSV and TSV without a header, and files whose name tells the wrong separator: detected, said, and read whole."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import InputError, SpecError
from tests.trainer.formats.reading import read, write
from trainer.formats.batch import ReadFile
from trainer.formats.reader import LogReader
from trainer.formats.row_file import Header

TSV = b"1\t23\tphone\tnews\n0\t31\tphone\tmail\n0\t23\tdesk\tnews\n1\t40\tphone\tshop\n"
ROWS = [(b"1", b"news"), (b"0", b"mail"), (b"0", b"news"), (b"1", b"shop")]
NAMES = ("click", "age", "device", "site")
NAMED = Header(NAMES, known=frozenset({"click"}))


def columns_of(path: Path, header: Header | None = None, **options: Any) -> tuple[tuple[str, ...], list[str]]:
    notes: list[str] = []
    with LogReader([str(path)], on_note=notes.append, header=header or Header(), **options) as reader:
        return reader.columns(), notes


def test_a_file_without_a_header_is_read_from_its_first_line_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "log.tsv", TSV)
    columns, (note,) = columns_of(path)
    assert columns == ("c1", "c2", "c3", "c4")
    assert "log.tsv: its first line holds values, not names: '1\\t23\\tphone\\tnews'" in note
    assert "columns c1 to c4, which [input] columns can name" in note
    for batch_bytes in (4, 20, 4096):
        got = read(path, ["c1", "c4"], batch_bytes=batch_bytes)
        assert (got.rows, got.lines) == (ROWS, [1, 2, 3, 4])
    got = read(write(path, b"\xef\xbb\xbf\n" + TSV), ["c1", "c4"], batch_bytes=4)
    assert (got.rows, got.lines) == (ROWS, [2, 3, 4, 5])


def test_a_first_line_of_values_is_no_header(tmp_path: Path) -> None:
    for data in (
        b"0,1,1,x\n1,2,3,y\n",  # most cells are numbers
        b"clicked,phone,u1\nno,phone,u2\nclicked,desk,u3\n",  # two values occur again
        b"0\t17\tphone\t\t\n1\t3\tphone\ta\t\n0\t17\tdesk\t\tb\n",  # numbers count up, but a text occurs again
        b"1.5,a,b,2.5\n1.5,c,d,2.5\n",
    ):
        path = write(tmp_path / ("log.tsv" if b"\t" in data else "log.csv"), data)
        columns, notes = columns_of(path)
        assert (columns[0], len(notes)) == ("c1", 1), data


def test_a_header_is_a_header(tmp_path: Path) -> None:
    for data in (
        b"click,site\n1,a\n0,b\n",
        b"0,1,2\n0,1,2\n2,1,0\n",  # the columns of a data frame without names
        b",click,site\n0,1,a\n1,0,a\n",
        b"item,site,2019,2020\na,m,2019,2020\nb,m,1,2020\n",  # years
        b"user,click,ad,x,y,1,2,3\nu,1,a,b,c,1,2,3\nu,0,a,b,c,3,2,3\n",  # numbered columns of small counts
        b"click,site\n1,a\nclick,site\n0,b\n",  # two files, one after the other
        b"event,site\nevent,a\nview,b\n",  # one name that is a value too
        b"a\n1\n",
        b"a,b\n",
    ):
        first = tuple(name for name in data.partition(b"\n")[0].decode().split(",") if name)
        assert columns_of(write(tmp_path / "log.csv", data)) == (first, []), data


@given(
    names=st.lists(st.text("abcxyz019", min_size=1, max_size=3), min_size=1, max_size=5, unique=True),
    cells=st.lists(st.lists(st.text("abc019", max_size=3), min_size=5, max_size=5), max_size=6),
)
def test_a_first_line_with_the_label_is_a_header_whatever_follows(scratch, names, cells):
    lines = [names, *(row[: len(names)] for row in cells)]
    path = write(scratch / "known.csv", "".join(",".join(line) + "\n" for line in lines))
    assert columns_of(path, Header(known=frozenset({names[-1]}))) == (tuple(names), [])


def test_names_from_the_spec_make_every_line_a_row_but_one_of_those_names(tmp_path: Path) -> None:
    path, header = write(tmp_path / "log.csv", b"yes,40\nno,31\n"), Header(("click", "age"))
    # Without the names this first line would be taken for a header.
    assert read(path, ["click", "age"], header=header).rows == [(b"yes", b"40"), (b"no", b"31")]
    assert columns_of(path, header) == (("click", "age"), [])
    path = write(tmp_path / "log.tsv", b"site\tclick\tage\tdevice\nnews\t1\t23\tphone\n")
    said = f"{path}: its first line names the columns: read as a header"
    assert columns_of(path, NAMED) == (("site", "click", "age", "device"), [said])
    assert read(path, ["click", "site"], header=NAMED).rows == ROWS[:1]
    with pytest.raises(InputError, match="its rows have 4 cells, but there are 2 names .*: click, age"):
        columns_of(write(path, TSV), header)
    got = read(write(path, b"1\t23\n" + TSV), ["click"], header=NAMED)
    assert got.rows == [row[:1] for row in ROWS]
    assert got.rejects == [(1, "wrong number of columns: got 2, expected 4")]


def test_a_header_may_be_denied(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"click,site\n1,a\n")
    assert read(path, ["c1"], header=Header(is_absent=True)).rows == [(b"click",), (b"1",)]
    named = Header(("click", "site"), is_absent=True)
    assert read(path, ["click"], header=named).rows == [(b"click",), (b"1",)]


def test_a_later_file_is_read_like_the_first_unless_the_spec_names_the_columns(tmp_path: Path) -> None:
    write(tmp_path / "part-1.tsv", TSV)
    write(tmp_path / "part-2.tsv", b"maybe\tx\ty\tz\n")  # nothing in it tells
    write(tmp_path / "part-3.tsv.gz", gzip.compress(TSV))
    notes: list[str] = []
    got = read(tmp_path / "part-*", ["c1", "c4"], on_note=notes.append)
    assert got.rows == [*ROWS, (b"maybe", b"z"), *ROWS] and len(notes) == 1
    write(tmp_path / "part-1.tsv", "\t".join(NAMES).encode() + b"\n" + TSV)
    write(tmp_path / "part-2.tsv", TSV)
    assert read(tmp_path / "part-*", ["click", "site"], header=NAMED).rows == ROWS * 3
    with pytest.raises(SpecError, match=r"part-2\.tsv has no column 'click'; it has c1, c2, c3, c4"):
        read(tmp_path / "part-*", ["click"], header=Header(known=frozenset({"click"})))


def test_a_later_run_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    path = write(tmp_path / "log.tsv", TSV)
    with LogReader([str(path)]) as reader:
        first = [cell for batch in reader.batches(["c1"]) for cell in batch.columns["c1"].to_pylist()]
        done: tuple[ReadFile, ...] = reader.bookmarks.until(None)
        names = reader.columns_without_header
    path.write_bytes(TSV + b"0\t9\ttv\tlast\n")
    got = read(path, ["c1", "c4"], read=done, header=Header(names))
    assert first == [row[0] for row in ROWS] and (got.rows, got.lines) == ([(b"0", b"last")], [5])


def test_a_file_whose_name_tells_the_wrong_separator_is_read_by_the_right_one_and_said(tmp_path) -> None:
    path, notes = write(tmp_path / "log.csv", b'click\ttitle\n1\tone, "two"\n'), list[str]()
    assert read(path, ["title"], on_note=notes.append).rows == [(b'one, "two"',)]
    said = f"{path}: its cells are separated by tabs: read as tsv; --format csv reads it as its name says"
    assert notes == [said]
    rejects = read(path, ["click\ttitle"], format="csv").rejects
    assert rejects == [(2, "wrong number of columns: got 2, expected 1")]
    path = write(tmp_path / "log.tsv.gz", gzip.compress(b'click,title\n1,"one, two"\n'))
    assert read(path, ["title"]).rows == [(b"one, two",)]
    path = write(tmp_path / "log.csv", b"1\tNY, US\ta\n0\tParis\ta\n1\tRome, IT, EU\tb\n0\tBonn\tb\n")
    assert [row for (row,) in read(path, ["c3"], header=Header(is_absent=True)).rows] == [
        b"a",
        b"a",
        b"b",
        b"b",
    ]


def test_a_file_that_its_name_fits_is_read_by_its_name(tmp_path: Path) -> None:
    for name, data in (
        ("log.csv", b"click,title\n1,a\tb\n"),
        ("log.csv", b"click\n1\n"),
        ("log.csv", b"click,title\tlong\n1,a\n"),
        ("log.tsv", b"click\ttitle\n1\ta, b, c\n"),
        ("log.tsv", b"click\ttitle, long\n1\ta, b\n"),
    ):
        columns, notes = columns_of(write(tmp_path / name, data))
        assert (columns[0], notes) == ("click", []), data


@pytest.mark.parametrize(
    "title", ["# exported by etl", "sep=,", "Click report,,", "by,,\r\n\r\nClick report"]
)
@pytest.mark.parametrize("end", ["", ","])
def test_titles_before_the_header_and_separators_at_the_end_of_rows(
    tmp_path: Path, title: str, end: str
) -> None:
    path = write(tmp_path / "log.csv", f"{title}\nclick,site,x\n1,a,2{end}\n0,b,3{end}\n")
    notes: list[str] = []
    lines = title.count("\n") + 3
    everything = read(path, ["click", "x"], on_note=notes.append)
    assert (everything.rows, everything.rejects) == ([(b"1", b"2"), (b"0", b"3")], [])
    assert everything.lines == [lines, lines + 1]
    assert "is a title or comment: skipped" in notes[0] and len(notes) == 1
