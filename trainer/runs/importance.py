"""How much a model relies on each field: by permuting the field's values over rows, and by its weights.

In: examples of a held-out log. Out: an `Importance`. Permutation importance (Breiman 2001) is the rise of the log-loss
when rows get each other's values of a field, with the crosses that contain it; it is measured on a sample of whole
requests, whose columns are kept in memory. The importance by weight is each key's |weight · x|, averaged over the rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact.inspection import key_ranges
from model_store.features.features import FieldPlan
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import PROBABILITY_BITS, draw
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import Position, RowBatch
from trainer.formats.cells import plain
from trainer.learn.metrics.figures import NORMAL_95
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.scorer import PredictingMaker, ScoredExamples, Scorer
from trainer.off_policy.logged import concatenated, numbered
from trainer.output import SILENT, Output

MOST_SAMPLED = 200_000
"""Rows that are kept for permutations; beyond it, half of the requests are dropped, again and again."""
TOP_KEYS = 20
_CHUNK = 1 << 14
"""Rows that are hashed at once."""

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
class _SampledRows:
    """Rows in memory. requests: an id of each row's request, or of the row itself; columns: the values by field."""

    labels: Floats
    weights: Floats
    requests: npt.NDArray[np.uint64]
    columns: Mapping[str, pa.Array]

    def take(self, rows: Numbers) -> Self:
        columns = {name: column.take(pa.array(rows)) for name, column in self.columns.items()}
        return type(self)(self.labels[rows], self.weights[rows], self.requests[rows], columns)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.requests for part in parts]),
            {name: concatenated([part.columns[name] for part in parts]) for name in parts[0].columns},
        )


class _SampledMaker(PredictingMaker):
    """Makes examples of rows in memory, whose columns have the names of the fields."""

    def __init__(self, spec: ModelSpec) -> None:
        fields = {name: field.model_copy(update={"column": name}) for name, field in spec.fields.items()}
        super().__init__(
            spec.model_copy(update={"fields": fields, "input": InputSection(label=spec.input.label)})
        )

    def only(self, masks: npt.NDArray[np.uint32]) -> Self:
        """One that makes keys for the variants in `masks`, uint32[features], alone."""
        made = copy.copy(self)
        made.rules = self.rules._replace(masks=masks)
        return made

    def _columns(self, batch: RowBatch, bad: dict[int, str]) -> Any:
        # Each value is good, and has been scored; a cross of exchanged ones may be longer than a key may be.
        return super()._columns(batch, {})


