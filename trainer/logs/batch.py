"""TODO."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from model_store.errors import InputError
from trainer.logs.rejects import Reject


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    `columns` holds the wanted columns only, all of length `rows`. From CSV and TSV they are `pa.binary()`, the raw
    bytes as they stand, an empty cell being b"". From other formats they are string, binary, int64, double, bool,
    null, lists of these, or maps from text to double. `lines` is int64[rows]: the 1-based physical line on which each
    row begins in its file (the header of a CSV file is line 1); for Parquet the 1-based row number. `rejects` are the
    rows of this stretch of the file that could not be read, in order. A batch may be all rejects. `stop` is where
    reading goes on behind it; `start`, set by the LogReader, where it began.

    Set by `trainer.examples.requests` where requests are sampled: `first_row`, how many rows of the stream come before;
    `clicked`, bool[rows], whether each row's request has a click; not `resumable`: the next batch begins inside a
    request whose first rows stand here, so a later run may not begin there.
    """

    columns: dict[str, pa.Array]
    lines: npt.NDArray[np.int64]
    file: str
    rejects: tuple[Reject, ...]
    rows: int
    stop: Position
    start: Position | None = None
    first_row: int = 0
    clicked: npt.NDArray[np.bool_] | None = None
    resumable: bool = True

    def from_line(self, line: int) -> RowBatch:
        """The part of the batch that begins with this line: its rows and its rejects."""
        first = int(np.searchsorted(self.lines, line))
        return RowBatch(
            columns={name: column.slice(first) for name, column in self.columns.items()},
            lines=self.lines[first:],
            file=self.file,
            rejects=tuple(reject for reject in self.rejects if reject.line >= line),
            rows=self.rows - first,
            stop=self.stop,
        )


# --- Brings Arrow arrays of any type to the few kinds that become features ---
#
# The kinds: null, bool, int64, double, string, binary, lists of bool, int64, double or string, and maps from
# text, or from whole numbers, to double.


# Beyond this a double no longer tells neighbouring integers apart.
EXACT = 2**53


class NotPlain(Exception):
    """An array holds what cannot become a feature; the message says what."""


def plain(array: pa.Array) -> pa.Array:
    """`array` as one of the plain kinds; times become ISO-8601 text. NotPlain if it holds anything else."""
    kind = array.type
    if types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _plain_list(array)
    if types.is_map(kind):
        return _plain_map(array)
    target = _target(kind)
    if target == kind:
        return array
    # A float's own digits are meant: 0.1 as float32 is 0.1 and not 0.10000000149.
    return pc.cast(pc.cast(array, pa.string()), target) if types.is_floating(kind) else pc.cast(array, target)


def is_several(kind: pa.DataType) -> bool:
    """True if a value of this type is a set of them, weighted or not."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
    )


def is_usable(kind: pa.DataType) -> bool:
    """True if `plain` takes arrays of this type."""
    try:
        plain(pa.array([], kind))
    except NotPlain:
        return False
    return True


def is_exact(array: pa.Array) -> bool:
    """False if `array` holds doubles that are not finite, or so large that they may stand for others."""
    if types.is_list(array.type):
        return is_exact(array.flatten())
    if not types.is_float64(array.type) or array.null_count == len(array):
        return True
    # min_max passes over NaN, the sum does not.
    bounds = pc.min_max(array)
    within = bounds["min"].as_py() > -EXACT and bounds["max"].as_py() < EXACT
    return bool(within and pc.all(pc.is_finite(array)).as_py())


def without_timestamps(kind: pa.DataType) -> pa.DataType:
    """`kind` with text in place of every timestamp inside it."""
    if types.is_timestamp(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(without_timestamps(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, without_timestamps(field.type)) for field in kind])
    return kind


def _plain_list(array: pa.Array) -> pa.Array:
    inner = array.type.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    target = _target(inner)
    if types.is_binary(target):
        raise NotPlain(f"lists of {inner}")
    return array if array.type == pa.list_(target) else pc.cast(array, pa.list_(target))


def _plain_map(array: pa.Array) -> pa.Array:
    """A map to numbers, which is a weighted set."""
    kind = array.type
    members, x = _target(kind.key_type), kind.item_type
    if not (types.is_string(members) or types.is_binary(members) or types.is_int64(members)):
        raise NotPlain(f"maps from {kind.key_type}")
    if not (types.is_integer(x) or types.is_floating(x)):
        raise NotPlain(f"maps to {x}")
    if types.is_floating(x) and x != pa.float64():  # by its digits, as above
        array = array.cast(pa.map_(kind.key_type, pa.string()))
    return array.cast(pa.map_(members, pa.float64()), safe=False)


def _target(kind: pa.DataType) -> pa.DataType:
    if types.is_null(kind) or types.is_boolean(kind) or types.is_float64(kind):
        return kind
    if types.is_integer(kind):
        return pa.string() if types.is_uint64(kind) else pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_temporal(kind)
        or types.is_decimal(kind)
    ):
        return pa.string()
    raise NotPlain(f"values of type {kind}")


STDIN = "-"


def expand(inputs: Sequence[str]) -> tuple[str, ...]:
    """The files that `inputs` name, in the order given; a glob stands for its matches, sorted.

    Raises InputError for a name that is no file, a glob without matches, a folder, or standard input named
    twice.
    """
    if not inputs:
        raise InputError("no input: expected one or more files, globs, or - for standard input")
    files = tuple(name for each in inputs for name in _expand_one(each))
    if files.count(STDIN) > 1:
        raise InputError("- (standard input) can be read only once, but stands in the inputs more than once")
    return files


def _expand_one(name: str) -> Iterator[str]:
    path = Path(name)
    if name == STDIN:
        yield name
    elif path.is_dir():
        raise InputError(f"{name} is a folder; name its files, for example {path}/*.csv.gz")
    elif path.exists():
        yield name
    elif glob.has_magic(name):
        yield from _matches(name)
    else:
        raise InputError(f"{name}: there is no such file (from the folder {Path.cwd()})")


def _matches(pattern: str) -> list[str]:
    files = sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not files:
        raise InputError(f"{pattern} matches no file (from the folder {Path.cwd()})")
    return files


# --- Where reading stands in a log, and how a file that was read before is known again. Opens nothing itself
# ---
#
# A position is told in the uncompressed stream, so that it holds however the file is compressed.


HEAD_BYTES = 64 * 1024
_SHA256_OF_NOTHING = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of one file.

    `offset`: bytes of the uncompressed stream before it, or rows of a Parquet file. `line`: the 1-based physical line
    that begins there (Parquet: row). Rows and rejects of lines before `first_line` are passed over: a batch that was
    cut inside has no offset of its own there, so its position is the one before it, `until` the first row left over.
    `file` is the name as it was given, `number` its place among the reader's files (the same file may be read twice).
    `head_sha256` is that of the first `head_bytes` bytes of the stream, at most HEAD_BYTES and none that lie behind the
    position (but of Parquet). The LogReader tells these three.
    """

    file: str
    offset: int = 0
    line: int = 1
    first_line: int = 0
    number: int = 0
    head_bytes: int = 0
    head_sha256: str = _SHA256_OF_NOTHING

    def followed_by(self, stop: Position, head: bytes) -> Position:
        """The place `stop` farther down the same file, with what a reader tells of it: `head` lies before it."""
        digest = self.head_sha256 if len(head) == self.head_bytes else _sha256(head)
        return replace(stop, number=self.number, head_bytes=len(head), head_sha256=digest)

    def is_in(self, head: bytes) -> bool:
        """True if a stream that begins with `head` is the one that this position is in."""
        return len(head) >= self.head_bytes and _sha256(head[: self.head_bytes]) == self.head_sha256

    def until(self, line: int) -> Position:
        """The place of the row on `line`, to be found by reading from this position on."""
        return replace(self, first_line=line)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """How far one file was read.

    `path` is absolute. A file of the same path that begins as the `position` says is the same file, perhaps grown.
    `disk_bytes` is the size on disk of a file read to its end, else None: at that size it has nothing new.
    """

    path: str
    position: Position
    disk_bytes: int | None = None


