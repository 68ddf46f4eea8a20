"""Scorer: a model that computes scores, click rates and uncertainties of hashed examples for every variant.

A server answers the same, except for the last bits, since it adds in another order. Immutable and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration
from model_store.errors import SpecError, listed
from model_store.hash_kernels import hash_keys
from model_store.normal_kernels import normal_cdfs
from model_store.spec.sections import Variant
from model_store.spec.spec import ModelSpec, cross_called
from trainer.examples.examples_kernels import HashedRows
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.requests import Sample
from trainer.formats.batch import RowBatch
from trainer.learn import predictions_kernels as kernels
from trainer.learn.predictions_kernels import KeyColumns, KeyIndex
from trainer.learn.table import TableKeys

if TYPE_CHECKING:
    from trainer.learn.model import LearningModel

_CLOSEST = 1e-15
_NO_BYTES = np.empty(0, np.uint8)
_NO_OFFSETS = np.zeros(1, np.int64)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Float64[rows, variants] each, C-contiguous.

    latent: what orders rows and what the link maps to `predicted`: the score, or for adpredictor the score in standard
    deviations; predicted: the click rate before calibration; ctr: the calibrated one; uncertainty: the most that one
    more example could change the score, or adpredictor's standard deviation of the score; NaN where the model's rates
    are unknown.
    """

    score: Array
    latent: Array
    predicted: Array
    ctr: Array
    uncertainty: Array


class KeyScorer:
    """Keys by hash, with the weights and rates of each, and what becomes of a row's sums: link and calibration."""

    def __init__(
        self,
        spec: ModelSpec,
        index: KeyIndex,
        columns: KeyColumns,
        calibration: Calibration | None,
        knows_rates: bool,
    ) -> None:
        self.variants = tuple(spec.variants)
        self.calibration = calibration
        self.knows_rates = knows_rates
        self._index, self._columns = index, columns
        self._probit = spec.learner.link == "probit"
        own = [each.own_parameters.get("beta", spec.learner.beta) for each in spec.variants.values()]
        self._noise = np.square(np.array(own))

    def score(self, maker: ExampleMaker, examples: Examples) -> Scores:
        """Score examples that `maker` made with this model's spec. O(features · variants)."""
        return self.of_sums(maker, examples, *self.sums(examples.hashed, maker.rules.masks))

    def sums(self, rows: HashedRows, masks: Any) -> tuple[Array, Array]:
        """Each row's sums of weight * x and of rate * |x| (probit: x^2) over the keys of features in `masks`."""
        shape = (int(rows.labels.size), len(self.variants))
        scores, uncertainty = np.empty(shape), np.empty(shape)
        kernels.score_rows(rows, masks, self._index, self._columns, self._probit, scores, uncertainty)
        return scores, uncertainty

    def of_sums(self, maker: ExampleMaker, examples: Examples, scores: Array, uncertainty: Array) -> Scores:
        """The scores of examples whose `sums` are these; changes `uncertainty` in place."""
        predicted = np.empty(scores.shape)
        if self._probit:
            latent = scores / np.sqrt(self._noise + uncertainty)
            normal_cdfs(latent.reshape(-1), predicted.reshape(-1))
            np.sqrt(uncertainty, out=uncertainty)
        else:
            latent = scores
            kernels.probabilities(scores.reshape(-1), predicted.reshape(-1))
        if not self.knows_rates:
            uncertainty[:] = np.nan
        return Scores(scores, latent, predicted, self._calibrated(maker, examples, predicted), uncertainty)

    def count_keys(self, rows: HashedRows, masks: Any, used: Array) -> npt.NDArray[np.int64]:
        """int64[rows, 2]: each row's keys, and those of them that the model lacks.

        used: float64[keys of the model], to which each row adds its weight times |x|.
        """
        keys = np.empty((int(rows.labels.size), 2), np.int64)
        kernels.count_keys(rows, masks, self._index, used, keys)
        return keys

    def _calibrated(self, maker: ExampleMaker, examples: Examples, predicted: Array) -> Array:
        calibration = self.calibration
        if calibration is None:
            return predicted
        ctr = predicted.copy()
        for value, rows in _by_value(maker, examples, calibration.by):
            for column, variant in enumerate(self.variants):
                if (curve := calibration.curve(variant, value)) is not None:
                    ctr[rows, column] = curve.apply(predicted[rows, column])
        return ctr


