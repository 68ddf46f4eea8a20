"""Reads whole logs into plain Python values, for tests to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from trainer.formats.reader import LogReader


class Everything(NamedTuple):
    """All rows of a log as tuples, the line of each, and the rejects as (line, reason)."""

    rows: list[tuple[Any, ...]]
    lines: list[int]
    rejects: list[tuple[int, str]]


def read(path: Path | str, wanted: Sequence[str], **options: Any) -> Everything:
    """Read `path` (a file, a glob, or -) with a LogReader of these options."""
    with LogReader([str(path)], **options) as reader:
        return read_all(reader, wanted)


def read_all(reader: LogReader, wanted: Sequence[str]) -> Everything:
    everything = Everything([], [], [])
    for batch in reader.batches(wanted):
        assert all(len(column) == batch.rows == len(batch.lines) for column in batch.columns.values())
        columns = (batch.columns[name].to_pylist() for name in wanted)
        everything.rows.extend(zip(*columns, strict=True))
        everything.lines.extend(batch.lines.tolist())
        everything.rejects.extend((reject.line, reject.reason) for reject in batch.rejects)
    return everything


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))
