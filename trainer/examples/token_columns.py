"""From Arrow columns to token columns: the rules of `model_store.features.features` for whole columns.

A value that does not fit is recorded with its row instead of raising, so that only that row is lost. Rare cases (text
to escape, lists in text, numbers that do not parse) take slower paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import FieldValueError, SpecError
from model_store.features.features import FieldPlan
from model_store.hash_kernels import scan_columns
from model_store.spec.keys import ESCAPES, MAX_KEY_BYTES
from model_store.spec.kinds import MISSING, Category, Kind, Number, Raw, Set, Token
from model_store.spec.values import LARGEST_REAL, checked_utf8, not_real
from trainer.examples import sets_kernels
from trainer.formats.cells import (
    Block,
    CellSets,
    CellText,
    CodedText,
    addresses,
    canonical_texts,
    number_column,
    plain,
    real_column,
    text_column,
    text_places,
)
from trainer.formats.numbers_kernels import read_numbers

_ABSENT = b""
_BINARY = pa.binary()
# Up to this range a table of all buckets costs less than the sort of np.unique.
_FEW_CODES = 4096


@dataclass
class TokenColumn:
    """The tokens of one field over a batch of rows.

    text: binary array of the escaped token texts without nulls, a `CellText` or a `CodedText`; one per row, or
    `starts[r]:starts[r+1]` of row r (lists). x: float64[tokens], the tokens' real numbers, or None if all are 1; with
    one token per row, NaN marks an absent value. bad: (row, reason) of values that do not fit. checked: the texts are
    known to be UTF-8, escaped and short.
    """

    text: Any
    starts: npt.NDArray[np.int32] | None = None
    x: npt.NDArray[np.float64] | None = None
    bad: list[tuple[int, str]] = field(default_factory=list)
    checked: bool = False


def token_columns(fields: Sequence[FieldPlan], arrays: Sequence[Any]) -> list[TokenColumn]:
    """Make the tokens of every field from its log column. Raises SpecError for a column of an unusable type."""
    columns = [_column(plan, array) for plan, array in zip(fields, arrays, strict=True)]
    _spell(fields, columns)
    _check_and_escape(fields, columns)
    return columns


def takes_cells(plan: FieldPlan) -> bool:
    """Whether a field's tokens can be made from a `CellText`, `CellSets` or a dictionary array."""
    return type(plan.kind) in _WAYS


def _column(plan: FieldPlan, array: Any) -> TokenColumn:
    try:
        return _WAYS.get(type(plan.kind), _by_value)(plan, array)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise SpecError(
            f"fields.{plan.name}: a column of type {_flat(array).type} cannot be of kind {plan.kind.name!r}"
        ) from None


def _flat(array: Any) -> Any:
    """A column, cells among them, as an array of a plain type."""
    return plain(array.values() if isinstance(array, CellText | CellSets) else array)


def _categories(plan: FieldPlan, array: Any) -> TokenColumn:
    if isinstance(array, CellText) and array.is_text:
        return TokenColumn(array)
    if isinstance(array, CellText | CellSets) or not pa.types.is_dictionary(array.type):
        return TokenColumn(text_column(_flat(array)))
    return TokenColumn(_coded(array))


def _numbers(plan: FieldPlan, array: Any) -> TokenColumn:
    assert isinstance(plan.kind, Number)
    rule, absent = plan.kind, MISSING if plan.spec.missing else _ABSENT
    if isinstance(array, CellText):
        return _number_column(rule, *_numbers_of(array), absent)
    array = _flat(array) if isinstance(array, CellSets) else array
    if pa.types.is_dictionary(array.type) and array.dictionary.type == _BINARY:
        coded = _coded(array)
        # Numbers are parsed once for each distinct text. An odd one takes the other way, which names its rows.
        numbers, odd = number_column(coded.texts)
        if not odd:
            return _number_column(rule, numbers[coded.codes], [], absent)
    return _number_column(rule, *number_column(plain(array)), absent)


