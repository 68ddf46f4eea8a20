"""How much a model relies on each field: by permuting the field's values over rows, and by its weights.

In: examples of a held-out log. Out: an `Importance`. Permutation importance (Breiman 2001) is the rise of the log-loss
when rows get each other's values of a field, with the crosses that contain it; it is measured on a sample of whole
requests, which is kept in memory as hashed tokens. The importance by weight is each key's |weight · x|, averaged over
the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import key_ranges
from model_store.features.features import FieldPlan
from model_store.spec.sections import MAX_CROSS_FIELDS
from trainer.examples.examples_kernels import (
    PROBABILITY_BITS,
    HashedRows,
    TokenLayout,
    assemble,
    count_features,
    draw,
)
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import Position
from trainer.formats.rejects import RowCounts
from trainer.learn.metrics.figures import NORMAL_95
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import Scorer
from trainer.output import SILENT, Output

MOST_SAMPLED = 200_000
"""Rows that are kept for permutations; beyond it, half of the requests are dropped, again and again."""
TOP_KEYS = 20
_CHUNK = 1 << 14
_NO_NUMBERS = np.empty(0)

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rise:
    """A rise of the log-loss, mean over the repeats, with its 95 % interval: clusters are requests, else rows."""

    logloss: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class FieldImportance:
    """One field. by: "request" if requests exchanged its values, "row" if rows did; rises: by variant."""

    field: str
    by: str
    rises: dict[str, Rise]


@dataclass(frozen=True)
class WeightImportance:
    """The mean over the rows of Σ |weight · x| over the keys of a field or cross, by variant; or of one key."""

    name: str
    means: dict[str, float]


@dataclass(frozen=True)
class Importance:
    """The importance of fields, crosses and keys.

    rows, requests: of the sample (requests None where rows have none); logloss: on it, by variant; repeats: of each
    permutation; fields: most important first; weights: of fields and crosses, likewise; keys: the top keys by variant.
    """

    rows: int
    requests: int | None
    repeats: int
    logloss: dict[str, float | None]
    fields: tuple[FieldImportance, ...]
    weights: tuple[WeightImportance, ...]
    keys: dict[str, tuple[WeightImportance, ...]]


@dataclass(frozen=True)
class FieldTokens:
    """One field's tokens of consecutive rows: row r has those from starts[r] to starts[r + 1], none where it is absent.

    digests: uint64; x: float64, empty where every x is 1; places: where each token's text is in the batch's texts.
    """

    starts: Numbers
    digests: npt.NDArray[np.uint64]
    x: Floats
    places: Numbers

    @classmethod
    def of(cls, examples: Examples, field: int) -> FieldTokens:
        """The tokens of field number `field` of a batch's good rows."""
        tokens, rows = examples.tokens, examples.rows.astype(np.int64)
        base, number = int(tokens.base[field]), int(tokens.list_of[field])
        if number < 0:
            present = tokens.of_rows(field, rows) != 0
            places, lengths = rows[present], present.astype(np.int64)
            chosen = base + places * tokens.step
        else:
            starts = tokens.starts[number].astype(np.int64)
            lengths = (starts[1:] - starts[:-1])[rows]
            places = _ranges(starts[rows], lengths)
            chosen = base + places
        x = tokens.values[chosen] if tokens.values.size else _NO_NUMBERS
        return cls(_starts(lengths), tokens.digests[chosen], x, places)

    @property
    def lengths(self) -> Numbers:
        """int64[rows]: the number of each row's tokens."""
        return np.diff(self.starts)

    def take(self, rows: Numbers) -> FieldTokens:
        """The tokens of these rows, in their order."""
        lengths = self.lengths[rows]
        chosen = _ranges(self.starts[:-1][rows], lengths)
        x = self.x[chosen] if self.x.size else self.x
        return FieldTokens(_starts(lengths), self.digests[chosen], x, self.places[chosen])

    def same(self, rows: Numbers, others: Numbers) -> npt.NDArray[np.bool_]:
        """Whether each of `rows` has the same tokens as the one of `others` at its index."""
        x = self.x if self.x.size else np.ones(self.digests.size)
        # A hash of each row's tokens, in order: two rows with the same hash are taken as equal.
        ordinal = np.arange(self.digests.size) - np.repeat(self.starts[:-1], self.lengths)
        mixed = (self.digests ^ x.view(np.uint64)) * (
            2 * ordinal.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        )
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        hashes = sums[self.starts[1:]] - sums[self.starts[:-1]]
        equal: npt.NDArray[np.bool_] = (hashes[rows] == hashes[others]) & (
            self.lengths[rows] == self.lengths[others]
        )
        return equal


