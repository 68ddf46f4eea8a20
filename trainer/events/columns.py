"""The columns that joined rows need: where each is found in an event, and its form.

A column is looked up by name in the item's features, the item's own members, the context, the user, and the event's top
level; then, if its name has dots, as a path in the same five, in the same order. The first non-null value wins, row by
row. The columns of the request, time, cookie and item have fixed paths; a field that reads one of them looks first
where the value it was served with is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.features.derived import Derivations
from model_store.hash_kernels import digest_columns
from model_store.ratios import BUCKETS
from model_store.spec.spec import ModelSpec
from trainer.formats.cells import addresses, number_column, plain, text_column

Form = Literal["text", "number", "set"]
Path = tuple[str, ...]
"""Member names from the event's top level inwards; a path that starts with ITEMS continues in every item."""

ITEMS, FEATURES, CONTEXT, USER = "items", "features", "context", "user"
VERSION, VARIANT, MODEL = "@version", "@variant", "@model"
CTR, PROPENSITY, POSITION, UNKNOWN = "@ctr", "@propensity", "@position", "@unknown"
BUCKET = "@bucket"
MARK = "@mark"
"""The column of joined rows that says where each row's impression was read; only if the merger is told to add it."""
RESERVED: dict[str, tuple[Path, str]] = {
    VERSION: (("version",), "whole"),
    VARIANT: (("variant",), "text"),
    MODEL: (("model",), "text"),
    CTR: ((ITEMS, "ctr"), "number"),
    PROPENSITY: ((ITEMS, "propensity"), "number"),
    POSITION: ((ITEMS, "position"), "whole"),
    UNKNOWN: ((ITEMS, "unknown"), "whole"),
    BUCKET: (("cookie",), "text"),
}
"""Columns that every joined row has, for online metrics and (UNKNOWN) for learning: path and type. "whole" is int64,
"number" float64, "text" binary; null where absent. Of the cookie only its `bucket` is kept: uint8. No spec has a column
with @."""

DERIVED = "@derived"
"""A column of specs with derived fields: `ModelSpec.derivation` of the version that computed them for the answer."""

_OBJECTS = frozenset({ITEMS, CONTEXT, USER})  # top-level members that are never values
_SCALAR: dict[str, Form] = {"number": "number", "set": "set", "raw": "set"}


@dataclass(frozen=True)
class Column:
    """A column of joined rows.

    form: "text", binary, empty where absent; "number", float64 with nulls, or text where a value is not a number;
    "set", lists of text, or maps from text to float64, or JSON text of either.
    """

    name: str
    form: Form
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Wanted:
    """The columns of a resolved spec without the label and its views, which the join adds, as it does the RESERVED.

    derived: of each spec, the fields whose columns are filled where an impression has no value in them.
    """

    columns: tuple[Column, ...]
    derived: tuple[Derivations, ...] = ()

    @classmethod
    def of(cls, spec: ModelSpec) -> Wanted:
        """The columns that learning reads, each with its paths in an event."""
        return cls.of_columns(spec.wanted_columns(), spec)

    @classmethod
    def of_columns(cls, names: Iterable[str], *specs: ModelSpec) -> Wanted:
        """These columns, without the label and those of RESERVED; in a form that fits the fields of all specs."""
        given = specs[0].input
        free = (name for name in dict.fromkeys(names) if name not in (given.label, given.views, *RESERVED))
        columns = [Column(name, _form(specs, name), paths_of(specs[0], name)) for name in free]
        if any(spec.derivation for spec in specs):
            columns.append(Column(DERIVED, "text", (("derived",),)))
        return cls(tuple(columns), tuple(filter(None, (Derivations.of(spec.fields) for spec in specs))))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all columns of joined rows, in order."""
        return (*(column.name for column in self.columns), *RESERVED)


def paths_of(spec: ModelSpec, name: str) -> tuple[Path, ...]:
    """The paths of a column, in the order in which they are tried."""
    given = spec.input
    own: dict[str | None, Path] = {
        given.request: ("request_id",),
        given.timestamp: ("ts",),
        given.cookie: ("cookie",),
        given.item: (ITEMS, "id"),
    }
    if name in own:
        # A field that reads one of the event's own columns: first where the value that it was served with is.
        served: dict[str, Path] = {
            "item": (ITEMS, FEATURES, name),
            "context": (CONTEXT, name),
            "user": (USER, name),
        }
        sides = {field.side for key, field in spec.fields.items() if (field.column or key) == name}
        return (*(path for side, path in served.items() if side in sides), own[name])
    parts = name.split(".")  # a member's own name may have dots: `http.method` of `attrs`
    in_two = ((".".join(parts[:k]), ".".join(parts[k:])) for k in range(1, len(parts)))
    splits = dict.fromkeys(((name,), *in_two, tuple(parts)))
    return tuple(path for split in splits for path in _under(name, split))


def _under(name: str, path: Path) -> Iterator[Path]:
    yield (ITEMS, FEATURES, *path)
    if name != FEATURES:
        yield (ITEMS, *path)
    yield (CONTEXT, *path)
    yield (USER, *path)
    if name not in _OBJECTS and path[0] != ITEMS:
        yield path


def _form(specs: Sequence[ModelSpec], name: str) -> Form:
    """Text if fields of several kinds read one column: numbers and sets can be read from text."""
    if name == specs[0].input.weight:
        return "number"
    fields = [
        field
        for spec in specs
        for field_name, field in spec.fields.items()
        if (field.column or field_name) == name
    ]
    forms = {_SCALAR.get(field.kind, "text") for field in fields} or {"text"}
    return next(form for form in ("text", "number", "set") if form in forms)


# The type of a column may differ from block to block, because a text is among numbers or lists are among maps. Both
# types give the same keys and numbers, so learning sees no difference.
TEXT, SET, MAP = pa.binary(), pa.list_(pa.binary()), pa.map_(pa.binary(), pa.float64())


def shaped(array: pa.Array, form: Form) -> pa.Array:
    """An array of a plain kind (`trainer.formats.batch`) as the form's type, see `Column`."""
    if form == "number":
        return _numbers(array)
    return _sets(array) if form == "set" else text_column(plain(array))


