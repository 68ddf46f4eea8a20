"""The dialect of a CSV or TSV file: recognised from its first lines, or named by the spec's `[input]`.

In: the first 64 KiB. Out: a `Dialect`, whole. Escapes are undone before a block is taken apart: an escaped byte and its
backslash become two bytes that UTF-8 never has, of the same size, so that positions stay those of the file.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.sections import InputSection
from trainer.formats.batch import HEAD_BYTES
from trainer.formats.streams import MAX_ROW_BYTES, Bytes

csv.field_size_limit(MAX_ROW_BYTES)  # the default, 128 KiB, is less than a row of a log may have

_WORDS = ("<NA>", "-", "NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "?", "(null)")
"""Words for no value, if the other cells of a column are numbers."""
_CURRENCY = "$€£¥₹"
_FORMS = (
    (".", ""),
    (",", ""),
    (".", ","),
    (",", "."),
    (",", " "),
    (",", "\xa0"),
    (".", " "),
    (".", "'"),
    (",", "'"),
)
"""Decimal mark and grouping."""
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LEAST = 2
_HIDDEN = {byte: 0xF5 + number for number, byte in enumerate(b"\n\r\t\\\"',;|")}
_BACK = {hidden: byte for byte, hidden in _HIDDEN.items()}
_SHOWN = bytes(_BACK.get(byte, byte) for byte in range(256))
_FILLER = b"\xff"
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
GIVEN = ("separator", "quote", "escape", "nulls", "decimal", "grouping")
"""The members that `[input]` may name."""


@dataclass(frozen=True)
class Dialect:
    r"""How the cells of a file are written; None: to be recognised.

    quote: "" if none; escape: "" or a backslash; nulls: words for no value; decimal, grouping: of numbers that are not
    written as 1234.5, else "." and "". escapes_all: the backslash counts outside quotes too, where `\n` is a line
    end; numbers: the columns whose numbers are rewritten.
    """

    separator: str | None = None
    quote: str | None = None
    escape: str | None = None
    nulls: tuple[str, ...] | None = None
    decimal: str | None = None
    grouping: str | None = None
    escapes_all: bool = False
    numbers: tuple[str, ...] = ()
    is_recognised: bool = False

    @classmethod
    def of(cls, section: InputSection) -> Dialect:
        """What a spec says."""
        return cls(**{name: getattr(section, name) for name in GIVEN})

    def with_shape(self, head: bytes, usual: Dialect) -> Dialect:
        """With separator, quote and escape: as given, else as the first bytes tell, else as usual in the format."""
        separator = self.separator or _separator(head, str(usual.separator))
        quote = _quote(head, separator, str(usual.quote)) if self.quote is None else self.quote
        escape, escapes_all = _escape(head, separator, quote)
        if self.escape is not None:
            escape, escapes_all = self.escape, escapes_all or not quote
        return replace(self, separator=separator, quote=quote, escape=escape, escapes_all=escapes_all)

    def with_values(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Dialect:
        """With the words for no value and the form of numbers: as given, else as these rows tell."""
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {}
        nulls = self.nulls if self.nulls is not None else tuple(_nulls(columns.values(), self.escapes_all))
        present = {
            name: [c for c in cells if c and c not in nulls] for name, cells in columns.items() if name
        }
        odd = {name: cells for name, cells in present.items() if cells and not all(map(_is_plain, cells))}
        decimal, grouping = self.decimal, self.grouping
        if decimal is None and grouping is None:
            decimal, grouping = _form_of_numbers(odd.values(), self.separator == ",")
        pattern = _number(decimal or ".", grouping or "")
        numbers = [name for name, cells in odd.items() if all(map(pattern.fullmatch, cells))]
        numbers = [*dict.fromkeys([*self.numbers, *numbers])]
        form: dict[str, Any] = {
            "decimal": decimal or ".",
            "grouping": grouping or "",
            "numbers": tuple(numbers),
        }
        return replace(self, nulls=nulls, is_recognised=True, **form)

    @property
    def csv_options(self) -> dict[str, Any]:
        """For Python's csv reader."""
        quoting = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        return {"delimiter": self.separator, "escapechar": self.escape or None, **quoting}

    def differs_from(self, usual: Dialect) -> dict[str, Any]:
        """What is not as usual, by its name in `[input]`."""
        return {name: value for name in GIVEN if (value := getattr(self, name)) != getattr(usual, name)}

    def hide(self, data: Bytes) -> None:
        """Replace what is escaped, in place, so that no cell ends at it. What was replaced already stays."""
        text = data.tobytes() if self.escape else b""
        if b"\\" not in text:
            return
        if self.escapes_all:
            text = _ESCAPED.sub(_hidden, text)
        else:
            cells = _quoted(str(self.separator), str(self.quote), escapes=True)
            text = cells.sub(lambda cell: re.sub(rb"\\([\\\"'])", _hidden, cell[0]), text)
        data[:] = np.frombuffer(text, np.uint8)

    def values_of(self, name: str, cells: Any) -> Any:
        """The cells of a column, a binary array, as values: what was hidden, no values, numbers."""
        if self.escape:
            cells = _shown(cells)
        if self.nulls:
            words = pa.array([word.encode() for word in self.nulls], pa.binary())
            cells = pc.if_else(pc.is_in(cells, words), pa.scalar(b"", pa.binary()), cells)
        if name in self.numbers:
            coded, pattern = cells.dictionary_encode(), _number(str(self.decimal), str(self.grouping))
            plain = [_plain(each, pattern, str(self.grouping)) for each in coded.dictionary.to_pylist()]
            cells = pa.array(plain, pa.binary()).take(coded.indices)
        return cells

    @property
    def has_own_values(self) -> bool:
        """Whether cells differ from their values."""
        return bool(self.escape or self.nulls or self.numbers)