@dataclass(frozen=True)
class _Rows:
    """Rows in memory.

    weights: empty where all are 1; requests: an id of each row's request, or of the row itself; texts: the value of the
    calibration's field, one per row, None without one.
    """

    labels: Floats
    weights: Floats
    requests: npt.NDArray[np.uint64]
    fields: tuple[FieldTokens, ...]
    texts: pa.Array | None

    def take(self, rows: Numbers) -> _Rows:
        return _Rows(
            self.labels[rows],
            self.weights[rows] if self.weights.size else self.weights,
            self.requests[rows],
            tuple(field.take(rows) for field in self.fields),
            None if self.texts is None else self.texts.take(pa.array(rows)),
        )

    @classmethod
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        weighted = any(part.weights.size for part in parts)
        weights = [part.weights if part.weights.size else np.ones(part.labels.size) for part in parts]
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate(weights) if weighted else _NO_NUMBERS,
            np.concatenate([part.requests for part in parts]),
            tuple(_joined(several) for several in zip(*(part.fields for part in parts), strict=True)),
            None if parts[0].texts is None else pa.concat_arrays([part.texts for part in parts]),
        )


class ImportanceSample:
    """Collects a sample of whole requests, and the use of the model's keys by all rows; then permutes.

    A request is in the sample by a hash of its id, so the sample depends on the log alone. Memory: MOST_SAMPLED rows of
    about 24 bytes a token, and 8 bytes per key of the model.
    """

    def __init__(self, scorer: Scorer, maker: ExampleMaker, bits: Sequence[int], repeats: int) -> None:
        """bits: the variants to report on; repeats: of each permutation, 0 for none."""
        self._scorer, self._maker, self._bits, self._repeats = scorer, maker, tuple(bits), repeats
        self._names = [scorer.variants[bit] for bit in bits]
        self._seed = maker.spec.learner.seed
        self._used = np.zeros(scorer.artefact.rows)
        self._weight = 0.0
        self._rows_seen = 0
        self._halvings = 0
        self._parts: list[_Rows] = []
        self._has_requests = maker.spec.input.request is not None
        calibration = scorer.artefact.calibration
        by = calibration.by if calibration is not None else None
        self._by = maker.plan.field(by) if by is not None else None

    def add(self, examples: Examples) -> Numbers:
        """Add a batch; returns int64[rows, 2], each row's keys and those of them that the model lacks."""
        hashed = examples.hashed
        size = int(hashed.labels.size)
        keys = self._scorer.count_keys(hashed, self._maker.rules.masks, self._used)
        self._weight += float(hashed.weights.sum()) if hashed.weights.size else size
        if self._repeats:
            own = np.arange(self._rows_seen, self._rows_seen + size, dtype=np.uint64)
            requests = examples.requests if examples.requests.size else own
            chosen = self._drawn(requests)
            if chosen.size:
                self._parts.append(self._rows(examples, requests).take(chosen))
            while sum(part.labels.size for part in self._parts) > MOST_SAMPLED:
                self._halvings += 1
                self._parts = [part.take(self._drawn(part.requests)) for part in self._parts]
        self._rows_seen += size
        return keys

    def importance(self, output: Output = SILENT) -> Importance:
        """Permute and measure. O(fields · repeats · rows of the sample · keys of a row)."""
        rows = _Rows.joined(self._parts) if self._parts else None
        fields: list[FieldImportance] = []
        logloss: dict[str, float | None] = dict.fromkeys(self._names)
        requests = None
        if rows is not None and (rows.weights.sum() if rows.weights.size else rows.labels.size):
            permutations = _Permutations(self._scorer, self._maker, self._bits, rows, self._by)
            logloss = dict(zip(self._names, permutations.logloss(), strict=True))
            requests = permutations.requests if self._has_requests else None
            fields = self._permuted(permutations, output)
        return Importance(
            rows=int(rows.labels.size) if rows is not None else 0,
            requests=requests,
            repeats=self._repeats,
            logloss=logloss,
            fields=tuple(fields),
            weights=self._by_weight(),
            keys={name: self._top_keys(bit, name) for bit, name in zip(self._bits, self._names, strict=True)},
        )

    def _permuted(self, permutations: _Permutations, output: Output) -> list[FieldImportance]:
        plans = [plan for plan in self._maker.plan.fields if permutations.moves(plan.index)]
        done, total = 0, len(plans) * self._repeats
        fields = []
        with output.progress("permuting", total, "permutations") as bar:
            for plan in plans:
                across = "request" if self._is_of_request(plan, permutations) else "row"
                rises = np.zeros((permutations.rows.labels.size, len(self._bits)))
                before = permutations.losses(plan.index, None)
                for repeat in range(self._repeats):
                    order = permutations.order(self._seed, plan.index, repeat, across)
                    rises += permutations.losses(plan.index, order) - before
                    done += 1
                    bar.update(done, total=total, field=plan.name)
                found = zip(self._names, (rises / self._repeats).T, strict=True)
                fields.append(
                    FieldImportance(
                        plan.name, across, {name: permutations.rise(each) for name, each in found}
                    )
                )
        return sorted(fields, key=lambda each: -max(rise.logloss for rise in each.rises.values()))

    def _is_of_request(self, plan: FieldPlan, permutations: _Permutations) -> bool:
        """Whether requests exchange a field's values: it is not the item's, and each request has one value."""
        return self._has_requests and plan.side != "item" and permutations.is_of_request(plan.index)

    def _drawn(self, requests: npt.NDArray[np.uint64]) -> Numbers:
        drawn = np.empty(requests.size, np.bool_)
        threshold = np.uint64((1 << PROBABILITY_BITS) >> self._halvings)
        draw(requests, np.zeros(requests.size, np.bool_), np.uint64(self._seed), threshold, drawn)
        return np.flatnonzero(drawn)

    def _rows(self, examples: Examples, requests: npt.NDArray[np.uint64]) -> _Rows:
        hashed = examples.hashed
        texts = None
        if self._by is not None:
            texts = examples.texts[self._by.index].take(pa.array(examples.rows))
        fields = tuple(FieldTokens.of(examples, plan.index) for plan in self._maker.plan.fields)
        return _Rows(hashed.labels, hashed.weights, requests, fields, texts)

    def _by_weight(self) -> tuple[WeightImportance, ...]:
        """Of every field and cross that some key of the rows belongs to, without the bias."""
        artefact, masks = self._scorer.artefact, self._masks()
        means: dict[str, dict[str, float]] = {}
        for bit, name in zip(self._bits, self._names, strict=True):
            sizes = self._sizes(artefact, bit)
            for owner, begin, end in key_ranges(artefact):
                if masks.get(owner, ~0) >> bit & 1:
                    own = means.setdefault(owner, dict.fromkeys(self._names, 0.0))
                    own[name] += float(sizes[begin:end].sum())
        found = [WeightImportance(owner, own) for owner, own in means.items() if owner != "bias"]
        return tuple(sorted(found, key=lambda each: -max(each.means.values())))

    def _top_keys(self, bit: int, name: str) -> tuple[WeightImportance, ...]:
        artefact, masks = self._scorer.artefact, self._masks()
        sizes = self._sizes(artefact, bit)
        for owner, begin, end in key_ranges(artefact):
            if owner == "bias" or not masks.get(owner, ~0) >> bit & 1:
                sizes[begin:end] = 0.0
        top = np.argsort(-sizes, kind="stable")[:TOP_KEYS]
        return tuple(
            WeightImportance(
                artefact.key(int(row)).decode("utf-8", "backslashreplace"), {name: float(sizes[row])}
            )
            for row in top
            if sizes[row] > 0.0
        )

    def _sizes(self, artefact: Artefact, bit: int) -> Floats:
        """Each key's mean |weight · x| over the rows."""
        return np.abs(artefact.weights_of(bit).astype(np.float64)) * self._used / (self._weight or 1.0)

    def _masks(self) -> dict[str, int]:
        """The variants that use each field and cross."""
        plan = self._maker.plan
        fields = {field.name: field.mask for field in plan.fields}
        return fields | {cross.name: cross.mask for cross in plan.crosses}


