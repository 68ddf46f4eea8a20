"""Readers that share a log in turns: together they read every block once, as one reader alone would cut them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import InputError
from tests.trainer.formats.reading import write
from tests.trainer.formats.test_sources_delimited import BATCH_BYTES, csv_texts
from trainer.formats.reader import LogReader
from trainer.formats.streams import Share

READERS = st.integers(2, 4)


def blocks(files: list[Path], wanted: list[str], **options: Any) -> list[object]:
    """The content of every batch: its rows, their lines, its rejects, and where it ends."""
    found: list[object] = []
    with LogReader([str(file) for file in files], **options) as reader:
        for batch in reader.batches(wanted):
            columns = [column.to_pylist() for column in batch.columns.values()]
            found.append((columns, batch.lines.tolist(), batch.rejects, batch.stop.number, batch.stop.line))
    return found


def assert_shared(files: list[Path], wanted: list[str], readers: int, **options: Any) -> int:
    whole = blocks(files, wanted, **options)
    for number in range(readers):
        assert blocks(files, wanted, share=Share(number, readers), **options) == whole[number::readers]
    return len(whole)


STRAY = st.text(st.sampled_from('ab",\n\r\0é'), max_size=60).map("x,y\n".__add__)


@given(text=csv_texts() | STRAY, batch_bytes=BATCH_BYTES, readers=READERS)
@example(text='x,y\na,b\n"a,b\nc,d\n', batch_bytes=64, readers=2)
@example(text='x,y\n"a"b,"c\r"\r\n\n\ra,"b""\n",c\r\r', batch_bytes=1, readers=2)
def test_csv_is_cut_alike_by_those_who_parse_a_block_and_those_who_skip_it(
    scratch: Path, text: str, batch_bytes: int, readers: int
) -> None:
    assert_shared([write(scratch / "shared.csv", text)], ["x", "y"], readers, batch_bytes=batch_bytes)


LINES = {
    "log.jsonl": ['{"x": 1, "y": 2}', '{"x": [1, 2]}', "{", "", '{"y": null}', '{"x": "n", "y": "é"} '],
    "log.vw": ["1 |x a:2 b |y c", "0 |x", "", "7 |x a", "1 2.5 |y d e"],
    "log.libsvm": ["1 1:2 3:4", "0", "0 x", "", "-1 5:1.5 # last"],
}


@pytest.mark.parametrize("name", LINES)
@given(data=st.data(), batch_bytes=BATCH_BYTES, readers=READERS)
def test_lines_of_the_other_formats_are_cut_alike(scratch, name, data, batch_bytes, readers):
    lines = [LINES[name][0], *data.draw(st.lists(st.sampled_from(LINES[name]), max_size=30))]
    path = write(scratch / name, "\n".join(lines) + data.draw(st.sampled_from(["", "\n"])))
    wanted = ["features"] if name == "log.libsvm" else ["x", "y"]
    assert_shared([path], wanted, readers, batch_bytes=batch_bytes)


def test_several_compressed_files_are_counted_on_and_damage_is_met_by_every_reader(tmp_path: Path) -> None:
    files = []
    for number in range(3):
        rows = "".join(f"{number},{row}\n" for row in range(50 * (number + 1)))
        files.append(write(tmp_path / f"{number}.csv.gz", gzip.compress(("x,y\n" + rows).encode())))
    assert assert_shared(files, ["x", "y"], 4, batch_bytes=200) > 6
    rows = "".join(f"{row},{row * row}\n" for row in range(5_000))
    path = write(tmp_path / "log.csv.gz", gzip.compress(("x,y\n" + rows).encode())[:-2_000])
    for number in range(2):
        with pytest.raises(InputError, match="damaged or cut short"):
            blocks([path], ["x"], share=Share(number, 2), batch_bytes=1000)


@pytest.mark.parametrize(("rows_in_group", "blocks_of_two"), [(500, 20), (10_000, 10)])
def test_parquet_is_shared_by_row_groups_or_by_batches_where_there_are_few(
    tmp_path: Path, rows_in_group: int, blocks_of_two: int
) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table({"x": [str(i) for i in range(10_000)]})
    pq.write_table(table, path, row_group_size=rows_in_group)
    assert assert_shared([path], ["x"], 2, batch_bytes=1) == blocks_of_two
