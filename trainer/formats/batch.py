"""What readers of logs deliver: batches of rows as Arrow columns of few plain types, and positions in files.

Plain types: null, bool, int64, double, string, binary, lists of bool, int64, double or string, and maps from text or
whole numbers to double.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from trainer.formats.cells import CellSets, CellText
from trainer.formats.rejects import Reject

STDIN = "-"
HEAD_BYTES = 64 * 1024
_SHA256_OF_NOTHING = hashlib.sha256().hexdigest()
_MARK_BITS = 40


def mark_of(number: Any, line: Any) -> Any:
    """One whole number for a line of a file, or a row of a segment, of this number. Of arrays: int64."""
    return number << _MARK_BITS | line


def split_mark(mark: Any) -> tuple[Any, Any]:
    """The number and the line of a `mark_of`."""
    return mark >> _MARK_BITS, mark & (1 << _MARK_BITS) - 1


class LazyColumns(Mapping[str, pa.Array]):
    """Columns of a batch that become arrays of plain types when they are asked for as such.

    stored: as they are in the log, for code that hashes them in place.
    """

    def __init__(self, columns: Mapping[str, CellText | CellSets | pa.Array]) -> None:
        self.stored = columns
        self._made: dict[str, pa.Array] = {}

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._made:
            column = self.stored[name]
            self._made[name] = column.values() if isinstance(column, CellText | CellSets) else plain(column)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # without making an array, as Mapping does

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    columns: the wanted columns, each of length `rows`. From CSV and TSV they are `pa.binary()`, the raw bytes, with b""
    for an empty cell; from other formats they have plain types. lines: int64[rows], the 1-based physical line on which
    each row starts (the header of a CSV file is line 1); for Parquet the 1-based row number. rejects: the rows of this
    part of the file that could not be read, in order; a batch may be all rejects. stop: the position after the batch;
    start: the position before it, set by the LogReader.

    Set by `trainer.examples.requests`: first_row, the number of rows of the stream before this batch; and, where
    requests are sampled, clicked: bool[rows], whether each row's request has a click; resumable: False if the next
    batch starts inside a request that starts in this one, so that a later run must not start there.
    """

    columns: Mapping[str, pa.Array]
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
        """The rows and rejects from this line on."""
        rejects = tuple(reject for reject in self.rejects if reject.line >= line)
        return replace(self.part(int(np.searchsorted(self.lines, line)), self.rows), rejects=rejects)

    def part(self, begin: int, end: int) -> RowBatch:
        """Rows begin to end. The first part has the rejects."""
        own = slice(begin, end)
        return replace(
            self,
            columns={name: column[own] for name, column in self.columns.items()},
            lines=self.lines[own],
            rejects=self.rejects if begin == 0 else (),
            rows=self.lines[own].size,
            first_row=self.first_row + begin,
            clicked=None if self.clicked is None else self.clicked[own],
        )

    def where(self, kept: npt.NDArray[np.bool_], rejects: Sequence[Reject] = ()) -> RowBatch:
        """The rows that are kept, in their order; `rejects` are among the others."""
        mask = pa.array(kept)
        return replace(
            self,
            columns={name: column.filter(mask) for name, column in self.columns.items()},
            lines=self.lines[kept],
            rejects=tuple(sorted((*self.rejects, *rejects), key=lambda reject: reject.line)),
            rows=int(np.count_nonzero(kept)),
            clicked=None if self.clicked is None else self.clicked[kept],
        )


def as_stored(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns as they are in the log, see `LazyColumns`."""
    return columns.stored if isinstance(columns, LazyColumns) else columns


class NotPlain(Exception):
    """An array holds values that cannot become features; the message says which."""


def plain(array: pa.Array) -> pa.Array:
    """The array as a plain type; times become ISO-8601 text, UUIDs theirs. Raises NotPlain."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pa.array([None if each is None else str(each) for each in array.to_pylist()], pa.string())
        return plain(array.storage)
    if types.is_dictionary(kind):
        if types.is_null(kind.value_type):  # which Arrow cannot decode
            return pa.nulls(len(array))
        return plain(_with_plain_texts(array).dictionary_decode())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _plain_list(array)
    if types.is_map(kind):
        return _plain_map(array)
    target = _target(kind)
    if target == kind:
        return array
    # By the digits of a float32: 0.1 becomes 0.1 and not 0.10000000149.
    return pc.cast(pc.cast(array, pa.string()), target) if types.is_floating(kind) else pc.cast(array, target)


def coded(array: pa.Array) -> pa.Array:
    """A dictionary array as one of a plain type; other arrays, and those of few rows for their texts, as `plain`."""
    kind = array.type
    if not types.is_dictionary(kind) or types.is_null(kind.value_type) or len(array.dictionary) > len(array):
        return plain(array)
    return pa.DictionaryArray.from_arrays(array.indices, plain(array.dictionary))


def _with_plain_texts(encoded: pa.Array) -> pa.Array:
    """A dictionary array whose texts are no views, which Arrow cannot decode: polars' categories are such."""
    if not types.is_string_view(encoded.type.value_type):
        return encoded
    return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))


