"""Writes a commented TOML spec from the guesses about a log's columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from model_store.spec.sections import ChosenSection
from trainer.formats.batch import STDIN
from trainer.formats.registry import FORMATS
from trainer.inspect.guesses import ROLES_WITH_ONE_COLUMN, Guess, may_be_quantity

_EXTENSIONS = {".gz", ".zst", *(end for each in FORMATS.values() for end in each.extensions)}
_SUGGESTED_CROSSES = 3
_NAMES_A_LINE = 10
_CROSS_VALUES = range(2, 2000)
_MOST_LISTS = 2
_RANKS = [2, 3, 5, 10]

_JOIN = """\
[join]
window = "10m"                        # how long after an impression a click of it counts"""
TEXTBOOK = {"alpha": 0.1, "beta": 1.0, "l1": 1.0, "l2": 0.0}
_WHY = {"alpha": "the learning rate", "l1": "higher: fewer keys keep a weight"}


@dataclass(frozen=True)
class Line:
    """A field as the spec writes it. members: of its table.

    doubt: what it is, if it is no use to some models, "" for certain; guessed: whether it is in without a measurement.
    """

    name: str
    members: Mapping[str, Any]
    why: str
    doubt: str = ""
    guessed: bool = True

    @property
    def tried(self) -> bool:
        """Whether a measurement decides if it is in; the weekday of a single day cannot be measured."""
        return bool(self.doubt) and (self.guessed or self.members.get("part") is None)

    @property
    def may_be_crossed(self) -> bool:
        """Whether it may help in crosses alone, as an id does."""
        return bool(self.doubt) and self.members.get("kind", "category") == "category"

    def __str__(self) -> str:
        members = ", ".join(f"{name} = {_value(value)}" for name, value in self.members.items())
        return f"{_key(self.name)} = {{ {members} }}"


@dataclass(frozen=True)
class Measured:
    """What was measured, as the spec says it.

    chosen: the section about it; fields: what each doubtful field gained, by its name; kept: those that are in; hidden:
    why others are in without a key of their own; crosses: the fields of each, and what it gained; learner: the
    parameters; base: those without the crosses, if both are to be compared, and what that variant lacks.
    """

    chosen: ChosenSection
    fields: Mapping[str, str]
    kept: Collection[str]
    hidden: Mapping[str, str]
    crosses: Sequence[tuple[Sequence[str], str]]
    learner: Mapping[str, Any]
    base: Mapping[str, Any] | None = None
    without: Sequence[str] = ()


def model_name(path: str) -> str:
    """A model name from the log's file name: `logs/ads 2024.csv.gz` gives `ads-2024`."""
    name = PurePath(path)
    while name.suffix.lower() in _EXTENSIONS:
        name = name.with_suffix("")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.name).strip("-.")[:128]
    return plain if plain and path != STDIN else "model"


def spec_text(
    path: str,
    guesses: Sequence[Guess],
    has_header: bool = True,
    *,
    joins: bool = False,
    dialect: Mapping[str, Any] | None = None,
    lines: Sequence[Line] | None = None,
    measured: Measured | None = None,
) -> str:
    """The spec as TOML, valid for `parse_spec` and for training on the log at `path`; joins: of events.

    lines: the fields, by default as `field_lines` has them; measured: what was chosen of them.
    """
    names = field_names(guesses)
    fields = field_lines(guesses) if lines is None else lines
    parts = [
        _opening(path, guesses),
        "\n".join(_input(guesses, has_header, dialect or {})),
        "\n".join(_fields(fields, measured)),
        "\n".join(_crosses(guesses, names, measured)),
        "\n".join(_variants(fields, measured)),
        *([_JOIN] if joins else []),
        "\n".join(_learner(measured)),
        *(["\n".join(_chosen(measured.chosen))] if measured else []),
    ]
    return "\n\n".join(parts) + "\n"


