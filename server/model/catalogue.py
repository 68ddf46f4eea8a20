"""The catalogue: the items that a server knows, as tokens, ids and attributes. Made from records and a feature plan.

`StoredItem` is an inline item of a request over its record: what the request does not give is read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import ArtefactError, FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan, Token, Tokenised
from model_store.features.values import Value
from server.model.attributes import Attributes, AttributeWriter
from server.model.derived import DerivedFields
from server.model.event_form import Form, Fragments, FragmentWriter
from server.model.item_ids import IdTable
from server.model.tokens import NO_VALUE, TokenTable, TokenWriter

Array = npt.NDArray[Any]
InlineItem = tuple[str, Mapping[str, Value]]
"""An item whose features stand in the request: its id, and the features by field name."""

MAX_PROBLEMS = 20
CACHED_VALUES = 16_384


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Items by row. Immutable; shared by all threads, and by successive models with the same item fields.

    Arrays only, no Python object for each item: `pack` returns them for shared memory, and `unpack` costs the same for
    any number of items. rows: the ids. tokens: a row for each item, a column for each item field. attributes: every
    field of the records, by row. problems: the first MAX_PROBLEMS messages about stored values that do not fit their
    field; such a value counts as missing, so that no record can keep a server from starting.
    """

    fields: tuple[FieldPlan, ...]
    rows: IdTable
    tokens: TokenTable
    problems: tuple[str, ...]
    attributes: Attributes
    fragments: Fragments | None = None
    """Each row as the impression log writes it; None if there is no such log."""
    numbers: Mapping[str, Array] = field(default_factory=dict)
    """float64[rows]: what the records have of the fields that derived fields are computed from, and of these; NaN where
    they have none."""

    @classmethod
    def build(
        cls,
        plan: FeaturePlan,
        records: Iterable[tuple[str, Mapping[str, Value]]],
        form: Form | None = None,
    ) -> Catalogue:
        """Build from (id, record) pairs; if an id comes twice, the last record counts. O(values).

        form: of the plan's spec, if fragments are wanted.
        """
        derived, numbers = DerivedFields.of(plan), dict[str, Array]()
        if derived is not None:
            last = dict(records)
            numbers = derived.numbers_of(last.values())
            records = zip(last, derived.completed(last.values(), numbers), strict=True)
        writer, problems = TokenWriter(), list[str]()
        columns = [_Column(field, writer, problems) for field in plan.item_fields]
        attributes = AttributeWriter(plan)
        fragments = None if form is None else FragmentWriter(form)
        row_of: dict[str, int] = {}
        values: list[int] = []
        for item_id, record in records:
            row = row_of.setdefault(item_id, len(row_of))
            at = row * len(columns)
            coded = [column.number(item_id, record) for column in columns]
            values[at : at + len(columns)] = coded
            attributes.add(row, record)
            if fragments is not None:
                fragments.add(row, item_id, _fitting(columns, record, coded))
        table = writer.table(np.array(values, np.int32).reshape(len(row_of), len(columns)))
        columns_of_records = attributes.finish()
        problems += columns_of_records.problems
        done = None if fragments is None else fragments.finish()
        of_ids = IdTable.of(row_of)
        return cls(plan.item_fields, of_ids, table, tuple(problems), columns_of_records, done, numbers)

    @classmethod
    def unpack(cls, plan: FeaturePlan, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> Catalogue:
        """Build from what `pack` returned. O(fields). Raises ArtefactError if it was built for other item fields."""
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
            {name: arrays[f"number.{at}"] for at, name in enumerate(head.get("numbers", ()))},
        )

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A JSON head and named arrays, for `unpack` in another process. O(fields): copies nothing."""
        attributes, arrays = self.attributes.pack()
        head = {
            "fields": [field.name for field in self.fields],
            "problems": list(self.problems),
            "attributes": attributes,
        }
        if self.numbers:
            head["numbers"] = list(self.numbers)
            arrays |= {f"number.{at}": found for at, found in enumerate(self.numbers.values())}
        for part, table in (("ids", self.rows), ("tokens", self.tokens)):
            arrays |= {f"{part}.{name}": getattr(table, name) for name in _names(type(table))}
        if self.fragments is not None:
            arrays |= self.fragments.by_name()
        return head, arrays

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> Sequence[str]:
        """The ids by row; each is decoded when it is read."""
        return self.rows

    def under(self, inline: Sequence[InlineItem]) -> list[InlineItem]:
        """Inline items, each over its record if the catalogue has its id. O(bytes of the ids)."""
        rows, _ = self.rows.rows([item_id for item_id, _ in inline])
        return [
            (item_id, features if row < 0 else StoredItem(features, self, row))
            for (item_id, features), row in zip(inline, rows.tolist(), strict=True)
        ]

    def value_at(self, row: int, name: str) -> Value:
        """The value of a field in one item's record; empty if it has none. Do not change it.

        The latest values are cached: inline items are mostly the same ones again.
        """
        cache, key = self._cache, (row, name)
        value = cache.get(key)
        if value is None:
            if len(cache) >= CACHED_VALUES:
                cache.clear()
            value = cache[key] = self._value(row, name)
        return value

    def _value(self, row: int, name: str) -> Value:
        texts = self.attributes.texts_at(row, name)
        column = self._columns.get(name)
        if column is None:
            return texts[0] if texts else ""
        tokens = self.tokens_at(row, column)
        if self.fields[column].kind in ("set", "raw"):
            return StoredMembers(texts, tokens)
        return StoredText(texts[0] if texts else "", tokens)

    @cached_property
    def _cache(self) -> dict[tuple[int, str], Value]:
        return {}

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {field.name: column for column, field in enumerate(self.fields)}

    def tokens_at(self, row: int, column: int) -> tuple[Token, ...]:
        """The tokens of one item's value in one field."""
        table, number = self.tokens, int(self.tokens.values[row, column])
        if number == NO_VALUE:
            return ()
        first, stop = int(table.value_start[number]), int(table.value_start[number + 1])
        return tuple(
            Token(table.text[table.begin[at] : table.begin[at + 1] - 1].tobytes(), float(table.x[at]))
            for at in range(first, stop)
        )

    def tokens_of(self, id_fields: tuple[str, ...]) -> TokenTable:
        """`tokens_with_ids`, made once. O(items), then O(1)."""
        found = self._with_ids.get(id_fields)
        if found is None:
            found = self._with_ids[id_fields] = self.tokens_with_ids(id_fields) if id_fields else self.tokens
        return found

    @cached_property
    def _with_ids(self) -> dict[tuple[str, ...], TokenTable]:
        return {}

    def tokens_with_ids(self, id_fields: Container[str]) -> TokenTable:
        """The tokens, where an item without a value in one of `id_fields` has its own id as value. O(items)."""
        values, writer = self.tokens.values.copy(), TokenWriter()
        first = len(self.tokens.value_start) - 1
        for column, plan in enumerate(self.fields):
            if plan.name in id_fields:
                for row in np.flatnonzero(values[:, column] == NO_VALUE).tolist():
                    number = writer.add(id_tokens(plan, self.ids[row]))
                    values[row, column] = number if number == NO_VALUE else first + number
        return self.tokens.extended(writer, values)


