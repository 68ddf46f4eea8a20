"""Tables in memory, of every library, learn as the same rows of a file do, bit for bit."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ftrie
from model_store.errors import InputError, SpecError
from tests.ftrie.api.logs import bare
from trainer.formats.tables import arrow_table, table_of

ROWS = 600
SPEC = ftrie.Spec(
    """
    [model]
    name = "t"
    [input]
    label = "click"
    [fields]
    user = { side = "user" }
    hour = { side = "context" }
    price = { side = "item", kind = "number", bucket = "log" }
    tags = { side = "item", kind = "set" }
    """
)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table(
        {
            "click": random.integers(0, 2, ROWS),
            "user": pa.array(random.choice(["a", "b", "c", None], ROWS).tolist(), pa.string()),
            "hour": pa.array(random.integers(0, 24, ROWS), pa.int8()),
            "price": random.random(ROWS) * 100,
            "tags": pa.array(
                [["x", "y"][:each] for each in random.integers(0, 3, ROWS)], pa.list_(pa.string())
            ),
        }
    )


@pytest.fixture(scope="module")
def expected(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("log") / "rows.parquet"
    pq.write_table(rows, path)
    return learned(path)


def learned(data: Any, spec: ftrie.Spec = SPEC) -> str:
    return ftrie.train(spec, data, progress=False).model.artefact.sha256


def test_numbers_beyond_64_bits_are_text_digit_for_digit() -> None:
    assert arrow_table({"a": [2**70, 3, None]})["a"].to_pylist() == [str(2**70), "3", None]
    assert arrow_table([{"a": 2**70}, {"a": 0.5}])["a"].to_pylist() == [str(2**70), "0.5"]
    with pytest.raises(
        InputError, match="the dict cannot be read as a table: column 'b': .*; give columns of one"
    ):
        arrow_table({"b": [[2**70], [1], []]})


def pieces(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    return (rows.slice(first, size) for first in range(0, rows.num_rows, size))


def test_arrow_tables_and_python_columns_and_rows(rows: pa.Table, expected: str) -> None:
    columns = {name: rows[name].to_pylist() for name in rows.column_names}
    for data in (rows, rows.combine_chunks().to_batches()[0], rows.to_reader(max_chunksize=100), columns):
        assert learned(data) == expected
    assert learned(rows.to_pylist()) == expected
    for size in (1, 7, 64, 65, ROWS - 1, ROWS, ROWS + 1):
        assert learned(pieces(rows, size)) == expected
    spec = SPEC.merge(fields={"price": {"bucket": "quantile:8"}})  # which learns from the first rows
    assert learned(pieces(rows, 70), spec) == learned(rows, spec)
    table = table_of(pieces(rows, 100))
    assert sum(batch.num_rows for batch in table.batches()) == ROWS
    with pytest.raises(InputError, match="has been read already: pass a table, or a new iterator"):
        next(table.batches())


def test_encodings_of_other_libraries(rows: pa.Table, expected: str) -> None:
    other = {
        "click": rows["click"].cast(pa.bool_()),
        "user": rows["user"].dictionary_encode(),
        "hour": rows["hour"].cast(pa.string()).cast(pa.string_view()),
        "price": rows["price"],
        "tags": rows["tags"].cast(pa.large_list(pa.large_string())),
    }
    assert learned(pa.table(other)) == expected
    assert learned({name: OnlyStream(rows[name]) for name in rows.column_names}) == expected
    plain, fewer = rows.drop_columns(["tags"]), SPEC.merge(fields={"tags": None})
    assert learned(OnlyInterchange(plain), fewer) == learned(plain, fewer)
    nothing, user = pa.nulls(len(rows)), rows.column_names.index("user")
    coded = rows.set_column(user, "user", nothing.dictionary_encode())  # a dictionary of nothing
    assert learned(coded) == learned(rows.set_column(user, "user", nothing))

    both = [rows[name].combine_chunks() for name in ("user", "hour")]
    nested = {name: rows[name] for name in ("click", "price", "tags")}
    nested["u"] = pa.StructArray.from_arrays(both, ["user", "hour"])
    spec = SPEC.merge(fields={"user": {"column": "u.user"}, "hour": {"column": "u.hour"}})
    keys = [ftrie.train(*each, progress=False).report.keys for each in ((spec, nested), (SPEC, rows))]
    assert keys[0] == keys[1]


def test_tables_of_other_libraries(rows: pa.Table, expected: str) -> None:
    for library in ("polars", "duckdb"):
        if find_spec(library):
            frame = importlib.import_module(library).from_arrow(rows)
            assert learned(frame) == expected
            assert library == "duckdb" or learned(frame.lazy()) == expected
    pytest.importorskip("pandas")
    frame = rows.to_pandas()
    assert learned(frame) == expected
    assert learned(frame.assign(user=frame["user"].astype("category"))) == expected
    assert learned(frame.astype({"user": object})[::-1][::-1]) == expected
    assert arrow_table(frame[frame["hour"] > 5]).column_names == rows.column_names
    assert "user" in arrow_table(frame.set_index("user")).column_names


class OnlyInterchange:
    """A table that offers nothing but the dataframe interchange protocol."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __dataframe__(self, **options: Any) -> Any:
        return self._rows.__dataframe__(**options)