UNKNOWN = Dialect()
CSV = Dialect(",", '"', "", (), ".", "")
TSV = Dialect("\t", "", "", (), ".", "")


def _hidden(found: re.Match[bytes]) -> bytes:
    byte = found[1]
    if byte == b"N":  # a word for no value
        return found[0]
    byte = _CONTROLS.get(byte, byte)
    return bytes([_HIDDEN.get(byte[0], byte[0])]) + _FILLER


def _shown(cells: Any) -> Any:
    _, offsets, data = cells.buffers()
    if data is None or max(data.to_pybytes(), default=0) < 0xF5:
        return cells
    shown = data.to_pybytes().translate(_SHOWN)
    cells = pa.BinaryArray.from_buffers(
        pa.binary(), len(cells), [None, offsets, pa.py_buffer(shown)], offset=cells.offset
    )
    return pc.replace_substring(cells, _FILLER, b"")


def _separator(head: bytes, usual: str) -> str:
    """The usual separator, unless the first lines have another one: as many each, and few of the usual one.

    Tabs and commas are the formats' own: `reader.format_of` tells them apart.
    """
    lines = [line for line in head.splitlines() if line.strip()][:-1] or head.splitlines()
    ours = [line.count(usual.encode()) for line in lines]
    for other in ";|\x01" if lines else "":
        theirs = [line.count(other.encode()) for line in lines]
        if theirs[0] and (not ours[0] or (len(set(theirs)) == 1 and 2 * ours.count(ours[0]) < len(ours))):
            return other
    return usual


def _quoted(separator: str, quote: str, *, escapes: bool) -> re.Pattern[bytes]:
    """A cell in quotes."""
    mark, between = re.escape(quote.encode()), re.escape(separator.encode())
    inside = (
        rb"(?:[^%b\\]++|\\.|%b%b)*+" % (mark, mark, mark)
        if escapes
        else rb"(?:[^%b]++|%b%b)*+" % (mark, mark, mark)
    )
    return re.compile(
        rb"(?:(?<=[%b\r\n])|\A)%b%b%b(?=[%b\r\n]|\Z)" % (between, mark, inside, mark, between), re.DOTALL
    )