class StoredText(str, Tokenised):
    """A stored value of a field with one value. The text is empty if it is too long to be stored."""

    def __new__(cls, text: str, tokens: tuple[Token, ...]) -> StoredText:
        """A text with its tokens."""
        made = super().__new__(cls, text)
        made.tokens = tokens
        return made


class StoredMembers(list[str], Tokenised):
    """A stored value of a set."""

    def __init__(self, texts: Sequence[str], tokens: tuple[Token, ...]) -> None:
        super().__init__(texts)
        self.tokens = tokens


class StoredItem(Mapping[str, Value]):
    """An inline item's features over its row. Iterates over the given names; look-ups also find the row's values."""

    __slots__ = ("_catalogue", "given", "row")

    def __init__(self, given: Mapping[str, Value], catalogue: Catalogue, row: int) -> None:
        self.given, self._catalogue, self.row = given, catalogue, row

    def __getitem__(self, name: str) -> Value:
        if name in self.given:
            return self.given[name]
        return self._catalogue.value_at(self.row, name)

    def get(self, name: str, default: object = None) -> Value:
        """The given value of a field, even if empty; else the stored one."""
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


def id_tokens(field: FieldPlan, item_id: str) -> tuple[Token, ...]:
    """The tokens of an item's own id as a value of `field`; none if the id does not fit the field's kind."""
    try:
        return field.tokens(item_id)
    except FieldValueError:
        return ()


def _fitting(
    columns: Sequence[_Column], record: Mapping[str, Value], numbers: Sequence[int]
) -> dict[str, Value]:
    """The values of a record that fit their fields: those with tokens."""
    pairs = zip(columns, numbers, strict=True)
    return {column.name: record[column.name] for column, number in pairs if number != column.absent}


def _names(table: type[IdTable] | type[TokenTable]) -> tuple[str, ...]:
    return tuple(array.name for array in fields(table))


class _Column:
    """Numbers one field's values, each distinct text once. absent: the number of no value, or of one that misfits."""

    def __init__(self, field: FieldPlan, writer: TokenWriter, problems: list[str]) -> None:
        self._field, self.name, self._writer, self._problems = field, field.name, writer, problems
        self.absent = writer.add(field.tokens(None))
        self._numbers: dict[str, int] = {}

    def number(self, item_id: str, record: Mapping[str, Value]) -> int:
        value = record.get(self.name)
        if not isinstance(value, str):  # 1, 1.0 and True are one key of a dict, but not one value
            return self.absent if value is None else self._add(item_id, value)
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
            return self.absent