def _sets(plan: FieldPlan, array: Any) -> TokenColumn:
    if isinstance(plan.kind, Set) and plan.kind.of_x is not None:
        return _by_value(plan, _flat(array))
    if isinstance(array, CellText) and array.is_text:
        found = _set_of(array, plan.spec.separator or ",")
        if found is not None:
            return found
    # An x that is too large costs its row only: the slower way finds which.
    if isinstance(array, CellSets) and sets_kernels.are_real(array.x, LARGEST_REAL):
        members = _distinct(array.members, array.starts, array.x, [])
    elif is_list((array := _flat(array)).type):
        members = _members_of(array)
    else:
        return _by_value(plan, array)
    starts = members.starts
    assert starts is not None
    has_one_each = starts[-1] == starts.size - 1 and (np.diff(starts) == 1).all()
    # One member each without an x: as fast as a category.
    return TokenColumn(members.text) if has_one_each and members.x is None and not members.bad else members


def _by_value(plan: FieldPlan, array: Any) -> TokenColumn:
    """The tokens of any kind, by `Kind.tokens`: each distinct text is read once."""
    array, codes = plain(array), np.arange(len(array), dtype=np.int32)
    if is_list(array.type):
        if plan.kind.form != "set":
            raise pa.ArrowInvalid("lists")
        values = array.to_pylist()
        if pa.types.is_map(array.type):
            values = [None if value is None else dict(value) for value in values]
    else:
        coded = text_column(array).dictionary_encode()
        values, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    # Flat, not a list of tuples of tokens: the garbage collector would visit each of them again and again.
    texts, xs, lengths, reasons = list[bytes](), list[float](), [0], dict[int, str]()
    absent = () if plan.kind.is_list else (Token(_ABSENT, np.nan),)
    for code, value in enumerate(values):
        try:
            tokens = plan.tokens(value) or absent
        except FieldValueError as error:
            tokens, reasons[code] = absent, str(error).removeprefix(f"{plan.name}: ")
        texts += [token.text for token in tokens]
        xs += [token.x for token in tokens]
        lengths.append(len(tokens))
    bad = [(int(row), reasons[codes[row]]) for row in np.flatnonzero(np.isin(codes, list(reasons)))]
    if not plan.kind.is_list:
        coded_x = np.array(xs)[codes] if plan.kind.has_x else None
        return TokenColumn(CodedText(pa.array(texts, _BINARY), codes), x=coded_x, bad=bad, checked=True)
    offsets, x = pa.array(np.cumsum(lengths, dtype=np.int32)), None
    rows = pa.ListArray.from_arrays(offsets, pa.array(texts, _BINARY)).take(codes)
    if any(x != 1.0 for x in xs):
        x = pa.ListArray.from_arrays(offsets, pa.array(xs)).take(codes).flatten().to_numpy()
    return TokenColumn(rows.flatten(), _starts(rows), x, bad, checked=True)


_WAYS: dict[type[Kind], Callable[[FieldPlan, Any], TokenColumn]] = {
    Category: _categories,
    Number: _numbers,
    Set: _sets,
    Raw: _sets,
}
"""Kinds whose columns have a faster way than value by value."""


def _spell(fields: Sequence[FieldPlan], columns: Sequence[TokenColumn]) -> None:
    """Give each category the canonical text of its value (`values.category_text`); a block is searched once."""
    # One search of a block for all its columns reads its bytes once.
    in_blocks = dict[int, list[TokenColumn]]()
    for plan, column in zip(fields, columns, strict=True):
        text = column.text
        if type(plan.kind) not in (Category, Set) or column.checked:
            continue
        if isinstance(text, CellText):
            in_blocks.setdefault(id(text.block), []).append(column)
        elif isinstance(text, CodedText):
            column.text = CodedText(canonical_texts(text.texts), text.codes)
        else:
            _respell(column, canonical_texts(text))
    for several in in_blocks.values():
        found = several[0].text.block.has_spellings([column.text.place for column in several])
        for column in itertools.compress(several, found):
            _respell(column, canonical_texts(column.text.to_arrow()))


