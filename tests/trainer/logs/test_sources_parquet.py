"""Parquet: typed columns, row numbers, and clear words about what cannot be used."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError, SpecError
from tests.trainer.logs.reading import Everything, read
from trainer.logs.reader import LogReader

ROWS = 5000


def clicks(rows: int = ROWS) -> pa.Table:
    return pa.table({"click": [i % 2 for i in range(rows)], "site": [f"s{i % 7}" for i in range(rows)]})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    pq.write_table(clicks(), path, row_group_size=1500)
    return path


def expected() -> Everything:
    rows = [(f"s{i % 7}", i % 2) for i in range(ROWS)]
    return Everything(rows, list(range(1, ROWS + 1)), [])


def test_row_groups_are_read_in_order_with_row_numbers(log: Path) -> None:
    assert read(log, ["site", "click"], batch_bytes=4096) == expected()


def test_compressed_from_outside(log: Path) -> None:
    packed = log.with_name("log.parquet.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert read(packed, ["site", "click"]) == expected()


def test_known_by_content_without_an_extension(log: Path) -> None:
    assert read(log.rename(log.with_name("part-0")), ["site", "click"]) == expected()


def test_progress_ends_at_the_file_size(log: Path) -> None:
    with LogReader([str(log)]) as reader:
        for _ in reader.batches(["click"]):
            assert 0 < reader.bytes_read() <= log.stat().st_size
        assert reader.bytes_read() == reader.total_bytes == log.stat().st_size


@pytest.mark.parametrize(
    ("values", "kind", "plain"),
    [
        ([1, None], pa.int8(), [1, None]),
        ([2**64 - 1], pa.uint64(), ["18446744073709551615"]),
        ([0.1], pa.float32(), [0.1]),
        ([True, None], pa.bool_(), [True, None]),
        (["x", None], pa.large_string(), ["x", None]),
        (["x", "y", "x"], pa.dictionary(pa.int32(), pa.string()), ["x", "y", "x"]),
        ([b"\xff"], pa.binary(), [b"\xff"]),
        ([datetime.datetime(2024, 5, 1, 10, 30)], pa.timestamp("ms"), ["2024-05-01 10:30:00.000"]),
        ([datetime.date(2024, 5, 1)], pa.date32(), ["2024-05-01"]),
        ([decimal.Decimal("1.50")], pa.decimal128(5, 2), ["1.50"]),
        ([["a", "b"], [], None], pa.list_(pa.string()), [["a", "b"], [], None]),
        ([[1], [2, 3]], pa.large_list(pa.int32()), [[1], [2, 3]]),
        ([None], pa.null(), [None]),
    ],
)
def test_every_usable_type_becomes_a_plain_one(
    tmp_path: Path, values: list[Any], kind: pa.DataType, plain: list[Any]
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"x": pa.array(values, kind)}), path)
    assert [value for (value,) in read(path, ["x"]).rows] == plain


def test_fields_of_structs_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    rows = [{"user": {"age": 30, "city": "x"}}, {"user": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert LogReader([str(path)]).columns() == ("user.age", "user.city")
    assert read(path, ["user.age"]).rows == [(30,), (None,)]


def test_column_of_unusable_type_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"x": pa.array([[[1]]]), "y": [1]}), path)
    assert LogReader([str(path)]).columns() == ("y",)
    assert read(path, ["y"]).rows == [(1,)]


def test_missing_column_lists_those_there_are(log: Path) -> None:
    with pytest.raises(SpecError, match=r"has no column 'age'; it has click, site"):
        read(log, ["age"])


def test_cut_off_file_is_refused(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"log\.parquet: not a whole Parquet file"):
        read(log, ["click"])


def test_damage_is_reported_after_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table({"x": [str(hash(i)) * 5 for i in range(20_000)]})
    pq.write_table(table, path, row_group_size=5000, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data[offset : offset + 200] = b"\xff" * 200
    path.write_bytes(data)
    rows: list[int] = []
    with pytest.raises(InputError, match=r"log\.parquet: damaged"):
        rows.extend(batch.rows for batch in LogReader([str(path)]).batches(["x"]))
    assert sum(rows) == 10_000


def test_parquet_from_standard_input(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert read("-", ["site", "click"]) == expected()