class Scorer(KeyScorer):
    """A model's weights and rates behind a hash index. Memory: 32 to 64 bytes per key, and the artefact."""

    def __init__(self, artefact: Artefact) -> None:
        """O(keys)."""
        columns = KeyColumns(
            artefact.variants, two_axes(artefact.weight), two_axes(artefact.rate), unseen_rates(artefact)
        )
        hashes = np.empty(artefact.rows, np.uint64)
        hash_keys(artefact.key_data, artefact.key_offsets, hashes)
        index = index_of(hashes)
        super().__init__(artefact.spec, index, columns, artefact.calibration, artefact.source is None)
        self.artefact = artefact


def scoring_spec(spec: ModelSpec, without: Sequence[str] = ()) -> ModelSpec:
    """The spec for scoring a log: every row is used, and no variant uses the fields and crosses in `without`.

    The columns of those fields may be missing in the log. Raises SpecError for a name that is neither field nor cross.
    """
    for name in without:
        if name not in spec.fields and cross_called(name, spec.crosses) is None:
            crosses = ["*".join(cross.fields) for cross in spec.crosses]
            raise SpecError(
                f"--without {name}: no such field or cross; "
                f"fields and crosses: {listed([*spec.fields, *crosses], name)}"
            )
    fields = {
        name: field.model_copy(update={"optional": True}) if name in without else field
        for name, field in spec.fields.items()
    }
    variants = {
        name: variant.model_copy(update={"without": (*variant.without, *without)})
        for name, variant in spec.variants.items()
    }
    learner = spec.learner.model_copy(update={"subsample": None, "ttl": None})
    return spec.model_copy(update={"fields": fields, "variants": variants, "learner": learner, "rules": {}})


def unseen_rates(artefact: Artefact) -> Array:
    """For each variant, the learning rate of a key that is not in the model: the initial rate, or the prior variance.

    Where all keys share a rate, or the initial rate is infinite, it is the largest rate in the model. Where rules set
    alpha by prefix it is that of the largest alpha, so that it bounds what a key of any prefix may do.
    """
    return first_rates(artefact.spec, lambda: two_axes(artefact.rate))


def first_rates(spec: ModelSpec, rates: Callable[[], Any]) -> Array:
    """`unseen_rates` of a spec; rates: the rates of all keys, [keys, own], called only if they are needed."""
    found = [_first_rate(spec, variant) for variant in spec.variants.values()]
    if not all(found):
        known = rates()
        found = [
            each or float(known[:, bit % known.shape[1]].max(initial=0.0)) for bit, each in enumerate(found)
        ]
    return np.array(found)


def _first_rate(spec: ModelSpec, variant: Variant) -> float | None:
    learning = variant if variant.average is None else spec.variants[variant.average]
    alpha = spec.learner.alpha if learning.alpha is None else learning.alpha
    beta = spec.learner.beta if learning.beta is None else learning.beta
    largest = max([alpha, *(rule.alpha for rule in spec.rules.values() if rule.alpha is not None)])
    return spec.learner.first_rate(largest, beta)


def two_axes(numbers: Any) -> Any:
    """An artefact's weights or rates as [keys, own]."""
    return np.ascontiguousarray(numbers if numbers.ndim == 2 else numbers[:, None])


def index_of(hashes: npt.NDArray[np.uint64]) -> KeyIndex:
    """An index of keys by hash: the number of each in `hashes`."""
    size = 1 << (2 * hashes.size + 1).bit_length()
    index = KeyIndex(np.zeros(size, np.uint64), np.empty(size, np.int64))
    kernels.fill_index(hashes, index)
    return index


