"""The catalogue: the items that a server knows. Each value of a field is kept once, each row has its code.

    row → code → tokens | text | number | JSON

Tokens are what keys are made of, texts and numbers what objectives, filters, caps and histories read, JSON what an
impression says. A code is a value's number in the `TokenTable`; fields that the model lacks have codes of their own.
Only arrays, no Python object for each item, so that every process maps the same copy.

Ids are here too: those of a request, still in its bytes (`ItemIds`), and the index from ids to rows (`IdTable`). A
Python text for each of 200 ids costs about 6 µs, and encoding them again to find their rows another 7. A dict finds the
same rows at one to three cache misses an id; measured for 200 of 100,000 ids, another 200 each time: 14 µs against 104
with a dict (benchmarks/ranker.py).
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import ArtefactError, FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan, Tokenised
from model_store.spec.kinds import Token
from model_store.spec.values import LARGEST_REAL, Value, one_scalar, parse_number, set_members, text_of
from server.model.byte_kernels import LINE_FEED, find_ids, index_ids, split_lines
from server.model.derived import DerivedFields
from server.model.event_form import Form, Member, Printer, printer, quoted
from server.model.event_form_kernels import MEMBER_COLUMNS, room_for, write_items
from server.model.tokens import NO_VALUE, TokenTable, TokenWriter

Array = npt.NDArray[Any]
InlineItem = tuple[str, Mapping[str, Value]]
"""An item whose features are in the request: its id, and the features by field name."""

MAX_NAMES = 64
"""Fields of the items' records whose texts are kept: the model's first, then by name."""
MAX_TEXT_BYTES = 256
NO_TEXT = -1
MAX_PROBLEMS = 20
CACHED_VALUES = 16_384


def end_to_end(texts: Iterable[bytes]) -> tuple[Array, Array]:
    """Texts as uint8 and int64[n + 1] where each begins, writable: kernels are compiled for one kind of array."""
    texts = list(texts)
    offsets = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
    return np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets


# -- ids


class ItemIds(Sequence[str]):
    """The ids of a request, decoded when they are read. Immutable. All are ASCII.

    text uint8[bytes] holds the ids, spans int32[n, 2] where each begins and ends.
    """

    __slots__ = ("_message", "spans", "text")

    def __init__(self, message: bytes, text: Array, spans: Array) -> None:
        self._message, self.text, self.spans = message, text, spans

    @classmethod
    def of(cls, ids: Sequence[str]) -> ItemIds | None:
        """These ids as those of a message; None unless all are ASCII texts without a line feed. O(bytes)."""
        try:
            text = chr(LINE_FEED).join(ids)
        except TypeError:
            return None
        if not ids or not text.isascii():
            return None
        message = text.encode("ascii")
        made = cls(message, np.frombuffer(message, np.uint8), np.empty((len(ids), 2), np.int32))
        return made if split_lines(made.text, made.spans) == len(ids) else None

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return ItemIds(self._message, self.text, self.spans[index])
        begin, end = self.spans[index].tolist()
        return self._message[begin:end].decode("ascii")

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts(self.spans))

    def at(self, indices: Array) -> list[str]:
        """The ids at these indices (an array of integers)."""
        return self._texts(self.spans[indices])

    def _texts(self, spans: Array) -> list[str]:
        message = self._message
        return [message[begin:end].decode("ascii") for begin, end in spans.tolist()]


@dataclass(frozen=True, eq=False)
class IdTable(Sequence[str]):
    """From ids to rows, many at a time. Immutable; a sequence of its ids by row, each decoded when it is read.

    id_data uint8, id_offsets int64[n + 1]: the ids end to end by row; table: see `byte_kernels`.
    """

    id_data: Array
    id_offsets: Array
    table: Array

    @classmethod
    def of(cls, ids: Iterable[str]) -> IdTable:
        """Index distinct ids, whose rows are 0, 1, 2 … in their order. O(bytes of the ids)."""
        data, offsets = end_to_end(map(_encoded, ids))
        # A power of two, so that a mask wraps places around, and more than twice the ids, so that searches stay short.
        table = np.full(1 << (2 * len(offsets) - 1).bit_length(), -1, np.int32)
        index_ids(data, offsets, table)
        return cls(data, offsets, table)

    def __len__(self) -> int:
        return len(self.id_offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        begin, end = self.id_offsets[range(len(self))[row]], self.id_offsets[range(len(self))[row] + 1]
        return self.id_data[begin:end].tobytes().decode("utf-8", "surrogatepass")

    def rows(self, ids: Sequence[str]) -> tuple[Array, int]:
        """The row of each id (int32), UNKNOWN if it is not there; and how many are unknown. O(bytes of the ids)."""
        in_one = ids if isinstance(ids, ItemIds) else ItemIds.of(ids)
        if in_one is not None:
            text, spans = in_one.text, in_one.spans
        else:
            text, offsets = end_to_end(map(_encoded, ids))
            text.flags.writeable = False  # as a request's is
            # As of a message: the kernel is compiled for one kind of array, whose places have 32 bits.
            spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int32)
        rows = np.empty(len(ids), np.int32)
        return rows, int(find_ids(self.id_data, self.id_offsets, self.table, text, spans, rows))


def _encoded(item_id: str) -> bytes:
    return item_id.encode("utf-8", "surrogatepass")


# -- the values of one field


@dataclass(frozen=True, eq=False)
class Column:
    """One field of every row. Immutable.

    codes int32[rows]: each row's value, codes from `first` on; NO_VALUE and codes beyond the texts' have no text.

    text uint8, text_offsets int64[n + 1]: the n distinct texts, sorted bytewise. In a field with one value, the text of
    code c is c - first, and numbers float64[n + 1] has each text as a number, NaN if it is not one; NaN last, which
    NO_TEXT indexes. In a set, code c has the texts members[start[c - first] : start[c - first + 1]] (int32, int64), and
    there are no numbers.
    """

    codes: Array
    first: int
    text: Array
    text_offsets: Array
    numbers: Array
    start: Array | None = None
    members: Array | None = None

    @property
    def is_set(self) -> bool:
        """Whether a row may have several texts."""
        return self.start is not None

    @property
    def count(self) -> int:
        """How many distinct texts there are."""
        return len(self.text_offsets) - 1

    def code(self, text: bytes) -> int:
        """The number of a text, NO_TEXT if no row has it. O(log texts)."""
        at = bisect_left(range(self.count), text, key=self.text_of)
        return at if at < self.count and self.text_of(at) == text else NO_TEXT

    @cached_property
    def texts(self) -> pa.Array:
        """The distinct texts as an Arrow array over the same memory."""
        # large_binary has offsets of 64 bits, as these are, so that nothing is copied.
        buffers = [None, pa.py_buffer(self.text_offsets), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.large_binary(), self.count, buffers)

    def text_of(self, text: int) -> bytes:
        """The bytes of a text. O(length)."""
        return self.text[self.text_offsets[text] : self.text_offsets[text + 1]].tobytes()

    def texts_in(self, rows: Array) -> Array:
        """int64[rows]: the text of each of these rows, NO_TEXT if it has none. Of a field with one value."""
        found = np.subtract(self.codes[rows], self.first, dtype=np.int64)
        found[found.view(np.uint64) >= self.count] = NO_TEXT  # a negative number is a large one there
        return found

    def numbers_in(self, rows: Array) -> Array:
        """float64[rows]: the number of each row's text, NaN if it has none; of a set always."""
        if self.is_set:
            return np.full(len(rows), np.nan)
        return self.numbers[self.texts_in(rows)]

    def members_in(self, rows: Array) -> tuple[Array, Array]:
        """Of a set: the place in `rows` of each text, ascending, and the texts; both int64."""
        assert self.start is not None and self.members is not None
        values = self.codes[rows].astype(np.int64) - self.first
        known = np.flatnonzero(values >= 0)
        starts = self.start[values[known]]
        counts = self.start[values[known] + 1] - starts
        # All rows' ranges of members end to end, without a loop: each is shifted to where its own begins.
        at = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        return np.repeat(known, counts), self.members[at].astype(np.int64)

    def texts_at(self, row: int) -> list[str]:
        """The texts of one row. O(their bytes)."""
        value = int(self.codes[row]) - self.first
        if value < 0:
            return []
        if self.start is not None and self.members is not None:
            texts: list[int] = self.members[self.start[value] : self.start[value + 1]].tolist()
        else:
            texts = [value] if value < self.count else []
        return [self.text_of(text).decode("utf-8", "surrogatepass") for text in texts]


