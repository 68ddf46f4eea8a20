"""What a version is judged by: figures of the examples learned last before it. A record; nothing is computed here.

It stands in the version's manifest, so that the next version is held against what is served, whoever published that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from model_store.errors import ArtefactError


@dataclass(frozen=True)
class RecentVariant:
    """One variant over the recent examples, each predicted before it was learned from.

    logloss: weighted mean; logloss_error: its standard error; predicted: sum of p, weighted; predicted_variance: that
    of the clicks that p promises, sum of the squared weight times p.
    """

    logloss: float
    logloss_error: float
    predicted: float
    predicted_variance: float


@dataclass(frozen=True)
class RecentFigures:
    """All variants over the recent examples: how many, their weight and that of the clicked ones; the model's keys."""

    examples: int
    weight: float
    clicks: float
    keys: int
    variants: Mapping[str, RecentVariant]

    @property
    def click_rate(self) -> float:
        """The clicked part of the weight; 0 of no example."""
        return self.clicks / self.weight if self.weight else 0.0

    def to_json(self) -> str:
        """One line; `from_json` reads it back."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RecentFigures:
        """Read what `to_json` wrote. Raises ArtefactError."""
        try:
            found = json.loads(text)
            variants = {name: RecentVariant(**figures) for name, figures in found["variants"].items()}
            numbers = (float(found["weight"]), float(found["clicks"]))
            return cls(int(found["examples"]), *numbers, int(found["keys"]), variants)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArtefactError(
                f"the manifest's recent figures cannot be read ({error}); publish again"
            ) from None
