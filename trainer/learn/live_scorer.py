"""Scores examples by a model that is still learning, as the artefact of this moment would score them.

Only the keys of the examples are looked up: O(features), whatever the size of the model.
"""

from __future__ import annotations

import numpy as np

from trainer.examples.hashing import ExampleMaker, Examples
from trainer.learn.model import LearningModel
from trainer.learn.scorer import KeyScorer, Scorer, Scores, first_rates, index_of
from trainer.learn.scorer_kernels import KeyColumns
from trainer.learn.table import TableKeys

_NO_BYTES = np.empty(0, np.uint8)
_NO_OFFSETS = np.zeros(1, np.int64)


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