class OnlyStream:
    """A column that offers nothing but the Arrow C stream."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._column.__arrow_c_stream__(requested_schema)


def test_weighted_sets_sets_times_and_decimals(tmp_path: Path) -> None:
    spec = bare(fields={"w": {"kind": "set"}, "s": {"kind": "set"}, "t": {}, "d": {"kind": "number"}})
    data = {
        "y": [1, 0, 1],
        "w": [{"a": 0.5, "b": 2}, None, {"a": 1}],
        "s": [{"q", "r"}, {"q"}, None],
        "t": [datetime(2026, 1, 2, tzinfo=UTC)] * 3,
        "d": [Decimal("1.5"), Decimal("2"), None],
    }
    rest = ('"y":1,"w":{"a":0.5,"b":2},"s":["q","r"],"d":1.5', '"y":0,"s":["q"],"d":2', '"y":1,"w":{"a":1}')
    log = tmp_path / "log.jsonl"
    log.write_text("".join('{"t":"2026-01-02 00:00:00.000000Z",' + each + "}\n" for each in rest))
    assert learned(data, spec) == learned(log, spec)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_csv_with_the_spellings_of_pandas_is_the_typed_table(tmp_path: Path, quoting: int) -> None:
    fields = {"vip": {"side": "user"}, "age": {}, "ad": {"side": "item"}, "s": {"kind": "set"}}
    spec = bare(fields=fields)
    data: dict[str, list[Any]] = {
        "y": [1, 0, 1, 0] * 3,
        "vip": [True, False, None] * 4,
        "age": [30.0, -0.0, None, 1.5] * 3,
        "ad": ["a", "b"] * 6,
        "s": [["True", "7"], ["30.0"], None] * 4,
    }
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=quoting)
        writer.writerow(data)
        for row in zip(*data.values(), strict=True):
            writer.writerow([",".join(each) if isinstance(each, list) else each for each in row])
    model = ftrie.train(spec, tmp_path / "log.csv", progress=False).model
    assert model.artefact.sha256 == learned(data, spec)
    ranker = model.ranker(items={"a": {"ad": "a"}})
    typed, text = (
        ranker.rank({"vip": vip}, {"age": age}, ["a"]).items[0].ctr
        for vip, age in ((True, 30.0), ("True", "30.0"))
    )
    assert typed == text != ranker.rank({}, {}, ["a"]).items[0].ctr


def test_items_and_users_from_tables_and_files(tmp_path: Path) -> None:
    items, log = {"item": ["i", "j"], "brand": ["x", None]}, {"click": [1, 0, 1], "item": ["i", "j", "k"]}
    (tmp_path / "items.csv").write_text("item,brand\ni,x\nj,\n")
    spec = bare("click", {"brand": {"side": "item", "optional": True}}, item="item")
    from_table = ftrie.train(spec, log, items=items, progress=False)
    from_file = ftrie.train(spec, log, items=tmp_path / "items.csv", progress=False)
    assert from_table.model.artefact.sha256 == from_file.model.artefact.sha256
    assert from_table.report.keys == 2
    with pytest.raises(InputError, match="items: the id 'i' is there twice, in records 1 and 2"):
        ftrie.train(spec, log, items={"item": ["i", "i"]}, progress=False)


def test_what_is_no_table_or_lacks_columns_is_refused_and_a_bad_row_counted(rows: pa.Table) -> None:
    nested = rows.set_column(4, "tags", pa.array([[["x"]]] * ROWS))
    lacks = "table:601: a batch lacks the column 'tags', which the first one has"
    wrong: list[tuple[Any, type[Exception], str]] = [
        (5, InputError, "got int as data; expected the path of a log, or a table"),
        ([], InputError, "no rows and no columns"),
        ([1, 2], InputError, "got int as batch 1"),
        ({"click": [1, "a"]}, InputError, "the dict cannot be read as a table: .*columns of one type"),
        ({"a": [1], "b": [1, 2]}, InputError, "the dict cannot be read as a table"),
        (rows.drop_columns(["user"]), SpecError, "no column 'user' in the log; it has: click, hour"),
        (iter([rows, rows.drop_columns(["tags"])]), InputError, lacks),
        (nested, SpecError, "no column 'tags'"),
    ]
    for data, error, message in wrong:
        with pytest.raises(error, match=message):
            learned(data)
    bad = pa.table({"click": [1, 7, 0], "user": ["a", "b", "c"]})
    run = ftrie.train(bare("click"), bad, progress=False)
    assert (run.report.rows, run.report.rejected) == (2, 1)
    assert str(run.rejected[0]).startswith("table:2: ")
    with pytest.raises(InputError, match="table:2"):
        ftrie.train(bare("click"), bad, strict=True, progress=False)
