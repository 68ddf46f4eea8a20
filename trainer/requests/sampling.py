"""Learning from a part of the requests without a click: McMahan et al. (KDD 2013), section 4.6.

Every request with a click is learned from; of the others a share r, each with weight 1/r. Then the expected gradient is
that of all rows, and the model stays calibrated. The draw is a seeded hash of the request's id: the rows of a request
stay together, and every run over the same log draws the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.cells import parse_labels
from model_store.spec import ModelSpec
from trainer.admission.kernels import PROBABILITY_BITS
from trainer.requests.ids import Ids
from trainer.requests.kernels import draw
from trainer.sources import RowBatch


@dataclass(frozen=True)
class Sample:
    """The rows of a batch that are learned from, the request of each and what its weight is multiplied with."""

    batch: RowBatch
    ids: Ids
    factors: npt.NDArray[np.float64]
    left_out: int


@dataclass(frozen=True)
class Sampling:
    """Draws `share` of the requests without a click."""

    share: float
    seed: int
    label: str

    @classmethod
    def of(cls, spec: ModelSpec) -> Sampling | None:
        """The spec's sampling; None where every request is learned from."""
        subsample = spec.learner.subsample
        if subsample is None or subsample.unclicked == 1.0:
            return None
        return cls(subsample.unclicked, spec.learner.seed, spec.input.label)

    def draw(self, batch: RowBatch, ids: Ids) -> Sample:
        """The sample of a batch; `WholeRequests` has told which requests have a click, else each row is one."""
        clicked = batch.clicked
        if clicked is None:
            clicked = parse_labels(batch.columns[self.label])[0] == 1.0
        drawn = np.empty(batch.rows, np.bool_)
        draw(ids, clicked, np.uint64(self.seed), np.uint64(self.share * (1 << PROBABILITY_BITS)), drawn)
        factors = np.where(clicked, 1.0, 1.0 / self.share)[drawn]
        return Sample(_only(batch, drawn), ids[drawn], factors, batch.rows - int(drawn.sum()))


def _only(batch: RowBatch, rows: npt.NDArray[np.bool_]) -> RowBatch:
    mask = pa.array(rows)
    columns = {name: column.filter(mask) for name, column in batch.columns.items()}
    return replace(batch, columns=columns, lines=batch.lines[rows], rows=int(rows.sum()), clicked=None)
