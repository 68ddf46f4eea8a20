"""Makes hashed examples from batches of log rows by a resolved spec. Stateless: any thread may do it.

An ExampleMaker compiles the spec's layout once (prefixes, key rules, crosses). For each batch it draws the rows to
learn from, parses labels, weights and times, digests the tokens of all fields, and hashes the features of good rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.features.features import FeaturePlan, FieldPlan
from model_store.hash_kernels import hash_keys, prefix_state
from model_store.spec.keys import BIAS, MAX_KEY_BYTES
from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import (
    HashedRows,
    KeyRules,
    TokenLayout,
    ValueRules,
    apply_value_rules,
    assemble,
    count_features,
    digest_of_nothing,
)
from trainer.examples.requests import Sample, Sampling, request_ids
from trainer.examples.rules import FeatureRules, key_prefixes
from trainer.examples.token_columns import TokenColumn, takes_cells, token_columns
from trainer.formats.batch import Position, RowBatch, as_stored
from trainer.formats.cells import (
    CellText,
    CodedText,
    parse_counts,
    parse_weights,
    plain,
    real_column,
    signed_labels,
    text_places,
)
from trainer.formats.cells_kernels import digest_texts
from trainer.formats.rejects import Reject, RowCounts
from trainer.formats.times import parse_times, time_format

_CELLS_AT_ONCE = 2048
"""Texts that are digested together, at most: their words and lengths fit into the first-level cache."""
_NO_NUMBERS = np.empty(0)
_NO_IDS = np.empty(0, np.uint64)
_NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True)
class Examples:
    """Good rows of a batch, hashed and ready to learn.

    rows: int32[m], their indices in the batch, twice where a row has clicks and other views (input.views): first its
    clicks, then the others; hashed: what learners take; tokens: where their keys' bytes are; texts:
    the token texts of each field, which keep those bytes alive; stop: the position after the batch, from which a later
    run may continue if the batch is resumable; requests: uint64[m], a hash of each row's request id, empty where the
    log has none; times: int64[m], microseconds since 1970, empty where not needed.
    """

    rows: npt.NDArray[np.int32]
    hashed: HashedRows
    tokens: TokenLayout
    texts: Sequence[Any]
    rejects: tuple[Reject, ...]
    counts: RowCounts
    stop: Position
    requests: npt.NDArray[np.uint64] = field(default_factory=lambda: _NO_IDS)
    times: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_TIMES)
    resumable: bool = True

    def part(self, begin: int, end: int | None = None) -> Examples:
        """Examples begin to end. The first part has the rejects; counts stay those of the batch.

        `starts` keeps its offsets into the whole batch's hashes.
        """
        rows, own = self.hashed, slice(begin, end)
        last = None if end is None else end + 1
        hashed = rows._replace(
            starts=rows.starts[begin:last], labels=rows.labels[own], weights=rows.weights[own]
        )
        return replace(
            self,
            rows=self.rows[own],
            hashed=hashed,
            rejects=self.rejects if begin == 0 else (),
            requests=self.requests[own],
            times=self.times[own],
        )


def examination_of(positions: Any, examination: Sequence[float]) -> tuple[Any, list[tuple[int, str]]]:
    """How often people look at each position, 1 where it is none; and (row, reason) for these.

    Positions beyond the last one of `examination` are as that one.
    """
    numbers, bad = real_column(plain(positions))
    wrong = ~((numbers >= 1.0) & (np.floor(numbers) == numbers))
    known = {row for row, _ in bad}
    bad += [
        (row, f"got {numbers[row]:g}, expected a position: 1, 2, …".replace("got nan", "missing"))
        for row in np.flatnonzero(wrong).tolist()
        if row not in known
    ]
    places = np.minimum(np.where(wrong, 1.0, numbers), len(examination)).astype(np.int64) - 1
    return np.where(wrong, 1.0, np.array(examination)[places]), bad


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
        self.crosses = cross_fields([cross.fields for cross in self.plan.crosses])
        self._sources = [(plan.column, takes_cells(plan)) for plan in self.plan.fields]
        self._sampling = Sampling.of(spec)
        self._time_format = time_format(spec)

    def make(self, batch: RowBatch) -> Examples:
        """Draw the rows to learn from, and hash them.

        Rows with a bad value are left out and named in `rejects`, those of the reader among them. Rows that are not
        drawn are not looked at.
        """
        sample = self._draw(batch)
        drawn, bad = sample.batch, dict[int, str]()
        labels, weights, times = self._outcomes(sample, bad)
        looked = _NO_NUMBERS
        if self.spec.input.examination is not None:
            position = str(self.spec.input.position)
            looked, found = examination_of(drawn.columns[position], self.spec.input.examination)
            # Where none was clicked it does not matter; a row that is only scored has no position.
            clicks = labels[0] if labels.ndim == 2 else labels
            _note(bad, position, [(row, reason) for row, reason in found if clicks[row] > 0.0])
        columns = self._columns(drawn, bad)
        is_good = np.ones(drawn.rows, bool)
        is_good[list(bad)] = False
        good = np.flatnonzero(is_good).astype(np.int32)
        rows, signed, weights = self._outcomes_of(good, labels, weights)
        if (
            looked.size
        ):  # a click where few look stands for those of all who would have clicked (docs/decide.md)
            weights = np.where(signed > 0.0, 1.0 / looked[rows], 1.0) * (weights if weights.size else 1.0)
        tokens = lay_out(columns, drawn.rows, self.rules.raw, self.crosses, self.feature_rules.owner)
        texts = [column.text for column in columns]
        hashed = self.hashed(rows, np.maximum(signed, 0.0), weights, tokens, texts)
        rejects = tuple(Reject(batch.file, int(drawn.lines[row]), bad[row]) for row in bad)
        return Examples(
            rows=rows,
            hashed=hashed,
            tokens=tokens,
            texts=texts,
            rejects=tuple(sorted(batch.rejects + rejects, key=lambda reject: reject.line)),
            counts=RowCounts(
                rows_read=batch.rows,
                subsampled=batch.rows - drawn.rows,
                minus_labels=int(np.count_nonzero(signed < 0.0)),
                doubled=int(rows.size - good.size),
            ),
            stop=batch.stop,
            requests=_of_rows(sample.ids, rows),
            times=_of_rows(times, rows),
            resumable=batch.resumable,
        )

    def _draw(self, batch: RowBatch) -> Sample:
        if self.spec.input.request is None and self._sampling is None:
            return Sample(batch, _NO_IDS, _NO_NUMBERS)
        ids = request_ids(batch, self.spec.input.request)
        return self._sampling.draw(batch, ids) if self._sampling else Sample(batch, ids, _NO_NUMBERS)

    def _outcomes(self, sample: Sample, bad: dict[int, str]) -> tuple[Any, Any, Any]:
        """Labels, including -1; weights, empty if all are 1; and times, empty if unused.

        With input.views a label is a pair: float64[2, rows], the clicks and the other views.
        """
        given, columns = self.spec.input, sample.batch.columns
        if given.views is not None:
            clicks, views, found, found_in_views = parse_counts(columns[given.label], columns[given.views])
            _note(bad, given.label, found)
            _note(bad, given.views, found_in_views)
            labels = np.stack([clicks, views - clicks])
        else:
            labels, found = signed_labels(as_stored(columns)[given.label], given.positive)
            _note(bad, given.label, found)
        weights, times = sample.factors, _NO_TIMES
        if given.weight is not None:
            weights, found = parse_weights(columns[given.weight])
            _note(bad, given.weight, found)
            weights = weights * sample.factors if sample.factors.size else weights
        if given.timestamp is not None and self.spec.learner.ttl_seconds is not None:
            times, found = parse_times(columns[given.timestamp], self._time_format)
            _note(bad, given.timestamp, found)
        return labels, weights, times

    def _outcomes_of(self, good: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
        """The rows of the examples, with the label and weight of each.

        With input.views a row is a click with the weight of its clicks, and none with that of its other views; each is
        an example where that is not 0. A row without views is one of weight 0.
        """
        if self.spec.input.views is None:
            return good, labels[good], _of_rows(weights, good)
        clicks, others = labels[:, good] > 0.0
        rows = np.repeat(good, 1 + (clicks & others))
        first = np.ones(rows.size, bool)
        first[1:] = rows[1:] != rows[:-1]
        signed = (first & (labels[0, rows] > 0.0)).astype(np.float64)
        counts = np.where(signed > 0.0, labels[0, rows], labels[1, rows])
        return rows, signed, counts * weights[rows] if weights.size else counts

    def _columns(self, batch: RowBatch, bad: dict[int, str]) -> list[TokenColumn]:
        plans = self.plan.fields
        given, stored = batch.columns, as_stored(batch.columns)
        arrays = [(stored if in_place else given)[name] for name, in_place in self._sources]
        columns = token_columns(plans, arrays)
        for plan, column in zip(plans, columns, strict=True):
            if column.bad:
                _note(bad, plan.column, column.bad)
        self._note_long_crosses(bad, columns, batch.rows)
        return columns

    def hashed(
        self, rows: Any, labels: Any, weights: Any, tokens: TokenLayout, texts: Sequence[Any]
    ) -> HashedRows:
        """Hash the features of rows whose tokens are laid out. texts: as in Examples."""
        size = int(rows.size) * len(self.prefixes)
        if (tokens.list_of >= 0).any():
            size = int(count_features(rows, tokens))
        hashed = HashedRows(
            starts=np.empty(rows.size + 1, np.int64),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(size) if tokens.values.size else _NO_NUMBERS,
            labels=labels,
            weights=weights,
        )
        picked = np.empty(MAX_CROSS_FIELDS, np.int64)
        assemble(rows, tokens, self.rules, hashed, picked)
        if self._value_rules is not None:
            # Keys that match a value rule get the feature number of that rule.
            apply_value_rules(rows, hashed, tokens, text_places(texts), self._value_rules, picked)
        return hashed

    def _note_long_crosses(self, bad: dict[int, str], columns: Sequence[TokenColumn], rows: int) -> None:
        """Note crosses whose key would exceed the limit: row by row, if the batch can hold one."""
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


def _row_texts(column: TokenColumn, row: int) -> list[bytes]:
    if column.starts is None:
        return [column.text[row].as_py()]
    return [column.text[token].as_py() for token in range(column.starts[row], column.starts[row + 1])]


def _longest(text: Any) -> int:
    """At least the bytes of the longest text."""
    if isinstance(text, CellText):
        return text.block.longest
    if isinstance(text, CodedText):
        text = text.texts
    lengths = pa.compute.binary_length(text)
    return int(pa.compute.max(lengths).as_py() or 0)


def _of_rows(numbers: Any, rows: npt.NDArray[np.int32]) -> Any:
    """The numbers of these rows; empty if there are none of any row."""
    return numbers[rows] if numbers.size else numbers


def _note(bad: dict[int, str], column: str, found: Sequence[tuple[int, str]]) -> None:
    """Keep the first reason of each bad row."""
    for row, reason in found:
        bad.setdefault(row, f"{column}: {reason}")


def key_rules(plan: FeaturePlan, owner: npt.NDArray[np.int64]) -> KeyRules:
    """How keys are hashed, and who uses them; owner: int64[features], see `FeatureRules`."""
    masks = [plan.all_variants, *(f.mask for f in plan.fields), *(c.mask for c in plan.crosses)]
    bias = np.empty(1, np.uint64)
    hash_keys(_bytes(BIAS), np.array([0, len(BIAS)], np.int64), bias)
    return KeyRules(
        bias=bias[0],
        states=np.array([prefix_state(_bytes(prefix)) for prefix in key_prefixes(plan)[1:]], np.uint64),
        raw=np.array([field.kind.whole_keys for field in plan.fields], np.uint8),
        masks=np.array(masks, np.uint32)[owner],
    )


def value_rules(rules: FeatureRules, owners: int) -> ValueRules | None:
    """The rules on prefixes of values, by owner; None if there are none."""
    if not rules.value_rules:
        return None
    per_owner = np.bincount([rule.owner for rule in rules.value_rules], minlength=owners)
    text, starts = prefix_table([rule.start for rule in rules.value_rules])
    return ValueRules(
        first=np.concatenate([[0], np.cumsum(per_owner)]).astype(np.int64),
        features=np.array([rule.feature for rule in rules.value_rules], np.uint16),
        text=text,
        starts=starts,
    )


def cross_fields(crosses: Sequence[Sequence[FieldPlan]]) -> npt.NDArray[np.int64]:
    """The numbers of the fields of every cross: int64[crosses, 4], padded with -1."""
    numbers = np.full((len(crosses), MAX_CROSS_FIELDS), -1, np.int64)
    for row, fields in zip(numbers, crosses, strict=True):
        row[: len(fields)] = [field.index for field in fields]
    return numbers


def prefix_table(prefixes: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All prefixes end to end, and where each starts, as `write_keys` takes them."""
    starts = np.array([0, *itertools.accumulate(len(prefix) for prefix in prefixes)], np.int64)
    return _bytes(b"".join(prefixes)), starts


