"""The columns that joined rows need: where each is found in an event, and its form.

A column is looked up by name in the item's features, the item's own members, the context, the user, and the event's top
level; then, if its name has dots, as a path in the same five, in the same order. The first non-null value wins, row by
row. The columns of the request, time, cookie and item have fixed paths; a field that reads one of them looks first
where the value it was served with is. A spec's fields are resolved by the first impressions; the values of derived
fields, for events and logs alike, are computed by `model_store.features.derived`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import SpecError
from model_store.features.derived import ABSENT, Derivations, Numbers, Starts
from model_store.hash_kernels import digest_columns
from model_store.ratios import BUCKETS
from model_store.spec.kinds import KINDS, Form
from model_store.spec.sections import FieldSpec, Side
from model_store.spec.spec import ModelSpec
from model_store.spec.values import LARGEST_REAL
from trainer.formats.cells import addresses, number_column, plain, text_column
from trainer.formats.jsonl import BadRow, load

Path = tuple[str, ...]
"""Member names from the event's top level inwards; a path that starts with ITEMS continues in every item."""

ITEMS, FEATURES, CONTEXT, USER = "items", "features", "context", "user"
VERSION, VARIANT, MODEL = "@version", "@variant", "@model"
CTR, PROPENSITY, POSITION, UNKNOWN = "@ctr", "@propensity", "@position", "@unknown"
BUCKET = "@bucket"
TEAM, CREDIT = "@team", "@credit"
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

FIRST, OVERLAP, OWN_CLICKS = "@first", "@overlap", "@own_clicks"
READ = RESERVED | {
    FIRST: (("apprentice", "first"), "whole"),
    OVERLAP: (("apprentice", "overlap"), "whole"),
    OWN_CLICKS: (("apprentice", "clicks"), "number"),
    TEAM: ((ITEMS, "team"), "text"),
    CREDIT: ((ITEMS, "credit"), "number"),
}
"""RESERVED, and the columns of apprentice mode and of interleaved variants, which are left out where no impression of a
block has a value."""
RARE = (TEAM, CREDIT)
"""Names that items of another log may have: a value of another type is none."""
OWN_VERSION, OWN_VARIANT, OWN_CTR = "@own.version", "@own.variant", "@own.ctr"
"""Of a model that learns clicked rows: what it predicted itself where another model's objective used it."""

DERIVED = "@derived"
"""A column of specs with derived fields: `ModelSpec.derivation` of the version that computed them for the answer."""

_OBJECTS = frozenset({ITEMS, CONTEXT, USER})  # top-level members that are never values


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
        if given.rows == "clicked":
            names = {OWN_VERSION: "version", OWN_VARIANT: "variant", OWN_CTR: "ctr"}
            own = ITEMS, "models", specs[0].model.name
            columns += [
                Column(name, "text" if name == OWN_VARIANT else "number", ((*own, part),))
                for name, part in names.items()
            ]
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
    if name in (specs[0].input.weight, specs[0].input.position):
        return "number"
    fields = [
        field
        for spec in specs
        for field_name, field in spec.fields.items()
        if (field.column or field_name) == name
    ]
    forms = {KINDS[field.kind].form for field in fields} or {"text"}
    return next(form for form in ("text", "number", "set") if form in forms)


# The type of a column may differ from block to block, because a text is among numbers or lists are among maps. Both
# types give the same keys and numbers, so learning sees no difference.
TEXT, SET, MAP = pa.binary(), pa.list_(pa.binary()), pa.map_(pa.binary(), pa.float64())


def shaped(array: pa.Array, form: Form) -> pa.Array:
    """An array of a plain kind (`trainer.formats.batch`) as the form's type, see `Column`."""
    kind = array.type
    if form == "number":
        array = plain(array)
        numbers, bad = number_column(array)
        # + 0.0: -0.0 and 0.0 are one number
        return text_column(array) if bad else pa.array(numbers + 0.0, mask=np.isnan(numbers))
    if form == "set" and pa.types.is_null(kind):
        return pa.nulls(len(array), SET)
    if form == "set" and pa.types.is_list(kind):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        members = text_column(plain(array.flatten()))
        return pa.ListArray.from_arrays(offsets, members, mask=array.is_null() if array.null_count else None)
    if form == "set" and pa.types.is_map(kind):
        return array.cast(MAP)
    return text_column(plain(array))


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
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: _one([t[name] if name in t else pa.nulls(len(t[BUCKET])) for t in tables]) for name in names
    }


def _one(arrays: Sequence[pa.Array]) -> pa.Array:
    kinds = {array.type for array in arrays if array.null_count < len(array)} or {arrays[0].type}
    if len(kinds) == 1:
        kind = kinds.pop()
        return pa.concat_arrays([a if a.type == kind else pa.nulls(len(a), kind) for a in arrays])
    return pa.concat_arrays([_as_text(array) for array in arrays])


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


_NOWHERE: Mapping[str, FieldSpec] = {}


def columns_seen(data: bytes) -> dict[str, FieldSpec]:
    """The members of the items' features, the context and the user in the impressions of `data`, as fields.

    In order of appearance; lists and objects of numbers are sets, the rest categories. Other lines are skipped.
    """
    found: dict[str, FieldSpec] = {}
    for event in _impressions(data):
        sides: list[tuple[Side, dict[str, Any]]] = [
            ("item", _object(item, FEATURES)) for item in event[ITEMS] if isinstance(item, dict)
        ]
        for side, values in (*sides, ("context", _object(event, CONTEXT)), ("user", _object(event, USER))):
            for name, value in values.items():
                if value is None:
                    continue
                kind = "set" if isinstance(value, list | dict) else "category"
                if name not in found or (kind, found[name].kind) == ("set", "category"):
                    found[name] = FieldSpec(side=side, kind=kind)
    return found


