"""Inputs, compression, formats, damage, progress and memory: what holds whatever the format."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError, SpecError
from tests.trainer.formats.reading import read, write, zstd
from trainer.formats.reader import LogReader, expand

ROOT = Path(__file__).resolve().parents[3]


ROWS = 5000
CSV = b"click,site\n" + b"".join(b"%d,s%d\n" % (i % 2, i) for i in range(ROWS))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
@pytest.mark.parametrize(
    ("data", "value"), [(b"a,b\n1,2\n", b"1"), (b"a\tb\n1\t2\n", b"1"), (b' {"a":"1"}\n', "1")]
)
def test_standard_input_of_any_format(monkeypatch, pack, data, value):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pack(data))))
    with LogReader(["-"]) as reader:
        assert reader.columns()[0] == "a"
        (batch,) = reader.batches(["a"])
    assert (batch.columns["a"].to_pylist(), batch.file) == ([value], "-")
    assert (reader.total_bytes, reader.bytes_read()) == (None, len(pack(data)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("log.csv", CSV),
        ("log.csv.gz", gzip.compress(CSV[:7001]) + gzip.compress(CSV[7001:]) + bytes(512)),
        ("log.CSV.ZST", zstd(CSV)),
        ("log.csv.zst", zstd(CSV[:7001]) + zstd(CSV[7001:])),
        ("log.csv", gzip.compress(CSV)),
        ("log", zstd(CSV)),
        ("log.txt", CSV),
    ],
)
def test_compression_and_format_are_told_apart(tmp_path: Path, name: str, data: bytes) -> None:
    everything = read(write(tmp_path / name, data), ["site"], batch_bytes=10_000)
    assert everything.rows == [(b"s%d" % i,) for i in range(ROWS)]
    assert everything.lines == list(range(2, ROWS + 2))


@pytest.mark.slow
def test_standard_input_from_a_real_pipe() -> None:
    script = "from tests.trainer.formats.reading import read; got = read('-', ['site']); print(got.lines[-1])"
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, input=CSV, cwd=ROOT, capture_output=True, check=True)
    assert answer.stdout.split() == [b"5001"]


def test_named_format_overrides_the_name(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", b"a\tb\n1,5\t2\n")
    assert read(path, ["a"], format="tsv").rows == [(b"1,5",)]
    with pytest.raises(
        InputError, match="format 'xml' is not known; expected one of csv, tsv, jsonl, parquet"
    ):
        read(path, ["a"], format="xml")


def test_files_are_read_in_the_order_named_and_globs_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "c", "log[1]"):
        write(tmp_path / f"{name}.csv", f"x\n{name}\n")
    # One whose name looks like a glob is that file.
    reader = LogReader([str(tmp_path / name) for name in ("c.csv", "[ab].csv", "log[1].csv")])
    files = [(Path(batch.file).stem, batch.lines.tolist()) for batch in reader.batches(["x"])]
    assert files == [("c", [2]), ("a", [2]), ("b", [2]), ("log[1]", [2])]


def test_a_glob_reads_each_file_once_by_its_own_path(tmp_path: Path, monkeypatch) -> None:
    for name in ("top.csv", "sub/b.csv", "sub/deep/c.csv", "sub/.hidden/d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x\n1\n")
    for link, target in (("a.csv", "top.csv"), ("sub/up", ".."), ("sub/deep/up", "../.."), ("e", "sub/deep")):
        (tmp_path / link).symlink_to(target)
    os.link(tmp_path / "top.csv", tmp_path / "z.csv")
    monkeypatch.chdir(tmp_path)
    for pattern, files in (
        ("*.csv", ["top.csv"]),
        ("**/*.csv", ["sub/b.csv", "sub/deep/c.csv", "top.csv"]),
        ("sub/**", ["sub/b.csv", "sub/deep/c.csv", "sub/deep/up/a.csv"]),  # the last by links alone
        ("e/**/[bc].csv", ["e/c.csv", "e/up/sub/b.csv"]),
        (f"{tmp_path}/**/deep/**/c.csv", [f"{tmp_path}/sub/deep/c.csv"]),
    ):
        assert list(expand([pattern])) == files, pattern
    assert expand(["top.csv", "a.csv"]) == ("top.csv", "a.csv")  # as named, so as often


def test_inputs_that_are_not_there_are_refused_before_reading() -> None:
    for inputs, message in (
        ([], "no input: expected one or more files"),
        (["nowhere.csv"], "nowhere.csv: there is no such file"),
        (["*.nothing"], r"\*.nothing matches no file"),
        (["."], r"\. is a folder; name its files"),
        (["-", "-"], "can be read only once"),
    ):
        with pytest.raises(InputError, match=message):
            LogReader(inputs)


def tar_of(data: bytes) -> bytes:
    room, member = io.BytesIO(), tarfile.TarInfo("log.csv")
    member.size = len(data)
    with tarfile.open(fileobj=room, mode="w") as archive:
        archive.addfile(member, io.BytesIO(data))
    return room.getvalue()


def arrow_file(new: Callable[..., Any]) -> bytes:
    table, sink = pa.table({"x": [1]}), pa.BufferOutputStream()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def test_parquet_and_json_lines_named_csv_are_read_as_such(tmp_path: Path) -> None:
    notes: list[str] = []
    pq.write_table(pa.table({"x": ["1"]}), tmp_path / "a.csv")
    write(tmp_path / "b.tsv", '{"x":"1","y":2}\n')
    for name, said in (("a.csv", "it is Parquet: read as parquet"), ("b.tsv", "its lines are JSON objects")):
        assert read(tmp_path / name, ["x"], on_note=notes.append).rows == [("1",)]
        assert said in notes.pop()


def test_files_that_are_no_log_are_refused(tmp_path: Path) -> None:
    for name, data, message in (
        ("log.csv.gz", CSV, "is not gzip, as its name says"),
        ("log.zip", b"PK\x03\x04....", "is a zip archive; expected CSV"),
        ("log", b"word\n", "cannot tell its format"),
        ("log.tsv", b"", "is empty"),
        ("log.jsonl.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("log.tar.gz", gzip.compress(tar_of(CSV)), r"is a tar archive; .*: unpack it first"),
        ("log.tar", tar_of(CSV), "is a tar archive"),
        ("log.feather", arrow_file(pa.ipc.new_file), "is Arrow or Feather; .*: write it as Parquet, or pass"),
        ("log.csv", arrow_file(pa.ipc.new_stream), "is Arrow or Feather"),
        ("log.pkl", pickle.dumps({"x": 1}), "is a pickle"),
        ("log.db", b"SQLite format 3\0", "is an SQLite database"),
        ("log.orc", b"ORC\x0a\x00", "is ORC"),
        ("log.csv.lz4", bytes(pa.Codec("lz4").compress(CSV, asbytes=True)), "is lz4"),
        ("log.csv.bz2", bz2.compress(CSV), "is bzip2"),
        ("log.csv", b"<!DOCTYPE html>\n<html>", "is a page of HTML or XML"),
        (
            "log.csv",
            CSV.decode().encode("utf-16"),
            "is UTF-16 text; .*: convert it: iconv -f UTF-16 -t UTF-8",
        ),
        ("log.csv", CSV.decode().encode("utf-16-le"), "is UTF-16 text"),
        ("log.json", b'[\n\t{"x":1},\n\t{"x":2}\n]\n', r"is a JSON array; .* as jq -c '\.\[\]' writes"),
        ("log", b'[{"x":1},{"x":2}]', "is a JSON array"),
        ("log.jsonl", b'{"x":1}{"x":2}', "found no JSON object; .*jq -c . writes"),
        ("log.json", b'{\n"x": 1\n}\n', "found no JSON object; .*jq -c . writes"),
        ("log.json", b'{"rows":[{"x":1}]}', "found no JSON object; .*jq -c '.rows"),
    ):
        with pytest.raises(InputError, match=message):
            read(write(tmp_path / name, data), ["x"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", CSV)
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be opened: Permission denied"):
        read(path, ["site"])


LONG = b"click,site\n" + b"".join(b"%d,s%d\n" % (i % 2, i) for i in range(20_000))
PACKED = gzip.compress(LONG)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("log.csv.gz", PACKED[:-9]),
        ("log.csv.gz", PACKED[:-4]),
        ("log.csv.gz", PACKED[: len(PACKED) // 2] + bytes(64) + PACKED[len(PACKED) // 2 + 64 :]),
        ("log.csv.zst", zstd(LONG * 20)[:-9]),
        ("log.csv.zst", zstd(LONG) + b"not a frame"),
    ],
)
def test_damage_is_reported_after_the_rows_before_it(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    sites: list[bytes] = []
    batches = LogReader([str(path)], batch_bytes=5000).batches(["site"])
    with pytest.raises(InputError, match=r"damaged or cut short, about [0-9,]+ bytes into the file"):
        sites.extend(site for batch in batches for site in batch.columns["site"].to_pylist())
    # Deflate has no checksum before its end, so the last rows before the damage is noticed may be wrong.
    assert len(sites) > 5000 and sites[:5000] == [b"s%d" % i for i in range(5000)]
    if data == PACKED[:-4]:  # only the checksum is gone
        assert len(sites) == 20_000


def test_progress_grows_from_file_to_file_and_closing_in_the_middle_is_allowed(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", CSV)
    write(tmp_path / "2.csv.gz", gzip.compress(CSV))
    reader, seen = LogReader([str(tmp_path / "*.csv*")], batch_bytes=5000), list[int]()
    for _ in reader.batches(["site"]):
        seen.append(reader.bytes_read())
    assert seen == sorted(seen) and reader.bytes_read() == reader.total_bytes
    reader = LogReader([str(tmp_path / "1.csv")], batch_bytes=100)
    next(reader.batches(["site"]))
    reader.close()
    reader.close()


_PEAK = r"""
import re, sys
from pathlib import Path
from trainer.formats.reader import LogReader, expand
reader = LogReader(sys.argv[1:], batch_bytes=1 << 20)
rows = sum(batch.rows for batch in reader.batches(["click", "site"]))
print(rows, re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak_memory(path: Path) -> tuple[int, int]:
    """Rows, and KiB at the peak. (Not ru_maxrss, which counts the parent's memory at the fork.)"""
    command = [sys.executable, "-c", _PEAK, str(path)]
    rows, peak = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split()
    return int(rows), int(peak)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("kind", ["csv", "jsonl", "csv.gz", "parquet", "vw"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    def make(rows: int) -> Path:
        path = tmp_path / f"{rows}.{kind}"
        if kind == "parquet":
            table = pa.table({"click": [0] * rows, "site": [f"site-{i:060}" for i in range(rows)]})
            pq.write_table(table, path, row_group_size=20_000, use_dictionary=False)
            return path
        head, line = {
            "jsonl": (b"", b'{"click":0,"site":"site-%060d"}\n'),
            "vw": (b"", b"0 |click a |site site-%060d\n"),
        }.get(kind, (b"click,site\n", b"0,site-%060d\n"))
        data = head + b"".join(line % i for i in range(rows))
        return write(path, gzip.compress(data, 1) if kind == "csv.gz" else data)

    rows, peak = peak_memory(make(100_000))
    more_rows, more_peak = peak_memory(make(500_000))
    assert (rows, more_rows) == (100_000, 500_000) and more_peak < 1.1 * peak


def test_columns_in_the_path_are_read_unless_the_file_has_them(tmp_path: Path) -> None:
    for day, click, text in (("1", "0", "site,click\na,1\nb,1\n"), ("2%2F3", "0", "site,click\nc,0\n")):
        (tmp_path / f"day={day}" / f"click={click}").mkdir(parents=True)
        write(tmp_path / f"day={day}" / f"click={click}" / "p.csv", text)
    (tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "click=1").mkdir(parents=True)
    table = pa.table({"site": ["d"], "click": [True]})
    pq.write_table(table, tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "click=1" / "p.parquet")
    files = str(tmp_path / "**" / "p.*")
    notes: list[str] = []
    assert LogReader([files], on_note=notes.append).columns() == ("site", "click", "day")
    assert notes == [f"{tmp_path}/day=1/click=0/p.csv: day read from its path"]
    assert read(files, ["day", "click"]).rows == [(b"1", b"1"), (b"1", b"1"), (b"2/3", b"0"), (b"", True)]
    assert read(files, ["day"]).lines == [2, 3, 2, 1]
    with pytest.raises(SpecError, match="no column 'x'; it has site, click, day"):
        read(files, ["x"])


def test_columns_of_lists_of_objects_are_said_to_be_left_out(tmp_path: Path) -> None:
    rows = [
        {"x": 1, "event_params": [{"key": "k"}], "deep": {"l": [[1]]}, "late": late} for late in ([], [[2]])
    ]
    write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    for name, said in (("a.jsonl", "event_params, deep.l"), ("b.parquet", "event_params, deep, late")):
        notes: list[str] = []
        with LogReader([str(tmp_path / name)], on_note=notes.append) as reader:
            reader.note_left_out()
        assert notes == [f"{tmp_path}/{name}: left out, as lists of objects or the like: {said}"]


def test_empty_files_among_others_are_skipped_with_a_remark(tmp_path: Path) -> None:
    for name, text in (
        ("_SUCCESS", ""),
        ("a.csv", ""),
        ("b.csv", "x\n1\n"),
        ("c.jsonl", ""),
        ("d.parquet", ""),
    ):
        write(tmp_path / name, text)
    write(tmp_path / "e.csv.gz", gzip.compress(b"x\n2\n"))
    write(tmp_path / "f.csv.gz", gzip.compress(b""))
    notes: list[str] = []
    assert read(tmp_path / "*", ["x"], on_note=notes.append).rows == [(b"1",), (b"2",)]
    assert notes == [f"{tmp_path}/_SUCCESS is empty: skipped, as others like it are"]
    with pytest.raises(InputError, match=r"c\.jsonl is empty; expected rows"):
        read(tmp_path / "[ac].*", ["x"])
