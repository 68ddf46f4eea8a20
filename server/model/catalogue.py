"""Catalogue: the items a server knows, as tokens. It knows the plan's item fields, and no model's weights."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError, FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan, Token
from model_store.features.values import Value
from server.model.attributes import Attributes, AttributeWriter
from server.model.event_form import Form, Fragments, FragmentWriter
from server.model.item_ids import IdTable
from server.model.items import NO_VALUE, TokenTable, TokenWriter
from server.model.stored_item import InlineItem, StoredItem, StoredMembers, StoredText

Array = npt.NDArray[Any]
MAX_PROBLEMS = 20
REMEMBERED_VALUES = 16_384


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Items by row. Immutable; shared by all threads, and by successive models with the same item fields.

    Arrays only, no Python object an item: `pack` takes them apart for shared memory, `unpack` costs the same for any
    number of items. rows: the ids. tokens: a row an item, a column an item field. attributes: every field of the
    records, by row. problems: messages about stored values that do not fit their field, the first MAX_PROBLEMS; such
    a value counts as missing, so that no record can keep a server from starting.
    """

    fields: tuple[FieldPlan, ...]
    rows: IdTable
    tokens: TokenTable
    problems: tuple[str, ...]
    attributes: Attributes
    fragments: Fragments | None = None
    """What the log of impressions says of each row; None where nobody asked for such a log."""

    @classmethod
    def build(
        cls,
        plan: FeaturePlan,
        records: Iterable[tuple[str, Mapping[str, Value]]],
        form: Form | None = None,
    ) -> Catalogue:
        """Take in (id, record) pairs; of an id that comes twice, the last record counts. O(values).

        form: that of the plan's spec, if fragments are wanted.
        """
        writer, problems = TokenWriter(), list[str]()
        columns = [_Column(field, writer, problems) for field in plan.item_fields]
        attributes = AttributeWriter(plan)
        fragments = None if form is None else FragmentWriter(form)
        row_of: dict[str, int] = {}
        values: list[int] = []
        for item_id, record in records:
            row = row_of.setdefault(item_id, len(row_of))
            at = row * len(columns)
            numbers = [column.number(item_id, record) for column in columns]
            values[at : at + len(columns)] = numbers
            attributes.add(row, record)
            if fragments is not None:
                fragments.add(row, item_id, _fitting(plan, record, numbers))
        table = writer.table(np.array(values, np.int32).reshape(len(row_of), len(columns)))
        asked = attributes.finish()
        problems += asked.problems
        done = None if fragments is None else fragments.finish()
        return cls(plan.item_fields, IdTable.of(row_of), table, tuple(problems), asked, done)

    @classmethod
    def unpack(cls, plan: FeaturePlan, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> Catalogue:
        """What `pack` took apart. O(fields). Raises ArtefactError if it was built for other item fields."""
        if head["fields"] != [field.name for field in plan.item_fields]:
            raise ArtefactError(
                f"the catalogue was built for the item fields {head['fields']}, "
                f"the model has {[field.name for field in plan.item_fields]}; build it again"
            )
        return cls(
            plan.item_fields,
            IdTable(**{name: arrays[f"ids.{name}"] for name in _names(IdTable)}),
            TokenTable(**{name: arrays[f"tokens.{name}"] for name in _names(TokenTable)}),
            tuple(head["problems"]),
            Attributes.unpack(head["attributes"], arrays),
            Fragments.of_arrays(arrays),
        )

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A JSON head and named arrays, for `unpack` in another process. O(fields): copies nothing."""
        asked, arrays = self.attributes.pack()
        head = {
            "fields": [field.name for field in self.fields],
            "problems": list(self.problems),
            "attributes": asked,
        }
        for part, table in (("ids", self.rows), ("tokens", self.tokens)):
            arrays |= {f"{part}.{name}": getattr(table, name) for name in _names(type(table))}
        if self.fragments is not None:
            arrays |= self.fragments.by_name()
        return head, arrays

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> Sequence[str]:
        """The ids by row, each made a text when it is asked for."""
        return self.rows

    def under(self, inline: Sequence[InlineItem]) -> list[InlineItem]:
        """Inline items; those whose id is here lie over their record, field by field. O(bytes of the ids)."""
        rows, _ = self.rows.rows([item_id for item_id, _ in inline])
        return [
            (item_id, features if row < 0 else StoredItem(features, self, row))
            for (item_id, features), row in zip(inline, rows.tolist(), strict=True)
        ]

    def value_at(self, row: int, name: str) -> Value:
        """What one item's record has in a field, the model's or another one. Empty where it has nothing.

        Not to be changed. The latest are remembered: who spells items out mostly spells out the same ones again.
        """
        remembered, key = self._remembered, (row, name)
        value = remembered.get(key)
        if value is None:
            if len(remembered) >= REMEMBERED_VALUES:
                remembered.clear()
            value = remembered[key] = self._value(row, name)
        return value

    def _value(self, row: int, name: str) -> Value:
        texts = self.attributes.texts_at(row, name)
        column = self._columns.get(name)
        if column is None:
            return texts[0] if texts else ""
        tokens = self.tokens_at(row, column)
        if self.fields[column].is_list:
            return StoredMembers(texts, tokens)
        return StoredText(texts[0] if texts else "", tokens)

    @cached_property
    def _remembered(self) -> dict[tuple[int, str], Value]:
        return {}

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {field.name: column for column, field in enumerate(self.fields)}

    def tokens_at(self, row: int, column: int) -> tuple[Token, ...]:
        """The tokens of one item's value in one field; none where it has none."""
        table, number = self.tokens, int(self.tokens.values[row, column])
        if number == NO_VALUE:
            return ()
        first, stop = int(table.value_start[number]), int(table.value_start[number + 1])
        return tuple(
            Token(table.text[table.begin[at] : table.begin[at + 1] - 1].tobytes(), float(table.x[at]))
            for at in range(first, stop)
        )

    def tokens_with_ids(self, id_fields: Container[str]) -> TokenTable:
        """The tokens, where an item without a value in one of `id_fields` has its own id as value. O(items)."""
        values, writer = self.tokens.values.copy(), TokenWriter()
        first = len(self.tokens.value_start) - 1
        for column, field in enumerate(self.fields):
            if field.name in id_fields:
                for row in np.flatnonzero(values[:, column] == NO_VALUE).tolist():
                    number = writer.add(id_tokens(field, self.ids[row]))
                    values[row, column] = number if number == NO_VALUE else first + number
        return self.tokens.extended(writer, values)


def id_tokens(field: FieldPlan, item_id: str) -> tuple[Token, ...]:
    """The tokens of an item's own id as a value of `field`; none if the id does not fit the field's kind."""
    try:
        return field.tokens(item_id)
    except FieldValueError:
        return ()


def _fitting(plan: FeaturePlan, record: Mapping[str, Value], numbers: Sequence[int]) -> dict[str, Value]:
    """The values of a record that count: those that have tokens."""
    pairs = zip(plan.item_fields, numbers, strict=True)
    return {field.name: record[field.name] for field, number in pairs if number != NO_VALUE}


def _names(table: type[IdTable] | type[TokenTable]) -> tuple[str, ...]:
    return tuple(array.name for array in fields(table))


class _Column:
    """Numbers one field's values, each distinct text once."""

    def __init__(self, field: FieldPlan, writer: TokenWriter, problems: list[str]) -> None:
        self._field, self._name, self._writer, self._problems = field, field.name, writer, problems
        self._numbers: dict[str, int] = {}

    def number(self, item_id: str, record: Mapping[str, Value]) -> int:
        value = record.get(self._name)
        if not isinstance(value, str):  # 1, 1.0 and True are one key of a dict, but not one value
            return NO_VALUE if value is None else self._add(item_id, value)
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._add(item_id, value)
        return number

    def _add(self, item_id: str, value: Value) -> int:
        try:
            return self._writer.add(self._field.tokens(value))
        except FieldValueError as error:
            if len(self._problems) < MAX_PROBLEMS:
                self._problems.append(f"item {item_id!r}: {error}")
            return NO_VALUE