def _by_value(maker: ExampleMaker, examples: Examples, by: str | None) -> list[tuple[bytes | None, Any]]:
    """Each value of the calibration's slicing field with its rows; None for the rows without a value."""
    field = maker.plan.field(by) if by is not None else None
    if field is None:
        return [(None, slice(None))]
    tokens = examples.tokens
    digests = tokens.of_rows(field.index, examples.rows)
    distinct, firsts, inverse = np.unique(digests, return_index=True, return_inverse=True)
    texts = examples.texts[field.index]
    return [
        (
            texts[int(examples.rows[firsts[number]])].as_py() if digest else None,
            np.flatnonzero(inverse.reshape(-1) == number),
        )
        for number, digest in enumerate(distinct.tolist())
    ]


def log_odds(ctr: Array) -> Array:
    """ln(ctr / (1 - ctr))."""
    inside = np.clip(ctr, _CLOSEST, 1.0 - _CLOSEST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def live_scores(model: LearningModel, maker: ExampleMaker, examples: Examples) -> Scores:
    """The scores of examples that `maker` made with the model's spec, bit for bit those of `model.artefact()`.

    With hash_bits it makes the artefact, O(keys): which keys share a bucket is known there alone.
    """
    if model.table.buckets is not None:
        return Scorer(model.artefact()).score(maker, examples)
    rows = examples.hashed
    hashes, first = np.unique(rows.hashes, return_index=True)
    features = rows.features[first]
    slots = model.table.find(hashes, features)
    known = slots >= 0
    keys = TableKeys(_NO_BYTES, _NO_OFFSETS, slots[known], features[known])
    weight, rate = model.published(keys)
    kept = weight.any(axis=1)
    columns = [hashes[known][kept], features[known][kept], weight[kept], rate[kept]]
    margin = model.coordinates.margin
    if margin.exists and (given := margin.given[features] & (margin.masks[features] != 0)).any():
        fixed = np.repeat(margin.weights[features[given], None], weight.shape[1], axis=1).astype(np.float32)
        more = (hashes[given], features[given], fixed, np.zeros_like(fixed))
        columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
    found, owners, weights, rates = columns
    table = KeyColumns(
        model.coordinates.masks_of(TableKeys(_NO_BYTES, _NO_OFFSETS, _NO_OFFSETS, owners)),
        np.ascontiguousarray(weights if model.spec.learner.values == "per_variant" else weights[:, :1]),
        np.ascontiguousarray(rates if model.spec.learner.values == "per_variant" else rates[:, :1]),
        first_rates(model.spec, lambda: model.published(model.table.keys())[1]),
    )
    calibration = model.calibrator.calibration() if model.calibrator is not None else None
    return KeyScorer(model.spec, index_of(found), table, calibration, True).score(maker, examples)


# --- Makers that score ---


@dataclass(frozen=True, kw_only=True)
class ScoredExamples(Examples):
    """Examples with their scores, and the batch that they were made of."""

    scores: Scores
    batch: RowBatch

    @property
    def first(self) -> Any:
        """The first example of each row, the click where it has one: bool[m], or a slice of all."""
        if not self.counts.doubled:
            return slice(None)
        return np.concatenate([[True], self.rows[1:] != self.rows[:-1]])


class ScoringMaker(ExampleMaker):
    """Makes and scores examples, in the hashing threads. Stateless."""

    def __init__(self, spec: ModelSpec, scorer: Scorer) -> None:
        super().__init__(spec)
        self._scorer = scorer

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        return ScoredExamples(**vars(examples), scores=self._scorer.score(self, examples), batch=batch)


class PredictingMaker(ExampleMaker):
    """Makes examples to be scored, one of each row, whatever its label."""

    def _outcomes(self, sample: Sample, bad: dict[int, str]) -> tuple[Any, Any, Any]:
        return np.zeros(sample.batch.rows), np.empty(0), np.empty(0, np.int64)

    def _outcomes_of(self, good: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
        return good, labels[good], weights
