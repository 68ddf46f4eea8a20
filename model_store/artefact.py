"""The artefact: a trained model as sorted keys with a weight, a variant mask and a learning rate each.

`arrow_format` turns it into bytes and back, `json_model` into the JSON form. Nothing here learns, serves or
publishes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import ArtefactError
from model_store.keys import MAX_KEY_BYTES
from model_store.spec import ModelSpec
from model_store.whole_file import write_whole

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class JsonSource:
    """What a JSON model said that an artefact does not: kept so that the same JSON can be written again.

    `fid` holds each entry's fid as JSON text (`"0"` with its quotes, or `0`), `value` its number as float64,
    `order` its place in the file; all in the artefact's row order.
    """

    type: str
    fid: pa.StringArray
    value: npt.NDArray[np.float64]
    order: npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Artefact:
    """A model, its rows sorted by key.

    Invariants, checked by `from_columns` and by every way to read one:

    1. Rows are sorted by key, as unsigned bytes; no key occurs twice; a key has 1 to 4,096 bytes.
    2. `key_offsets[0] == 0`, offsets do not fall, and the last one is `len(key_data)`.
    3. Weights and rates are finite; no variant bit is set beyond the spec's variants.

    All arrays are contiguous, writable and owned; treat them as constants.
    """

    key_data: npt.NDArray[np.uint8]  # all keys' bytes, end to end
    key_offsets: npt.NDArray[np.int64]  # [rows + 1]
    weight: npt.NDArray[np.float32]
    variants: npt.NDArray[np.uint32]  # bit v: variant v uses this key
    rate: npt.NDArray[np.float32]  # learning rate of the coordinate; 0 where it is not known
    spec: ModelSpec  # its fields named (see ModelSpec.resolve)
    metrics: Mapping[str, Mapping[str, float]]  # per variant
    source: JsonSource | None = None

    FORMAT: ClassVar[int] = 1

    @classmethod
    def from_columns(
        cls,
        *,
        key_data: Array,
        key_offsets: Array,
        weight: Array,
        variants: Array,
        rate: Array,
        spec: ModelSpec,
        metrics: Mapping[str, Mapping[str, float]],
        source: JsonSource | None = None,
    ) -> Artefact:
        """Build from columns in any row order: sorts where needed (O(n log n)), then checks every invariant.

        Raises ArtefactError naming the first row or the column that is wrong.
        """
        artefact = cls(
            _own(key_data, np.uint8),
            _own(key_offsets, np.int64),
            _own(weight, np.float32),
            _own(variants, np.uint32),
            _own(rate, np.float32),
            spec,
            metrics,
            source,
        )
        _check_shapes(artefact)
        if not _is_sorted(artefact.key_array()):
            artefact = _sorted(artefact)
        check(artefact)
        return artefact

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return len(self.weight)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex. Same content, same digest."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def key(self, row: int) -> bytes:
        """The key of one row. O(1)."""
        return self.key_data[self.key_offsets[row] : self.key_offsets[row + 1]].tobytes()

    def key_list(self) -> list[bytes]:
        """All keys, in row order. O(rows)."""
        keys: list[bytes] = self.key_array().to_pylist()
        return keys

    def key_array(self) -> pa.LargeBinaryArray:
        """The keys as an Arrow array over the same memory."""
        buffers = [None, pa.py_buffer(self.key_offsets), pa.py_buffer(self.key_data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.rows, buffers)

    def to_bytes(self) -> bytes:
        """The artefact's file, deterministic: same content, same bytes. docs/artefact.md describes them."""
        from model_store.arrow_format import encode

        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Artefact:
        """Read what `to_bytes` wrote, every check before use. Raises ArtefactError saying what is wrong."""
        from model_store.arrow_format import decode

        return decode(data)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all. Raises OutputError."""
        write_whole(Path(path), self.to_bytes())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Artefact:
        """Read and verify a file. Raises ArtefactError naming the file."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except OSError as error:
            raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
        except ArtefactError as error:
            raise ArtefactError(f"{path}: {error}") from error


def _own(values: Array, dtype: npt.DTypeLike) -> Array:
    return np.require(values, dtype, ["C", "W", "O"])


def check(artefact: Artefact) -> None:
    """Raise ArtefactError unless every invariant of `Artefact` holds. O(rows)."""
    _check_shapes(artefact)
    keys = artefact.key_array()
    if not _is_sorted(keys):
        _raise_disorder(keys)
    bad = ~(np.isfinite(artefact.weight) & np.isfinite(artefact.rate))
    if bad.any():
        row = int(np.argmax(bad))
        raise ArtefactError(
            f"key {artefact.key(row)!r} has weight {artefact.weight[row]} and rate {artefact.rate[row]}; "
            "expected finite numbers"
        )
    count = len(artefact.spec.variants)
    if artefact.rows and int(np.bitwise_or.reduce(artefact.variants)) >> count:
        raise ArtefactError(f"a key is used by a variant beyond the {count} of the spec")


def _check_shapes(artefact: Artefact) -> None:
    rows, offsets = artefact.rows, artefact.key_offsets
    for name in ("variants", "rate"):
        if len(getattr(artefact, name)) != rows:
            raise ArtefactError(
                f"{rows} weights, but {len(getattr(artefact, name))} values in column {name!r}"
            )
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(artefact.key_data):
        raise ArtefactError(
            f"the key offsets do not span {rows} keys of {len(artefact.key_data)} bytes in all"
        )
    lengths = np.diff(offsets)
    if rows and not 0 < lengths.min() <= lengths.max() <= MAX_KEY_BYTES:
        row = int(np.argmax((lengths < 1) | (lengths > MAX_KEY_BYTES)))
        raise ArtefactError(f"key {row} has {lengths[row]} bytes; expected 1 to {MAX_KEY_BYTES}")
    source = artefact.source
    if source is not None and not len(source.fid) == len(source.value) == len(source.order) == rows:
        raise ArtefactError(f"the JSON columns do not have {rows} rows each")


def _is_sorted(keys: pa.LargeBinaryArray) -> bool:
    """True if each key is less than the next one, as unsigned bytes."""
    if len(keys) < 2:
        return True
    return bool(pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


def _raise_disorder(keys: pa.LargeBinaryArray) -> None:
    row = pc.index(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), False).as_py()
    first, second = keys[row].as_py(), keys[row + 1].as_py()
    what = "occurs twice" if first == second else f"stands before {second!r}; keys must ascend"
    raise ArtefactError(f"key {first!r} (row {row}) {what}")


def _sorted(artefact: Artefact) -> Artefact:
    keys = artefact.key_array()
    order = pc.sort_indices(keys)
    key_data, key_offsets = columns_of(keys.take(order))
    rows = order.to_numpy()
    source = artefact.source
    if source is not None:
        source = JsonSource(source.type, source.fid.take(order), source.value[rows], source.order[rows])
    return replace(
        artefact,
        key_data=key_data,
        key_offsets=key_offsets,
        weight=artefact.weight[rows],
        variants=artefact.variants[rows],
        rate=artefact.rate[rows],
        source=source,
    )


def columns_of(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """An Arrow array's bytes and offsets, copied, the first offset 0."""
    _, offsets_buffer, data_buffer = keys.buffers()
    width = np.int64 if keys.type in (pa.large_binary(), pa.large_utf8()) else np.int32
    if offsets_buffer is None or len(keys) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8)[begin:end].copy() if end > begin else np.zeros(0, np.uint8)
    return data, offsets - begin