@dataclass(frozen=True, eq=False)
class Fragments:
    """What events say of the items of a catalogue, as JSON. Immutable.

    values: those of the `TokenTable`. json uint8, json_offsets int64[codes + 1]: each value; empty if it is missing or
    does not fit its field. own uint8, own_offsets int64[rows + 1]: each item's id, then the members of `features` that
    have it as value. names uint8, members int32[…, MEMBER_COLUMNS]: the other members, see `event_form_kernels`.
    """

    values: Array
    json: Array
    json_offsets: Array
    own: Array
    own_offsets: Array
    names: Array
    members: Array

    @classmethod
    def of(
        cls,
        form: Form | None,
        columns: Sequence[str],
        values: Array,
        json: Sequence[bytes],
        own: Sequence[bytes],
    ) -> Fragments:
        """columns: the field of each column of `values`."""
        rows, names = list[list[int]](), b""
        for member in form.item if form is not None else ():
            start, names = len(names), names + member.start.encode()
            for name, _ in member.fields:
                is_last = name == member.fields[-1][0]
                rows.append([columns.index(name), start, len(names), is_last, member.missing is not None])
        members = np.array(rows, np.int32).reshape(-1, MEMBER_COLUMNS)
        return cls(values, *end_to_end(json), *end_to_end(own), end_to_end([names])[0], members)

    def written(
        self, more: Sequence[bytes], rows: Array, ctrs: Array, chances: Array, tails: Sequence[bytes] = ()
    ) -> bytes:
        """The member `items` of a line. Arguments: those of `event_form_kernels.write_items`; more, tails: texts."""
        texts, offsets = end_to_end(more) if more else _NOTHING
        ends = end_to_end(tails) if tails else _NOTHING
        out = np.empty(room_for(*self._arrays, offsets, rows) + ends[0].size, np.uint8)
        used = write_items(*self._arrays, texts, offsets, rows, ctrs, chances, *ends, out)
        return out[:used].tobytes()

    @cached_property
    def _arrays(self) -> tuple[Array, ...]:
        return tuple(getattr(self, name) for name in _names(Fragments))

    def features_at(self, row: int) -> dict[str, Value]:
        """The features of one row, by column. O(its bytes)."""
        item = json.loads(self.written((), np.array([row], np.int32), np.zeros(1), np.empty(0)))
        features: dict[str, Value] = item["features"]
        return features


