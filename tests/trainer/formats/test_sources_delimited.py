"""CSV and TSV: cells, lines and rejects equal those of Python's csv module, wherever the blocks fall."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from model_store.errors import InputError, SpecError
from tests.trainer.formats.reading import Everything, read, write
from trainer.formats.dialect import Dialect
from trainer.formats.reader import LogReader
from trainer.formats.row_file import Header

CELL = st.text(st.sampled_from('ab1,;"\n\r\té\0 '), max_size=6)
LINE_END = st.sampled_from(["\n", "\r\n", "\r"])
BATCH_BYTES = st.integers(1, 64)


def oracle(text: str, delimiter: str = ",", quoting: bool = True) -> Everything:
    """Read `text` as the csv module does: a row begins on the line after those read before it."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
    )
    rows, lines, rejects, before = [], [], [], 0
    for cells in reader:
        line, before = before + 1, reader.line_num
        if not cells:
            continue
        rows.append(tuple(cell.encode() for cell in cells))
        lines.append(line)
    width = len(rows[0])
    for cells, line in zip(rows[1:], lines[1:], strict=True):
        if len(cells) != width:
            rejects.append((line, f"wrong number of columns: got {len(cells)}, expected {width}"))
    good = [(cells, line) for cells, line in zip(rows[1:], lines[1:], strict=True) if len(cells) == width]
    return Everything([cells for cells, _ in good], [line for _, line in good], rejects)


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


@st.composite
def csv_texts(draw: st.DrawFn) -> str:
    """Rows of one to three cells under a header of two, blank lines between, any mix of line ends.

    The first one has two, so that rows of three do not all end with a separator.
    """
    end = draw(LINE_END)
    text = f"x,y{end}1,2{end}"
    for cells in draw(st.lists(st.lists(CELL, min_size=0, max_size=3), max_size=12)):
        always = draw(st.booleans())
        plain = [quoted(cell) if always or set(cell) & set(',"\n\r') else cell for cell in cells]
        text += ",".join(plain) + end
    return text if draw(st.booleans()) else text.removesuffix(end)


@given(text=csv_texts(), batch_bytes=BATCH_BYTES)
def test_csv_reads_like_the_csv_module(scratch: Path, text: str, batch_bytes: int) -> None:
    path = write(scratch / "log.csv", text)
    assert read(path, ["x", "y"], batch_bytes=batch_bytes) == oracle(text)


@given(body=st.text(st.sampled_from('a",\n\r'), max_size=40), batch_bytes=BATCH_BYTES)
@example(body='"a"b,"c\r"\r\n\n\ra,"b""\n",c\r\r', batch_bytes=1)
def test_stray_quotes_mean_what_they_mean_to_the_csv_module(scratch, body, batch_bytes):
    text = "x,y\n1,2\n" + body  # the row tells that rows do not end with a separator
    assume(oracle(text + "\nlast,row\n").rows[-1:] == [(b"last", b"row")])
    path = write(scratch / "stray.csv", text)
    assert read(path, ["x", "y"], batch_bytes=batch_bytes) == oracle(text)


@given(body=st.text(st.sampled_from('ab"\t\n\r\0é'), max_size=40), batch_bytes=BATCH_BYTES)
def test_tsv_without_quoting(scratch: Path, body: str, batch_bytes: int) -> None:
    text = "x\ty\n1\t2\n" + body  # the row tells that rows do not end with a separator
    path, header = write(scratch / "log.tsv", text), Header(dialect=Dialect(separator="\t", quote=""))
    assert read(path, ["x", "y"], batch_bytes=batch_bytes, header=header) == oracle(text, "\t", quoting=False)


def test_only_wanted_columns_are_delivered_in_the_order_asked(tmp_path: Path) -> None:
    with LogReader([str(write(tmp_path / "log.csv", b"a,b,c\n1,2,3\n"))]) as reader:
        assert reader.columns() == ("a", "b", "c")
        (batch,) = reader.batches(["c", "a"])
    assert [(name, column.to_pylist()) for name, column in batch.columns.items()] == [
        ("c", [b"3"]),
        ("a", [b"1"]),
    ]


