"""Arrow columns as texts, numbers, labels and weights: the rules of `model_store.spec.values` for whole columns.

A value that does not fit is returned with its row and the reason instead of raising.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import FieldValueError
from model_store.spec.sections import InputSection
from model_store.spec.values import (
    INTEGRAL_LIMIT,
    LARGEST_REAL,
    category_text,
    not_real,
    parse_number,
    text_of,
)
from trainer.formats import cells_kernels
from trainer.formats.cells_kernels import BOOLEAN, CR, FLOAT, NOT_CANONICAL, SPARE, STRING, WHOLE

_ABSENT = b""
EXPECTED_LABELS = "1, 0, -1, true or false"
OTHER_LABELS = "input.positive names other values that are a click"
LABELS = {
    **dict.fromkeys((b"1", b"+1", b"1.0", b"+1.0", b"true"), 1.0),
    **dict.fromkeys((b"0", b"0.0", b"false"), 0.0),
    **dict.fromkeys((b"-1", b"-1.0"), -1.0),
}


def parse_labels(
    array: Any, positive: str | Sequence[str] | None = None
) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Labels as 0.0 and 1.0 (-1 is 0.0), and (row, reason) for all others than 1, 0, -1, true, false.

    positive: the values that are 1.0; all others are then 0.0, an absent one too.
    """
    labels, bad = signed_labels(array, positive)
    return np.maximum(labels, 0.0), bad


def signed_labels(
    array: Any, positive: str | Sequence[str] | None = None
) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Like `parse_labels`, but a label written as -1 stays -1.0. array: a `CellText` too."""
    if isinstance(array, CellText):
        # Nearly all logs write 0 and 1, which a kernel reads in place; all else is parsed by distinct text.
        flags = _flags(len(array), *array.where) if positive is None and array.is_text else None
        if flags is not None:
            return flags, []
        array = array.values()
    array = plain(array)
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        return np.zeros(len(array)), _all_bad(array, EXPECTED_LABELS)
    if positive is None:
        is_text = array.type in (pa.binary(), pa.string()) and not array.null_count
        flags = _flags(len(array), *_addresses(array), 4, 0) if is_text else None
        if flags is not None:
            return flags, []

        def label(value: Any) -> float:
            text = text_of(value) if value is not None else _ABSENT
            if (found := LABELS.get(text.lower())) is None:
                got = repr(text[:40].decode(errors="replace"))
                raise FieldValueError(f"got {got}, expected {EXPECTED_LABELS}; {OTHER_LABELS}")
            return found

        return by_distinct(array, label, 0.0)
    values = [positive] if isinstance(positive, str) else list(positive)
    # By the canonical texts of both: a spec says `true` where a CSV has True (ADR 0018).
    wanted = pa.array([category_text(value.encode()) for value in values], pa.binary())
    clicks = pc.is_in(canonical_texts(text_column(array)), wanted)
    return clicks.to_numpy(zero_copy_only=False).astype(np.float64), []


def _flags(rows: int, *place: int) -> npt.NDArray[np.float64] | None:
    """The values of rows with the texts 0 and 1; None if there are others, or no rows. place: as `CellText.where`."""
    flags = np.empty(rows)
    return flags if rows and cells_kernels.flags_of(*place, flags) else None


def clicked(columns: Mapping[str, Any], section: InputSection) -> npt.NDArray[np.bool_]:
    """Which rows have a click, by their label; False where it is invalid."""
    label = columns[section.label]
    if section.views is not None:
        counts = parse_counts(label, columns[section.views])[0]
    else:
        counts = parse_labels(label, section.positive)[0]
    rows: npt.NDArray[np.bool_] = counts > 0.0
    return rows


def label_columns(section: InputSection, clicks: npt.NDArray[Any]) -> dict[str, Any]:
    """The label of rows with and without a click (1, 0), as a log of this section would write it."""
    whole = pa.array(clicks.astype(np.int64))
    if section.views is not None:
        return {section.label: whole, section.views: pa.array(np.ones(clicks.size, np.int64))}
    if section.positive is None:
        return {section.label: whole}
    value = section.positive if isinstance(section.positive, str) else section.positive[0]
    texts = pa.array([_ABSENT, value.encode()], pa.binary())
    return {section.label: texts.take(whole)}


def parse_counts(
    clicks: Any, views: Any
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], list[tuple[int, str]], list[tuple[int, str]]]:
    """Clicks and views, whole numbers, of rows that count many views each; 0 where invalid.

    Also (row, reason) for invalid clicks, more of them than views among these, and for invalid views.
    """
    given, bad_clicks = _counts(clicks)
    shown, bad_views = _counts(views)
    # A row whose views are invalid is lost already: its clicks must not be reported as more than its views.
    given[[row for row, _ in bad_views]] = 0.0
    bad_clicks += [
        (
            int(row),
            f"got {given[row]:,.0f} clicks of {shown[row]:,.0f} views, expected at most as many as views",
        )
        for row in np.flatnonzero(given > shown)
    ]
    return given, shown, bad_clicks, bad_views


def _counts(array: Any) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    array = plain(array)
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        return np.zeros(len(array)), _all_bad(array, "a whole number")
    numbers, bad = number_column(array)
    known = {row for row, _ in bad}
    odd = ~((numbers >= 0.0) & (numbers == np.floor(numbers)) & (numbers < INTEGRAL_LIMIT))
    for row in np.flatnonzero(odd).tolist():
        if row not in known:
            got = "no value" if np.isnan(numbers[row]) else f"{numbers[row]:g}"
            bad.append((row, f"got {got}, expected a whole number >= 0"))
    numbers[odd] = 0.0
    return numbers, bad


def parse_weights(array: Any) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Importance weights >= 0 (1 where empty), and (row, reason) for invalid ones."""
    array = plain(array)
    if pa.types.is_list(array.type):
        return np.ones(len(array)), _all_bad(array, "a weight >= 0")
    numbers, bad = real_column(array)
    bad += [
        (int(row), f"got {numbers[row]:g}, expected a weight >= 0") for row in np.flatnonzero(numbers < 0)
    ]
    return np.nan_to_num(numbers, nan=1.0), bad


