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
from tests.trainer.logs.reading import Everything, read
from trainer.logs.reader import LogReader

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
    """Rows of one to three cells under a header of two, blank lines between, any mix of line ends."""
    end = draw(LINE_END)
    text = "x,y" + end
    for cells in draw(st.lists(st.lists(CELL, min_size=0, max_size=3), max_size=12)):
        always = draw(st.booleans())
        plain = [quoted(cell) if always or set(cell) & set(',"\n\r') else cell for cell in cells]
        text += ",".join(plain) + end
    return text if draw(st.booleans()) else text.removesuffix(end)


@given(text=csv_texts(), batch_bytes=BATCH_BYTES)
def test_csv_reads_like_the_csv_module(
    tmp_path_factory: pytest.TempPathFactory, text: str, batch_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "log.csv"
    path.write_bytes(text.encode())
    assert read(path, ["x", "y"], batch_bytes=batch_bytes) == oracle(text)


@given(body=st.text(st.sampled_from('a",\n\r'), max_size=40), batch_bytes=BATCH_BYTES)
@example(body='"a"b,"c\r"\r\n\n\ra,"b""\n",c\r\r', batch_bytes=1)
def test_stray_quotes_mean_what_they_mean_to_the_csv_module(
    tmp_path_factory: pytest.TempPathFactory, body: str, batch_bytes: int
) -> None:
    text = "x,y\n" + body
    assume(oracle(text + "\nlast,row\n").rows[-1:] == [(b"last", b"row")])
    path = tmp_path_factory.getbasetemp() / "stray.csv"
    path.write_bytes(text.encode())
    assert read(path, ["x", "y"], batch_bytes=batch_bytes) == oracle(text)


@given(body=st.text(st.sampled_from('ab"\t\n\r\0é'), max_size=40), batch_bytes=BATCH_BYTES)
def test_tsv_knows_no_quoting(tmp_path_factory: pytest.TempPathFactory, body: str, batch_bytes: int) -> None:
    text = "x\ty\n" + body
    path = tmp_path_factory.getbasetemp() / "log.tsv"
    path.write_bytes(text.encode())
    assert read(path, ["x", "y"], batch_bytes=batch_bytes) == oracle(text, "\t", quoting=False)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_only_wanted_columns_are_delivered_in_the_order_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"a,b,c\n1,2,3\n")
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("a", "b", "c")
        (batch,) = reader.batches(["c", "a"])
    assert {name: column.to_pylist() for name, column in batch.columns.items()} == {"c": [b"3"], "a": [b"1"]}
    assert list(batch.columns) == ["c", "a"]


def test_header_order_may_differ_between_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", b"a,b\n1,2\n")
    write(tmp_path / "2.csv", b"b,z,a\n4,0,3\n")
    assert read(tmp_path / "*.csv", ["a", "b"]).rows == [(b"1", b"2"), (b"3", b"4")]


def test_bytes_that_are_not_utf8_pass_through(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"a,b\n\xff\xfe,1\n\xff\n")
    got = read(path, ["a"])
    assert got.rows == [(b"\xff\xfe",)]
    assert got.rejects == [(3, "wrong number of columns: got 1, expected 2")]


def test_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b'\xef\xbb\xbf"a",b\r\n1,2\r\n')
    assert read(path, ["a", "b"]).rows == [(b"1", b"2")]


def test_unnamed_column_of_a_data_frame_is_no_column(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b",a\n0,x\n")
    assert LogReader([str(path)]).columns() == ("a",)
    assert read(path, ["a"]).rows == [(b"x",)]


def test_wanted_column_named_twice_is_refused_an_unwanted_one_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"a,b,b\n1,2,3\n")
    assert read(path, ["a"]).rows == [(b"1",)]
    with pytest.raises(InputError, match="names column 'b' more than once"):
        read(path, ["a", "b"])


def test_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", b"a,b\n1,2\n")
    write(tmp_path / "2.csv", b"a,c\n1,2\n")
    with pytest.raises(SpecError, match=r"2\.csv has no column 'b'; it has a, c"):
        read(tmp_path / "*.csv", ["a", "b"])


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match=r"log\.csv is empty"):
        read(write(tmp_path / "log.csv", data), ["a"])


def test_header_without_rows_is_an_empty_log(tmp_path: Path) -> None:
    assert read(write(tmp_path / "log.csv", b"a,b"), ["a"]) == Everything([], [], [])


def test_columns_that_only_have_numbers_for_names_are_accepted(tmp_path: Path) -> None:
    assert read(write(tmp_path / "log.csv", b"0,1,2\n7,8,9\n"), ["2"]).rows == [(b"9",)]


def test_quote_never_closed_costs_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b'a,b\n1,2\n"3,4\n5,6\n7,8\n')
    for batch_bytes in (4, 16, 1024):
        got = read(path, ["a", "b"], batch_bytes=batch_bytes)
        assert got.rows == [(b"1", b"2"), (b"5", b"6"), (b"7", b"8")]
        assert got.lines == [2, 4, 5]
        assert [(line, reason.partition(":")[0]) for line, reason in got.rejects] == [
            (3, "quote never closed")
        ]


def test_row_longer_than_a_block_is_read(tmp_path: Path) -> None:
    long = b"x" * 100_000
    path = write(tmp_path / "log.csv", b"a,b\n1,2\n" + long + b",3\n4,5\n")
    got = read(path, ["a", "b"], batch_bytes=64)
    assert got.rows == [(b"1", b"2"), (long, b"3"), (b"4", b"5")]
    assert got.lines == [2, 3, 4]


def test_row_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.logs.streams.MAX_ROW_BYTES", 1 << 20)
    path = write(tmp_path / "log.csv", b"a,b\n1,2\n" + b"x" * (3 << 20))
    with pytest.raises(InputError, match=r"log\.csv:3: a row longer than 1 MiB begins here"):
        read(path, ["a", "b"], batch_bytes=1 << 18)


def test_lines_stay_right_after_bad_rows_blank_lines_and_quoted_line_ends(tmp_path: Path) -> None:
    text = 'a,b\n1,2\n\n"x\ny",3\nbad\n\n4,5\n1,2,3\n6,7'
    for batch_bytes in (1, 7, 4096):
        got = read(write(tmp_path / "log.csv", text.encode()), ["a"], batch_bytes=batch_bytes)
        assert got.lines == [2, 4, 8, 10]
        assert [line for line, _ in got.rejects] == [6, 9]


def test_lines_are_int64_and_batches_of_nothing_but_rejects_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"a,b\nx\ny\n")
    (batch,) = LogReader([str(path)]).batches(["a"])
    assert batch.lines.dtype == np.int64
    assert (batch.rows, len(batch.rejects), len(batch.columns["a"])) == (0, 2, 0)