def _bytes(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8).copy()


def lay_out(columns: Sequence[TokenColumn], rows: int, raw: Any, crosses: Any, owner: Any) -> TokenLayout:
    """Digest every token of a batch and lay them out: dense fields row by row, then lists.

    raw: uint8[fields], see `KeyRules`; crosses and owner: see `TokenLayout`.
    """
    dense = [i for i, column in enumerate(columns) if column.starts is None]
    lists = [(i, column.starts) for i, column in enumerate(columns) if column.starts is not None]
    at = len(dense) * rows
    sizes = [len(columns[index].text) for index, _ in lists]
    base, list_of = np.zeros(len(columns), np.int64), np.full(len(columns), -1, np.int64)
    digests = np.empty(at + sum(sizes), np.uint64)
    base[dense] = np.arange(len(dense))
    _digest([columns[index].text for index in dense], raw[dense], digests[:at].reshape(rows, len(dense)))
    starts = np.zeros((max(len(lists), 1), rows + 1), np.int32)
    for number, ((index, own), size) in enumerate(zip(lists, sizes, strict=True)):
        base[index], list_of[index], starts[number] = at, number, own
        _digest([columns[index].text], raw[[index]], digests[at : at + size].reshape(size, 1))
        at += size
    step = np.int64(len(dense))
    values = _values(columns, base, step, digests)
    return TokenLayout(digests, values, base, step, list_of, starts, crosses, owner)


