"""Files of records: every format gives the same records, every fault its line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError, SpecError
from trainer.formats.record_files import ITEM_IDS, USER_IDS, read_ids, read_records

CSV = 'cookie,age,city\nu1,25,"Kyoto, Japan"\n\nu2,,Ōsaka\n'
EXPECTED = [("u1", {"age": "25", "city": "Kyoto, Japan"}), ("u2", {"city": "Ōsaka"})]
JSONL = (
    '{"cookie": "u1", "age": 25, "city": "Kyoto, Japan"}\n\n{"cookie": "u2", "age": null, "city": "Ōsaka"}\n'
)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue().to_pybytes())


def parquet(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())


COLUMNS = {"cookie": ["u1", "u2"], "age": [25, None], "city": ["Kyoto, Japan", "Ōsaka"]}
Written = Callable[[str, str | bytes], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("u.csv", CSV),
        ("u.csv", "\ufeff" + CSV),
        ("u.csv", CSV.replace("\n", "\r\n")),
        ("u.csv", CSV.rstrip("\n")),
        ("u.csv.gz", gzip.compress(CSV.encode())),
        ("u.csv.zst", zstd(CSV.encode())),
        ("u.csv", CSV.replace(", ", "§").replace(",", ";").replace("§", ", ")),
        ("u.tsv", '"cookie"\t"age"\t"city"\n"u1"\t"25"\t"Kyoto, Japan"\n"u2"\t""\t"Ōsaka"\n'),
        ("u.tsv", "cookie\tage\tcity\nu1\t25\tKyoto, Japan\nu2\t\\N\tŌsaka\n"),
        ("u.tsv", "cookie\tage\tcity\nu1\t25\tKyoto, Japan\nu2\t\tŌsaka\n"),
        ("u.jsonl", JSONL),
        ("u.jsonl.gz", gzip.compress(JSONL.encode())),
        ("u.ndjson", JSONL),
        ("u.parquet", parquet(COLUMNS)),
    ],
)
def test_every_format_gives_the_same_records(written: Written, name: str, content: str | bytes) -> None:
    assert list(read_records(written(name, content), USER_IDS)) == EXPECTED


def test_typed_cells_become_the_text_that_keys_are_made_of(written: Written) -> None:
    row = {"id": 7, "n": 3.0, "x": 0.5, "on": True, "none": None}
    row |= {"empty": "", "tags": ["a", 1], "no_tags": []}
    made = {"n": "3", "x": "0.5", "on": "true", "tags": '["a", 1]'}
    assert list(read_records(written("i.jsonl", json.dumps(row)), ITEM_IDS)) == [("7", made)]


def test_the_id_column_is_the_first_usual_one_or_the_one_named(written: Written) -> None:
    path = written("u.csv", "user_id,cookie,name\n1,c,n\n")
    assert list(read_records(path, USER_IDS)) == [("c", {"user_id": "1", "name": "n"})]
    assert list(read_records(path, USER_IDS, "name")) == [("n", {"user_id": "1", "cookie": "c"})]
    path = written("i.csv", ",item_id,brand\n0,7,acme\n1,8,bolt\n")  # a column without a name is left out
    assert list(read_records(path, ITEM_IDS)) == [("7", {"brand": "acme"}), ("8", {"brand": "bolt"})]
    assert list(read_ids(written("ids.txt", "b\r\n\n a \nä"))) == ["b", "a", "ä"]


def test_a_file_without_an_id_column_lists_those_it_has(written: Written) -> None:
    path = written("u.csv", "age,city\n1,2\n")
    with pytest.raises(SpecError, match="no column cookie or user or user_id .* it has: age, city"):
        read_records(path, USER_IDS)
    with pytest.raises(SpecError, match="no column uid for the id"):
        read_records(path, USER_IDS, "uid")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("u.csv", "cookie,age\nu1\n", r"u\.csv:2: wrong number of columns: got 1, expected 2"),
        ("u.csv", "cookie,age\nu1,1\n,2\n", r"u\.csv:3: the id column 'cookie' is empty"),
        ("u.csv", b"cookie,age\nu1,\xff\n", r"u\.csv:\d: the text is not UTF-8"),
        ("u.csv", "", "u.csv is empty; expected rows"),
        ("u.csv", 'cookie,age\nu1,"open\n', r"u\.csv:2: quote never closed"),
        ("u.csv.gz", gzip.compress(CSV.encode())[:-12], r"u\.csv\.gz: damaged or cut short"),
        ("u.csv.gz", "not gzip", r"u\.csv\.gz"),
        ("u.jsonl", '{"cookie": "a"}\n{"cookie": \n', r"u\.jsonl:2: not valid JSON"),
        ("u.jsonl", "[1]\n", r"u\.jsonl:1: expected a JSON object, got \[1\]"),
        ("u.jsonl", "", "got an empty file"),
        ("u.jsonl", '{"cookie": "a", "x": {"y": "z"}}\n', r"u\.jsonl:1: got 'z' for 'y', expected a number"),
        ("u.jsonl", '{"cookie": "a", "x": NaN}\n', r"u\.jsonl:1: got nan, expected a finite number"),
        ("u.parquet", "no parquet", "as Parquet"),
        ("u.parquet.gz", "x", "Parquet compresses inside"),
        ("u.xlsx", "x", r"expected a name that ends in \.csv, \.tsv, \.jsonl"),
    ],
)
def test_a_fault_is_named_with_its_line(written: Written, name: str, content: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        list(read_records(written(name, content), USER_IDS))


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    for name in ("u.csv", "u.jsonl", "u.parquet", "u.csv.gz"):
        with pytest.raises(InputError, match=r"cannot read .*No such file|there is no such file"):
            list(read_records(tmp_path / name, USER_IDS))
    with pytest.raises(InputError, match="cannot read"):
        list(read_ids(tmp_path / "ids.txt"))


def test_weighted_sets_become_json_objects(written: Written) -> None:
    likes = [("red", 0.5), ("blue", 1.0), ("red", 0.25)]
    columns = {"cookie": ["u1", "u2"], "likes": pa.array([likes, []], pa.map_(pa.string(), pa.float64()))}
    lines = '{"cookie": "u1", "likes": {"red": 0.75, "blue": 1}}\n{"cookie": "u2", "likes": {}}\n'
    for path in (written("u.parquet", parquet(columns)), written("u.jsonl", lines)):
        (one, record), (_, other) = read_records(path, USER_IDS)
        assert (one, json.loads(record["likes"]), other) == ("u1", {"red": 0.75, "blue": 1.0}, {})
