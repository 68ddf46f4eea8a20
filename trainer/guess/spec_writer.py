"""Writes a commented TOML spec from the guesses about a log's columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from trainer.guess.guesses import ROLES_WITH_ONE_COLUMN, Guess
from trainer.logs.batch import STDIN
from trainer.logs.reader import EXTENSIONS

_EXTENSIONS = {".gz", ".zst", *EXTENSIONS}
_SUGGESTED_CROSSES = 3
_NAMES_A_LINE = 10
_CROSS_VALUES = range(2, 2000)

_JOIN = """\
[join]
window = "10m"                        # how long after an impression a click of it counts"""
_LEARNER = """\
[learner]
algorithm = "ftrl"
alpha = 0.1                           # the learning rate: try 0.03 and 0.3
beta = 1.0
l1 = 1.0                              # higher: fewer keys keep a weight
l2 = 0.0
"""


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
) -> str:
    """The spec as TOML, valid for `parse_spec` and for training on the log at `path`; joins: of events."""
    names = field_names(guesses)
    parts = [
        _opening(path, guesses),
        "\n".join(_input(guesses, has_header, dialect or {})),
        "\n".join(_fields(guesses, names)),
        "\n".join(_crosses(guesses, names)),
        "\n".join(_variants(guesses, names)),
        *([_JOIN] if joins else []),
        _LEARNER,
    ]
    return "\n\n".join(parts)


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
        "# tell what a column means. Comments give the reason of each guess, or a suggestion.\n\n"
        f'[model]\nname = "{model_name(path)}"'
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


def _fields(guesses: Sequence[Guess], names: dict[str, str]) -> Iterator[str]:
    yield '[fields]                              # side: "user", "item" or "context": where the value comes from'
    for guess in guesses:
        if guess.role == "timestamp":
            yield from _time_fields(guess, names)
        elif guess.role == "cookie":
            yield "# To learn each user individually, which needs many clicks per user:"
            yield "# " + _field(guess, names[guess.name])
        elif guess.role in ("item", "field"):
            yield _line(_field(guess, names[guess.name]), guess.why)


def _time_fields(guess: Guess, names: dict[str, str]) -> Iterator[str]:
    taken = {name for column, name in names.items() if column != guess.name}
    for part in ("hour", "weekday"):
        name = part if part not in taken else f"{names[guess.name]}_{part}"
        one_day = part == "weekday" and guess.profile.days < 2
        if one_day:
            yield f"# The {len(guess.profile.texts):,} rows read are of one day; where the log has more days:"
        yield ("# " if one_day else "") + _line(_field(guess, name, part), guess.why)


def _field(guess: Guess, name: str, part: str | None = None) -> str:
    options = [f'side = "{guess.side}"']
    if guess.kind != "category":
        options.append(f'kind = "{guess.kind}"')
    if guess.kind == "number":
        options.append('bucket = "log"')
    if part is not None:
        options.append(f'part = "{part}"')
    if guess.format not in (None, "iso"):
        options.append(f"format = {_quote(str(guess.format))}")
    if guess.separator is not None:
        options.append(f"separator = {_quote(guess.separator)}")
    if guess.optional:
        options.append("optional = true")
    if name != guess.name:
        options.append(f"column = {_quote(guess.name)}")
    return f"{_key(name)} = {{ {', '.join(options)} }}"


def _crosses(guesses: Sequence[Guess], names: dict[str, str]) -> Iterator[str]:
    yield "# A cross learns pairs of values, such as the taste of some users for some items:"
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


def _variants(guesses: Sequence[Guess], names: dict[str, str]) -> Iterator[str]:
    fields = [names[guess.name] for guess in guesses if guess.role in ("field", "item")]
    yield "[variants]"
    yield _line("base = { share = 1.0 }", "variants learn and serve side by side; shares sum to 1")
    if fields:
        yield "# base = { share = 0.5 }"
        yield f"# small = {{ share = 0.5, without = [{_quote(fields[-1])}] }}"


def _line(text: str, why: str) -> str:
    return f"{text.ljust(37)} # {_comment(why)}"


def _comment(text: str) -> str:
    """The text without control characters, which TOML does not allow in comments."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)


def _quote(text: str) -> str:
    # A JSON string is a valid TOML string except that TOML requires DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
