"""Which columns a joined row needs, and where in an event each stands. Knows the spec; knows nothing of bytes.

A column is looked for by its name in the item's features, then among the item's own members, then in the context, the
user, and on the event's top; after that, if its name has dots, as a path in the same five, in the same order. The first
place with a value (null is none) wins, row by row. The columns of the request, the time, the cookie and the item stand
in their own places, but for a field that reads one of them: what it was served with comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from model_store.spec import ModelSpec

Form = Literal["text", "number", "set"]
Path = tuple[str, ...]
"""Members from the event's top inwards; one that begins with ITEMS goes on in every item."""

ITEMS, FEATURES, CONTEXT, USER = "items", "features", "context", "user"
VERSION, VARIANT, MODEL = "@version", "@variant", "@model"
CTR, PROPENSITY, POSITION, UNKNOWN = "@ctr", "@propensity", "@position", "@unknown"
RESERVED: dict[str, tuple[Path, str]] = {
    VERSION: (("version",), "whole"),
    VARIANT: (("variant",), "text"),
    MODEL: (("model",), "text"),
    CTR: ((ITEMS, "ctr"), "number"),
    PROPENSITY: ((ITEMS, "propensity"), "number"),
    POSITION: ((ITEMS, "position"), "whole"),
    UNKNOWN: ((ITEMS, "unknown"), "whole"),
}
"""Columns that every joined row has, for online metrics and, UNKNOWN, for what is learned: where they stand, and as
what: "whole" is int64, "number" float64, "text" binary; null where the event has none. No spec has a column with @."""

_OBJECTS = frozenset({ITEMS, CONTEXT, USER})  # on an event's top, never values themselves
_SCALAR: dict[str, Form] = {"number": "number", "set": "set", "raw": "set"}


@dataclass(frozen=True)
class Column:
    """A column of joined rows.

    form: what it becomes: "text", binary, empty where absent; "number", float64 with nulls, or text where a value is
    no number; "set", lists of text, or maps from text to float64, or JSON text of either.
    """

    name: str
    form: Form
    places: tuple[Path, ...]


@dataclass(frozen=True)
class Wanted:
    """The columns of a resolved spec but the label, which the join brings. The RESERVED ones come besides."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Wanted:
        """Those that learning reads, each with its places in an event."""
        names = (name for name in spec.wanted_columns() if name != spec.input.label)
        return cls(tuple(Column(name, _form(spec, name), places_of(spec, name)) for name in names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all the columns of joined rows, in order."""
        return (*(column.name for column in self.columns), *RESERVED)


def places_of(spec: ModelSpec, name: str) -> tuple[Path, ...]:
    """Where a column may stand, the first to be looked at first."""
    given = spec.input
    own: dict[str | None, Path] = {
        given.request: ("request_id",),
        given.timestamp: ("ts",),
        given.cookie: ("cookie",),
        given.item: (ITEMS, "id"),
    }
    if name in own:
        return (*_served(spec, name), own[name])
    return (*_under(name, (name,)), *(_under(name, tuple(name.split("."))) if "." in name else ()))


def _served(spec: ModelSpec, name: str) -> Iterator[Path]:
    """Where a field that reads one of the event's own columns has the value that it was served with, if another one."""
    places: dict[str, Path] = {
        "item": (ITEMS, FEATURES, name),
        "context": (CONTEXT, name),
        "user": (USER, name),
    }
    sides = {field.side for field_name, field in spec.fields.items() if (field.column or field_name) == name}
    return (place for side, place in places.items() if side in sides)


def _under(name: str, path: Path) -> Iterator[Path]:
    yield (ITEMS, FEATURES, *path)
    if name != FEATURES:
        yield (ITEMS, *path)
    yield (CONTEXT, *path)
    yield (USER, *path)
    if name not in _OBJECTS and path[0] != ITEMS:
        yield path


def _form(spec: ModelSpec, name: str) -> Form:
    """Text wins where fields of several kinds read one column: numbers and sets are read from text too."""
    if name == spec.input.weight:
        return "number"
    fields = (field for field_name, field in spec.fields.items() if (field.column or field_name) == name)
    forms = {_SCALAR.get(field.kind, "text") for field in fields} or {"text"}
    return next(form for form in ("text", "number", "set") if form in forms)
