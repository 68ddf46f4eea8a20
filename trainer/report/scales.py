"""Scales of axes: from values to places in a picture, and where their ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to places from `start` to `stop`, evenly or by logarithms."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        start: float,
        stop: float,
        *,
        logarithmic: bool = False,
        margin: float = 0.05,
    ) -> Scale:
        """A scale that holds all the values, with a margin on both sides as a share of their range."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
        low, high = min(known, default=0.5), max(known, default=1.0)
        if logarithmic:
            low, high = math.log(low), math.log(high)
        spread = (high - low) * margin or max(abs(high) * 0.05, 1e-6)
        low, high = low - spread, high + spread
        if logarithmic:
            low, high = math.exp(low), math.exp(high)
        return cls(low, high, start, stop, logarithmic)

    def __call__(self, value: float) -> float:
        """The place of a value; one outside the scale is put on its end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.stop - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale, at most about so many."""
        return self._logarithmic_ticks(most) if self.logarithmic else self._even_ticks(most)

    def _even_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _logarithmic_ticks(self, most: int) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            ticks = [step * 10.0**power for power in powers for step in steps]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(inside) <= most:
                break
        return inside if len(inside) > 1 else self._even_ticks(most)


def short(value: float) -> str:
    """A number for a tick: 0.0125, 1.5 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g} {letter}"
    return f"{value:.4g}"
