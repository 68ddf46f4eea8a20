"""Blocks of memory that processes share: named arrays and a JSON head behind one descriptor.

`Parts` are the blocks of one version of a model, as processes hand it to each other. Most blocks outlive a version: a
delta replaces values and items, and the fresh layer if it has keys that the base lacks. docs/formats/served_model.md
has the byte table, and what each block holds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError
from model_store.files import write_whole

MAGIC = b"FPART\x00\r\n"
FORMAT_VERSION = 2
# A cache line: no two arrays share one.
ALIGNMENT = 64
START = struct.Struct("<8sII32sQQ")
"""Magic, format version, START's size, SHA-256, bytes of the text, bytes of everything."""
CHECKED_FROM = 48
"""The checksum covers every byte from here on."""

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]


class SharedBlock:
    """A block of shared memory. Its arrays are views of one shared map, the same in every process that has it open.

    head: a JSON object. arrays: by name. nbytes: of the whole block. uid: identifies this block, or this use of it, in
    messages between processes. fd: a descriptor to send, until `close`. memory: the map, which lives while any array
    does. A process maps the same memory once, however many uids it has.

    The arrays are writable, because kernels are compiled for one kind of array, and because a block may be filled after
    it is created. A process that receives a block treats it as constant.
    """

    __slots__ = ("__weakref__", "arrays", "fd", "head", "memory", "nbytes", "uid")

    def __init__(
        self, fd: int, uid: str, head: dict[str, Any], arrays: dict[str, Array], memory: mmap.mmap
    ) -> None:
        self.fd, self.uid, self.head, self.arrays, self.memory = fd, uid, head, arrays, memory
        self.nbytes = len(memory)

    @classmethod
    def empty(cls, head: Mapping[str, Any], shapes: Shapes) -> SharedBlock:
        """A new block whose arrays are all 0, to be filled. Raises OSError if memory is short."""
        kinds = [[name, np.dtype(dtype).str, list(shape)] for name, (dtype, shape) in shapes.items()]
        text = json.dumps({"head": head, "arrays": kinds}, separators=(",", ":")).encode()
        size = _end(len(text), kinds)
        fd = _new_memory(size)
        try:
            memory = mmap.mmap(fd, size)
            # Without a checksum: who maps the memory does not verify it (ADR 5), and `save` adds one.
            memory[: START.size] = START.pack(MAGIC, FORMAT_VERSION, START.size, bytes(32), len(text), size)
            memory[START.size : START.size + len(text)] = text
            return cls(fd, secrets.token_hex(8), dict(head), _views(memory, len(text), kinds), memory)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def write(cls, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> SharedBlock:
        """A new block with copies of these arrays. O(bytes). Raises OSError if memory is short."""
        block = cls.empty(head, {name: (array.dtype, array.shape) for name, array in arrays.items()})
        for name, array in arrays.items():
            np.copyto(block.arrays[name], array)
        return block

    @classmethod
    def open(cls, fd: int, uid: str) -> SharedBlock:
        """Map a block of another process, without verifying its contents. O(head). Takes over `fd`.

        Raises ArtefactError if it is not a block.
        """
        status = os.fstat(fd)
        if status.st_size < START.size:
            raise ArtefactError(
                f"{status.st_size} bytes are no part of a model; expected at least {START.size}"
            )
        # One map for each memory, so that pages that were touched once stay in the page table under another uid.
        memory = _MAPS.get((status.st_dev, status.st_ino))
        if memory is None:
            memory = _MAPS[status.st_dev, status.st_ino] = mmap.mmap(fd, status.st_size)
        return cls._of(fd, uid, memory, "shared memory")

    @classmethod
    def load(cls, path: str | Path) -> SharedBlock:
        """Read a file that `save` wrote into a new block, verified. O(bytes).

        Raises ArtefactError if the file is missing, damaged, cut short or of another format.
        """
        try:
            with open(path, "rb") as file:
                return cls._read(file, str(path))
        except OSError as error:
            raise ArtefactError(f"cannot read {path}: {error.strerror}") from None

    @classmethod
    def _read(cls, file: BufferedReader, where: str) -> SharedBlock:
        size = os.fstat(file.fileno()).st_size
        if size < START.size:
            raise ArtefactError(f"{where}: {size} bytes are no part of a model; fetch it again")
        fd = _new_memory(size)
        try:
            memory = mmap.mmap(fd, size)
            _verify(memory, file.readinto(memory), where)
            return cls._of(fd, secrets.token_hex(8), memory, where)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def _of(cls, fd: int, uid: str, memory: mmap.mmap, where: str) -> SharedBlock:
        _check_start(memory, where)
        length = START.unpack_from(memory)[4]
        document = json.loads(memory[START.size : START.size + length])
        arrays = _views(memory, length, document["arrays"])
        return cls(fd, uid, document["head"], arrays, memory)

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all, with its SHA-256. O(bytes). Raises OutputError."""
        memory = mmap.mmap(self.fd, self.nbytes)
        view = memoryview(memory)
        # Also in the map of every worker, which reads the arrays only.
        memory[16:CHECKED_FROM] = hashlib.sha256(view[CHECKED_FROM:]).digest()
        write_whole(Path(path), view)

    def reused(self) -> SharedBlock:
        """The same memory for another use, with its own uid and descriptor."""
        return SharedBlock(os.dup(self.fd), secrets.token_hex(8), self.head, self.arrays, self.memory)

    def close(self) -> None:
        """Close the descriptor; the arrays stay as long as they are used. May be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            # Marked, so that a second call does not close a descriptor that was opened since under this number.
            self.fd = -1

    def __del__(self) -> None:
        self.close()


_MAPS: WeakValueDictionary[tuple[int, int], mmap.mmap] = WeakValueDictionary()
"""Open maps by device and inode, which are not reused while the map lives."""


def _new_memory(size: int) -> int:
    """A descriptor of `size` anonymous bytes of 0, sealed against resizing, which would kill its readers."""
    if hasattr(os, "memfd_create"):
        # No name in a file system: the memory goes with the last process that has it, also after SIGKILL.
        fd = os.memfd_create("ftrie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        _reserve(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reserve(fd: int, size: int) -> None:
    """Allocate the memory now: with a lazy allocation, a write to missing memory would kill the process."""
    reserve: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)
    if reserve is None:
        os.ftruncate(fd, size)
    else:
        reserve(fd, 0, size)
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _views(memory: mmap.mmap, text: int, kinds: list[list[Any]]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    at = _aligned(START.size + text)
    for name, kind, shape in kinds:
        arrays[name] = np.ndarray(tuple(shape), np.dtype(kind), memory, at)
        at = _aligned(at + arrays[name].nbytes)
    return arrays


def _end(text: int, kinds: list[list[Any]]) -> int:
    at = _aligned(START.size + text)
    for _, kind, shape in kinds:
        count = 1
        for length in shape:
            count *= length
        at = _aligned(at + count * np.dtype(kind).itemsize)
    return at


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def _check_start(memory: mmap.mmap, where: str) -> None:
    magic, version, start, _, text, size = START.unpack_from(memory)
    if magic != MAGIC:
        raise ArtefactError(f"{where}: no part of a model: it begins with {magic!r}, expected {MAGIC!r}")
    if (version, start) != (FORMAT_VERSION, START.size):
        raise ArtefactError(f"{where}: format {version} of parts, expected {FORMAT_VERSION}; fetch it again")
    if size != len(memory) or START.size + text > size:
        raise ArtefactError(f"{where}: {len(memory)} bytes, the header says {size}; fetch it again")


def _verify(memory: mmap.mmap, read: int, where: str) -> None:
    if read != len(memory):
        raise ArtefactError(f"{where}: it changed while it was read; fetch it again")
    _check_start(memory, where)
    expected = START.unpack_from(memory)[3]
    with memoryview(memory) as view:
        found = hashlib.sha256(view[CHECKED_FROM:]).digest()
    if found != expected:
        raise ArtefactError(
            f"{where}: damaged: SHA-256 is {found.hex()}, the header says {expected.hex()}; fetch it again"
        )


@dataclass(frozen=True, eq=False)
class Parts:
    """All that a worker needs to answer with one version.

    sha256: of the version as stored. content: the digest of its rows (`model_store.artefact.rows`).

    base: spec, trie, item parts; no values. values: weights, variants and rates by the base's slots; the block is
    written again for a later version, under another uid, once it is not read any more. fresh: keys that the base lacks,
    with their values; None if there are none. items: what this version knows of the catalogue's items, and its
    calibration. catalogue: the items.
    """

    name: str
    version: int
    sha256: str
    content: str
    items_generation: int
    base: SharedBlock
    values: SharedBlock
    fresh: SharedBlock | None
    items: SharedBlock
    catalogue: SharedBlock

    def to_json(self, name_of: Callable[[str, SharedBlock], str]) -> dict[str, Any]:
        """Their fields, and under `blocks` what identifies each block to the reader; None for an absent one."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        blocks = {name: own.pop(name) for name in BLOCKS}
        return own | {"blocks": {name: block and name_of(name, block) for name, block in blocks.items()}}

    @classmethod
    def of_json(cls, body: Mapping[str, Any], block_of: Callable[[str], SharedBlock]) -> Parts:
        """The parts that `to_json` describes, from `block_of` what identifies each block, in the order of BLOCKS."""
        named: dict[str, str | None] = body["blocks"]
        blocks: dict[str, Any] = {name: named[name] and block_of(named[name] or "") for name in BLOCKS}
        own = {each.name: body[each.name] for each in fields(cls) if each.name not in blocks}
        return cls(**own, **blocks)


BLOCKS = ("base", "values", "fresh", "items", "catalogue")