def _all_bad(lists: Any, expected: str) -> list[tuple[int, str]]:
    return [(row, f"got a list, expected {expected}") for row in range(len(lists))]


def column_text(array: Any) -> Any:
    """The canonical text of every value (`values.text_of`) as a binary array, empty for null."""
    return text_column(plain(array))


def plain(array: Any) -> Any:
    """The array as one flat chunk of an unencoded type; text as `binary`."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    # Binary: its offsets are int32, which the kernels read, and bytes that are not UTF-8 reach the check of their row.
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        array = array.cast(pa.binary())
    return array


def text_column(array: Any) -> Any:
    """The canonical text of every value of a plain array (`values.text_of`), empty for null."""
    kind = array.type
    if pa.types.is_floating(kind):
        array = array.cast(pa.float64())
        numbers = array.to_numpy(zero_copy_only=False)
        whole = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (np.abs(numbers) < INTEGRAL_LIMIT)
        # Arrow writes whole numbers as Python does, but not all doubles: columns with fractions take the slow way.
        if whole[np.asarray(array.is_valid())].all():
            array = array.cast(pa.int64()).cast(pa.string()).cast(pa.binary())
        else:
            texts = (v if v is None or np.isfinite(v) else repr(v) for v in array.to_pylist())
            array = pa.array([None if v is None else text_of(v) for v in texts], pa.binary())
    elif pa.types.is_null(kind):
        return pa.array([_ABSENT] * len(array), pa.binary())
    elif not pa.types.is_binary(kind):
        array = array.cast(pa.string()).cast(pa.binary())
    return array.fill_null(_ABSENT) if array.null_count else array


def canonical_texts(texts: Any) -> Any:
    """A binary array without nulls, each text as `values.category_text` spells it; the same array if all are so."""
    data, offset = _addresses(texts)
    found = np.zeros(1, np.uint8)
    cells_kernels.find_spellings(data, np.array([offset]), 4, 0, len(texts), found)
    if not found[0]:
        return texts
    # By distinct text: the spellings that change are few.
    coded = texts.dictionary_encode()
    spelled = [category_text(text) for text in coded.dictionary.to_pylist()]
    return pa.array(spelled, pa.binary()).take(coded.indices)


def number_column(array: Any) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Numbers as float64, NaN where absent, and (row, reason) for invalid ones, which include NaN and infinity."""
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan), []
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.string()).cast(pa.binary())  # rejected value by value
    if not pa.types.is_binary(array.type):
        numbers, missing = array.cast(pa.float64(), safe=False), array.is_null()
    else:
        missing = pc.or_kleene(array.is_null(), pc.equal(pc.binary_length(array), 0)).fill_null(True)
        try:
            present = pc.if_else(missing, pa.scalar(None, array.type), array)
            # Arrow parses nearly all numbers, rounded as by Python; a text that it refuses sends the column to
            # `parse_number`.
            numbers = present.cast(pa.string()).cast(pa.float64())
        except pa.ArrowInvalid:
            return by_distinct(array, lambda v: parse_number(v) if v else np.nan, np.nan)
    # A copy: the array of Arrow is read-only, and invalid numbers are replaced below.
    values = np.array(numbers.fill_null(np.nan).to_numpy(zero_copy_only=False), np.float64)
    wrong = ~np.isfinite(values) & ~np.asarray(missing)
    bad = [(int(row), f"got {values[row]}, expected a finite number") for row in np.flatnonzero(wrong)]
    values[wrong] = np.nan
    return values, bad


