"""The reward model of the direct method and the doubly robust estimators: ftrie's own learner, cross-fitted.

The rows are dealt into folds by cluster. A row's reward is predicted by a model that learned the other folds, so that
its own reward has no part in the prediction (Chernozhukov et al., The Econometrics Journal 2018, section 3). A reward r
between the least and the greatest, l and u, is learned as y = (r - l) / (u - l): a click with the weight y, and none
with the weight 1 - y, whose log-loss is least at the mean of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.spec import ModelSpec, spec_from_document
from trainer.formats.cells import number_column, plain
from trainer.learn.model import LearningModel
from trainer.learn.scorer import PredictingMaker
from trainer.off_policy.logged import LoggedRows
from trainer.off_policy.policies import PAIRS_AT_ONCE, Candidates, expanded, varies

Array = npt.NDArray[Any]
FOLDS, PASSES = 5, 3
_BUCKETS, _FEW_NUMBERS, _AN_ID = 10, 20, 0.5


class CrossFitted:
    """One model for each fold, of the rows outside it. `of` is a `Predict`."""

    def __init__(self, spec: ModelSpec, rows: LoggedRows, candidates: Candidates) -> None:
        """spec: of the model, resolved; its first variant predicts."""
        self._maker, self._rows, self._candidates = PredictingMaker(spec), rows, candidates
        self.folds = min(FOLDS, int(rows.cluster.max()) + 1)
        self._fold = rows.cluster % self.folds
        every = np.arange(len(rows))
        self._models = [self._fit(every[self._fold != fold], rows.label) for fold in range(self.folds)]

    def of(self, chosen: Array) -> Array:
        """The predicted reward of every candidate in the place of the chosen rows: float64[k, candidates]."""
        found = np.empty((len(chosen), len(self._candidates)))
        for fold, model in enumerate(self._models):
            mine = self._fold[chosen] == fold
            found[mine] = self._predict(model, chosen[mine])
        return found

    def of_lists(self, rank: Array, following: Array, chances: Array) -> tuple[Array, Array]:
        """The reward of a list from each row on, for its item and on average over the policy's: float64[rows] each.

        Backwards, as in fitted Q evaluation: the rows of the last rank learn their reward, those above their reward and
        what the policy is predicted to earn from the following row on. rank: each row's, from 0; following: the row
        below it, -1 for none; chances: the policy's, float64[rows, candidates].
        """
        size = len(self._rows)
        fitted, direct = np.zeros(size), np.zeros(size)
        of_rank = [np.flatnonzero(rank == each) for each in range(int(rank.max()) + 1)]
        for fold in range(self.folds):
            later = np.zeros(size + 1)  # of the row -1 too
            for mine in reversed(of_rank):
                target = self._rows.label + later[following]
                model = self._fit(mine[self._fold[mine] != fold], target)
                for begin in range(0, len(mine), per := max(1, PAIRS_AT_ONCE // len(self._candidates))):
                    part = mine[begin : begin + per]
                    predicted = self._predict(model, part)
                    later[part] = (chances[part] * predicted).sum(axis=1)
                    here = self._fold[part] == fold
                    index = np.maximum(self._candidates.index[part], 0)  # of no candidate: its weight is 0
                    fitted[part[here]] = predicted[np.flatnonzero(here), index[here]]
                    direct[part[here]] = later[part[here]]
        return fitted, direct

    def _fit(self, chosen: Array, rewards: Array) -> _Fitted:
        """Learn the chosen rows in their order, PASSES times. rewards: float64[rows]."""
        reward, model = rewards[chosen], LearningModel(self._maker)
        least, greatest = (float(reward.min()), float(reward.max())) if reward.size else (0.0, 0.0)
        if greatest > least:
            share = (reward - least) / (greatest - least)
            of_row, label = np.repeat(chosen, 2), np.tile([1.0, 0.0], len(chosen))
            weight = np.column_stack([share, 1.0 - share]).reshape(-1) * np.repeat(
                self._rows.weight[chosen], 2
            )
            used = np.flatnonzero(weight > 0.0)
            parts = [used[at : at + PAIRS_AT_ONCE] for at in range(0, used.size, PAIRS_AT_ONCE)]
            for part in parts * PASSES:
                examples = self._maker.make(self._rows.batch(of_row[part]))
                hashed = examples.hashed._replace(labels=label[part], weights=weight[part])
                model.learn_judged(replace(examples, hashed=hashed))
        return _Fitted(model, least, greatest)

    def _predict(self, fitted: _Fitted, chosen: Array) -> Array:
        if not len(chosen) or fitted.least == fitted.greatest:
            return np.full((len(chosen), len(self._candidates)), fitted.least)
        pairs = expanded(self._maker, self._rows, chosen, self._candidates)
        share = fitted.model.coordinates.predict(pairs.hashed).probabilities[:, 0]
        return (fitted.least + (fitted.greatest - fitted.least) * share).reshape(len(chosen), -1)


@dataclass(frozen=True)
class _Fitted:
    """A model of rewards between `least` and `greatest`."""

    model: LearningModel
    least: float
    greatest: float


def reward_spec(rows: LoggedRows, item: str, context: Sequence[str]) -> ModelSpec:
    """A spec for the rewards of a plain table: the item, each column of the context, and each times the item.

    A number with many values is cut at its deciles. Left out are columns that are constant for every item, which say
    nothing that the item does not say, texts that rarely repeat, and nested values.
    """
    ids = pc.unique(rows.item)
    index = np.asarray(pc.index_in(rows.item, value_set=ids), np.int64)
    first = pc.index_in(ids, value_set=rows.item)
    fields: dict[str, dict[str, Any]] = {"item": {"column": item, "side": "item"}}
    for number, name in enumerate(context):
        column = rows.columns[name]
        if pa.types.is_nested(column.type) or not varies(column, index, column.take(first)):
            continue
        field: dict[str, Any] = {"column": name}
        distinct = len(pc.unique(column))
        values, odd = number_column(plain(column))
        if not odd and distinct > _FEW_NUMBERS and np.isfinite(values).any():
            edges = np.unique(np.nanquantile(values, np.arange(1, _BUCKETS) / _BUCKETS))
            field |= {"kind": "number", "bucket": edges.tolist()}
        elif distinct > _AN_ID * len(rows):
            continue
        fields[f"c{number}"] = field
    document = {
        "model": {"name": "rewards"},
        "input": {"label": item},  # a column that exists, and is not read as a label
        "fields": fields,
        "crosses": [{"fields": [name, "item"]} for name in fields if name != "item"],
        "learner": {"l1": 0.0},
    }
    return spec_from_document(document).resolve(tuple(rows.columns))
