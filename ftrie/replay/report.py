"""An outcome in figures: quantiles, a histogram, and both as text and as JSON. Nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftrie.replay.load import Outcome

QUANTILES = (50.0, 90.0, 99.0, 99.9)
STEPS_A_DOUBLING = 2
WIDTH = 48
EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Bar:
    """The calls of the histogram that took from `above_ms` to `up_to_ms`."""

    above_ms: float
    up_to_ms: float
    calls: int


def figures(outcome: Outcome) -> dict[str, Any]:
    """What --json prints: counts, rates, latencies in milliseconds (null where nothing was answered)."""
    ms = np.frombuffer(outcome.latencies_ns, np.uint64) / 1e6
    quantiles = np.percentile(ms, QUANTILES) if len(ms) else [None] * len(QUANTILES)
    return {
        "calls": outcome.calls,
        "answered": len(ms),
        "errors": dict(outcome.errors.most_common()),
        "seconds": round(outcome.seconds, 3),
        "answered_a_second": round(len(ms) / outcome.seconds, 1),
        "mean_ms": _rounded(ms.mean() if len(ms) else None),
        **{f"p{name:g}_ms": _rounded(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "max_ms": _rounded(ms.max() if len(ms) else None),
        "histogram": [[bar.above_ms, bar.up_to_ms, bar.calls] for bar in histogram(ms)],
    }


def histogram(ms: Sequence[float] | np.ndarray[Any, Any]) -> list[Bar]:
    """Bars whose bounds grow by √2, from the quickest call's to the slowest's."""
    if not len(ms):
        return []
    steps = np.floor(np.log2(np.maximum(ms, 1e-3)) * STEPS_A_DOUBLING).astype(int)
    first = int(steps.min())
    counts = np.bincount(steps - first)
    bounds = [round(2.0 ** ((first + i) / STEPS_A_DOUBLING), 4) for i in range(len(counts) + 1)]
    return [Bar(bounds[i], bounds[i + 1], int(calls)) for i, calls in enumerate(counts)]


def drawn(bars: Sequence[tuple[float, float, int]] | Sequence[Sequence[float]]) -> list[str]:
    """The histogram as lines of text, the longest bar WIDTH characters wide; a call alone is still seen."""
    most = max((calls for *_, calls in bars), default=1)
    lines = []
    for above, up_to, calls in bars:
        eighths = max(round(8 * WIDTH * calls / most), 1 if calls else 0)
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        lines.append(f"{above:>9.3g} – {up_to:<8.3g} ms {int(calls):>10,}  {bar}".rstrip())
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)