def real_column(array: Any) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Like `number_column`, but numbers beyond LARGEST_REAL are invalid too (`values.parse_real`)."""
    numbers, bad = number_column(array)
    beyond = np.flatnonzero(np.abs(numbers) > LARGEST_REAL)
    bad += [(int(row), not_real(float(numbers[row]))) for row in beyond]
    numbers[beyond] = np.nan
    return numbers, bad


@dataclass(frozen=True)
class Block:
    """Bytes of a log, and the places of the texts of its columns in them, row by row.

    data: uint8, with at least 64 bytes after the last text; spans: int32. Text r of column c begins at
    spans[c step + r columns step] + gap, and stops at the number after that one: lines of CSV without quotes have the
    places of their separators (step 1, gap 1), others pairs (step 2, gap 0). special, not_ascii: uint8[columns], 1
    where a text of the column has such a byte; longest: at least the bytes of the longest text. kinds: uint8[columns],
    the kinds of JSON values, a bit each (where a span is 0, there is no value); None if all are bytes. spelled:
    uint8[columns], 1 where `values.category_text` may change a text; None if nobody has looked.
    """

    data: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.int32]
    rows: int
    columns: int
    step: int
    special: npt.NDArray[np.uint8]
    not_ascii: npt.NDArray[np.uint8]
    longest: int
    kinds: npt.NDArray[np.uint8] | None = None
    spelled: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(
        cls, data: npt.NDArray[np.uint8], size: int, delimiter: str, quote: str | None, columns: int
    ) -> Block | None:
        """The cells of lines; None if a line has another number of them, a quote or a carriage return, or is blank.

        data: its first `size` bytes are the lines, at least one, each with its line feed; at least 64 more follow.
        """
        ends = np.empty(size + 1 + SPARE, np.int32)  # of which only what is written takes memory
        quote_byte = ord(quote) if quote else CR
        spelled = np.zeros(columns, np.uint8)
        found = cells_kernels.find_cells(data, size, ord(delimiter), quote_byte, columns, ends, spelled)
        rows, has_special, has_not_ascii, longest = found
        if rows == cells_kernels.WRONG_ARITY or (columns == 1 and (np.diff(ends[: rows + 1]) == 1).any()):
            return None
        odd = has_special or has_not_ascii
        return replace(cls.with_survey(data, ends, rows, columns, 1, longest, odd), spelled=spelled)

    @classmethod
    def with_survey(
        cls,
        data: Any,
        spans: Any,
        rows: int,
        columns: int,
        step: int,
        longest: int,
        has_odd_bytes: bool,
        kinds: Any = None,
    ) -> Block:
        """A block whose columns are searched for special bytes, if it has some."""
        # One array is copied, since the survey writes to both.
        none = np.zeros(columns, np.uint8)
        block = cls(data, spans, rows, columns, step, none, none.copy(), longest, kinds)
        if has_odd_bytes:
            places = block.addresses[0], block.offsets(np.arange(columns)), block.stride, block.gap
            cells_kernels.survey_cells(*places, rows, block.special, block.not_ascii)
        return block

    def has_spellings(self, places: Sequence[int]) -> list[bool]:
        """Of each of these columns, whether `values.category_text` may change a text of it."""
        if self.spelled is not None:
            return [bool(self.spelled[place]) for place in places]
        found = np.zeros(len(places), np.uint8)
        offsets = self.offsets(np.array(places))
        cells_kernels.find_spellings(self.addresses[0], offsets, self.stride, self.gap, self.rows, found)
        return [bool(each) for each in found]

    def offsets(self, places: Any) -> Any:
        """The addresses of the first int32 of these columns."""
        return self.addresses[1] + 4 * self.step * places

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """Of data and spans; each of numpy's takes longer than all else that is asked of a column."""
        return self.data.ctypes.data, self.spans.ctypes.data

    @cached_property
    def are_plain(self) -> list[bool]:
        """Of each column, whether it has neither special bytes nor others than ASCII."""
        plain: list[bool] = ((self.special | self.not_ascii) == 0).tolist()
        return plain

    @property
    def stride(self) -> int:
        """From an int32 to the one of the next row, in bytes."""
        return 4 * self.step * self.columns

    @property
    def gap(self) -> int:
        """Bytes between an int32 and the text."""
        return 2 - self.step