class ImportanceSample:
    """Collects a sample of whole requests, and the use of the model's keys by all rows; then permutes.

    A request is in the sample by a hash of its id, so the sample depends on the log alone. Memory: the fields' columns
    of MOST_SAMPLED rows, and 8 bytes per key of the model.
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
        self._parts: list[_SampledRows] = []
        self._has_requests = maker.spec.input.request is not None

    def add(self, examples: ScoredExamples) -> Numbers:
        """Add a batch; returns int64[rows, 2], each row's keys and those of them that the model lacks."""
        hashed = examples.hashed
        size = int(hashed.labels.size)
        keys = self._scorer.count_keys(hashed, self._maker.rules.masks, self._used)
        weights = hashed.weights if hashed.weights.size else np.ones(size)
        self._weight += float(weights.sum())
        if self._repeats:
            own = np.arange(self._rows_seen, self._rows_seen + size, dtype=np.uint64)
            requests = examples.requests if examples.requests.size else own
            chosen = self._drawn(requests)
            if chosen.size:
                rows, columns = pa.array(examples.rows[chosen]), examples.batch.columns
                taken = {
                    plan.name: plain(columns[plan.column].take(rows)) for plan in self._maker.plan.fields
                }
                outcomes = hashed.labels[chosen], weights[chosen], requests[chosen]
                self._parts.append(_SampledRows(*outcomes, taken))
            while sum(part.labels.size for part in self._parts) > MOST_SAMPLED:
                self._halvings += 1
                self._parts = [part.take(self._drawn(part.requests)) for part in self._parts]
        self._rows_seen += size
        return keys

    def importance(self, output: Output = SILENT) -> Importance:
        """Permute and measure. O(fields · repeats · rows of the sample · keys of a row)."""
        rows = _SampledRows.joined(self._parts) if self._parts else None
        fields: list[FieldImportance] = []
        logloss: dict[str, float | None] = dict.fromkeys(self._names)
        requests = None
        if rows is not None and rows.weights.sum():
            permutations = _Permutations(self._scorer, self._maker.spec, self._bits, rows)
            logloss = dict(zip(self._names, permutations.logloss(), strict=True))
            requests = permutations.requests if self._has_requests else None
            fields = self._permuted(permutations, output)
        weights, keys = self._by_weight()
        return Importance(
            rows=int(rows.labels.size) if rows is not None else 0,
            requests=requests,
            repeats=self._repeats,
            logloss=logloss,
            fields=tuple(fields),
            weights=tuple(weights),
            keys=keys,
        )

    def _permuted(self, permutations: _Permutations, output: Output) -> list[FieldImportance]:
        plans = [plan for plan in self._maker.plan.fields if permutations.moves(plan)]
        done, total = 0, len(plans) * self._repeats
        fields = []
        with output.progress("permuting", total, "permutations") as bar:
            for plan in plans:
                # Requests exchange values that are not the item's where each request has one value.
                own = self._has_requests and plan.side != "item" and permutations.is_of_request(plan)
                across = "request" if own else "row"
                moved = permutations.of(plan)
                rises, before = np.zeros((permutations.rows.labels.size, len(self._bits))), moved(None)
                for repeat in range(self._repeats):
                    rises += moved(permutations.order(self._seed, plan.index, repeat, across)) - before
                    done += 1
                    bar.update(done, total=total, field=plan.name)
                means = zip(self._names, (rises / self._repeats).T, strict=True)
                by_variant = {name: permutations.rise(each) for name, each in means}
                fields.append(FieldImportance(plan.name, across, by_variant))
        return sorted(fields, key=lambda each: -max(rise.logloss for rise in each.rises.values()))

    def _drawn(self, requests: npt.NDArray[np.uint64]) -> Numbers:
        drawn = np.empty(requests.size, np.bool_)
        threshold = np.uint64((1 << PROBABILITY_BITS) >> self._halvings)
        draw(requests, np.zeros(requests.size, np.bool_), np.uint64(self._seed), threshold, drawn)
        return np.flatnonzero(drawn)

    def _by_weight(self) -> tuple[list[WeightImportance], dict[str, tuple[WeightImportance, ...]]]:
        """Every field and cross that some key of the rows belongs to, and the top keys by variant, without the bias."""
        artefact, plan = self._scorer.artefact, self._maker.plan
        masks = {field.name: field.mask for field in plan.fields}
        masks |= {cross.name: cross.mask for cross in plan.crosses}
        means: dict[str, dict[str, float]] = {}
        keys = {}
        for bit, name in zip(self._bits, self._names, strict=True):
            # Each key's mean |weight · x| over the rows.
            sizes = np.abs(artefact.weights_of(bit).astype(np.float64)) * self._used / (self._weight or 1.0)
            for owner, begin, end in key_ranges(artefact):
                if owner == "bias" or not masks.get(owner, ~0) >> bit & 1:
                    sizes[begin:end] = 0.0
                    continue
                own = means.setdefault(owner, dict.fromkeys(self._names, 0.0))
                own[name] += float(sizes[begin:end].sum())
            top = [row for row in np.argsort(-sizes, kind="stable")[:TOP_KEYS].tolist() if sizes[row] > 0.0]
            texts = [artefact.key(row).decode("utf-8", "backslashreplace") for row in top]
            keys[name] = tuple(
                WeightImportance(text, {name: float(sizes[row])})
                for row, text in zip(top, texts, strict=True)
            )
        weights = [WeightImportance(owner, own) for owner, own in means.items()]
        return sorted(weights, key=lambda each: -max(each.means.values())), keys


