"""The byte layout of a checkpoint (docs/formats/checkpoint.md): named arrays, a description, a digest of every byte.

Arrays are written without copying them and read back memory-mapped. The index is at the end of the file, so the file is
written in one pass, and one that was truncated anywhere is detected at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError

MAGIC = b"FTCKPT\r\n"
FORMAT_VERSION = 1
ALIGNMENT = 64
START = struct.Struct("<8sI52x")
END = struct.Struct("<Q32s8s")
_PIECE_BYTES = 8 << 20

Arrays = Mapping[str, npt.NDArray[Any]]
NamedArrays = Iterable[tuple[str, npt.NDArray[Any]]]
"""Arrays that are made one by one, each when those before are written."""


class Damaged(CheckpointError):
    """The bytes are not those that were written."""


@dataclass(frozen=True)
class StoredArray:
    """One array: its name, dtype as `dtype_to_json` writes it, shape, first byte, and its bytes' digest in hex."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    at: int
    sha256: str

    @property
    def nbytes(self) -> int:
        """The array's bytes, without the padding after it."""
        return dtype_from_json(self.dtype).itemsize * math.prod(self.shape)


def write(file: BinaryIO, description: Mapping[str, Any], arrays: Arrays | NamedArrays) -> None:
    """Write a checkpoint to an empty file. `description` is JSON. Raises TypeError for an array of objects."""
    start = START.pack(MAGIC, FORMAT_VERSION)
    file.write(start)
    entries, at = [], len(start)
    for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
        digest = hashlib.sha256()
        size = sum(_put(file, piece, digest) for piece in _padded(array))
        entries.append(StoredArray(name, dtype_to_json(array.dtype), array.shape, at, digest.hexdigest()))
        at += size
    text = json.dumps({"arrays": [vars(entry) for entry in entries], **description}).encode()
    file.write(text)
    file.write(END.pack(len(text), _digest_of_the_rest(start, text), MAGIC))


def read(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The description and the arrays, verified. The arrays are the mapped file: read-only, aligned.

    Raises Damaged, or CheckpointError for a sound file of another format version.
    """
    try:
        with path.open("rb") as file:
            description, entries = _read_description(path, file)
            for entry in entries:
                _check_array(path, file, entry)
            # Verified by reading, not through the mapping: there, a disk error would kill the process (SIGBUS).
            mapped = np.memmap(file, np.uint8, mode="r")
            return description, {entry.name: _array(mapped, entry) for entry in entries}
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error


def loads(data: bytes, where: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The same of a checkpoint's bytes; where: their place, for messages. The arrays are views of the bytes."""
    path, file = Path(where), io.BytesIO(data)
    description, entries = _read_description(path, file)
    for entry in entries:
        _check_array(path, file, entry)
    held = np.frombuffer(data, np.uint8)
    return description, {entry.name: _array(held, entry) for entry in entries}


def dumps(description: Mapping[str, Any], arrays: Arrays) -> bytes:
    """A checkpoint as bytes, for `loads`."""
    file = io.BytesIO()
    write(file, description, arrays)
    return file.getvalue()


def read_description(path: Path) -> dict[str, Any]:
    """The description alone, verified; the arrays are not read. Raises the same as `read`."""
    try:
        with path.open("rb") as file:
            return _read_description(path, file)[0]
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON: its code, or for records their names, codes, offsets, size and whether they are aligned."""
    if dtype.hasobject:
        raise TypeError("an array of objects cannot be stored in a checkpoint")
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]
    return {
        "names": list(dtype.names),
        "formats": [field[0].str for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def dtype_from_json(written: Any) -> np.dtype[Any]:
    """Read back what `dtype_to_json` wrote."""
    return np.dtype(written) if isinstance(written, str) else np.dtype(written, align=written["aligned"])


def _padded(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The array's bytes in pieces, then zeros up to a multiple of ALIGNMENT."""
    # Copies only arrays that are not contiguous; the large ones are.
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _PIECE_BYTES):
        yield data[begin : begin + _PIECE_BYTES]
    yield memoryview(bytes(-len(data) % ALIGNMENT))


def _put(file: BinaryIO, piece: memoryview, digest: Any) -> int:
    digest.update(piece)
    file.write(piece)
    return len(piece)


def _read_description(path: Path, file: BinaryIO) -> tuple[dict[str, Any], list[StoredArray]]:
    size = file.seek(0, os.SEEK_END)
    if size < START.size + END.size:
        raise Damaged(f"{path} is cut short: {size} bytes, less than any checkpoint has")
    file.seek(0)
    start = file.read(START.size)
    file.seek(size - END.size)
    length, digest, magic = END.unpack(file.read(END.size))
    if magic != MAGIC or length > size - START.size - END.size:
        raise Damaged(f"{path} is cut short or not a checkpoint: its last bytes are not those of one")
    file.seek(size - END.size - length)
    text = file.read(length)
    if _digest_of_the_rest(start, text) != digest:
        raise Damaged(f"{path} is damaged: its description does not match its SHA-256")
    version = START.unpack(start)[1]
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} is of format {version}, this ftrie reads format {FORMAT_VERSION}; "
            "resume with the ftrie that wrote it, or start again with another folder"
        )
    description = json.loads(text)
    return description, [StoredArray(**entry) for entry in description.pop("arrays")]


def _check_array(path: Path, file: BinaryIO, entry: StoredArray) -> None:
    digest = hashlib.sha256()
    file.seek(entry.at)
    left = entry.nbytes + -entry.nbytes % ALIGNMENT
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        digest.update(piece)
        left -= len(piece)
    if left or digest.hexdigest() != entry.sha256:
        raise Damaged(f"{path} is damaged: {entry.name!r} does not match its SHA-256")


def _array(mapped: npt.NDArray[np.uint8], entry: StoredArray) -> npt.NDArray[Any]:
    data = np.asarray(mapped[entry.at : entry.at + entry.nbytes])
    return data.view(dtype_from_json(entry.dtype)).reshape(entry.shape)


def _digest_of_the_rest(start: bytes, text: bytes) -> bytes:
    return hashlib.sha256(start + text + len(text).to_bytes(8, "little")).digest()