_NOTHING = end_to_end(())
NO_FRAGMENTS = Fragments.of(None, (), np.empty((0, 0), np.int32), (), ())


def has_fragments(arrays: Mapping[str, Array]) -> bool:
    """Whether a packed catalogue's arrays hold fragments."""
    return "fragments.json" in arrays


def _names(table: type[IdTable] | type[TokenTable] | type[Fragments]) -> tuple[str, ...]:
    return tuple(array.name for array in fields(table))


def number_of(value: Value) -> float:
    """A value as a number; NaN if it is not one."""
    try:
        return parse_number(one_scalar(value))
    except FieldValueError:
        return float("nan")


def _set_texts(value: Value, separator: str | None) -> tuple[bytes, ...]:
    try:
        return tuple(text for text in set_members(value, separator) if 0 < len(text) <= MAX_TEXT_BYTES)
    except FieldValueError:
        return ()


def _one_text(value: Value) -> tuple[bytes, ...]:
    try:
        text = text_of(one_scalar(value))
    except FieldValueError:
        return ()
    return (text,) if 0 < len(text) <= MAX_TEXT_BYTES else ()


class _ColumnWriter:
    """Numbers the values of one field as they come; `finish` sorts them by text.

    plan: the model's field, None for a field that the model lacks. printed: how an event says a value that fits.
    """

    def __init__(
        self,
        problems: list[str],
        plan: FieldPlan | None = None,
        printed: Printer | None = None,
    ) -> None:
        self._problems, self._plan, self._printed = problems, plan, printed
        self._is_set = plan is not None and plan.kind.form == "set"
        self._texts_of: Callable[[Value], tuple[bytes, ...]] = _one_text
        if plan is not None and self._is_set:
            whole, separator = plan.kind.whole_keys, plan.spec.separator
            self._texts_of = (lambda value: ()) if whole else partial(_set_texts, separator=separator)
        # Four bytes a row; a list has eight and an object.
        self._rows = array("i")
        self._code_of: dict[str | bytes, int] = {}
        self._texts: list[tuple[bytes, ...]] = []
        self.tokens: list[tuple[Token, ...]] = []
        self.json: list[bytes] = []
        self._missing = plan.tokens(None) if plan is not None else ()
        # A missing value is a value of its own if it makes a key.
        self._absent = self._new((), self._missing, "") if self._missing else NO_VALUE

    def put(self, row: int, item_id: str, value: Value) -> None:
        """Set the value of a row. Rows in between have none."""
        if row >= len(self._rows):
            self._rows.extend([NO_VALUE] * (row + 1 - len(self._rows)))
        self._rows[row] = self._absent if value is None else self._code(item_id, value)

    def _code(self, item_id: str, value: Value) -> int:
        """The number of a value, made when it comes first."""
        # Of a set, only a text identifies the value; lists and mappings are read each time.
        key = value if isinstance(value, str) else None if self._is_set else _key_of(value)
        code = self._code_of.get(key) if key is not None else None
        if code is None:
            code = self._read(item_id, value)
            if key is not None:
                self._code_of[key] = code
        return code

    def json_at(self, row: int) -> bytes:
        """How an event says the value of a row; empty if it does not."""
        code = self._rows[row]
        return b"" if code == NO_VALUE else self.json[code]

    def _read(self, item_id: str, value: Value) -> int:
        """The number of a value that was not read before; that of an absent one if nothing is made of it."""
        texts, tokens, written = self._texts_of(value), self._missing, None
        if self._plan is not None:
            try:
                tokens = self._plan.tokens(value)
                written = self._printed(value) if self._printed is not None and tokens else None
            except FieldValueError as error:
                if len(self._problems) < MAX_PROBLEMS:
                    self._problems.append(f"item {item_id!r}: {error}")
        return self._new(texts, tokens, written or "") if texts or tokens != self._missing else self._absent

    def _new(self, texts: tuple[bytes, ...], tokens: tuple[Token, ...], written: str) -> int:
        self._texts.append(texts)
        self.tokens.append(tokens)
        self.json.append(written.encode())
        return len(self._texts) - 1

    def finish(self, rows: int, first: int) -> tuple[Column, list[int]]:
        """The column, whose codes begin with `first`, and the order of the values. Call it once."""
        self._rows.extend([NO_VALUE] * (rows - len(self._rows)))
        order = list(range(len(self._texts)))
        start = members = None
        if self._is_set:
            # Sorted bytewise, so that `Column.code` can search them without a dict in each process.
            texts = sorted({text for each in self._texts for text in each})
            rank = {text: at for at, text in enumerate(texts)}
            start = np.fromiter(accumulate(map(len, self._texts), initial=0), np.int64, len(order) + 1)
            members = np.array([rank[text] for each in self._texts for text in each], np.int32)
            numbers = np.empty(0)
        else:
            # Values without a text come last, so that the code of every other value is also the number of its text.
            order.sort(key=lambda value: (not self._texts[value], self._texts[value]))
            texts = [text for value in order for text in self._texts[value]]
            numbers = np.array([*map(number_of, texts), np.nan])
        codes = np.full(len(order) + 1, NO_VALUE, np.int32)  # NO_VALUE indexes the last one
        codes[order] = np.arange(first, first + len(order), dtype=np.int32)
        return Column(
            codes[np.array(self._rows, np.int64)], first, *end_to_end(texts), numbers, start, members
        ), order