class _Permutations:
    """Scores sampled rows with the values of one field exchanged. `rows` is never changed."""

    def __init__(self, scorer: Scorer, spec: ModelSpec, bits: Sequence[int], rows: _SampledRows) -> None:
        self.rows = rows
        self._scorer, self._bits, self._maker = scorer, list(bits), _SampledMaker(spec)
        # The request of each row, and the first row of each request.
        self._request_of, self._firsts = numbered(rows.requests)

    @property
    def requests(self) -> int:
        """The number of requests; of rows where rows have none."""
        return int(self._firsts.size)

    def moves(self, field: FieldPlan) -> bool:
        """Whether some variant reported on uses a key made from the field."""
        wanted = np.uint32(sum(1 << bit for bit in self._bits))
        return bool((self._masks(field)[0] & wanted).any())

    def is_of_request(self, field: FieldPlan) -> bool:
        """Whether all rows of each request have the same value: its keys, with their x, in the same order."""
        alone = np.zeros_like(self._maker.rules.masks)
        alone[field.index + 1] = 1
        rows = [each.hashed for _, each in self._examples(self._maker.only(alone), self.rows.columns)]
        lengths = np.concatenate([np.diff(each.starts) for each in rows])
        starts, others = np.cumsum(lengths) - lengths, self._firsts[self._request_of]
        if (lengths != lengths[others]).any():
            return False
        keys = np.concatenate([each.hashes[: each.starts[-1]] for each in rows])
        xs = np.concatenate([each.x[: each.starts[-1]] for each in rows])
        at = np.arange(keys.size) + np.repeat(starts[others] - starts, lengths)
        return bool((keys == keys[at]).all() and (xs.size == 0 or (xs == xs[at]).all()))

    def order(self, seed: int, field: int, repeat: int, across: str) -> Numbers:
        """For each row, the row whose value it gets."""
        random = np.random.Generator(np.random.PCG64([seed, field, repeat]))
        if across == "row":
            return random.permutation(self.rows.labels.size)
        taken: Numbers = self._firsts[random.permutation(self._firsts.size)][self._request_of]
        return taken

    def of(self, field: FieldPlan) -> Callable[[Numbers | None], Floats]:
        """A function that gives every row the field's value of row order[row], and returns `losses`.

        Without an order they are those of the rows as they are, summed in the same way.
        """
        moved, others = (self._maker.only(masks) for masks in self._masks(field))
        chunks = self._examples(others, self.rows.columns)
        still = [self._scorer.sums(each.hashed, others.rules.masks) for _, each in chunks]

        def losses(order: Numbers | None) -> Floats:
            columns = self.rows.columns
            if order is not None:
                columns = {**columns, field.name: columns[field.name].take(pa.array(order))}
            return self._losses(moved, columns, still)

        return losses

    def logloss(self) -> list[float]:
        """The mean log-loss of every variant reported on, without a permutation."""
        losses = self._losses(self._maker, self.rows.columns)
        return [float(np.average(each, weights=self.rows.weights)) for each in losses.T]

    def rise(self, rises: Floats) -> Rise:
        """The mean of rows' rises, and its interval over requests, linearised as in `figures`."""
        weights = self.rows.weights
        total = float(weights.sum())
        mean = float(weights @ rises) / total
        clusters = self._firsts.size
        if clusters < 2:
            return Rise(mean, None, None)
        residuals = np.bincount(self._request_of, weights * (rises - mean), clusters)
        half = NORMAL_95 * math.sqrt(float(residuals @ residuals) * clusters / (clusters - 1)) / total
        return Rise(mean, mean - half, mean + half)

    def _masks(self, field: FieldPlan) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """The masks of the features that are made from a field, 0 for all others; and the opposite."""
        plan, masks = self._maker.plan, self._maker.rules.masks
        crosses = [field.name in [each.name for each in cross.fields] for cross in plan.crosses]
        mine = np.array([False, *(each.name == field.name for each in plan.fields), *crosses])
        return np.where(mine, masks, np.uint32(0)), np.where(mine, np.uint32(0), masks)

    def _examples(
        self, maker: ExampleMaker, columns: Mapping[str, pa.Array]
    ) -> Iterator[tuple[slice, Examples]]:
        """The rows with these columns as examples, chunk by chunk: the keys of all rows would be much memory."""
        size = self.rows.labels.size
        for first in range(0, size, _CHUNK):
            own = slice(first, min(first + _CHUNK, size))
            lines = np.arange(own.start, own.stop)
            part = {name: column[own] for name, column in columns.items()}
            yield own, maker.make(RowBatch(part, lines, "", (), lines.size, Position("")))

    def _losses(
        self,
        maker: ExampleMaker,
        columns: Mapping[str, pa.Array],
        still: Sequence[tuple[Floats, Floats]] = (),
    ) -> Floats:
        """Every row's log-losses: float64[rows, variants reported on].

        still: by chunk, the sums of the keys that `maker` leaves out.
        """
        found = []
        for number, (own, examples) in enumerate(self._examples(maker, columns)):
            scores, uncertainty = self._scorer.sums(examples.hashed, maker.rules.masks)
            if still:
                scores, uncertainty = still[number][0] + scores, still[number][1] + uncertainty
            ctr = self._scorer.of_sums(maker, examples, scores, uncertainty).ctr
            rows = examples.hashed._replace(labels=self.rows.labels[own])
            found.append(
                Predictions.of(scores, ctr, rows, examples.requests, ctr.shape[1]).losses[:, self._bits]
            )
        return np.concatenate(found)
