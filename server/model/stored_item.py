"""Inline items: those whose features stand in the request, over what the catalogue has of them. Values are made lazily.

A stored value knows its text, for conditions and objectives, and the tokens it has in the model's field. Nothing here
reads a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from model_store.features.features import Token, Tokenised
from model_store.features.values import Value

InlineItem = tuple[str, Mapping[str, Value]]
"""An item whose features stand in the request: its id, and the features by field name."""


class Rows(Protocol):
    """Where the stored values are."""

    def value_at(self, row: int, name: str) -> Value:
        """What one row has in a field."""


class StoredText(str, Tokenised):
    """The one value of a field; its text may be empty where it is too long to be kept as one."""

    def __new__(cls, text: str, tokens: tuple[Token, ...]) -> StoredText:
        """Of a text and the tokens that it has."""
        made = super().__new__(cls, text)
        made.tokens = tokens
        return made


class StoredMembers(list[str], Tokenised):
    """The values of a set."""

    def __init__(self, texts: Sequence[str], tokens: tuple[Token, ...]) -> None:
        super().__init__(texts)
        self.tokens = tokens


class StoredItem(Mapping[str, Value]):
    """Features given inline, over a row. Its names are those given: what a row has is only there for who asks."""

    __slots__ = ("_rows", "given", "row")

    def __init__(self, given: Mapping[str, Value], rows: Rows, row: int) -> None:
        self.given, self._rows, self.row = given, rows, row

    def __getitem__(self, name: str) -> Value:
        if name in self.given:
            return self.given[name]
        return self._rows.value_at(self.row, name)

    def get(self, name: str, default: object = None) -> Value:
        """The value of a field: the one given, also an empty one, else the stored one."""
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)