def test_header_order_may_differ_between_files_and_a_missing_column_is_named(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", b"a,b\n1,2\n")
    write(tmp_path / "2.csv", b"b,z,a\n4,0,3\n")
    assert read(tmp_path / "*.csv", ["a", "b"]).rows == [(b"1", b"2"), (b"3", b"4")]
    with pytest.raises(SpecError, match=r"1\.csv has no column 'z'; it has a, b"):
        read(tmp_path / "*.csv", ["a", "z"])


@pytest.mark.parametrize(
    ("data", "column", "cells"),
    [
        pytest.param(b"a,b\n\xff\xfe,1\n", "a", [b"\xff\xfe"], id="bytes that are no UTF-8"),
        pytest.param(b'\xef\xbb\xbf"a",b\r\n1,2\r\n', "a", [b"1"], id="byte order mark"),
        pytest.param(b",a\n0,x\n", "a", [b"x"], id="unnamed column of a data frame"),
        pytest.param(b"0,1,2\n7,8,9\n", "2", [b"9"], id="numbers for names"),
        pytest.param(b"a,b,b\n1,2,3\n", "a", [b"1"], id="name twice that is not wanted"),
        pytest.param(b"a,b", "a", [], id="header alone"),
    ],
)
def test_a_column_is_found_by_its_name(tmp_path: Path, data: bytes, column: str, cells: list[bytes]) -> None:
    path = write(tmp_path / "log.csv", data)
    assert "" not in LogReader([str(path)]).columns()
    found = read(path, [column])
    assert ([cell for (cell,) in found.rows], found.rejects) == (cells, [])


def test_a_wanted_column_named_twice_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    for data, said in (
        (b"a,b,b\n1,2,3\n", "names column 'b' more than once"),
        *((empty, r"log\.csv is empty") for empty in (b"", b"\n\n", b"\xef\xbb\xbf")),
    ):
        with pytest.raises(InputError, match=said):
            read(write(tmp_path / "log.csv", data), ["a", "b"])
    write(tmp_path / "log.csv", b"a,b,b\n1,2,3\n")
    notes: list[str] = []
    with LogReader([str(tmp_path / "log.csv")], on_note=notes.append) as reader:
        assert (reader.columns(), reader.may_have("b")) == (("a",), True)
    assert notes == [f"{tmp_path}/log.csv: left out, as columns that share a name: b"]


@pytest.mark.parametrize("batch_bytes", [1, 7, 16, 4096])
def test_lines_stay_right_after_bad_rows_blank_lines_and_quotes(tmp_path: Path, batch_bytes: int) -> None:
    path = write(tmp_path / "log.csv", 'a,b\n1,2\n\n"x\ny",3\nbad\n\n4,5\n1,2,3\n6,7')
    got = read(path, ["a"], batch_bytes=batch_bytes)
    assert (got.lines, [line for line, _ in got.rejects]) == ([2, 4, 8, 10], [6, 9])
    path = write(tmp_path / "log.csv", b'a,b\n1,2\n"3,4\n5,6\n7,8\n')  # never closed, which costs one line
    got = read(path, ["a", "b"], batch_bytes=batch_bytes)
    assert (got.rows, got.lines) == ([(b"1", b"2"), (b"5", b"6"), (b"7", b"8")], [2, 4, 5])
    assert [(line, reason.partition(":")[0]) for line, reason in got.rejects] == [(3, "quote never closed")]


def test_row_longer_than_a_block_is_read_and_one_without_end_refused(tmp_path, monkeypatch) -> None:
    long = b"x" * 100_000
    path = write(tmp_path / "log.csv", b"a,b\n1,2\n" + long + b",3\n4,5\n")
    got = read(path, ["a", "b"], batch_bytes=64)
    assert (got.rows, got.lines) == ([(b"1", b"2"), (long, b"3"), (b"4", b"5")], [2, 3, 4])
    monkeypatch.setattr("trainer.formats.streams.MAX_ROW_BYTES", 1 << 20)
    path = write(tmp_path / "log.csv", b"a,b\n1,2\n" + b"x" * (3 << 20))
    with pytest.raises(InputError, match=r"log\.csv:3: a row longer than 1 MiB begins here"):
        read(path, ["a", "b"], batch_bytes=1 << 18)


def test_lines_are_int64_and_batches_of_nothing_but_rejects_are_allowed(tmp_path: Path) -> None:
    (batch,) = LogReader([str(write(tmp_path / "log.csv", b"a,b\nx\ny\n"))]).batches(["a"])
    assert batch.lines.dtype == np.int64
    assert (batch.rows, len(batch.rejects), len(batch.columns["a"])) == (0, 2, 0)


def test_invisible_characters_in_a_header_are_shown_in_messages(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "click\u200b, ad,x\u00a0y,é\n1,a,b,c\n")
    with pytest.raises(SpecError) as caught:
        read(path, ["click"])
    told = r"no column 'click'; it has 'click\u200b', ' ad', 'x\xa0y', é; did you mean 'click\u200b'?"
    assert str(caught.value).endswith(told)
