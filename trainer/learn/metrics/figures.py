"""The metrics of a variant over some rows: each is one entry of `Figures`, which every report, table and chart reads.

An entry is a field with its `Metric`: how it is computed from the rows' sums, what it is called, which way is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from trainer.learn.predictions_kernels import logarithms

NORMAL_95 = 1.959963984540054

Floats = npt.NDArray[np.float64]


class VariantSums(NamedTuple):
    """What is known of a variant's predictions of some rows.

    weight, clicks: Σ ω and Σ ω y of the rows; loss, predicted: Σ ω ℓ and Σ ω p; positives, negatives: float64[buckets],
    ω of the clicked and of the other rows by score.
    """

    weight: float
    clicks: float
    loss: float
    predicted: float
    positives: Floats
    negatives: Floats


@dataclass(frozen=True)
class Metric:
    """What is said of a figure beside its value.

    of: computes it, None where the rows do not define it; label: its name in texts; formula: that in docs/metrics.md,
    in the letters of that page; better: which way is; in_tables: whether the commands' tables have it; short: its label
    in the tables of pages; caption: of its charts, without one it is not drawn; reference: the line in them; colours:
    the values at which a grid of slices is neutral, and at which it has the full colour of a bad one.
    """

    label: str
    of: Callable[[VariantSums], float | None]
    formula: str
    better: Literal["lower", "higher", "near 1", ""]
    in_tables: bool = True
    short: str = ""
    caption: str = ""
    reference: float | None = None
    colours: tuple[float, float] | None = None

    @property
    def title(self) -> str:
        """Its name at the beginning of a text."""
        return self.label[0].upper() + self.label[1:]


class MetricsRecord(BaseModel):
    """Frozen; numbers are finite. Unknown fields, of later versions, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where one is unknown, or the whole is 0."""
    return float(part / whole) if part is not None and whole else None


def auc(positives: Floats, negatives: Floats) -> float | None:
    """The area under the ROC curve from histograms of scores, ties (a common bucket) counted half."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if pairs <= 0.0:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + 0.5 * negatives)).sum()) / pairs


def entropy(rate: float | None) -> float | None:
    """The entropy of a click rate in nats; None for rates of 0 or 1."""
    if rate is None or not 0.0 < rate < 1.0:
        return None
    # Our own logarithm: artefacts contain this figure, and must have the same bytes on every machine.
    log_rate, log_rest = computed(logarithms, np.array([rate, 1.0 - rate]))
    return -float(rate * log_rate + (1.0 - rate) * log_rest)


def logloss(sums: VariantSums) -> float | None:
    """The mean log-loss."""
    return ratio(sums.loss, sums.weight)


def normalized_entropy(sums: VariantSums) -> float | None:
    """The log-loss by that of the click rate, predicted for every row."""
    return ratio(logloss(sums), entropy(ratio(sums.clicks, sums.weight)))


class Figures(MetricsRecord):
    """The metrics of one variant; None where they are undefined (no clicks, or only clicks)."""

    logloss: Annotated[
        float | None,
        Metric(
            "log-loss",
            logloss,
            "Σ ω ℓ / Σ ω, ℓ = −[y ln p + (1 − y) ln(1 − p)], the probability of the observed outcome clipped at 1e-15 "
            "from below",
            "lower",
            caption="Mean log-loss.",
        ),
    ]
    auc: Annotated[
        float | None,
        Metric(
            "AUC",
            lambda sums: auc(sums.positives, sums.negatives),
            "the share of pairs of a clicked and an unclicked row, weighted by ω ω′, in which the clicked row has the "
            "higher score; ties count half (Hanley and McNeil 1982)",
            "higher",
            caption="Area under the ROC curve.",
            colours=(0.6, 0.4),
        ),
    ]
    calibration: Annotated[
        float | None,
        Metric(
            "calibration",
            lambda sums: ratio(sums.predicted, sums.clicks),
            "Σ ω p / Σ ω y; above 1 the model predicts too many clicks",
            "near 1",
            caption="Σ p / Σ y; above 1 predictions are too high.",
            reference=1.0,
        ),
    ]
    normalized_entropy: Annotated[
        float | None,
        Metric(
            "normalized entropy",
            normalized_entropy,
            "log-loss / entropy of the click rate (He et al., ADKDD 2014); 1 is no better than the click rate alone",
            "lower",
            caption="Log-loss / entropy of the click rate of the same rows; 1: no better than that rate for every row.",
            reference=1.0,
            colours=(0.95, 1.05),
        ),
    ]
    mean_prediction: Annotated[
        float | None,
        Metric(
            "mean prediction",
            lambda sums: ratio(sums.predicted, sums.weight),
            "Σ ω p / Σ ω",
            "",
            in_tables=False,
            short="mean p",
        ),
    ]


METRICS: dict[str, Metric] = {
    name: each
    for name, field in Figures.model_fields.items()
    for each in field.metadata
    if isinstance(each, Metric)
}
IN_TABLES = {name: each.label for name, each in METRICS.items() if each.in_tables}
"""The metrics of the commands' tables by name, with their labels."""
RANKED = tuple(name for name, each in METRICS.items() if each.better in ("lower", "higher"))
"""Those by which models can be ranked."""
DRAWN = {name: each for name, each in METRICS.items() if each.caption}


def figures_of(sums: VariantSums) -> dict[str, float | None]:
    """Every metric by name."""
    return {name: each.of(sums) for name, each in METRICS.items()}


def computed(kernel: Callable[[Any, Any], None], numbers: Floats) -> Floats:
    """What a kernel makes of each number."""
    out = np.empty(numbers.size)
    kernel(numbers, out)
    return out