def _respell(column: TokenColumn, text: Any) -> None:
    """Other texts of a column; two spellings may be one member of a set."""
    if column.starts is not None and text is not column.text:
        members = _distinct(text, column.starts, _ALL_ONE if column.x is None else column.x, column.bad)
        text, column.starts, column.x = members.text, members.starts, members.x
    column.text = text


def _coded(array: Any) -> CodedText:
    """A dictionary array; null is another code, of an empty text."""
    if array.dictionary.type == _BINARY and not (array.null_count or array.dictionary.null_count):
        return CodedText(array.dictionary, array.indices.to_numpy().astype(np.int32))
    codes = array.indices.cast(pa.int32())
    texts = text_column(plain(array.dictionary))
    if codes.null_count:
        codes, texts = codes.fill_null(len(texts)), pa.concat_arrays([texts, pa.array([_ABSENT], _BINARY)])
    return CodedText(texts, np.ascontiguousarray(codes.to_numpy()))


def _numbers_of(cells: CellText) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """`number_column` of cells."""
    numbers, odd = np.empty(len(cells)), np.empty(len(cells), np.int32)
    count = read_numbers(*cells.where, numbers, odd)
    if not count:
        return numbers, []
    # The others are numbers to any parser, so that what happens to these does not depend on them.
    rows = odd[:count].tolist()
    numbers[rows], found = number_column(pa.array([cells[row].as_py() for row in rows], _BINARY))
    return numbers, [(rows[number], reason) for number, reason in found]


def _set_of(cells: CellText, separator: str) -> TokenColumn | None:
    """The members of sets in cells; None if one may be JSON or is not UTF-8, or for an odd separator."""
    block = cells.block
    if len(separator) > 1 or not separator.isascii():
        return None
    if block.not_ascii[cells.place] and _not_utf8(cells.to_arrow()):
        return None
    # An upper bound, to have the room before they are split: kernels allocate nothing (ADR 0002).
    size = sets_kernels.most_members(*cells.where, block.rows, ord(separator))
    starts, spans = np.empty(block.rows + 1, np.int32), np.empty((size, 2), np.int32)
    if sets_kernels.split_cells(*cells.where, ord(separator), starts, spans) == sets_kernels.ODD:
        return None
    special, not_ascii = (each[cells.place : cells.place + 1] for each in (block.special, block.not_ascii))
    found = CellText(Block(block.data, spans, size, 1, 2, special, not_ascii, block.longest), 0)
    return _distinct(found, starts, _ALL_ONE, [])


def _number_column(
    rule: Number, numbers: npt.NDArray[np.float64], bad: list[tuple[int, str]], absent: bytes
) -> TokenColumn:
    """absent: the text of an absent number's token; empty if it has none."""
    present = ~np.isnan(numbers)
    if rule.buckets is None:
        x = rule.xs(numbers)
        beyond = np.flatnonzero(~(np.abs(x) <= LARGEST_REAL) & present)
        bad += [(int(row), rule.not_real(float(numbers[row]), float(x[row]))) for row in beyond]
        # Reported already: without a token, so that the row adds nothing if it is kept.
        x[beyond] = np.nan
        labels = pa.array([_ABSENT, absent], _BINARY)
        if not absent or present.all():
            return TokenColumn(CodedText(labels, np.zeros(x.size, np.int32)), x=x, bad=bad)
        return TokenColumn(
            CodedText(labels, (~present).astype(np.int32)), x=np.where(present, x, 1.0), bad=bad
        )
    # 0 in place of absent numbers, since NaN has no bucket; their code is replaced below.
    found = rule.buckets(rule.clipped(np.where(present, numbers, 0.0)))
    buckets, codes = _codes_of(found) if found.size else (found, found)
    labels = pa.array([b"%d" % bucket for bucket in buckets.tolist()] + [absent], _BINARY)
    return TokenColumn(CodedText(labels, np.where(present, codes, len(buckets)).astype(np.int32)), bad=bad)