def digests(text: pa.Array) -> npt.NDArray[np.uint64]:
    """64-bit hashes of texts; 0 for "" and null only."""
    out = np.zeros((1, len(text)), np.uint64)
    text = text.fill_null(b"") if text.null_count else text
    if len(text):
        digest_columns(*addresses([text]), len(text), np.zeros(1, np.uint8), out)
    hashes: npt.NDArray[np.uint64] = out[0]
    return hashes


def buckets(cookie: pa.Array, request: npt.NDArray[np.uint64]) -> pa.Array:
    """The bucket of each cookie, else that of the request's digest: uint8.

    Independent of the variant that the cookie was assigned, which is by another hash.
    """
    hashes = digests(cookie)
    return pa.array((np.where(hashes, hashes, request) % np.uint64(BUCKETS)).astype(np.uint8))


def together(tables: Sequence[Mapping[str, pa.Array]]) -> Mapping[str, pa.Array]:
    """The rows of all tables, concatenated; a column gets a type that fits all its values."""
    if len(tables) == 1:
        return tables[0]
    return {name: _one([table[name] for table in tables]) for name in (tables[0] if tables else ())}


def _one(arrays: Sequence[pa.Array]) -> pa.Array:
    kinds = {array.type for array in arrays if array.null_count < len(array)} or {arrays[0].type}
    if len(kinds) == 1:
        kind = kinds.pop()
        return pa.concat_arrays([a if a.type == kind else pa.nulls(len(a), kind) for a in arrays])
    return pa.concat_arrays([_as_text(array) for array in arrays])


def _numbers(array: pa.Array) -> pa.Array:
    array = plain(array)
    numbers, bad = number_column(array)
    if bad:
        return text_column(array)
    return pa.array(numbers + 0.0, mask=np.isnan(numbers))  # + 0.0: -0.0 and 0.0 are one number


def _sets(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), SET)
    if pa.types.is_list(kind):
        return _listed(array, text_column(plain(array.flatten())))
    return array.cast(MAP) if pa.types.is_map(kind) else text_column(plain(array))


def _listed(lists: pa.Array, members: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), members, mask=mask)


def _as_text(array: pa.Array) -> pa.Array:
    """An array of any form's type as text: lists and maps as JSON, which a field of kind "set" reads alike."""
    if pa.types.is_binary(array.type):
        return array.fill_null(b"")
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        return text_column(array)
    return pa.array([b"" if value is None else _json(value) for value in array.to_pylist()], TEXT)


def _json(value: Sequence[Any]) -> bytes:
    if value and isinstance(value[0], tuple):
        return json.dumps({member.decode(): x for member, x in value}).encode()
    return json.dumps([member.decode() for member in value]).encode()
