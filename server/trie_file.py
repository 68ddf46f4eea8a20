"""The trie's file: a header, then its arrays, each at a multiple of 64 bytes. Nothing here walks a trie.

docs/trie.md holds the byte table. A file is written whole or not at all; its checksum is verified before use.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError

MAGIC = b"FTRIE\x00\r\n"
FORMAT_VERSION = 1
ALIGNMENT = 64
HEADER_BYTES = 128
START = struct.Struct("<8sII32s")  # magic, format version, HEADER_BYTES, SHA-256 of all that follows
SIZES = struct.Struct("<QQQ")  # keys, nodes, key bytes

Array = npt.NDArray[Any]


class Sizes(NamedTuple):
    """What the header counts."""

    keys: int
    nodes: int
    key_bytes: int


Layout = Callable[[Sizes], Sequence[tuple[npt.DTypeLike, tuple[int, ...]]]]


def write(path: Path, sizes: Sizes, arrays: Sequence[Array]) -> None:
    """Write the file beside `path`, sync it, and rename it into place."""
    body = [SIZES.pack(*sizes).ljust(HEADER_BYTES - START.size, b"\0"), *_blocks(arrays)]
    digest = hashlib.sha256()
    for block in body:
        digest.update(block)
    start = START.pack(MAGIC, FORMAT_VERSION, HEADER_BYTES, digest.digest())
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([start, *body])
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    _sync_folder(path.parent)


def read(path: Path, layout: Layout, *, map_it: bool) -> tuple[Sizes, list[Array]]:
    """Read and verify a file. With `map_it` the arrays are views of a private map: processes share its pages.

    Raises ArtefactError if the file cannot be read, is damaged, cut short or of another format.
    """
    try:
        data = _contents(path, map_it)
    except OSError as error:
        raise ArtefactError(f"cannot read the trie {str(path)!r}: {error.strerror}") from None
    sizes = _verified(path, data)
    arrays, at = [], HEADER_BYTES
    for dtype, shape in layout(sizes):
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(data, dtype, count, at).reshape(shape))
        at += -(-count * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
    return sizes, arrays


def _blocks(arrays: Sequence[Array]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield array.reshape(-1).view(np.uint8).data
        yield bytes(-array.nbytes % ALIGNMENT)


def _contents(path: Path, map_it: bool) -> Any:
    """The file's bytes, writable so that kernels meet one kind of array; nobody writes to the private map."""
    with open(path, "rb") as file:
        if map_it and os.fstat(file.fileno()).st_size > 0:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return bytearray(file.read())


def _verified(path: Path, data: Any) -> Sizes:
    if len(data) < HEADER_BYTES:
        raise ArtefactError(f"{path}: {len(data)} bytes are no trie; expected at least {HEADER_BYTES}")
    magic, version, header, digest = START.unpack_from(data)
    if magic != MAGIC:
        raise ArtefactError(f"{path}: not a trie: it begins with {magic!r}, expected {MAGIC!r}")
    if (version, header) != (FORMAT_VERSION, HEADER_BYTES):
        raise ArtefactError(f"{path}: trie format {version}, expected {FORMAT_VERSION}; build it again")
    found = hashlib.sha256(memoryview(data)[START.size :]).digest()
    if found != digest:
        raise ArtefactError(
            f"{path}: damaged: SHA-256 is {found.hex()}, the header says {digest.hex()}; build it again"
        )
    return Sizes(*SIZES.unpack_from(data, START.size))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
