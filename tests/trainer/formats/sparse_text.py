"""The slow, obvious reading of one line of Vowpal Wabbit, libsvm or libffm text, for tests to compare with."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

LABELS = {Decimal(1): 1, Decimal(0): 0, Decimal(-1): 0}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
Row = dict[str, Any]


class Bad(Exception):
    """A line that is no row."""


def words_of(text: str) -> list[str]:
    return [word for word in re.split("[ \t\r]+", text) if word]


def is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def number(text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise Bad(text)
    return float(text)


def label(text: str) -> int:
    number(text)
    try:
        return LABELS[Decimal(text)]  # 1e-400 is not written as 0
    except KeyError:
        raise Bad(text) from None


def vw(line: str) -> Row | None:
    """A row as {column: value}, a namespace being a list of (feature, x); None for a blank line."""
    head, bar, body = line.partition("|")
    words = words_of(head)
    if not bar:
        if words:
            raise Bad(line)
        return None
    row: Row = {"importance": None, "tag": ""}
    if words and (head[-1] not in " \t\r" or words[-1].startswith("'")):
        row["tag"] = words.pop().removeprefix("'")
    if not 1 <= len(words) <= 3:
        raise Bad(line)
    row["label"] = label(words[0])
    if len(words) > 1:
        row["importance"] = number(words[1])
    if len(words) > 2 and (number(words[2]) or Decimal(words[2])):  # 1e-400 is not written as 0
        raise Bad(line)
    for part in body.split("|"):
        name, *features = re.split("[ \t\r]+", part)
        name, colon, scale = name.partition(":")
        if colon and not name:
            raise Bad(part)
        column = f"|{name}" if name in ("label", "importance", "tag", "features") else name or "features"
        members = row.setdefault(column, [])
        for feature in filter(None, features):
            member, colon_, value = feature.partition(":")
            x = number(value) if colon_ else 1.0
            if not member:
                raise Bad(feature)
            members.append((member, x * (number(scale) if colon else 1.0)))
        if colon:
            number(scale)
    return row


def libsvm(line: str) -> Row | None:
    words = words_of(line.partition("#")[0])
    if not words:
        return None
    row: Row = {"label": label(words[0]), "qid": "", "features": []}
    for word in words[1:]:
        index, _, value = word.partition(":")
        if index == "qid" and value:
            row["qid"] = value
        elif is_index(index):
            row["features"].append((str(int(index)), number(value)))
        else:
            raise Bad(word)
    return row


def libffm(line: str) -> Row | None:
    words = words_of(line)
    if not words:
        return None
    row: Row = {"label": label(words[0])}
    for word in words[1:]:
        field, index, value = (*word.split(":", 2), "", "")[:3]
        if not (is_index(field) and is_index(index)):
            raise Bad(word)
        row.setdefault(str(int(field)), []).append((str(int(index)), number(value)))
    return row
