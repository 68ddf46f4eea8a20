"""From a batch of log rows to hashed examples, ready to learn. Stateless, so that any thread may do it.

Knows the spec and the columns; knows nothing of the table or the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.cells import addresses, parse_labels, parse_weights
from model_store.columns import TokenColumn, token_columns
from model_store.features import FeaturePlan
from model_store.kernels import digest_columns
from model_store.keys import MAX_KEY_BYTES
from model_store.spec import ModelSpec
from model_store.spec_sections import MAX_CROSS_FIELDS
from trainer.admission.rules import FeatureRules
from trainer.hashing import kernels
from trainer.hashing.compiled import cross_fields, key_prefixes, key_rules, value_rules
from trainer.hashing.compiled import prefix_table as prefix_table
from trainer.hashing.kernels import TokenBytes, TokenLayout
from trainer.kernels import HashedRows
from trainer.rejects import Reject
from trainer.sources import Position, RowBatch

_NO_NUMBERS = np.empty(0)


@dataclass(frozen=True)
class Examples:
    """Good rows of a batch, hashed and ready to learn.

    rows: int32[m], their places in the batch; hashed: what learners take; tokens: where their keys' bytes come from;
    texts: the token texts of each field, which keep those bytes alive; stop: where reading goes on behind the batch.
    """

    rows: npt.NDArray[np.int32]
    hashed: HashedRows
    tokens: TokenLayout
    texts: Sequence[Any]
    rejects: tuple[Reject, ...]
    rows_read: int
    stop: Position


class ExampleMaker:
    """Compiles a resolved spec's layout once, then turns batches into examples.

    prefixes: of the owners of keys (the bias, fields, crosses); rules.masks, feature_rules: indexed by feature number.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.plan = FeaturePlan.of(spec)
        self.prefixes = key_prefixes(self.plan)
        self.feature_rules = FeatureRules.of(spec, self.plan)
        self.rules = key_rules(self.plan, self.feature_rules.owner)
        self._value_rules = value_rules(self.feature_rules, len(self.prefixes))
        self._crosses = cross_fields(self.plan)

    def make(self, batch: RowBatch) -> Examples:
        """Hash a batch. Rows with a bad value are left out and named in `rejects`, those of the reader among them."""
        bad: dict[int, str] = {}
        labels, found = parse_labels(batch.columns[self.spec.input.label])
        _note(bad, self.spec.input.label, found)
        weights = _NO_NUMBERS
        if self.spec.input.weight is not None:
            weights, found = parse_weights(batch.columns[self.spec.input.weight])
            _note(bad, self.spec.input.weight, found)
        arrays = [batch.columns[field.column] for field in self.plan.fields]
        columns = token_columns(self.plan.fields, arrays)
        for field, column in zip(self.plan.fields, columns, strict=True):
            _note(bad, field.column, column.bad)
        self._note_long_crosses(bad, columns, batch.rows)
        rows = _good_rows(batch.rows, bad)
        tokens = self._lay_out(columns, batch.rows)
        hashed = self._assemble(rows, labels[rows], weights[rows] if weights.size else weights, tokens)
        self._set_apart(rows, hashed, tokens, columns)
        rejects = tuple(Reject(batch.file, int(batch.lines[row]), bad[row]) for row in bad)
        texts = [column.text for column in columns]
        return Examples(
            rows, hashed, tokens, texts, _in_order(batch.rejects + rejects), batch.rows, batch.stop
        )

    def _lay_out(self, columns: Sequence[TokenColumn], rows: int) -> TokenLayout:
        dense = [i for i, column in enumerate(columns) if column.starts is None]
        lists = [i for i, column in enumerate(columns) if column.starts is not None]
        sizes = [len(column.text) for column in columns]
        base, list_of = np.zeros(len(columns), np.int64), np.full(len(columns), -1, np.int64)
        digests = np.empty(sum(sizes), np.uint64)
        self._digest(dense, columns, digests[: len(dense) * rows].reshape(len(dense), rows))
        for place, index in enumerate(dense):
            base[index] = place * rows
        at = len(dense) * rows
        for place, index in enumerate(lists):
            base[index], list_of[index] = at, place
            self._digest([index], columns, digests[at : at + sizes[index]].reshape(1, -1))
            at += sizes[index]
        starts = np.zeros((max(len(lists), 1), rows + 1), np.int32)
        for place, index in enumerate(lists):
            starts[place] = _starts_of(columns[index])
        values = self._values(columns, base, digests)
        return TokenLayout(digests, values, base, list_of, starts, self._crosses, self.feature_rules.owner)

    def _digest(self, chosen: Sequence[int], columns: Sequence[TokenColumn], out: Any) -> None:
        if chosen and out.shape[1]:
            data, offsets = addresses([columns[index].text for index in chosen])
            digest_columns(data, offsets, out.shape[1], self.rules.raw[list(chosen)], out)

    def _values(self, columns: Sequence[TokenColumn], base: Any, digests: Any) -> npt.NDArray[np.float64]:
        """The x of every token where some field has one; a real number's text is empty, but it is there."""
        if all(column.x is None for column in columns):
            return _NO_NUMBERS
        values = np.ones(digests.size)
        empty = _digest_of_nothing()
        for index, column in enumerate(columns):
            if column.x is not None:
                part = slice(int(base[index]), int(base[index]) + column.x.size)
                if column.starts is not None:
                    values[part] = column.x
                    continue
                absent = np.isnan(column.x)
                values[part] = np.where(absent, 0.0, column.x)
                digests[part] = np.where(absent, np.uint64(0), empty)
        return values

    def _assemble(self, rows: Any, labels: Any, weights: Any, tokens: TokenLayout) -> HashedRows:
        size = int(rows.size) * len(self.prefixes)
        if (tokens.list_of >= 0).any():
            size = int(kernels.count_features(rows, tokens))
        hashed = HashedRows(
            starts=np.empty(rows.size + 1, np.int64),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(size) if tokens.values.size else _NO_NUMBERS,
            labels=labels,
            weights=weights,
        )
        kernels.assemble(rows, tokens, self.rules, hashed, np.empty(MAX_CROSS_FIELDS, np.int64))
        return hashed

    def _set_apart(
        self, rows: Any, hashed: HashedRows, tokens: TokenLayout, columns: Sequence[TokenColumn]
    ) -> None:
        """Number the keys apart that a rule names by more than their field or cross."""
        if self._value_rules is not None:
            places = TokenBytes(*addresses([column.text for column in columns]))
            picked = np.empty(MAX_CROSS_FIELDS, np.int64)
            kernels.set_apart(rows, hashed, tokens, places, self._value_rules, picked)

    def _note_long_crosses(self, bad: dict[int, str], columns: Sequence[TokenColumn], rows: int) -> None:
        """Crosses whose key would be over the limit: looked at one row at a time, where the batch could hold one."""
        for cross in self.plan.crosses:
            texts = [columns[field.index].text for field in cross.fields]
            longest = sum(_longest(text) for text in texts)
            overhead = len(cross.prefix) + len(texts) - 1
            if longest + overhead <= MAX_KEY_BYTES:
                continue
            for row in range(rows):
                size = overhead + sum(
                    max((len(t) for t in _row_texts(columns[f.index], row)), default=0) for f in cross.fields
                )
                if size > MAX_KEY_BYTES:
                    _note(
                        bad,
                        cross.name,
                        [(row, f"the key would be {size} bytes long; the limit is {MAX_KEY_BYTES}")],
                    )


def _starts_of(column: TokenColumn) -> npt.NDArray[np.int32]:
    assert column.starts is not None
    return column.starts


def _row_texts(column: TokenColumn, row: int) -> list[bytes]:
    if column.starts is None:
        return [column.text[row].as_py()]
    members: list[bytes] = column.text[column.starts[row] : column.starts[row + 1]].to_pylist()
    return members


def _longest(text: Any) -> int:
    lengths = pa.compute.binary_length(text)
    return int(pa.compute.max(lengths).as_py() or 0)


def _note(bad: dict[int, str], column: str, found: Sequence[tuple[int, str]]) -> None:
    """Keep the first reason of each bad row."""
    for row, reason in found:
        bad.setdefault(row, f"{column}: {reason}")


def _good_rows(rows: int, bad: dict[int, str]) -> npt.NDArray[np.int32]:
    good = np.ones(rows, bool)
    good[list(bad)] = False
    return np.flatnonzero(good).astype(np.int32)


def _in_order(rejects: Sequence[Reject]) -> tuple[Reject, ...]:
    return tuple(sorted(rejects, key=lambda reject: reject.line))


def _digest_of_nothing() -> np.uint64:
    return np.uint64(kernels.digest_of_nothing())
