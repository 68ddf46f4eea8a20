"""The key grammar: how names and values become the bytes of a key, and how keys are parsed.

    bias                       always on
    field=value                a field's value
    a*b=va*vb                  a cross; the request's half first
    anything else              a raw key, made elsewhere and used unchanged

`*`, `=` and `%` in names and values are percent-escaped, so two different features never share a key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

BIAS = b"bias"
MAX_KEY_BYTES = 4096
# % first: otherwise the escapes of the others would be escaped; `unescape` takes the reverse order.
ESCAPES = ((b"%", b"%25"), (b"*", b"%2A"), (b"=", b"%3D"))
_SPECIAL = re.compile(rb"[%*=]")
_ESCAPED = re.compile(rb"(?:[^%*=]|%25|%2A|%3D)+", re.DOTALL)


class ParsedKey(NamedTuple):
    """A parsed key: unescaped field names and values."""

    fields: tuple[str, ...]
    values: tuple[bytes, ...]


def escape(text: bytes) -> bytes:
    """Percent-escape `%`, `*` and `=`."""
    # Nearly all values have no such byte.
    if _SPECIAL.search(text) is None:
        return text
    for plain, escaped in ESCAPES:
        text = text.replace(plain, escaped)
    return text


def unescape(text: bytes) -> bytes:
    """The inverse of `escape`."""
    for plain, escaped in reversed(ESCAPES):
        text = text.replace(escaped, plain)
    return text


def prefix_of(names: Sequence[str]) -> bytes:
    """The prefix of every key of this field or cross: `age=`, `age*brand=`."""
    return b"*".join(escape(name.encode()) for name in names) + b"="


def parse_key(key: bytes) -> ParsedKey | None:
    """Parse a key; None if it does not follow the grammar (a raw key, or `bias`)."""
    names, equals, values = key.partition(b"=")
    name_parts, value_parts = names.split(b"*"), values.split(b"*")
    # A cross has as many values as names; anything else is a raw key.
    if not equals or len(name_parts) != len(value_parts):
        return None
    if not all(_ESCAPED.fullmatch(part) for part in name_parts):
        return None
    # A value may be empty (that of a real number), a name may not.
    if not all(part == b"" or _ESCAPED.fullmatch(part) for part in value_parts):
        return None
    try:
        fields = tuple(unescape(part).decode() for part in name_parts)
    except UnicodeDecodeError:
        return None
    return ParsedKey(fields, tuple(unescape(part) for part in value_parts))
