"""What every source delivers: some rows as columns, and the rows lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from trainer.logs.positions import Position
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
