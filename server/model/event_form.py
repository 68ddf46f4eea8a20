"""How features are written in impression events: under which name, on which side, in which JSON (docs/events.md).

Features are named by the columns of the spec, since a trainer reads columns. A feature without a value in a served
request must have none in the joined row either, so that both make the same keys: if the row has another value under
that name, the event says `""`, which is no value for every kind of field.

A value is written as the plainest JSON that has the same tokens: texts and numbers before buckets, escapes and parts of
times, which are computed again, by the same rules, wherever the event is read. Each kind of field has one JSON type, so
that a reader's columns have one type: category, time and text a text, number a number, set and raw a list, or an object
if members carry an x.

`Form` writes the features of one spec; `server.model.columns.Fragments` those of a catalogue's items, from values that
were written when the catalogue was built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from json.encoder import encode_basestring_ascii

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.spec import ModelSpec
from model_store.spec.values import Value, decoded, one_scalar, parse_number, set_members
from server.model.model import id_fields

OF_THE_LINE = ("request_id", "ts", "cookie", "model", "version", "variant", "objective")
OF_THE_ITEM = ("id", "position", "ctr", "propensity", "unknown", "models")
"""A field called `position` is learned with the position that was shown, whatever it was scored with: clicks depend on
positions, and answers should not."""
EMPTY = '""'


@dataclass(frozen=True, slots=True)
class Member:
    """One member of `user`, `context` or `features`: the value of a column.

    start: its name and the colon. fields: those read from the column; the first with a value is written. missing: what
    is written if none has a value; None for no member.
    """

    start: str
    fields: tuple[tuple[str, Printer], ...]
    missing: str | None

    def of(self, values: Mapping[str, Value]) -> str | None:
        """The member of a request or an item. Raises FieldValueError."""
        for name, printed in self.fields:
            text = printed(values.get(name))
            if text is not None:
                return self.start + text
        return self.missing


@dataclass(frozen=True)
class Form:
    """How the features of one spec are printed. Immutable; shared by all threads."""

    spec: ModelSpec
    plan: FeaturePlan
    user: tuple[Member, ...] = field(init=False)
    context: tuple[Member, ...] = field(init=False)
    item: tuple[Member, ...] = field(init=False)
    id_members: tuple[Member, ...] = field(init=False)
    """Members of an item whose value is its own id unless it has another."""
    tells_items: bool = field(init=False)
    """Whether the model has item fields other than the id: an unknown item was scored without them."""
    _known: frozenset[str] = field(init=False)
    _taken: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        fields, bind = self.plan.fields, object.__setattr__
        given = self.spec.input
        own = {name for name in (given.request, given.timestamp, given.cookie) if name}
        of_the_row = own.union(OF_THE_LINE)
        ids = id_fields(self.spec, self.plan)
        bind(self, "user", _members((f for f in fields if f.side == "user"), of_the_row))
        bind(self, "context", _members((f for f in fields if f.side == "context"), of_the_row))
        items = [f for f in self.plan.item_fields if f.name not in ids]
        bind(self, "item", _members(items, of_the_row.union(OF_THE_ITEM) - {"position"}))
        bind(self, "id_members", _members((f for f in fields if f.name in ids), frozenset()))
        bind(self, "tells_items", bool(items))
        bind(self, "_known", frozenset(f.name for f in self.plan.request_fields))
        names = {name for f in fields for name in (f.name, f.column)}
        bind(self, "_taken", names | of_the_row | {given.label, given.item, *OF_THE_ITEM})

    def request(self, values: Mapping[str, Value]) -> tuple[str, str]:
        """The members of `user` and of `context`, commas between them.

        A feature that the model does not know is written to `context` as it came, for a later model, unless the row
        uses its name otherwise. Raises FieldValueError.
        """
        user = [text for member in self.user if (text := member.of(values)) is not None]
        context = [text for member in self.context if (text := member.of(values)) is not None]
        if not values.keys() <= self._known:
            for name in values.keys() - self._known - self._taken:
                if (text := printed_unknown(values[name])) is not None:
                    context.append(f"{quoted(name)}:{text}")
        return ",".join(user), ",".join(context)

    def shown(self, item_id: str, values: Mapping[str, Value], *, unknown: bool = False) -> str:
        """`id` and `features` of an item, and `unknown` if it is, without braces around. Raises FieldValueError."""
        features = [text for member in self.item if (text := member.of(values)) is not None]
        features += self.id_texts(item_id, lambda member: member.of(values))
        mark = ',"unknown":1' if unknown and self.tells_items else ""
        return f'"id":{quoted(item_id)},"features":{{{",".join(features)}}}{mark}'

    def id_texts(self, item_id: str, given: Callable[[Member], str | None]) -> list[str]:
        """The members that have the item's id as value unless another one is `given`."""
        found = (given(member) or self._by_id(member, item_id) for member in self.id_members)
        return [text for text in found if text is not None]

    def stored(self, features: Mapping[str, Value]) -> dict[str, Value]:
        """From the `features` of an event back to values by field name."""
        return {f.name: features[f.column] for f in self.plan.item_fields if f.column in features}

    def _by_id(self, member: Member, item_id: str) -> str | None:
        """The member whose value is the item's id; None if the row has the id anyway, in the spec's item column."""
        name, printed = member.fields[0]
        try:
            text = printed(item_id)
        except FieldValueError:
            # An id that does not fit the field makes no key here, so that the row must have none either.
            return member.start + EMPTY
        plan = self.plan.field(name)
        by_itself = plan is not None and plan.column == self.spec.input.item
        return None if text is None or by_itself else member.start + text


def _members(fields: Iterable[FieldPlan], of_the_row: Set[str]) -> tuple[Member, ...]:
    by_column: dict[str, list[FieldPlan]] = {}
    for plan in fields:
        by_column.setdefault(plan.column, []).append(plan)
    return tuple(
        Member(
            start := f"{quoted(column)}:",
            tuple((plan.name, printer(plan)) for plan in plans),
            start + EMPTY if column in of_the_row else None,
        )
        for column, plans in by_column.items()
    )


# ASCII, so that also a text with a lone surrogate is valid JSON, as an escape.
quoted: Callable[[str], str] = encode_basestring_ascii
"""A text as JSON, in ASCII."""

Printer = Callable[[Value], str | None]
"""A value as JSON; None if it is missing or empty. Raises FieldValueError if it does not fit its field."""


def printer(field: FieldPlan) -> Printer:
    """The function that writes the values of a field."""
    if field.kind.form == "set":
        return partial(printed_set, separator=field.spec.separator)
    return _number if field.kind.form == "number" else _text


def printed_set(value: Value, separator: str | None = None) -> str | None:
    """The members of a set, each once: a list, or an object with their x unless every x is 1."""
    members = {text.decode(): x for text, x in set_members(value, separator).items()}
    if not members:
        return None
    if all(x == 1.0 for x in members.values()):
        return f"[{','.join(map(quoted, members))}]"
    return f"{{{','.join(f'{quoted(text)}:{x!r}' for text, x in members.items())}}}"


def printed_unknown(value: Value) -> str | None:
    """The value of an unknown feature, as it came."""
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
    # `repr` reads back as the same double, and so makes the same key.
    return None if value is None or value == "" else repr(parse_number(one_scalar(value)))