class Bookmarks:
    """What was read of each of a reader's files, by earlier runs (`read`) and by this one.

    The reader calls `begin` and `end` for one file after another; `until` may be called from another thread. `on_note`
    is told of files that may not be what they seem.
    """

    def __init__(
        self, files: Sequence[str], read: Sequence[ReadFile], on_note: Callable[[str], None]
    ) -> None:
        self._files = tuple(files)
        self._on_note = on_note
        self._earlier, self._elsewhere = _matched(files, read)
        self._now: list[ReadFile | None] = [None] * len(self._files)

    def begin(self, number: int, head: bytes) -> ReadFile:
        """What was read of this file, known by the `head` of its stream; nothing of a new one."""
        name = self._files[number]
        found = ReadFile(path_of(name), Position(name, number=number))
        earlier = self._earlier[number]
        if earlier is None:
            self._warn_of_copies(found, head)
        elif earlier.position.is_in(head):
            found = replace(earlier, position=replace(earlier.position, file=name, number=number))
        else:
            self._on_note(f"{name} begins otherwise than when it was read before: read whole, as a new file")
        self._now[number] = found
        return found

    def end(self, stop: Position, disk_bytes: int) -> None:
        """A file has been read to its end."""
        read = self._now[stop.number]
        assert read is not None
        self._now[stop.number] = replace(read, position=stop, disk_bytes=disk_bytes)

    def until(self, stop: Position | None) -> tuple[ReadFile, ...]:
        """What has been read of every file once the rows up to `stop` are learned from; None: once all are.

        A file that only earlier runs have read stands in it as they left it.
        """
        if stop is None:
            read = self._now
        else:
            current = self._now[stop.number]
            assert current is not None
            ahead = self._earlier[stop.number + 1 :]
            read = [*self._now[: stop.number], ReadFile(current.path, stop), *ahead]
        return (*self._elsewhere, *(each for each in read if each is not None))

    def _warn_of_copies(self, found: ReadFile, head: bytes) -> None:
        others = [
            each for each in (*self._elsewhere, *filter(None, self._earlier)) if each.path != found.path
        ]
        # Most have the same size of head, so that a folder of many files costs few digests.
        sizes = {each.position.head_bytes for each in others} - {0}
        digests = {_sha256(head[:size]) for size in sizes if size <= len(head)}
        for each in others:
            if each.position.head_sha256 in digests:
                name = found.position.file
                self._on_note(f"{name} begins like {each.path}, read before: read whole, as another file")
                return


def path_of(name: str) -> str:
    """The absolute path of an input; standard input is `-`."""
    return name if name == STDIN else os.path.abspath(name)


def _matched(files: Sequence[str], read: Sequence[ReadFile]) -> tuple[list[ReadFile | None], list[ReadFile]]:
    """For each of `files` what was read of it, by path and in order; and what was read of files not among them."""
    left = list(read)
    found: list[ReadFile | None] = []
    for path in map(path_of, files):
        each = next((one for one in left if one.path == path), None)
        if each is not None:
            left.remove(each)
        found.append(each)
    return found, left


def _sha256(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()
