"""Makes the examples of one row from Python values, without columns: the fast path of a model that learns row by row.

In: a mapping of columns to values. Out: the `Examples` that `ExampleMaker.make` makes of a batch of that row, or None
if a value needs the rules of whole columns: it does not fit, or it is not of one of Python's plain types. Values become
tokens by `FieldPlan.tokens`, as those of a request do in a server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import FieldValueError
from model_store.hash_kernels import digest_columns
from model_store.spec.keys import MAX_KEY_BYTES
from model_store.spec.kinds import Category, Kind, Number, Raw, Set, Time, Token
from model_store.spec.values import LARGEST_REAL, text_of
from trainer.examples.examples_kernels import TokenLayout, digest_of_nothing
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import Position
from trainer.formats.rejects import RowCounts

_LARGEST_WHOLE = 2**53
_ONE_ROW = RowCounts(rows_read=1)
_LABELS = {0: 0.0, 1: 1.0}
_ROW_0 = np.zeros(1, np.int32)
_NO_NUMBERS = np.empty(0)
_NO_IDS = np.empty(0, np.uint64)
_NO_TIMES = np.empty(0, np.int64)
_AS_TEXT, _AS_KEY = np.zeros(1, np.uint8), np.ones(1, np.uint8)
_ABSENT = Token(b"", 0.0)

_REMEMBERED = 1 << 16
"""Texts whose tokens are kept, of all fields together, and of at most `_SHORT` characters."""
_SHORT = 64


class OneRowMaker:
    """Makes the examples of one row by the layout of an ExampleMaker. It keeps the tokens of texts; not thread-safe.

    `usable` is False for a spec whose rows need more than their own values: sampled requests, times to live, derived
    fields, clicks and views.
    """

    def __init__(self, maker: ExampleMaker) -> None:
        spec = maker.spec
        self.maker = maker
        self.usable = not (
            spec.derivation
            or spec.input.views is not None
            or spec.learner.subsample is not None
            or spec.learner.ttl is not None
        )
        fields = maker.plan.fields
        self._known: list[dict[str, tuple[Token, ...]]] = [{} for _ in fields]
        self._left = _REMEMBERED
        self._columns = [
            (plan, plan.column, _PLAIN.get(type(plan.kind), ()), known)
            for plan, known in zip(fields, self._known, strict=True)
        ]
        # Tokens are laid out by field: one each, then sets and words, then raw keys, which are hashed as they are.
        self._dense = [plan.index for plan in fields if not plan.kind.is_list]
        self._lists = [plan.index for plan in fields if plan.kind.is_list and not plan.kind.whole_keys]
        self._raw = [plan.index for plan in fields if plan.kind.whole_keys]
        self._step = np.int64(len(self._dense))
        several = self._lists + self._raw
        self._base, self._list_of = np.zeros(len(fields), np.int64), np.full(len(fields), -1, np.int64)
        self._base[self._dense] = np.arange(len(self._dense))
        self._list_of[several] = np.arange(len(several))
        self._starts = np.zeros((max(len(several), 1), 2), np.int32)
        self._has_x = any(plan.kind.has_x for plan in fields)
        self._nothing = np.uint64(digest_of_nothing())
        self._crosses = [
            (len(cross.prefix) + len(cross.fields) - 1, [field.index for field in cross.fields])
            for cross in maker.plan.crosses
        ]

    def make(
        self, row: Mapping[str, Any], stop: Position, label: Any = 0, weight: float | None = None
    ) -> Examples | None:
        """The examples of a row; None if the rules of whole columns must decide.

        weight: None if the spec has none.
        """
        signed = self._label(label)
        if signed is None or (weight is not None and not _is_real(weight, least=0.0)):
            return None
        request = self._request(row)
        if request is None:
            return None
        tokens: list[tuple[Token, ...]] = []
        try:
            for plan, column, types, known in self._columns:
                value = row.get(column)
                if type(value) is str:
                    found = known.get(value)
                    if found is None:
                        found = plan.tokens(value)
                        if len(value) <= _SHORT:
                            known[value] = found
                            self._left -= 1
                    tokens.append(found)
                elif value is None or (type(value) in types and _is_plain(value)):
                    tokens.append(plan.tokens(value))
                else:
                    return None
        except FieldValueError:
            return None
        if self._left < 0:
            self._left = _REMEMBERED
            for known in self._known:
                known.clear()
        if any(self._too_long(tokens, overhead, fields) for overhead, fields in self._crosses):
            return None
        layout, texts = self._lay_out(tokens)
        hashed = self.maker.hashed(
            _ROW_0,
            np.array([signed]),
            _NO_NUMBERS if weight is None else np.array([float(weight)]),
            layout,
            texts,
        )
        return Examples(_ROW_0, hashed, layout, texts, (), _ONE_ROW, stop, requests=request)

    def _label(self, label: Any) -> float | None:
        if self.maker.spec.input.positive is not None:
            return None
        try:
            return _LABELS.get(label)
        except TypeError:
            return None

    def _request(self, row: Mapping[str, Any]) -> npt.NDArray[np.uint64] | None:
        """The hash of the row's request, empty if the spec names none; None if the row has none."""
        column = self.maker.spec.input.request
        if column is None:
            return _NO_IDS
        value: Any = row.get(column)
        if not ((type(value) is str and value.isascii()) or _is_whole(value)) or value == "":
            return None
        return _digests([text_of(value)], 1)[0]

    @staticmethod
    def _too_long(tokens: Sequence[tuple[Token, ...]], overhead: int, fields: Sequence[int]) -> bool:
        """Whether a key of a cross may be too long."""
        sizes = (max((len(token.text) for token in tokens[field]), default=0) for field in fields)
        return overhead + sum(sizes) > MAX_KEY_BYTES

    def _lay_out(self, tokens: Sequence[tuple[Token, ...]]) -> tuple[TokenLayout, _Texts]:
        dense = [tokens[index][0] if tokens[index] else _ABSENT for index in self._dense]
        flat = list(dense)
        base, starts = self._base, self._starts
        whole = len(flat)
        several = self._lists + self._raw
        if several:
            base, starts = base.copy(), starts.copy()
            for number, index in enumerate(several):
                base[index] = len(flat)
                starts[number, 1] = len(tokens[index])
                flat += tokens[index]
                if number < len(self._lists):
                    whole = len(flat)
        texts = [token.text for token in flat]
        digests, buffer, offsets = _digests(texts, whole)
        values = _NO_NUMBERS
        if self._has_x or any(token.x != 1.0 for token in flat[len(dense) :]):
            values = np.array([token.x for token in flat])
            for place, index in enumerate(self._dense):
                if tokens[index] and not texts[place]:
                    digests[place] = self._nothing
        rules, crosses = self.maker.feature_rules, self.maker.crosses
        layout = TokenLayout(digests, values, base, self._step, self._list_of, starts, crosses, rules.owner)
        return layout, _Texts(buffer, offsets, base, starts, self._list_of)


