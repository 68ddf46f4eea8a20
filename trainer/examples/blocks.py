"""Blocks: the rows of a log, kept on disk while the first pass reads them, for later passes in another order.

In: the batches of the first pass, on their way to the maker of examples. Out: the same rows, block by block. A block is
BLOCK_ROWS rows that follow one another in the log, the last one is shorter; it keeps their order. Rows are counted as
read, so blocks depend neither on the size of batches nor on where a run was resumed.

The file is a sequence of pieces (`trainer.formats.pieces`), each after the clicks of its rows' requests where requests
are sampled: a byte a row. A piece ends where its batch or its block ends, so every piece has the column types of its
batch. Where the pieces are is known in memory only, and to a checkpoint.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError, InputError, OutputError
from trainer.formats.batch import Position, RowBatch
from trainer.formats.pieces import of_bytes, to_bytes

BLOCK_ROWS = 4096
_SIZE = struct.Struct("<I")


class Piece(NamedTuple):
    """A part of a block: its rows in the stream, its bytes in the file, and their CRC-32."""

    first_row: int
    rows: int
    at: int
    size: int
    crc: int

    @property
    def block(self) -> int:
        """The number of its block."""
        return self.first_row // BLOCK_ROWS


class Blocks:
    """The rows of one log, in a file.

    Without a `path` the file is temporary: it has no name, in the folder that TMPDIR names, and the system deletes it
    with the process, however that ends. `index` says which pieces of an existing file a checkpoint names; what follows
    them is removed. Raises CheckpointError if they are not all there, OutputError if the file cannot be opened.

    `keep` may run in another thread than the rest.
    """

    def __init__(self, path: Path | None = None, index: npt.NDArray[np.int64] | None = None) -> None:
        self._pieces = [Piece(*row) for row in index.tolist()] if index is not None else []
        self._where = str(path) if path is not None else f"a temporary file in {tempfile.gettempdir()}"
        self._remedy = "" if path is not None else "; TMPDIR names another folder"
        try:
            self._file = _open(path)
            self._trim()
        except OSError as error:
            raise self._unwritable(error) from error

    def keep(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches, unchanged; their rows are written before they pass. Raises OutputError."""
        for batch in batches:
            first = 0
            while first < batch.rows:
                end = min(batch.rows, first + BLOCK_ROWS - (batch.first_row + first) % BLOCK_ROWS)
                self._write(batch, first, end)
                first = end
            yield batch

    def read(self, order: Iterable[int], done: int = 0) -> Iterator[RowBatch]:
        """The rows of the blocks in this order, without the first `done` pieces. Raises InputError."""
        by_block = {block: list(pieces) for block, pieces in groupby(self._pieces, lambda each: each.block)}
        pieces = [piece for block in order for piece in by_block[block]]
        return map(self._read, pieces[done:])

    def __len__(self) -> int:
        """The number of blocks."""
        return self._pieces[-1].block + 1 if self._pieces else 0

    def index(self, rows: int) -> npt.NDArray[np.int64]:
        """The pieces of the first `rows` rows, where a batch ended, once they are on disk: int64[pieces, 5]."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        pieces = [piece for piece in self._pieces if piece.first_row < rows]
        return np.array(pieces, np.int64).reshape(-1, len(Piece._fields))

    def close(self) -> None:
        """Close the file; a temporary one is gone."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _end(self) -> int:
        return self._pieces[-1].at + self._pieces[-1].size if self._pieces else 0

    def _trim(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < self._end:
            self._file.close()
            raise CheckpointError(
                f"{self._where} has {size:,} bytes, but the checkpoint names {self._end:,}: it was cut short or "
                "replaced; put it back, or start again with another folder"
            )
        self._file.truncate(self._end)

    def _write(self, batch: RowBatch, first: int, end: int) -> None:
        clicked = b"" if batch.clicked is None else batch.clicked[first:end].tobytes()
        data = _SIZE.pack(len(clicked)) + clicked + to_bytes(batch.columns, first, end - first)
        try:
            _write_all(self._file.fileno(), data, self._end)
        except OSError as error:
            raise self._unwritable(error) from error
        crc = zlib.crc32(data)
        self._pieces.append(Piece(batch.first_row + first, end - first, self._end, len(data), crc))

    def _read(self, piece: Piece) -> RowBatch:
        try:
            data = os.pread(self._file.fileno(), piece.size, piece.at)
        except OSError as error:
            raise InputError(f"{self._where} cannot be read: {error.strerror}") from error
        if len(data) != piece.size or zlib.crc32(data) != piece.crc:
            raise InputError(
                f"{self._where} is damaged: its bytes from {piece.at:,} on are not those that were written; "
                "learn the log again"
            )
        after = _SIZE.size + _SIZE.unpack_from(data)[0]
        clicked = data[_SIZE.size : after]
        return RowBatch(
            columns=of_bytes(memoryview(data)[after:], self._where),
            lines=np.arange(piece.first_row + 1, piece.first_row + piece.rows + 1),
            file=self._where,
            rejects=(),
            rows=piece.rows,
            stop=Position(self._where),
            first_row=piece.first_row,
            clicked=np.frombuffer(clicked, np.bool_) if clicked else None,
        )

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"the rows for later passes cannot be written to {self._where}: {error.strerror}{self._remedy}"
        )


def shuffled(blocks: int, seed: int, number: int) -> Sequence[int]:
    """The order of the blocks in the pass with this number: a permutation that every Python makes the same."""
    draw = Random(f"{seed} {number}")
    return sorted(range(blocks), key=lambda block: draw.random())


def _open(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile(prefix="ftrie-", buffering=0)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)


def _write_all(file: int, data: Any, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