def _digest(texts: Sequence[Any], raw: Any, out: Any) -> None:
    if not out.size:
        return
    places = text_places(texts)
    found = np.empty(int(places.counts.sum()), np.uint64)
    size = max(_CELLS_AT_ONCE, -8 * (-len(texts) // 8))
    runs, words = np.empty(len(texts) + 1, np.int64), np.empty(size, np.uint64)
    digest_texts(places, raw, runs, found, words, np.empty(size, np.int32), out)


def _values(columns: Sequence[TokenColumn], base: Any, step: Any, digests: Any) -> npt.NDArray[np.float64]:
    """The x of every token if some field has one; a number that is an x has an empty text, unless it is absent."""
    if all(column.x is None for column in columns):
        return _NO_NUMBERS
    values = np.ones(digests.size)
    empty = np.uint64(digest_of_nothing())
    for index, column in enumerate(columns):
        if column.x is not None:
            first, size = int(base[index]), column.x.size
            if column.starts is not None:
                values[first : first + size] = column.x
                continue
            part = slice(first, first + size * int(step), int(step))
            absent = np.isnan(column.x)
            values[part] = np.where(absent, 0.0, column.x)
            present = digests[part]  # 0 for an empty text
            digests[part] = np.where(absent, np.uint64(0), np.where(present == 0, empty, present))
    return values