class _Texts(Sequence[Any]):
    """The token texts of each field as binary arrays, made when they are needed: for new keys."""

    def __init__(self, buffer: Any, offsets: Any, base: Any, starts: Any, list_of: Any) -> None:
        self._parts = buffer, offsets, base, starts, list_of
        self._made: list[Any] | None = None

    def _arrays(self) -> list[Any]:
        if self._made is None:
            buffer, offsets, base, starts, list_of = self._parts
            whole = pa.Array.from_buffers(
                pa.binary(), offsets.size - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
            )
            sizes = [int(starts[of, 1]) if of >= 0 else 1 for of in list_of.tolist()]
            self._made = [whole.slice(first, size) for first, size in zip(base.tolist(), sizes, strict=True)]
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._arrays()[index]

    def __len__(self) -> int:
        return int(self._parts[2].size)


def _digests(texts: Sequence[bytes], whole: int) -> tuple[npt.NDArray[np.uint64], Any, Any]:
    """uint64[texts]: the digests of texts, 0 where empty; of those from `whole` on, their hashes as whole keys.

    Also the bytes of the texts, uint8, and int32[texts + 1], where each starts.
    """
    buffer = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    offsets = np.array([0, *accumulate(map(len, texts))], np.int32)
    out = np.empty(len(texts), np.uint64)
    data = np.array([buffer.ctypes.data], np.int64)
    first = offsets.ctypes.data
    for begin, end, raw in ((0, whole, _AS_TEXT), (whole, len(texts), _AS_KEY)):
        if begin < end:
            place = np.array([first + 4 * begin], np.int64)
            digest_columns(data, place, end - begin, raw, out[begin:end].reshape(1, -1))
    return out, buffer, offsets


_SET = int, list, tuple, dict
_PLAIN: dict[type[Kind], tuple[type, ...]] = {
    Category: (int, float, bool),
    Number: (int, float),
    Time: (int,),
    Set: _SET,
    Raw: _SET,
}
"""Types of values other than text that give the tokens of a column of them, if they are plain. Texts always do."""


def _is_plain(value: Any) -> bool:
    """Whether a value is exact as a double, or has only such members, and texts."""
    if type(value) is int:
        return -_LARGEST_WHOLE < value < _LARGEST_WHOLE
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is dict:
        return all(type(member) is str and _is_real(x) for member, x in value.items())
    return type(value) is bool or all(type(member) is str for member in value)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_LARGEST_WHOLE < value < _LARGEST_WHOLE


def _is_real(value: Any, least: float = -LARGEST_REAL) -> bool:
    """Whether a value is a plain number from `least` to LARGEST_REAL, and exact as a double."""
    return (_is_whole(value) or type(value) is float) and least <= value <= LARGEST_REAL