def columns_named(data: bytes) -> tuple[str, ...]:
    """The names of all values in the impressions of `data`: of items, user and context, and of the top level."""
    return tuple(_names(list(_impressions(data))))


def resolve_fields(
    spec: ModelSpec,
    data: bytes,
    sources: Sequence[str] = ("the log",),
    elsewhere: Mapping[str, FieldSpec] = _NOWHERE,
) -> ModelSpec:
    """The spec resolved by the impressions in `data`, or by itself if there are none.

    A spec without [fields] gets all features of items, user and context. elsewhere: columns that side tables have, as
    fields. Raises SpecError if it has no fields and there is no impression, naming the `sources`; or if no impression
    has a field that is not optional. The label is the join's, 0 or 1, whatever the log of another run had.
    """
    if spec.input.positive is not None or spec.input.views is not None:
        labelled = spec.input.model_copy(update={"positive": None, "views": None})
        spec = spec.model_copy(update={"input": labelled})
    events = list(_impressions(data))
    if not spec.fields and not events:
        raise SpecError(
            f"fields: there are none, and no impression yet in {', '.join(sources)} to take them from; "
            "name them in [fields], or log some first"
        )
    named = spec.input.named_columns
    if not spec.fields:
        seen = {
            name: field
            for name, field in {**elsewhere, **columns_seen(data)}.items()
            if name not in {*named, *spec.input.ignore}
        }
        if not seen:
            raise SpecError(
                "fields: there are none, and the first impressions have no feature, user or context"
            )
        spec = spec.model_copy(update={"fields": seen})
    for name, field in spec.fields.items() if events else ():
        column = field.column or name
        if field.optional or field.is_derived or column in elsewhere:
            continue
        if not any(_has(event, path) for event in events for path in paths_of(spec, column)):
            raise SpecError(
                f"fields.{name}: no impression so far has {column!r}; they have: {', '.join(_names(events))}; correct "
                "it, or set optional = true if it is to come"
            )
    return spec.resolve((*named, *(field.column or name for name, field in spec.fields.items())))


def _has(event: dict[str, Any], path: Path) -> bool:
    inside = path[0] == ITEMS
    values: list[Any] = event[ITEMS] if inside else [event]
    for part in path[1:] if inside else path:
        values = [value.get(part) for value in values if isinstance(value, dict)]
    return any(value is not None for value in values)


def _names(events: list[dict[str, Any]]) -> list[str]:
    """The columns that events have, each once: of items, of context and user, and of the top level."""
    names: dict[str, None] = {}
    for event in events:
        for item in event[ITEMS]:
            if isinstance(item, dict):
                names.update(dict.fromkeys(_object(item, FEATURES)))
                names.update(dict.fromkeys(name for name in item if name != FEATURES))
        for part in (CONTEXT, USER):
            names.update(dict.fromkeys(_object(event, part)))
        names.update(dict.fromkeys(name for name in event if name not in (ITEMS, CONTEXT, USER)))
    return list(names)


def _impressions(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            event = load(line)
        except BadRow:
            continue
        if isinstance(event.get(ITEMS), list) and event.get("event") != "view":
            yield event


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


Columns = Mapping[str, Any]


def derive(derived: Derivations, columns: Columns, starts: Starts) -> dict[str, Any]:
    """The columns of whole requests, derived values included. `starts` as in `Derivations.computed`."""
    numbers = numbers_read(derived, columns, int(starts[-1]))
    return with_numbers(derived, columns, derived.computed(numbers, starts))


def numbers_read(derived: Derivations, columns: Columns, rows: int) -> dict[str, Numbers]:
    """The numbers of the fields that are read or computed, from columns of `rows` rows; NaN without a column."""
    return {
        name: column_numbers(columns[column]) if column in columns else np.full(rows, ABSENT)
        for name, column in derived.columns.items()
    }


def with_numbers(derived: Derivations, columns: Columns, numbers: Mapping[str, Numbers]) -> dict[str, Any]:
    """The columns, with these numbers where the columns of derived fields have no value."""
    own = {derived.columns[field.name]: numbers[field.name] for field in derived.fields}
    return {name: _filled(column, own[name]) if name in own else column for name, column in columns.items()}


def column_numbers(column: Any) -> Numbers:
    """`derived.value_number` of every value of an Arrow column."""
    array = plain(column)
    if pa.types.is_nested(array.type):
        return np.full(len(array), np.nan)
    numbers, _ = number_column(array)
    numbers[np.abs(numbers) > LARGEST_REAL] = np.nan
    return numbers


def _filled(column: Any, numbers: Numbers) -> Any:
    """The column with numbers where it has no value. A value that is no number stays, so that its row is rejected."""
    array = plain(column)
    if pa.types.is_nested(array.type):
        return array
    missing = array.is_null()
    if pa.types.is_binary(array.type):
        # The empty text is a null too, as in all columns of text.
        missing = pc.or_kleene(missing, pc.equal(pc.binary_length(array), 0)).fill_null(True)
    if not missing.true_count:
        return array
    made = pa.array(numbers, mask=np.isnan(numbers))
    if missing.true_count == len(array):
        return made
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        # Doubles for all: each number is read as a double later anyway.
        return pc.if_else(missing, made, array.cast(pa.float64(), safe=False))
    # As text, which also holds values that are not numbers.
    return pc.if_else(missing, text_column(made), text_column(array))