class _Permutations:
    """Scores sampled rows with the tokens of one field exchanged. `rows` is never changed."""

    def __init__(
        self, scorer: Scorer, maker: ExampleMaker, bits: tuple[int, ...], rows: _Rows, by: Any
    ) -> None:
        self.rows = rows
        self._scorer, self._maker, self._bits, self._by = scorer, maker, list(bits), by
        self._layout = _layout(rows.fields, maker)
        _, firsts, inverse = np.unique(rows.requests, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        number = np.empty_like(order)
        number[order] = np.arange(order.size)
        # Requests in the order of their first rows, and the request of each row.
        self._firsts, self._request_of = firsts[order], number[inverse.reshape(-1)]
        self._still: tuple[int, Floats, Floats] | None = None

    @property
    def requests(self) -> int:
        """The number of requests; of rows where rows have none."""
        return int(self._firsts.size)

    def moves(self, field: int) -> bool:
        """Whether some variant reported on uses a key made from the field."""
        wanted = sum(1 << bit for bit in self._bits)
        return bool((self._moved(field) & np.uint32(wanted)).any())

    def is_of_request(self, field: int) -> bool:
        """Whether all rows of each request have the same value."""
        rows = np.arange(self.rows.labels.size)
        return bool(self.rows.fields[field].same(rows, self._firsts[self._request_of]).all())

    def order(self, seed: int, field: int, repeat: int, across: str) -> Numbers:
        """For each row, the row whose value it gets."""
        random = np.random.Generator(np.random.PCG64([seed, field, repeat]))
        if across == "row":
            return random.permutation(self.rows.labels.size)
        taken: Numbers = self._firsts[random.permutation(self._firsts.size)][self._request_of]
        return taken

    def losses(self, field: int, order: Numbers | None) -> Floats:
        """Every row's log-losses, with its field's value from row order[row]: float64[rows, variants reported on].

        Without an order they are those of the rows as they are, summed in the same way.
        """
        fields, layout, texts = list(self.rows.fields), self._layout, self.rows.texts
        if order is not None:
            fields[field] = fields[field].take(order)
            layout = _layout(fields, self._maker)
            if self._by is not None and self._by.index == field and texts is not None:
                texts = texts.take(pa.array(order))
        moved = self._moved(field)
        if self._still is None or self._still[0] != field:
            others = np.where(moved != 0, np.uint32(0), self._maker.rules.masks)
            self._still = (field, *self._sums(self._layout, others))
        _, scores, uncertainty = self._still
        own = self._sums(layout, moved)
        return self._losses(scores + own[0], uncertainty + own[1], layout, texts)

    def logloss(self) -> list[float]:
        """The mean log-loss of every variant reported on, without a permutation."""
        sums = self._sums(self._layout, self._maker.rules.masks)
        losses = self._losses(*sums, self._layout, self.rows.texts)
        return [float(np.average(each, weights=self._weights)) for each in losses.T]

    def rise(self, rises: Floats) -> Rise:
        """The mean of rows' rises, and its interval over requests, linearised as in `figures`."""
        weights = self._weights
        total = float(weights.sum())
        mean = float(weights @ rises) / total
        clusters = self._firsts.size
        if clusters < 2:
            return Rise(mean, None, None)
        residuals = np.bincount(self._request_of, weights * (rises - mean), clusters)
        half = NORMAL_95 * math.sqrt(float(residuals @ residuals) * clusters / (clusters - 1)) / total
        return Rise(mean, mean - half, mean + half)

    @property
    def _weights(self) -> Floats:
        return self.rows.weights if self.rows.weights.size else np.ones(self.rows.labels.size)

    def _moved(self, field: int) -> Any:
        """The masks of the features that are made from a field, 0 for all others."""
        plan, masks = self._maker.plan, self._maker.rules.masks
        crosses = [field in [each.index for each in cross.fields] for cross in plan.crosses]
        mine = np.array([False, *(each.index == field for each in plan.fields), *crosses])
        return np.where(mine, masks, np.uint32(0))

    def _sums(self, tokens: TokenLayout, masks: Any) -> tuple[Floats, Floats]:
        """The sums of the keys of features that `masks` leaves, see `Scorer.sums`; float64[rows, variants] each."""
        size = self.rows.labels.size
        found = []
        for first in range(0, size, _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, size), dtype=np.int32)
            found.append(self._scorer.sums(self._hashed(rows, tokens, masks), masks))
        scores, uncertainty = (np.concatenate(each) for each in zip(*found, strict=True))
        return scores, uncertainty

    def _losses(
        self, scores: Floats, uncertainty: Floats, layout: TokenLayout, texts: pa.Array | None
    ) -> Floats:
        """The log-losses of rows with these sums; layout, texts: of the calibration's field."""
        columns: list[Any] = [None] * len(self.rows.fields)
        if self._by is not None:
            columns[self._by.index] = texts
        size = self.rows.labels.size
        none: Any = np.empty(0)
        hashed = HashedRows(none, none, none, none, self.rows.labels, none)
        rows = np.arange(size, dtype=np.int32)
        examples = Examples(rows, hashed, layout, columns, (), RowCounts(size), Position(""))
        found = self._scorer.of_sums(self._maker, examples, scores, uncertainty)
        variants = len(self._scorer.variants)
        losses: Floats = Predictions.of(scores, found.ctr, hashed, none, variants).losses[:, self._bits]
        return losses

    def _hashed(self, rows: npt.NDArray[np.int32], tokens: TokenLayout, masks: Any) -> HashedRows:
        size = int(count_features(rows, tokens))
        hashed = HashedRows(
            starts=np.empty(rows.size + 1, np.int64),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(size) if tokens.values.size else _NO_NUMBERS,
            labels=self.rows.labels[rows],
            weights=_NO_NUMBERS,
        )
        rules = self._maker.rules._replace(masks=masks)
        assemble(rows, tokens, rules, hashed, np.empty(MAX_CROSS_FIELDS, np.int64))
        return hashed