def _codes_of(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers in ascending order, which hold all of these, and the place of each of these among them."""
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < _FEW_CODES:
        return np.arange(low, high + 1), numbers - low
    distinct, codes = np.unique(numbers, return_inverse=True)
    return distinct, codes.reshape(-1)


def _check_and_escape(fields: Sequence[FieldPlan], columns: Sequence[TokenColumn]) -> None:
    """Escape texts, and record values that are not UTF-8 or too long. One scan over all bytes that were not scanned."""
    # If no text is longer than this, no key of any field is too long: the common case needs no look at one text.
    surely_short = MAX_KEY_BYTES - max((len(plan.prefix) for plan in fields), default=0)
    for column in columns:
        text = column.text
        if isinstance(text, CellText) and not (text.is_plain and text.block.longest <= surely_short):
            column.text = text.to_arrow()
    chosen = [number for number, column in enumerate(columns) if not isinstance(column.text, CellText)]
    if not chosen:
        return
    fields, columns = [fields[number] for number in chosen], [columns[number] for number in chosen]
    special, not_ascii, longest = scan([_texts(column.text) for column in columns])
    for index in np.flatnonzero(special | not_ascii | (longest > surely_short)).tolist():
        plan, column = fields[index], columns[index]
        if column.checked:
            continue
        if not_ascii[index]:
            _note(column, _not_utf8(_texts(column.text)))
        if special[index] and not plan.kind.whole_keys:
            text = _texts(column.text)
            # On the distinct texts, where there are some; in the order of ESCAPES, as `escape` does.
            for plain, escaped in ESCAPES:
                text = pc.replace_substring(text, plain, escaped)
            column.text = CodedText(text, column.text.codes) if isinstance(column.text, CodedText) else text
        # An escape takes three bytes for one.
        if longest[index] * (3 if special[index] else 1) + len(plan.prefix) > MAX_KEY_BYTES:
            _note(column, _too_long(plan, _texts(column.text)))


def _texts(text: Any) -> Any:
    """The binary array, or that of the distinct texts."""
    return text.texts if isinstance(text, CodedText) else text


def scan(texts: Sequence[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """For each binary array: whether a byte needs escaping, whether one is not ASCII, and the longest value."""
    special, not_ascii = np.zeros(len(texts), np.uint8), np.zeros(len(texts), np.uint8)
    longest = np.zeros(len(texts), np.int64)
    data, offsets = addresses(texts)
    sizes = np.array([len(text) for text in texts], np.int64)
    scan_columns(data, offsets, sizes, special, not_ascii, longest)
    return special, not_ascii, longest


def _not_utf8(text: Any) -> list[tuple[int, str]]:
    try:
        # The check of Arrow is over the whole column; only a column that fails is looked at text by text.
        text.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return []
    found = []
    for row, value in enumerate(text.to_pylist()):
        try:
            checked_utf8(value)
        except FieldValueError as error:
            found.append((row, str(error)))
    return found


def _too_long(plan: FieldPlan, text: Any) -> list[tuple[int, str]]:
    lengths = pc.binary_length(text).to_numpy() + len(plan.prefix)
    return [
        (int(row), f"the key would be {lengths[row]} bytes long; the limit is {MAX_KEY_BYTES}")
        for row in np.flatnonzero(lengths > MAX_KEY_BYTES)
    ]


def _note(column: TokenColumn, found: Sequence[tuple[int, str]]) -> None:
    """Add findings per token, or per distinct text, to the column's bad rows."""
    if isinstance(column.text, CodedText) and found:
        reasons = dict(found)
        rows = np.flatnonzero(np.isin(column.text.codes, list(reasons))).tolist()
        column.bad += [(row, reasons[int(column.text.codes[row])]) for row in rows]
        return
    for token, reason in found:
        row = token
        if column.starts is not None:
            row = int(np.searchsorted(column.starts, token, side="right")) - 1
        column.bad.append((row, reason))


# -- lists and maps: the rules of `values.set_members` for whole columns

_ALL_ONE = np.empty(0)
# Maps of this type are read in place, others are converted.
_READY = pa.map_(pa.binary(), pa.float64())


def is_list(kind: pa.DataType) -> bool:
    """True for Arrow types with several values per row."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _members_of(array: Any) -> TokenColumn:
    """The distinct members of each list or map of a column. Raises pa.ArrowInvalid for maps to anything but numbers.

    A map is a weighted set; the x of repeated members are added from left to right.
    """
    if not pa.types.is_map(array.type):
        return _distinct(text_column(plain(array.flatten())), _starts(array), _ALL_ONE, [])
    kind = array.type
    if kind == _READY and not array.null_count and not array.items.null_count:
        starts = array.offsets.to_numpy()
        # The keys and items of a slice are those of the whole array.
        part = slice(starts[0], starts[-1])
        keys, x, starts = array.keys[part], array.items.to_numpy()[part], starts - starts[0]
        if sets_kernels.are_real(x, LARGEST_REAL):
            return _distinct(keys, starts, x, [])
    if not (pa.types.is_integer(kind.item_type) or pa.types.is_floating(kind.item_type)):
        raise pa.ArrowInvalid(f"a map to {kind.item_type}, expected one to numbers")
    lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    keys, items = lists.flatten().flatten()
    starts = _starts(lists)
    x, bad_members = real_column(items)
    x[np.isnan(x)] = 0.0  # null and 0 mean absent; an invalid x costs the row
    bad = [(int(np.searchsorted(starts, place, "right")) - 1, reason) for place, reason in bad_members]
    return _distinct(text_column(plain(keys)), starts, x, bad)


def _distinct(
    text: Any, starts: npt.NDArray[np.int32], x: npt.NDArray[np.float64], bad: list[tuple[int, str]]
) -> TokenColumn:
    """Each row's members once, none of them empty. bad: also rows whose repeats add up to an x that is too large."""
    places = text_places([text])
    data, offsets, stride = places.data[0], places.offsets[0], places.strides[0]
    longest, all_one, some_absent = sets_kernels.survey_members(offsets, stride, starts, x)
    if longest <= 1 and not some_absent:
        return TokenColumn(text, starts, None if all_one else x, bad)
    # At most half full, and a power of two for the mask of the kernel.
    digests, table = np.empty(longest, np.uint64), np.zeros(1 << (2 * longest + 1).bit_length(), np.int32)
    kept, kept_x = np.empty(len(text), np.int32), np.empty(x.size)
    kept_starts = np.empty(starts.size, np.int32)
    count = sets_kernels.merge_repeats(
        data, offsets, stride, starts, x, digests, table, kept, kept_x, kept_starts
    )
    # No repeats: the arrays stay as they are, without a copy.
    if count == len(text):
        return TokenColumn(text, starts, None if all_one else x, bad)
    text = text.take(kept[:count]) if isinstance(text, CellText) else text.take(pa.array(kept[:count]))
    x = kept_x[:count]
    # Each x is small enough, but repeats add up.
    for place in np.flatnonzero(np.abs(x) > LARGEST_REAL).tolist() if x.size else ():
        bad.append((int(np.searchsorted(kept_starts, place, "right")) - 1, not_real(float(x[place]))))
    return TokenColumn(text, kept_starts, x if x.size and not (x == 1.0).all() else None, bad)


def _starts(lists: Any) -> npt.NDArray[np.int32]:
    """Where each row's members begin in `lists.flatten()`, which skips the members of null rows."""
    if not lists.null_count and pa.types.is_list(lists.type):
        offsets: npt.NDArray[np.int32] = lists.offsets.to_numpy()
        from_0: npt.NDArray[np.int32] = offsets - offsets[0]
        return from_0
    # Null rows may own members in the buffers, which `flatten` leaves out: offsets would be wrong.
    lengths = pa.compute.list_value_length(lists).fill_null(0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