def field_names(guesses: Sequence[Guess]) -> dict[str, str]:
    """Column → field: the last part of a nested column's path where that is unique, else the whole path."""
    columns = [guess.name for guess in guesses]
    last = [name.rpartition(".")[2] for name in columns]
    return {
        name: short if short and last.count(short) == 1 else name
        for name, short in zip(columns, last, strict=True)
    }


def _opening(path: str, guesses: Sequence[Guess]) -> str:
    rows = len(guesses[0].profile.texts)
    source = "standard input" if path == STDIN else PurePath(path).name
    return (
        f"# Guessed from the first {rows:,} rows of {_comment(source)}. Review it: names and a few rows do not\n"
        "# tell what a column means. Comments give the reason of each guess, or a suggestion.\n"
        f'\n[model]\nname = "{model_name(path)}"'
    )


def _input(guesses: Sequence[Guess], has_header: bool, dialect: Mapping[str, Any]) -> Iterator[str]:
    yield "[input]"
    for name, value in dialect.items():
        yield _line(f"{name} = {json.dumps(value, ensure_ascii=False)}", "how the log's cells are written")
    if not has_header:
        yield _line("columns = [", "the log has no header: rename the columns here and below")
        names = [f"{_quote(guess.name)}," for guess in guesses]
        for start in range(0, len(names), _NAMES_A_LINE):
            yield f"    {' '.join(names[start : start + _NAMES_A_LINE])}"
        yield "]"
    for role in ROLES_WITH_ONE_COLUMN:
        for guess in guesses:
            if guess.role == role:
                yield _line(f"{role} = {_quote(guess.name)}", guess.why)
                if guess.positive is not None:
                    yield _line(f"positive = {_quote(guess.positive)}", "the value that is a click")
    ignored = [guess for guess in guesses if guess.role == "ignore"]
    if ignored:
        yield "ignore = ["
        for guess in ignored:
            yield _line(f"    {_quote(guess.name)},", guess.why)
        yield "]"


def field_lines(guesses: Sequence[Guess], joins: bool = False) -> list[Line]:
    """Every field that the guesses know of. joins: also those of the lists and histories of events."""
    lines = [*_field_lines(guesses, joins)]
    if any(line.guessed for line in lines):
        return lines
    return [replace(line, guessed=True) for line in lines]  # a spec needs a field


def _field_lines(guesses: Sequence[Guess], joins: bool) -> Iterator[Line]:
    names = field_names(guesses)
    for guess in guesses:
        name = names[guess.name]
        if guess.role == "timestamp":
            yield from _time_lines(guess, names)
        elif guess.role == "cookie":
            doubt = "to learn each user individually, which needs many clicks per user"
            yield Line(name, _members(guess, name), "its name", doubt, guessed=False)
        elif guess.role in ("item", "field"):
            place = guess.doubt == "a place"
            yield Line(name, _members(guess, name), guess.why, guess.doubt, guessed=not place)
    if joins:
        yield from _list_lines(guesses, names)
        yield from _history_lines(guesses, names)


def _time_lines(guess: Guess, names: dict[str, str]) -> Iterator[Line]:
    taken = {name for column, name in names.items() if column != guess.name}
    for part in ("hour", "weekday"):
        name = part if part not in taken else f"{names[guess.name]}_{part}"
        one_day = part == "weekday" and guess.profile.days < 2
        rows = len(guess.profile.texts)
        doubt = f"The {rows:,} rows read are of one day; where the log has more days" if one_day else "a time"
        yield Line(name, _members(guess, name, part), guess.why, doubt, guessed=not one_day)


def ways_of_numbers(guesses: Sequence[Guess]) -> dict[str, list[Line]]:
    """Ways to make keys of the numbers, by what they are called, beside that of `field_lines`, which is "log"."""
    ways: dict[str, list[Line]] = {"values": [], "quantiles": [], "quantiles and size": [], "size": []}
    names = field_names(guesses)
    for guess in guesses:
        if guess.role != "field" or guess.kind != "number":
            continue
        name = names[guess.name]
        options = {**_members(replace(guess, kind="category"), name), "column": guess.name}
        number = {**options, "kind": "number"}
        value = Line(f"{name}_value", options, guess.why)
        bucket = Line(f"{name}_bucket", {**number, "bucket": "quantile:20"}, guess.why)
        scaled = Line(f"{name}_scaled", {**number, "scale": "standard"}, guess.why)
        for way, lines in zip(ways, ([value], [bucket], [bucket, scaled], [scaled]), strict=True):
            ways[way] += lines
    return ways if ways["values"] else {}


