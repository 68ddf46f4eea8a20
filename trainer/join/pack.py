"""Packs: files of several segments, laid out and checked like a checkpoint (docs/checkpoint.md).

Its one array, `rows`, holds an Arrow stream of one batch; its description says which segments lie there one behind the
other. Complete or absent: written beside, synced, renamed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from model_store.errors import CheckpointError, OutputError
from model_store.whole_file import whole_file
from trainer.checkpoint import file

SUFFIX = ".rows"
BEGUN = ".begun"
_ROWS = "rows"


class Pack:
    """Segments that lie on the disk, and in memory for as long as `batch` is kept.

    numbers: of its segments; rows: of each; needed: a clock of its last use, to be set by whom it serves; nbytes: of
    memory, since what is mapped belongs to the system's cache.
    """

    def __init__(self, path: Path, numbers: Sequence[int], rows: Sequence[int]) -> None:
        self.path = path
        self.numbers = list(numbers)
        self.rows = list(rows)
        self.needed = 0
        self.nbytes = 0
        self._in_memory: pa.RecordBatch | None = None
        self._mapped: pa.RecordBatch | None = None

    def batch(self) -> pa.RecordBatch:
        """The rows of all its segments; the file is verified before it is used. Raises CheckpointError naming it."""
        if self._in_memory is not None:
            return self._in_memory
        if self._mapped is None:
            self._mapped = self._read()
        return self._mapped

    def remember(self, batch: pa.RecordBatch) -> None:
        """Keep what was written, until it is to be forgotten."""
        self._in_memory, self.nbytes = batch, batch.nbytes

    def forget(self) -> None:
        """Give the memory back; what was given out stays valid."""
        self._in_memory, self._mapped, self.nbytes = None, None, 0

    def _read(self) -> pa.RecordBatch:
        _, arrays = file.read(self.path)
        try:
            with pa.ipc.open_stream(pa.py_buffer(arrays[_ROWS])) as stream:
                batch = stream.read_next_batch()
        except (pa.ArrowInvalid, StopIteration, KeyError) as error:
            raise CheckpointError(f"{self.path} is not a file of segments: {error}") from None
        if batch.num_rows != sum(self.rows):
            raise CheckpointError(f"{self.path}: got {batch.num_rows} rows, expected {sum(self.rows)}")
        return batch


def write(folder: Path, numbers: Sequence[int], rows: Sequence[int], batch: pa.RecordBatch) -> Pack:
    """Write segments that lie in one batch, in order. Raises OutputError, and leaves nothing, if the disk is full."""
    path = folder / f"{numbers[0]:010}{SUFFIX}"  # see first_of
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    try:
        with whole_file(path, path.with_suffix(BEGUN)) as out:
            description = {"segments": list(numbers), "rows": list(rows)}
            file.write(out, description, {_ROWS: np.frombuffer(sink.getbuffer(), np.uint8)})
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; nothing is lost, the rows that wait for their clicks are still in "
            "memory: make room there, and it is tried again"
        ) from error
    pack = Pack(path, numbers, rows)
    pack.remember(batch)
    return pack


def first_of(path: Path) -> int:
    """The number of a pack's first segment, by its name alone; -1 of a name that no pack has."""
    return int(path.stem) if path.stem.isascii() and path.stem.isdigit() else -1


def opened(path: Path) -> Pack:
    """A pack that an earlier run has written: its description is verified now, its rows when they are read.

    Raises CheckpointError naming the file.
    """
    description = file.read_description(path)
    try:
        return Pack(path, description["segments"], description["rows"])
    except KeyError:
        raise CheckpointError(f"{path} is not a file of segments") from None
