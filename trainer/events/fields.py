"""Resolves a spec's fields by the first impressions: names them, or checks them against what the events have."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from model_store.errors import SpecError
from model_store.spec.sections import FieldSpec, Kind, Side
from model_store.spec.spec import ModelSpec
from trainer.events.columns import CONTEXT, FEATURES, ITEMS, USER, Path, paths_of
from trainer.formats.jsonl import BadRow, load

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
                kind: Kind = "set" if isinstance(value, list | dict) else "category"
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
    elif events:
        _check_fields(spec, events, elsewhere)
    return spec.resolve((*named, *(field.column or name for name, field in spec.fields.items())))


def _check_fields(spec: ModelSpec, events: list[dict[str, Any]], elsewhere: Container[str]) -> None:
    for name, field in spec.fields.items():
        column = field.column or name
        if field.optional or field.is_derived or column in elsewhere:
            continue
        if not any(_has(event, path) for event in events for path in paths_of(spec, column)):
            raise SpecError(
                f"fields.{name}: no impression so far has {column!r}; they have: {', '.join(_names(events))}; correct "
                "it, or set optional = true if it is to come"
            )


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
        if isinstance(event.get(ITEMS), list):
            yield event


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}