def bucket_lines(guesses: Sequence[Guess]) -> Iterator[Line]:
    """Buckets beside the values of categories that are numbers."""
    names = field_names(guesses)
    for guess in guesses:
        if (
            guess.role == "field"
            and guess.kind == "category"
            and not guess.optional
            and may_be_quantity(guess.profile)
        ):
            name = names[guess.name]
            members = {
                **_members(guess, name),
                "kind": "number",
                "bucket": "quantile:20",
                "column": guess.name,
            }
            yield Line(f"{name}_bucket", members, guess.why, "its values as sizes", guessed=False)


def _list_lines(guesses: Sequence[Guess], names: Mapping[str, str]) -> Iterator[Line]:
    """How an item's number compares with those of the others in its list."""
    numbers = [g for g in guesses if g.role == "field" and g.kind == "number" and g.side == "item"]
    for guess in numbers[:_MOST_LISTS]:
        for kind, bucket in (("rank", _RANKS), ("gap", "log"), ("min", "log")):
            name = names[guess.name]
            members = {"side": "item", "kind": "number", "bucket": bucket, "list": kind, "of": name}
            yield Line(f"{name}_{kind}", members, "among the items of the list", "a list", guessed=False)


def _history_lines(guesses: Sequence[Guess], names: Mapping[str, str]) -> Iterator[Line]:
    """What the user saw and clicked before."""
    if not {"cookie", "timestamp", "item"} <= {guess.role for guess in guesses}:
        return
    of_item = [
        g
        for g in guesses
        if g.role == "field" and g.side == "item" and g.kind == "category" and not g.optional
    ]
    own = {"kind": "number", "bucket": "log"}
    found: dict[str, dict[str, Any]] = {
        "seen_before": {"side": "item", **own, "history": "seen", "measure": "count"},
        "clicked_before": {"side": "item", **own, "history": "clicked", "measure": "count"},
        "clicks_before": {"side": "user", **own, "history": "clicked", "measure": "count"},
        "last_clicked": {"side": "user", "kind": "set", "history": "clicked", "measure": "last", "last": 3},
    }
    for guess in of_item[:_MOST_LISTS]:
        name, count = names[guess.name], {"history": "clicked", "measure": "count", "of": names[guess.name]}
        found[f"{name}_clicked_before"] = {"side": "item", **own, **count}
    taken = {*names.values()}
    for name, members in found.items():
        if name not in taken:
            yield Line(name, members, "the trainer keeps it, docs/features.md", "a history", guessed=False)


def _fields(lines: Sequence[Line], measured: Measured | None) -> Iterator[str]:
    yield '[fields]                              # side: "user", "item" or "context": where the value comes from'
    for line in lines:
        found = "" if measured is None else measured.fields.get(line.name, "")
        if measured is not None and line.name in measured.hidden:
            line = replace(line, members={**line.members, "main": False})
            yield _line(str(line), measured.hidden[line.name])
        elif line.guessed if measured is None or not found else line.name in measured.kept:
            yield _line(str(line), f"{line.why}; {found}" if found else line.why)
        elif found:
            yield _line(f"# {line}", found)
        elif line.doubt and line.doubt not in ("a list", "a history"):
            yield f"# {line.doubt[0].upper()}{line.doubt[1:]}:"
            yield f"# {line}"


def _members(guess: Guess, name: str, part: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"side": guess.side}
    if guess.kind != "category":
        found["kind"] = guess.kind
    if guess.kind == "number":
        found["bucket"] = "log"
    if part is not None:
        found["part"] = part
    if guess.format not in (None, "iso"):
        found["format"] = guess.format
    if guess.separator is not None:
        found["separator"] = guess.separator
    if guess.optional:
        found["optional"] = True
    if name != guess.name:
        found["column"] = guess.name
    return found


