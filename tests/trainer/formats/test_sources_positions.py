"""Reading on from where an earlier reader stopped: every row once, whatever the format and the blocks."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError
from tests.trainer.formats.reading import write, zstd
from trainer.formats.batch import ReadFile, RowBatch
from trainer.formats.reader import LogReader

ROWS = 400
CSV = b"\xef\xbb\xbfy,site\r\n" + b"".join(
    b'%d,"s\n%d"\n' % (i % 2, i) if i % 7 == 0 else b"%d,s%d\r\n" % (i % 2, i) for i in range(ROWS)
)
BAD_CSV = CSV.replace(b"1,s5\r\n", b"1,s5,more\r\n").replace(b"0,s8\r\n", b"\n0,s8\r\n")
JSON = b"".join(b'{"y":%d,"site":"s%d"}\n' % (i % 2, i) if i % 50 else b"{bad\n" for i in range(ROWS))


def parquet(rows: int = ROWS) -> bytes:
    out = io.BytesIO()
    table = pa.table({"y": [0] * rows, "site": [f"s{i}" for i in range(rows)]})
    pq.write_table(table, out, row_group_size=90)
    return out.getvalue()


def rows_of(batches: Iterable[RowBatch]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for batch in batches:
        sites = batch.columns["site"].to_pylist()
        rows = [(batch.file, int(line), site) for line, site in zip(batch.lines, sites, strict=True)]
        rejects = [(reject.file, reject.line, reject.reason) for reject in batch.rejects]
        found += sorted([*rows, *rejects], key=lambda each: each[1])  # type: ignore[arg-type, return-value]
    return found


def read_on(files: list[Path], read: Iterable[ReadFile] = (), **options: Any) -> list[tuple[object, ...]]:
    return read_all(files, read=tuple(read), **options)[0]


def read_all(files: list[Path], **options: Any) -> tuple[list[tuple[object, ...]], tuple[ReadFile, ...]]:
    """The rows and rejects of files, and how far they were read."""
    with LogReader([str(path) for path in files], **options) as reader:
        return rows_of(reader.batches(["site"])), reader.bookmarks.until(None)


LOGS = {
    "log.csv": CSV,
    "bad.csv": BAD_CSV,
    "log.csv.gz": gzip.compress(CSV),
    "members.csv.gz": gzip.compress(CSV[:701]) + gzip.compress(CSV[701:]),
    "log.csv.zst": zstd(CSV),
    "open.csv": CSV + b'1,"never closed\n1,s\n',
    "cut.csv": CSV[:-2],
    "log.tsv": b"y\tsite\n" + b"".join(b"0\ts%d\n" % i for i in range(ROWS)),
    "returns.csv": b"y,site\r" + b"".join(b"0,s%d\r" % i for i in range(ROWS)),
    "log.jsonl": JSON,
    "log.vw": b"".join(b"%d |site s%d\n" % (i % 2, i) for i in range(ROWS)),
    "log.jsonl.gz": gzip.compress(JSON[:-1]),
    "log.parquet": parquet(),
    "log.parquet.gz": gzip.compress(parquet()),
}


@pytest.mark.parametrize("name", LOGS)
def test_reading_goes_on_behind_every_batch(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, LOGS[name])
    whole = read_on([path])
    assert len(whole) >= ROWS - 1
    with LogReader([str(path)], batch_bytes=900) as reader:
        before: list[RowBatch] = []
        for batch in reader.batches(["site"]):
            before.append(batch)
            read = reader.bookmarks.until(batch.stop)
            assert rows_of(before) + read_on([path], read, batch_bytes=1000) == whole
        assert len(before) > 2 and read_on([path], reader.bookmarks.until(None)) == []


@pytest.mark.parametrize("name", ["bad.csv", "log.jsonl", "log.parquet"])
def test_reading_goes_on_from_a_line_within_a_batch(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, LOGS[name])
    whole = read_on([path])
    with LogReader([str(path)], batch_bytes=2000) as reader:
        stop = next(reader.batches(["site"])).stop
        for line in range(stop.line, stop.line + 60, 7):
            read = reader.bookmarks.until(stop.until(line))
            expected = [each for each in whole if int(str(each[1])) >= line]
            assert read_on([path], read, batch_bytes=700) == expected
            with LogReader([str(path)], batch_bytes=700, read=read) as again:
                start = next(again.batches(["site"])).start
            assert start is not None and start.offset == stop.offset  # not the file's beginning


def test_files_are_skipped_read_on_and_read_from_the_start(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, LOGS[name]) for name in ("log.csv", "log.jsonl", "log.csv.gz")]
    whole = read_on(paths)
    with LogReader(list(map(str, paths[:2])), batch_bytes=3000) as reader:
        batches = reader.batches(["site"])
        before = []
        while (batch := next(batches)).file == str(paths[0]):
            before.append(batch)
        before.append(batch)
        read = reader.bookmarks.until(batch.stop)
    assert rows_of(before) + read_on(paths, read) == whole
    assert read_on(paths[2:], read) == [each for each in whole if each[0] == str(paths[2])]


def test_what_was_read_of_files_that_are_not_named_now_is_kept(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.csv", CSV), write(tmp_path / "b.csv", CSV + b"0,end\n")
    _, read = read_all([a])
    with LogReader([str(b)], read=read) as reader:
        (batch,) = reader.batches(["site"])
        read = reader.bookmarks.until(batch.stop)
    assert [each.path for each in read] == [str(a), str(b)] and read_on([a, b], read) == []


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_a_file_that_has_grown_goes_on_and_one_that_was_cut_back_is_refused(tmp_path, pack):
    long = CSV + b"".join(b"0,%s%d\n" % (b"x" * 50, i) for i in range(4000))
    path = write(tmp_path / "log", pack(long))
    _, read = read_all([path])
    write(path, pack(long + b"1,new\n"))
    assert [row[2] for row in read_on([path], read)] == [b"new"]
    write(path, pack(long[:-600]))
    with pytest.raises(InputError, match="shorter than what was read of it before"):
        read_on([path], read)


def test_the_line_after_a_last_line_without_an_end_has_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", b'{"site":"a"}\n{"site":"b"}')
    _, read = read_all([path])
    write(path, path.read_bytes() + b'\n{"site":"c"}\n')
    assert read_on([path], read) == [(str(path), 3, "c")]


def test_a_file_named_twice_is_read_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", CSV)
    whole = read_on([path, path])
    assert len(whole) == 2 * ROWS
    with LogReader([str(path)] * 2, batch_bytes=900) as reader:
        before: list[RowBatch] = []
        for batch in reader.batches(["site"]):
            before.append(batch)
            read = reader.bookmarks.until(batch.stop)
            assert len(rows_of(before)) + len(read_on([path, path], read)) == len(whole)


def test_another_file_of_the_same_name_and_a_copy_are_read_whole_and_told_of(tmp_path: Path) -> None:
    path, copy = (write(tmp_path / name, CSV) for name in ("log.csv", "copy.csv"))
    _, read = read_all([path])
    notes: list[str] = []
    assert len(read_on([copy], read, on_note=notes.append)) == ROWS
    write(path, CSV.replace(b"s1", b"S1"))
    assert len(read_on([path], read, on_note=notes.append)) == ROWS
    assert len(notes) == 2 and f"begins like {path}" in notes[0] and "read whole, as a new file" in notes[1]


def test_the_same_standard_input_goes_on_and_another_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(data: bytes, **options: Any) -> tuple[list[object], tuple[ReadFile, ...]]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        rows, read = read_all([Path("-")], **options)
        return [row[2] for row in rows], read

    data = b"y,site\n" + b"".join(b"0,s%d\n" % i for i in range(20_000))
    sites, read = piped(data)
    assert len(sites) == 20_000 and piped(data + b"1,new\n", read=read)[0] == [b"new"]
    assert piped(b"y,site\n1,other\n", read=read)[0] == [b"other"]