def padded_lines(lines: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], int]:
    """A copy of whole lines with a last line feed, and their size; zeros follow, as the kernels need them."""
    size = lines.size + (lines[-1] != cells_kernels.LF)
    # Kernels read whole blocks, beyond the end too: what they find there must be defined.
    data = np.empty(size + 2 * cells_kernels.BLOCK, np.uint8)
    data[: lines.size] = lines
    data[size - 1] = cells_kernels.LF
    data[size:] = 0
    return data, size


@dataclass(frozen=True)
class CellText:
    """A column of a block, in place; `to_arrow` copies it to an array."""

    block: Block
    place: int

    @classmethod
    def of_pairs(cls, data: Any, pairs: Any, kind: int | None = None) -> CellText:
        """The texts of `data` that begin and stop at `pairs`, int32[texts, 2], to be copied; kind: of JSON values."""
        none, kinds = np.zeros(1, np.uint8), None if kind is None else np.array([kind], np.uint8)
        return cls(Block(data, pairs, len(pairs), 1, 2, none, none, 0, kinds), 0)

    def __len__(self) -> int:
        return self.block.rows

    def __getitem__(self, row: int) -> Any:
        """One text, as a binary scalar of Arrow."""
        block, spans = self.block, self.block.spans.reshape(-1)
        at = (row * block.columns + self.place) * block.step
        start, stop = int(spans[at]) + block.gap, int(spans[at + 1])
        return pa.scalar(block.data[start:stop].tobytes(), pa.binary())

    def to_arrow(self) -> Any:
        """The column as a binary array."""
        rows, (data, *place) = self.block.rows, self.where
        size = cells_kernels.column_bytes(*place, rows)
        offsets, text = np.empty(rows + 1, np.int32), np.empty(size, np.uint8)
        cells_kernels.copy_column(data, *place, offsets, text)
        return pa.BinaryArray.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        )

    def to_pylist(self) -> list[bytes]:
        """The texts."""
        texts: list[bytes] = self.to_arrow().to_pylist()
        return texts

    def take(self, rows: npt.NDArray[np.int32]) -> CellText:
        """These rows of the only column of a block of pairs."""
        spans = self.block.spans.reshape(-1, 2)[rows]
        return CellText(replace(self.block, spans=spans, rows=rows.size), 0)

    @property
    def where(self) -> tuple[int, int, int, int]:
        """The column's data, offset, stride and gap, as in `TextPlaces`."""
        block = self.block
        return block.addresses[0], block.offsets(self.place), block.stride, block.gap

    @property
    def is_text(self) -> bool:
        """Whether the bytes are the canonical texts of the values (`values.text_of`)."""
        return self.block.kinds is None or not self.block.kinds[self.place] & NOT_CANONICAL

    def values(self) -> Any:
        """The values as an array: of bytes, or of the type that JSON values have in common, else of their texts."""
        block, texts = self.block, self.to_arrow()
        if block.kinds is None:
            return texts
        # A JSON null has no span, unlike an empty string, which is after a quote.
        absent = block.spans.reshape(block.rows, block.columns, 2)[:, self.place, 0] == 0
        texts = pc.if_else(pa.array(absent), pa.scalar(None, pa.binary()), texts).cast(pa.string())
        kinds = int(block.kinds[self.place])
        if kinds & (STRING | BOOLEAN):
            return texts.cast(pa.bool_()) if kinds == BOOLEAN else texts
        if not kinds:
            return pa.nulls(block.rows)
        with suppress(pa.ArrowInvalid):  # of a whole number beyond an int64: then the column stays text
            numbers = texts.cast(pa.float64() if kinds & FLOAT else pa.int64())
            # And if a whole number beyond 2^53 would be rounded as a double.
            if (
                not (kinds & FLOAT and kinds & WHOLE)
                or pc.all(pc.less(pc.abs(numbers), INTEGRAL_LIMIT)).as_py()
            ):
                return numbers

        def canonical(text: str) -> str:
            return text_of(int(text) if text.removeprefix("-").isdecimal() else float(text)).decode()

        return pa.array(
            [None if each is None else canonical(each) for each in texts.to_pylist()], pa.string()
        )

    @property
    def is_plain(self) -> bool:
        """Whether no byte must be escaped or looked at."""
        return self.block.are_plain[self.place]