def _crosses(guesses: Sequence[Guess], names: dict[str, str], measured: Measured | None) -> Iterator[str]:
    if measured is not None and measured.crosses:
        yield "# A cross learns pairs of values; these gain more than chance explains, each beside those before it:"
        for fields, why in measured.crosses:
            yield f"[[crosses]]\n{_line(f'fields = {_value([*fields])}', why)}"
        return
    yield "# A cross learns pairs of values, such as the taste of some users for some items:"
    if measured is not None:
        yield "# (no pair of these fields gained more than chance explains)"
    for request_side, item_side in _pairs(guesses) or [("field", "other_field")]:
        fields = ", ".join(_quote(names.get(name, name)) for name in (request_side, item_side))
        yield f"# [[crosses]]\n# fields = [{fields}]"


def _pairs(guesses: Sequence[Guess]) -> list[tuple[str, str]]:
    """Pairs of a request-side and an item-side column with a moderate number of values, user columns first."""
    usable = [
        guess
        for guess in guesses
        if guess.role in ("field", "item")
        and guess.kind == "category"
        and not guess.warning
        and guess.profile.distinct in _CROSS_VALUES
    ]
    items = [guess.name for guess in usable if guess.side == "item"]
    others = [guess.name for guess in usable if guess.side == "user"]
    others += [guess.name for guess in usable if guess.side == "context"]
    if not items:
        return list(pairwise(others))[:1]
    return [(other, item) for other in others[:2] for item in items[:2]][:_SUGGESTED_CROSSES]


def _variants(lines: Sequence[Line], measured: Measured | None) -> Iterator[str]:
    yield "[variants]"
    if measured is not None and measured.base is not None:
        own = "".join(
            f", {name} = {_value(value)}"
            for name, value in measured.base.items()
            if value != measured.learner[name]
        )
        yield "# Whether the crosses help is not clear from these rows; both learn and serve side by side:"
        yield f"base = {{ share = 0.5, without = {_value([*measured.without])}{own} }}"
        yield "crosses = { share = 0.5 }"
        return
    fields = [line.name for line in lines if line.guessed and not line.doubt]
    yield _line("base = { share = 1.0 }", "variants learn and serve side by side; shares sum to 1")
    if fields:
        yield "# base = { share = 0.5 }"
        yield f"# small = {{ share = 0.5, without = [{_quote(fields[-1])}] }}"


def _learner(measured: Measured | None) -> Iterator[str]:
    yield '[learner]\nalgorithm = "ftrl"'
    if measured is not None and measured.base is not None:
        yield _line('values = "per_variant"', "each variant learns as if it was alone")
    for name, value in (TEXTBOOK if measured is None else measured.learner).items():
        why = _WHY.get(name, "")
        if measured is None and name == "alpha":
            why += ": try 0.03 and 0.3"
        yield _line(f"{name} = {float(value)!r}", why) if why else f"{name} = {float(value)!r}"


def _chosen(section: ChosenSection) -> Iterator[str]:
    yield _line("[chosen]", "by `ftrie init` on the log's first rows; only people and reports read it")
    yield _line(f"rows = {section.rows}", "by which rate, fields and crosses were chosen")
    yield _line(
        f"judged_rows = {section.judged_rows}", "after them: predicted, not learned; they chose nothing"
    )
    yield "steps = ["
    for step in section.steps:
        members = step.model_dump(exclude_none=True)
        yield f"    {{ {', '.join(f'{name} = {_value(value)}' for name, value in members.items())} }},"
    yield "]"


def _line(text: str, why: str) -> str:
    return f"{text.ljust(37)} # {_comment(why)}"


def _comment(text: str) -> str:
    """The text without control characters, which TOML does not allow in comments."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _value(value: Any) -> str:
    """A value of a member as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _quote(value) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)


def _quote(text: str) -> str:
    # A JSON string is a valid TOML string except that TOML requires DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