def _quote(head: bytes, separator: str, usual: str) -> str:
    """The quote: the one in which every cell that opens with it ends; the usual one if there is no such cell."""
    for quote in (each for each in "\"'" if each.encode() in head):
        opened = re.findall(
            rb"(?:(?<=[%b\r\n])|\A)%b" % (re.escape(separator.encode()), quote.encode()), head
        )
        closed = max(len(_quoted(separator, quote, escapes=each).findall(head)) for each in (False, True))
        if closed >= _LEAST and closed >= len(opened) - (len(head) >= HEAD_BYTES):
            return quote
    return usual


def _escape(head: bytes, separator: str, quote: str) -> tuple[str, bool]:
    r"""The escape character, "" if there is none, and whether it counts outside quotes.

    In quotes: if more cells end as they should with it than without it. Outside: if backslashes are doubled, or are
    before separators or in cells that are \N, and nowhere but before characters that writers escape.
    """
    if b"\\" not in head:
        return "", False
    rest, is_escape = head, False
    if quote:
        with_it, without = (_quoted(separator, quote, escapes=each) for each in (True, False))
        is_escape = len(with_it.findall(head)) > len(without.findall(head))
        rest = (with_it if is_escape else without).sub(b"", head)
    after = re.findall(rb"\\(.)", rest, re.DOTALL)
    mark = separator.encode()
    surely = (
        b"\\" in after
        or mark in after
        or re.search(rb"(?:^|%b)\\N(?:%b|\r?$)" % ((re.escape(mark),) * 2), rest, re.M)
    )
    if surely and set(after) <= {b"\\", mark, b'"', b"'", b"\n", b"\r", b"N", b"n", b"r", b"t"}:
        return "\\", True
    return ("\\", False) if is_escape else ("", False)


def _nulls(columns: Iterable[Sequence[str]], escaped: bool) -> Iterator[str]:
    r"""Words for no value: \N, which only databases write, and those that are in columns of numbers."""
    found = dict.fromkeys(["\\N"]) if escaped else {}
    for cells in columns:
        counts = Counter(cells)
        if "\\N" in counts:
            found["\\N"] = None
        words = [word for word in _WORDS if word in counts]
        rest = (
            [cell for cell in counts.elements() if cell and cell not in _WORDS and cell != "\\N"]
            if words
            else []
        )
        are_numbers = any(all(map(_number(*form).fullmatch, rest)) for form in _FORMS)
        if len(rest) >= _LEAST and (are_numbers or all(map(_is_plain, rest))):
            found.update(dict.fromkeys(words))
    return iter(found)


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None


def _number(decimal: str, grouping: str) -> re.Pattern[str]:
    """A number as people write it: a sign and a currency, groups of three digits, a fraction."""
    groups = rf"\d{{1,3}}(?:{re.escape(grouping)}\d{{3}})+|" if grouping else ""
    money = f"(?:[{_CURRENCY}] ?)?"
    return re.compile(
        rf"{money}([-+]?){money}({groups}\d+)(?:{re.escape(decimal)}(\d+))?(?:[ \xa0]?[{_CURRENCY}])?"
    )


def _form_of_numbers(columns: Iterable[Sequence[str]], in_commas: bool) -> tuple[str, str]:
    """The decimal mark and the grouping that explain most columns of odd numbers, if only one of the marks does."""
    scores = dict.fromkeys(_FORMS, 0)
    for cells in columns:
        fits = [form for form in _FORMS if all(map(_number(*form).fullmatch, cells))]
        if len(cells) >= _LEAST and len({decimal for decimal, _ in fits}) == 1:
            # A cell of two numbers, "3,7", is a set rather than a fraction: nearly all fractions have their mark.
            marked = sum("," in cell for cell in cells) / len(cells)
            if fits[0] != (",", "") or marked > (0.9 if in_commas else 0.5):
                scores[fits[0]] += 1
    best = max(scores, key=lambda form: scores[form])
    return best if scores[best] else (".", "")


def _plain(cell: bytes, pattern: re.Pattern[str], grouping: str) -> bytes:
    """A number as Python writes it; another text as it is."""
    found = pattern.fullmatch(cell.decode(errors="replace"))
    if found is None:
        return cell
    sign, whole, fraction = found.groups()
    whole = whole.replace(grouping, "") if grouping else whole
    return f"{sign}{whole}{'.' + fraction if fraction else ''}".encode()
