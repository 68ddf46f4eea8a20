"""Base margins: number fields whose weight is given by the spec, `fixed_weight`, and not learned.

Their part of the score, weight * x, is where the learner starts from: it fits the rest. In: hashed rows. Out: rows
without these keys, and the margin of each row and variant. The keys are not in the value table, so nothing admits,
regularizes or evicts them; `rows` adds them to what is published, like any other key, with a rate of 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import HashedRows
from trainer.examples.rules import FeatureRules
from trainer.learn.margin_kernels import split_rows

Floats = npt.NDArray[np.float32]


class Margin:
    """The fields of a spec with a given weight: `weights` float64[features], 0 elsewhere, as float32 has them."""

    def __init__(
        self, weights: npt.NDArray[np.float64], masks: npt.NDArray[np.uint32], variants: int
    ) -> None:
        self.weights, self.masks, self._variants = weights, masks, variants
        self.given = weights != 0.0
        self.exists = bool((self.given & (masks != 0)).any())

    @classmethod
    def of(cls, spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules) -> Margin:
        """masks: uint32[features], bit v set where variant v uses the feature."""
        weights = np.zeros(masks.size)
        for index, field in enumerate(spec.fields.values()):
            # The server has the published weight, a float32: so does the trainer.
            weights[rules.owner == index + 1] = np.float32(field.fixed_weight or 0.0)
        return cls(weights, masks, len(spec.variants))

    def learned(self, masks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """The masks, 0 for features whose weight is not learned."""
        return np.where(self.given, np.uint32(0), masks) if self.exists else masks

    def room(self, rows: int, lanes: int) -> npt.NDArray[np.float64]:
        """The array for the margins of so many rows."""
        return np.zeros((rows if self.exists else 0, lanes))

    def split(
        self, rows: HashedRows, begin: int, end: int, margins: npt.NDArray[np.float64]
    ) -> tuple[HashedRows, npt.NDArray[np.int64] | None]:
        """Rows begin to end without these keys, and where theirs are in `rows`; None: they are `rows` itself."""
        if not self.exists:
            return rows, None
        size = int(rows.starts[end] - rows.starts[begin])
        places = np.empty(size, np.int64)
        out = rows._replace(
            starts=np.zeros_like(rows.starts),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(max(size, 1) if rows.x.size else 0),
        )
        split_rows(rows, begin, end, self.weights, self.masks, self._variants, out, places, margins)
        return out, places

    def rows(self, plan: FeaturePlan, own: int) -> tuple[list[bytes], Floats, npt.NDArray[np.uint32]]:
        """The keys to publish, their weights float32[keys, own], and who uses them, uint32[keys]."""
        fields = [each for each in plan.fields if self.given[each.index + 1] and each.mask]
        masks = np.array([each.mask for each in fields], np.uint32)
        weight: Any = np.array([self.weights[each.index + 1] for each in fields]).reshape(-1, 1)
        if own > 1:
            weight = weight * (masks.reshape(-1, 1) >> np.arange(own, dtype=np.uint32) & np.uint32(1))
        return [each.prefix for each in fields], weight.astype(np.float32), masks