def is_several(kind: pa.DataType) -> bool:
    """True if a value of this type is a set of them, weighted or not."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
    )


def steps_to(name: str, fields: pa.Schema | pa.StructType) -> list[int]:
    """The places of the members that lead to column `name`, outermost first. Raises KeyError.

    A member's own name may have dots: `a.b` is the field `a.b`, else the member `b` of a struct `a`.
    """
    places = {field.name: place for place, field in reversed(list(enumerate(fields)))}
    if name in places:
        return [places[name]]
    for top, place in places.items():
        if name.startswith(f"{top}.") and types.is_struct(fields.field(place).type):
            with contextlib.suppress(KeyError):
                return [place, *steps_to(name[len(top) + 1 :], fields.field(place).type)]
    raise KeyError(name)


def is_usable(kind: pa.DataType) -> bool:
    """True if `plain` takes arrays of this type."""
    if types.is_dictionary(kind):
        return is_usable(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return is_usable(kind.storage_type)
    try:
        plain(pa.array([], kind))
    except (NotPlain, pa.ArrowNotImplementedError):  # Arrow makes no arrays of some nested types
        return False
    return True


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
    if not (types.is_integer(x) or types.is_floating(x) or types.is_decimal(x)):
        raise NotPlain(f"maps to {x}")
    if not types.is_integer(x) and x != pa.float64():  # by its digits, as above
        array = array.cast(pa.map_(kind.key_type, pa.string()))
    return array.cast(pa.map_(members, pa.float64()), safe=False)


_BINARIES = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)


def _target(kind: pa.DataType) -> pa.DataType:
    if types.is_null(kind) or types.is_boolean(kind) or types.is_float64(kind):
        return kind
    if types.is_integer(kind):
        return pa.string() if types.is_uint64(kind) else pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if any(is_kind(kind) for is_kind in _BINARIES):
        return pa.binary()
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_temporal(kind)
        or types.is_decimal(kind)
    ):
        return pa.string()
    raise NotPlain(f"values of type {kind}")


@dataclass(frozen=True, slots=True)
class Position:
    """A position between two rows of one file, in its uncompressed stream.

    offset: bytes of the stream before it, or rows of a Parquet file. line: the 1-based physical line that starts there
    (Parquet: row). Rows and rejects of lines before `first_line` are skipped: a row inside a batch has no known offset,
    so its position is that of the batch, `until` the row's line. file: the name as given; number: its index among the
    reader's files (a file may be read twice). head_sha256: of the first `head_bytes` bytes of the stream, at most
    HEAD_BYTES and none after the position (except in Parquet). The LogReader sets the last three.
    """

    file: str
    offset: int = 0
    line: int = 1
    first_line: int = 0
    number: int = 0
    head_bytes: int = 0
    head_sha256: str = _SHA256_OF_NOTHING

    def followed_by(self, stop: Position, head: bytes) -> Position:
        """The later position `stop` in the same file, with this one's number and the digest of `head`."""
        digest = self.head_sha256 if len(head) == self.head_bytes else sha256_of(head)
        return replace(stop, number=self.number, head_bytes=len(head), head_sha256=digest)

    def is_in(self, head: bytes) -> bool:
        """True if a stream that starts with `head` is the one of this position."""
        return bool(begin_alike([self], head))

    def until(self, line: int) -> Position:
        """The position of the row on `line`, which is found by reading from this position on."""
        return replace(self, first_line=line)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """How far one file was read.

    path: absolute. A file with this path whose content starts as `position` says is the same file, perhaps grown.
    disk_bytes: the size on disk of a file read to its end, else None; at that size it has nothing new.
    """

    path: str
    position: Position
    disk_bytes: int | None = None


def sha256_of(head: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(head).hexdigest()


class Begins(Protocol):
    """What identifies a file, whatever its name: the SHA-256 of its first `head_bytes` uncompressed bytes."""

    @property
    def head_bytes(self) -> int:
        """So many bytes are known."""

    @property
    def head_sha256(self) -> str:
        """In hex."""


B = TypeVar("B", bound=Begins)


def begin_alike(files: Iterable[B], head: bytes) -> list[B]:
    """The files that start like `head`. Most have one length, so many cost few digests."""
    files = list(files)
    digests = {
        size: sha256_of(head[:size]) for size in {each.head_bytes for each in files} if size <= len(head)
    }
    return [each for each in files if digests.get(each.head_bytes) == each.head_sha256]
