"""From the text of an objective to its tokens, each with its place. Nothing here knows what an expression is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from server.errors import ObjectiveError

Kind = Literal["number", "name", "field", "operator", "end"]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    | `(?P<field>[^`]+)`
    | (?P<operator>\*\*|\?\?|[-+*/(),])
    )""",
    re.VERBOSE,
)
_SHOWN = 20


class Token(NamedTuple):
    """One token: `at` is the number of its first character, from 1."""

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, then one of kind "end". Raises ObjectiveError where no token can begin. O(length)."""
    at = 0
    while match := _TOKEN.match(text, at):
        kind = match.lastgroup
        assert kind is not None
        yield Token(kind, match[kind], match.start(kind) + 1 - (kind == "field"))  # type: ignore[arg-type]
        at = match.end()
    rest = text[at:].lstrip()
    if rest:
        raise ObjectiveError(
            f"at character {len(text) - len(rest) + 1}: got {rest[:_SHOWN]!r}, "
            "expected a number, a name, a field's name in `backquotes`, + - * / ** ?? ( ) or a comma"
        )
    yield Token("end", "", len(text) + 1)