@dataclass(frozen=True)
class CellSets:
    """A column of weighted sets, their members in place.

    members: the only column of a block of pairs; starts: int32[rows + 1], each row's first member; x: float64[members].
    """

    members: CellText
    starts: npt.NDArray[np.int32]
    x: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return self.starts.size - 1

    def values(self) -> Any:
        """The sets as maps from bytes to double."""
        starts, x = (pa.array(each) for each in (self.starts, self.x))
        return pa.MapArray.from_arrays(starts, self.members.to_arrow(), x)


@dataclass(frozen=True)
class CodedText:
    """A column with few distinct texts: texts is a binary array without nulls; codes int32[rows], which of them."""

    texts: Any
    codes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.codes.size

    def __getitem__(self, row: int) -> Any:
        """One text, as a binary scalar of Arrow."""
        return self.texts[int(self.codes[row])]

    def to_pylist(self) -> list[bytes]:
        """The texts."""
        texts: list[bytes] = self.texts.take(pa.array(self.codes)).to_pylist()
        return texts


class TextPlaces(NamedTuple):
    """Where the texts of columns are, int64[columns] each, valid while the columns live.

    Text i of a column begins at data + (the int32 at offsets + i stride) + gap; it stops at data + (the int32 after
    that one). Where codes is not 0, it is the address of int32[rows], and i is the code of row i; counts: the
    distinct texts, 0 where there are no codes. is_padded: 1 if 7 more bytes are readable after each text.
    """

    data: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    gaps: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    is_padded: npt.NDArray[np.int64]


def text_places(texts: Sequence[Any]) -> TextPlaces:
    """Where the texts of binary arrays, `CellText`s and `CodedText`s are."""
    found = TextPlaces(*np.zeros((len(TextPlaces._fields), len(texts)), np.int64))
    # Columns of one block share its addresses: asking numpy for them costs more than all else here.
    blocks = dict[int, tuple[Block, list[int], list[int]]]()
    for index, text in enumerate(texts):
        if isinstance(text, CellText):
            _, indexes, places = blocks.setdefault(id(text.block), (text.block, [], []))
            indexes.append(index)
            places.append(text.place)
            continue
        if isinstance(text, CodedText):
            found.codes[index], found.counts[index] = text.codes.ctypes.data, len(text.texts)
            text = text.texts
        found.data[index], found.offsets[index] = _addresses(text)
        found.strides[index] = 4
    for block, indexes, places in blocks.values():
        found.data[indexes] = block.addresses[0]
        found.offsets[indexes] = block.offsets(np.array(places))
        found.strides[indexes], found.gaps[indexes], found.is_padded[indexes] = block.stride, block.gap, 1
    return found


def addresses(texts: Sequence[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The addresses of each binary array's bytes and first offset, valid while the arrays live."""
    found = np.array([_addresses(text) for text in texts], np.int64).reshape(-1, 2)
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


def _addresses(text: Any) -> tuple[int, int]:
    _, offsets, data = text.buffers()
    return (
        data.address if data is not None else 0,
        # A slice shares the buffers of the whole array and only says where it begins.
        offsets.address + 4 * text.offset if offsets is not None else 0,
    )


def by_distinct(
    array: Any, parse: Callable[[Any], float], absent: float, kind: Any = np.float64
) -> tuple[npt.NDArray[Any], list[tuple[int, str]]]:
    """Parse each distinct value once; invalid values become `absent`."""
    # A null is a value of its own here, which `parse` decides about.
    encoded = array.dictionary_encode(null_encoding="encode")
    parsed, reasons = [], {}
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            parsed.append(parse(value))
        except FieldValueError as error:
            parsed.append(absent)
            reasons[code] = str(error)
    codes = encoded.indices.to_numpy()
    bad = [(int(row), reasons[codes[row]]) for row in np.flatnonzero(np.isin(codes, list(reasons)))]
    return np.array(parsed, kind)[codes], bad