def _layout(fields: Sequence[FieldTokens], maker: ExampleMaker) -> TokenLayout:
    """Lay the fields' tokens out, as `hashing.lay_out` does: a field is a list if a row has several tokens."""
    lists = [index for index, field in enumerate(fields) if field.lengths.max(initial=0) > 1]
    dense = [index for index in range(len(fields)) if index not in lists]
    rows = fields[0].starts.size - 1 if fields else 0
    base, list_of = np.zeros(len(fields), np.int64), np.full(len(fields), -1, np.int64)
    starts = np.zeros((max(len(lists), 1), rows + 1), np.int32)
    own, x = np.zeros((rows, len(dense)), np.uint64), np.zeros((rows, len(dense)))
    for number, index in enumerate(dense):
        base[index], field = number, fields[index]
        present = field.lengths > 0
        own[present, number] = field.digests
        x[present, number] = _xs(field)
    digests, values, at = [own.reshape(-1)], [x.reshape(-1)], own.size
    for number, index in enumerate(lists):
        base[index], list_of[index], field = at, number, fields[index]
        starts[number] = field.starts
        digests.append(field.digests)
        values.append(_xs(field))
        at += field.digests.size
    return TokenLayout(
        digests=np.concatenate(digests),
        values=np.concatenate(values) if any(field.x.size for field in fields) else _NO_NUMBERS,
        base=base,
        step=np.int64(len(dense)),
        list_of=list_of,
        starts=starts,
        crosses=maker.crosses,
        owner=maker.feature_rules.owner,
    )


def _xs(field: FieldTokens) -> Floats:
    return field.x if field.x.size else np.ones(field.digests.size)


def _joined(parts: Sequence[FieldTokens]) -> FieldTokens:
    has_x = any(part.x.size for part in parts)
    x = [part.x if part.x.size else np.ones(part.digests.size) for part in parts]
    return FieldTokens(
        _starts(np.concatenate([part.lengths for part in parts])),
        np.concatenate([part.digests for part in parts]),
        np.concatenate(x) if has_x else _NO_NUMBERS,
        np.concatenate([part.places for part in parts]),
    )


def _starts(lengths: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _ranges(firsts: Numbers, lengths: Numbers) -> Numbers:
    """firsts[i], firsts[i] + 1, … lengths[i] of them, one range after the other."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(firsts - before, lengths) + np.arange(total)