def _key_of(value: Value) -> str | bytes | None:
    """What equal values of a field with one value have in common: what a field makes of a value depends on its text."""
    try:
        text = text_of(one_scalar(value))
    except FieldValueError:
        return None
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text


# -- the items


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Items by row. Immutable; shared by all threads, and by successive models with the same item fields.

    `pack` returns arrays for shared memory, and `unpack` costs the same for any number of items. rows: the ids. tokens:
    a row for each item, a column for each item field. columns: the fields of the records that have a text, by name.
    problems: the first MAX_PROBLEMS messages about stored values that do not fit their field; such a value counts as
    missing, so that no record can keep a server from starting.
    """

    fields: tuple[FieldPlan, ...]
    rows: IdTable
    tokens: TokenTable
    columns: Mapping[str, Column]
    problems: tuple[str, ...]
    fragments: Fragments | None = None
    """Each row as the impression log writes it; None if there is no such log."""
    computed: Mapping[str, Array] = field(default_factory=dict)
    """bool[rows] by derived field: whether the value was computed here, since the record has none that can be used."""

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
        derived, computed = DerivedFields.of(plan), dict[str, Array]()
        if derived is not None:
            # Derived values are computed in columns, over all records at once; of an id that comes twice over the last
            # one.
            last = dict(records)
            numbers = derived.numbers_of(last.values())
            records = zip(last, derived.completed(last.values(), numbers), strict=True)
            computed = {field.name: np.isnan(numbers[field.name]) for field in derived.records.fields}
        writer = _CatalogueWriter(plan, form)
        for item_id, record in records:
            writer.add(item_id, record)
        return writer.finish(computed)

    @classmethod
    def unpack(cls, plan: FeaturePlan, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> Catalogue:
        """Build from what `pack` returned. O(fields). Raises ArtefactError if it was built for other item fields."""
        if head["fields"] != [field.name for field in plan.item_fields]:
            raise ArtefactError(
                f"the catalogue was built for the item fields {head['fields']}, "
                f"the model has {[field.name for field in plan.item_fields]}; build it again"
            )

        def part(name: str, table: Any) -> Any:
            return {each: arrays[f"{name}.{each}"] for each in _names(table) if f"{name}.{each}" in arrays}

        tokens = TokenTable(**part("tokens", TokenTable))
        columns = {}
        for at, (name, first) in enumerate(head["columns"]):
            own = part(f"column.{at}", Column)
            if name in head["fields"]:
                # A view: the codes of a model's field are a column of the tokens' values, and are not stored twice.
                own["codes"] = tokens.values[:, head["fields"].index(name)]
            columns[name] = Column(first=first, **own)
        fragments = None
        if has_fragments(arrays):
            fragments = Fragments(values=tokens.values, **part("fragments", Fragments))
        computed = {name: arrays[f"computed.{at}"] for at, name in enumerate(head["computed"])}
        rows, problems = IdTable(**part("ids", IdTable)), tuple(head["problems"])
        return cls(plan.item_fields, rows, tokens, columns, problems, fragments, computed)

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A JSON head and named arrays, for `unpack` in another process. O(fields): copies nothing."""
        own = {field.name for field in self.fields}
        tables: dict[str, Any] = {"ids": self.rows, "tokens": self.tokens, "fragments": self.fragments}
        tables |= {f"column.{at}": column for at, column in enumerate(self.columns.values())}
        arrays = {
            f"{part}.{name}": found
            for part, table in tables.items()
            for name in (_names(type(table)) if table is not None else ())
            if isinstance(found := getattr(table, name), np.ndarray)
        }
        # The codes of the model's fields, and the values of fragments, are those of the tokens.
        arrays.pop("fragments.values", None)
        for at, name in enumerate(self.columns):
            if name in own:
                del arrays[f"column.{at}.codes"]
        arrays |= {f"computed.{at}": found for at, found in enumerate(self.computed.values())}
        head = {
            "fields": [field.name for field in self.fields],
            "columns": [[name, column.first] for name, column in self.columns.items()],
            "problems": list(self.problems),
            "computed": list(self.computed),
        }
        return head, arrays

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> Sequence[str]:
        """The ids by row; each is decoded when it is read."""
        return self.rows

    def members(self, name: str, value: Value) -> tuple[bytes, ...]:
        """The texts of an item's value of this field: the members of a set, or one text, or none if it is missing.

        A text over MAX_TEXT_BYTES and a value of the wrong kind count as missing.
        """
        plan = self.fields[self._places[name]] if name in self._places else None
        if plan is not None and plan.kind.form == "set" and not plan.kind.whole_keys:
            return _set_texts(value, plan.spec.separator)
        is_scalar = value is None or isinstance(value, str | bytes | bool | int | float)
        return _one_text(value) if is_scalar else _set_texts(value, None)

    def given(self, name: str, rows: Array) -> Array:
        """float64[rows]: the numbers that the records of these rows give for a field, NaN where they give none.

        A number that derived fields are computed from, or one of these; a value that was computed here is not given.
        """
        column = self.columns.get(name)
        if column is None:
            return np.full(len(rows), np.nan)
        found = column.numbers_in(rows)
        # NaN compares as false and stays NaN.
        is_none = np.abs(found) > LARGEST_REAL
        if name in self.computed:
            is_none |= self.computed[name][rows]
        found[is_none] = np.nan
        return found

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
            # Emptied whole: an order of use would cost more than reading some values again. Threads may read the same
            # value twice.
            if len(cache) >= CACHED_VALUES:
                cache.clear()
            value = cache[key] = self._value(row, name)
        return value

    def _value(self, row: int, name: str) -> Value:
        column = self.columns.get(name)
        texts = [] if column is None else column.texts_at(row)
        place = self._places.get(name)
        if place is None:
            return texts[0] if texts else ""
        tokens = self.tokens_at(row, place)
        if self.fields[place].kind.form == "set":
            return StoredMembers(texts, tokens)
        return StoredText(texts[0] if texts else "", tokens)

    @cached_property
    def _cache(self) -> dict[tuple[int, str], Value]:
        return {}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {field.name: place for place, field in enumerate(self.fields)}

    def tokens_at(self, row: int, column: int) -> tuple[Token, ...]:
        """The tokens of one item's value in one field."""
        return self.tokens.tokens_at(int(self.tokens.values[row, column]))

    def tokens_of(self, id_fields: tuple[str, ...]) -> TokenTable:
        """The tokens, where an item without any in one of `id_fields` has its own id as value. O(items), then O(1)."""
        if not id_fields:
            return self.tokens
        found = self._with_ids.get(id_fields)
        if found is None:
            # A copy, since the catalogue's own array is shared by all versions, and in a worker by all processes.
            values, writer = self.tokens.values.copy(), TokenWriter()
            first, lacks = len(self.tokens), self.tokens.is_empty
            for column, plan in enumerate(self.fields):
                if plan.name in id_fields:
                    for row in np.flatnonzero(lacks[values[:, column]]).tolist():
                        number = writer.add(id_tokens(plan, self.ids[row]))
                        values[row, column] = number if number == NO_VALUE else first + number
            found = self._with_ids[id_fields] = self.tokens.followed_by(writer.table(values), values)
        return found

    @cached_property
    def _with_ids(self) -> dict[tuple[str, ...], TokenTable]:
        return {}


