"""Parquet: typed columns, row numbers, and clear words about what cannot be used."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError, SpecError
from tests.trainer.formats.reading import Everything, read
from trainer.formats.reader import LogReader
from trainer.formats.tables import TableReader, table_of

ROWS = 5000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    table = pa.table({"click": [i % 2 for i in range(ROWS)], "site": [f"s{i % 7}" for i in range(ROWS)]})
    return write(tmp_path / "log.parquet", table, row_group_size=1500)


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


EXPECTED = Everything([(f"s{i % 7}", i % 2) for i in range(ROWS)], list(range(1, ROWS + 1)), [])


def test_row_groups_are_read_in_order_with_row_numbers_however_the_file_comes(log: Path, monkeypatch) -> None:
    assert read(log, ["site", "click"], batch_bytes=4096) == EXPECTED
    packed = log.with_name("log.parquet.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert read(packed, ["site", "click"]) == EXPECTED
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert read("-", ["site", "click"]) == EXPECTED
    assert read(log.rename(log.with_name("part-0")), ["site", "click"]) == EXPECTED


def test_progress_ends_at_the_file_size(log: Path) -> None:
    with LogReader([str(log)]) as reader:
        for _ in reader.batches(["click"]):
            assert 0 < reader.bytes_read() <= log.stat().st_size
        assert reader.bytes_read() == reader.total_bytes == log.stat().st_size


@pytest.mark.parametrize(
    ("values", "kind", "plain"),
    [
        ([1, None], pa.int8(), None),
        ([2**64 - 1], pa.uint64(), ["18446744073709551615"]),
        ([0.1], pa.float32(), None),
        ([True, None], pa.bool_(), None),
        (["x", None], pa.large_string(), None),
        (["x", "y", "x"], pa.dictionary(pa.int32(), pa.string()), None),
        ([b"\xff"], pa.binary(), None),
        ([datetime.datetime(2024, 5, 1, 10, 30)], pa.timestamp("ms"), ["2024-05-01 10:30:00.000"]),
        ([datetime.date(2024, 5, 1)], pa.date32(), ["2024-05-01"]),
        ([decimal.Decimal("1.50")], pa.decimal128(5, 2), ["1.50"]),
        ([bytes(15) + b"\x07", None], pa.uuid(), ["00000000-0000-0000-0000-000000000007", None]),
        (['{"a": 1}', None], pa.json_(pa.string()), None),
        ([["a", "b"], [], None], pa.list_(pa.string()), None),
        ([[1], [2, 3]], pa.large_list(pa.int32()), None),
        ([None], pa.null(), None),
    ],
)
def test_every_usable_type_becomes_a_plain_one(tmp_path, values, kind, plain):
    path = write(tmp_path / "log.parquet", pa.table({"x": pa.array(values, kind)}))
    assert [value for (value,) in read(path, ["x"]).rows] == (values if plain is None else plain)


def test_fields_of_structs_are_columns_and_one_of_an_unusable_type_is_none(tmp_path: Path) -> None:
    rows = [{"user": {"age": 30, "city": "x"}, "x": [[1]]}, {"user": None, "x": None}]
    path = write(tmp_path / "log.parquet", pa.Table.from_pylist(rows))
    assert LogReader([str(path)]).columns() == ("user.age", "user.city")
    assert read(path, ["user.age"]).rows == [(30,), (None,)]


def test_a_members_name_may_have_dots_in_parquet_and_json(tmp_path: Path) -> None:
    """As OpenTelemetry's attributes have."""
    rows = [
        {"attrs": {"http.method": verb, "http": {"code": 200}}, "a.b": {"c.d": 1}} for verb in ("GET", None)
    ]
    wanted = ["attrs.http.method", "attrs.http.code", "a.b.c.d"]
    path = write(tmp_path / "log.parquet", pa.Table.from_pylist(rows))
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    (tmp_path / "odd.jsonl").write_text("\n".join([*lines, "{"]))  # an odd line: read line by line
    for each in (path, tmp_path / "log.jsonl", tmp_path / "odd.jsonl"):
        assert LogReader([str(each)]).columns() == tuple(wanted)
        assert read(each, wanted).rows == [("GET", 200, 1), (None, 200, 1)]
    assert TableReader(table_of(pa.Table.from_pylist(rows))).columns() == tuple(wanted)


def test_a_missing_column_and_a_file_cut_off_are_refused(log: Path) -> None:
    with pytest.raises(SpecError, match=r"has no column 'age'; it has click, site"):
        read(log, ["age"])
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"log\.parquet: not a whole Parquet file"):
        read(log, ["click"])


def test_damage_is_reported_after_the_rows_before_it(tmp_path: Path) -> None:
    table, options = pa.table({"x": [f"{i}" * 5 for i in range(4_000)]}), {"row_group_size": 1000}
    path = write(tmp_path / "log.parquet", table, compression="zstd", use_dictionary=False, **options)
    data = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data[offset : offset + 200] = b"\xff" * 200
    path.write_bytes(data)
    rows: list[int] = []
    with pytest.raises(InputError, match=r"log\.parquet: damaged"):
        rows.extend(batch.rows for batch in LogReader([str(path)]).batches(["x"]))
    assert sum(rows) == 2_000
