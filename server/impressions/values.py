"""A feature's value as JSON: the plainest value that has the very same tokens. Nothing here knows lines or sinks.

Texts stay texts and numbers numbers, before buckets, escapes and parts of times: those are made of them again, by the
same rules, wherever the line is read. One kind of field has one kind of JSON, so that a reader's columns have one type:
category and time a text, number a number, set and raw a list, or an object where members carry an x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii

from model_store.features import FieldPlan
from model_store.values import Value, decoded, one_scalar, parse_number, set_members

quoted: Callable[[str], str] = encode_basestring_ascii
"""A text as JSON, in ASCII."""

Printer = Callable[[Value], str | None]
"""A value as JSON; None of a missing or an empty one. Raises FieldValueError for one that does not fit its field."""


def printer(field: FieldPlan) -> Printer:
    """What prints the values of a field."""
    if field.is_list:
        separator = field.spec.separator
        return lambda value: printed_set(value, separator)
    return _number if field.kind == "number" else _text


def printed_set(value: Value, separator: str | None = None) -> str | None:
    """The members of a set, each once: a list, or an object of their x where not all of these are 1."""
    members = {text.decode(): x for text, x in set_members(value, separator).items()}
    if not members:
        return None
    if all(x == 1.0 for x in members.values()):
        return f"[{','.join(map(quoted, members))}]"
    return f"{{{','.join(f'{quoted(text)}:{x!r}' for text, x in members.items())}}}"


def printed_unknown(value: Value) -> str | None:
    """A value of no field, as it came."""
    if isinstance(value, str):
        return quoted(value) if value else None
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{quoted(str(member))}:{float(x)!r}' for member, x in value.items())}}}"
    return printed_set(value)


def _text(value: Value) -> str | None:
    if isinstance(value, str):
        return quoted(value) if value else None
    return None if value is None else quoted(decoded(one_scalar(value)))


def _number(value: Value) -> str | None:
    return None if value is None or value == "" else repr(parse_number(one_scalar(value)))