class _CatalogueWriter:
    """Collects the records of a catalogue, one column for each field."""

    def __init__(self, plan: FeaturePlan, form: Form | None) -> None:
        self._fields, self._form, self._problems = plan.item_fields, form, list[str]()
        self._raw = {f.name for f in plan.fields if f.kind.whole_keys}
        self._own = {
            f.name: _ColumnWriter(self._problems, f, printer(f) if form is not None else None)
            for f in plan.item_fields
        }
        self._others: dict[str, _ColumnWriter] = {}
        self._by_name: list[str] = []
        self._left_out: set[str] = set()
        self._row_of: dict[str, int] = {}
        self._texts: list[bytes] = []
        self._most_others = MAX_NAMES - sum(not f.kind.whole_keys for f in plan.item_fields)

    def add(self, item_id: str, record: Mapping[str, Value]) -> None:
        """Add an item, or replace it."""
        is_new = item_id not in self._row_of
        row = self._row_of.setdefault(item_id, len(self._row_of))
        for name, column in self._own.items():
            column.put(row, item_id, record.get(name))
        # A record replaces the one before whole: fields that it lacks must not keep their values.
        if not is_new:
            for column in self._others.values():
                column.put(row, item_id, None)
        for name, value in record.items():
            if name not in self._own and (other := self._others.get(name) or self._begin(name)) is not None:
                other.put(row, item_id, value)
        if self._form is not None:
            members = self._form.id_texts(item_id, lambda member: self._printed(member, row))
            self._texts[row : row + 1] = [(quoted(item_id) + ",".join(members)).encode()]

    def _printed(self, member: Member, row: int) -> str | None:
        found = (self._own[name].json_at(row) for name, _ in member.fields)
        return next((member.start + text.decode() for text in found if text), None)

    def _begin(self, name: str) -> _ColumnWriter | None:
        """Begin a column for a new name; if there are too many, the last by name is dropped."""
        if name in self._raw or name in self._left_out:
            return None
        # By name and not by arrival: a scan of the store has no order, and all servers must keep the same fields.
        insort(self._by_name, name)
        self._others[name] = _ColumnWriter(self._problems)
        if len(self._others) > self._most_others:
            last = self._by_name.pop()
            del self._others[last]
            self._left_out.add(last)
        return self._others.get(name)

    def finish(self, computed: Mapping[str, Array]) -> Catalogue:
        """The catalogue. Call it once."""
        rows, tokens, texts = len(self._row_of), TokenWriter(), list[bytes]()
        values = np.empty((rows, len(self._own)), np.int32)
        columns: dict[str, Column] = {}
        printed = {name for member in self._form.item for name, _ in member.fields} if self._form else set()
        for place, (name, writer) in enumerate(self._own.items()):
            column, order = writer.finish(rows, len(tokens.value_start) - 1)
            # The codes of a row side by side, as kernels read them: item by item, all fields.
            values[:, place] = column.codes
            columns[name] = replace(column, codes=values[:, place])
            for value in order:
                tokens.put(writer.tokens[value])
                texts.append(writer.json[value] if name in printed else b"")
        columns |= {name: writer.finish(rows, 0)[0] for name, writer in self._others.items()}
        fragments = None
        if self._form is not None:
            fragments = Fragments.of(self._form, list(self._own), values, texts, self._texts)
        if self._left_out:
            some = ", ".join(sorted(self._left_out)[:3])
            self._problems.append(
                f"items have {len(self._left_out)} fields more than the {MAX_NAMES} that are kept: {some}…"
            )
        return Catalogue(
            self._fields,
            IdTable.of(self._row_of),
            tokens.table(values),
            {name: columns[name] for name in sorted(columns) if columns[name].count},
            tuple(self._problems),
            fragments,
            computed,
        )


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
