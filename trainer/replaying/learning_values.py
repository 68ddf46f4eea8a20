"""What candidates are worth to a model that is still learning: as it stands before each request is learned from.

The model learns from every request of the log, as the daemon would have, but knows each one's outcome at once. So the
policy changes from request to request; it depends on earlier requests alone, which keeps importance weights unbiased.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec import ModelSpec
from trainer.hashing.examples import ExampleMaker, Examples
from trainer.kernels import HashedRows, find_keys
from trainer.model import LearningModel
from trainer.replaying.candidates import Candidates, expanded
from trainer.replaying.logged import Decisions, LoggedRows
from trainer.replaying.values import columns_of
from trainer.table import TableKeys

Array = npt.NDArray[Any]
_NO_BYTES = np.empty(0, np.uint8)
_NO_OFFSETS = np.zeros(1, np.int64)


class LearningValues:
    """Scores, in float64 and before calibration, by the weights that the learner has at that moment."""

    def __init__(self, resolved: ModelSpec, name: str = "learning", variant: str | None = None) -> None:
        """resolved: the spec, by the log's columns; its subsampling is left out. Raises SpecError."""
        learner = resolved.learner.model_copy(update={"subsample": None})
        self._maker = ExampleMaker(resolved.model_copy(update={"learner": learner}))
        self.model = LearningModel(self._maker)
        variants = tuple(resolved.variants)
        self._columns = columns_of(variants, variant, name)
        self.names = tuple(f"{name}@{variants[column]}" for column in self._columns)

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """See Values. Learns from the requests of the chosen decisions."""
        pairs = expanded(self._maker, rows, decisions.first[chosen], candidates)
        first, last = np.searchsorted(decisions.of_row, [chosen[0], chosen[-1] + 1])
        shown = self._maker.make(rows.batch(np.arange(first, last)))
        request = rows.request[first:last]
        borders = np.flatnonzero(np.diff(request, prepend=-1, append=request[-1] + 1))
        starts = np.searchsorted(chosen, decisions.of_row[first + borders[:-1]])
        values = np.empty((len(chosen), len(candidates), len(self._columns)))
        for begin, end, start, stop in zip(
            borders[:-1], borders[1:], starts, [*starts[1:], len(chosen)], strict=True
        ):
            size = len(candidates)
            values[start:stop] = self._values(pairs, start * size, stop * size).reshape(
                stop - start, size, -1
            )
            self.model.learn(_part(shown, *np.searchsorted(shown.rows, [begin, end])))
        return values

    def _values(self, pairs: Examples, begin: int, end: int) -> Array:
        """The scores of pairs begin to end: float64[pairs, names]."""
        hashed = pairs.hashed
        first, last = int(hashed.starts[begin]), int(hashed.starts[end])
        coordinates = self.model.coordinates
        slots = np.empty(last - first, np.int64)
        find_keys(coordinates.table.layout, hashed.hashes[first:last], slots)
        known = np.flatnonzero(slots >= 0)
        features = hashed.features[first:last][known]
        weights = coordinates.weights(TableKeys(_NO_BYTES, _NO_OFFSETS, slots[known], features))
        if hashed.x.size:
            weights = weights * hashed.x[first:last][known, None]
        pair = np.repeat(np.arange(end - begin), np.diff(hashed.starts[begin : end + 1]))[known]
        uses = self._maker.rules.masks[features]
        out = np.empty((end - begin, len(self._columns)))
        for place, bit in enumerate(self._columns):
            mine = weights[:, bit if coordinates.own > 1 else 0] * (uses >> np.uint32(bit) & np.uint32(1))
            out[:, place] = np.bincount(pair, mine, end - begin)
        return out


def _part(examples: Examples, begin: int, end: int) -> Examples:
    """Examples begin to end. Starts keep their offsets into the hashes of all."""
    hashed = examples.hashed
    weights = hashed.weights[begin:end] if hashed.weights.size else hashed.weights
    rows = HashedRows(
        hashed.starts[begin : end + 1],
        hashed.hashes,
        hashed.features,
        hashed.x,
        hashed.labels[begin:end],
        weights,
    )
    return replace(
        examples,
        rows=examples.rows[begin:end],
        hashed=rows,
        times=examples.times[begin:end] if examples.times.size else examples.times,
        requests=examples.requests[begin:end] if examples.requests.size else examples.requests,
    )
