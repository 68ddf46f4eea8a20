"""What a model's variants came to in a stretch of time: from cells of the store to figures. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from model_store.online_metrics import Cell, OnlineSums
from server.outcomes.comparing import Difference, detectable, difference, mismatch_p, requests_needed
from server.outcomes.ratios import (
    Interval,
    Ratio,
    calibration,
    click_rate,
    click_rate_interval,
    is_tiny,
)

MISMATCH_P = 0.001
"""Below this a warning: one false one in a thousand reports, as is usual (Fabijan et al., KDD 2019)."""


@dataclass(frozen=True)
class Outcome:
    """One variant, or all of them.

    ctr, calibration: None where they are not defined; difference, needed, detectable: None for the base, for all, and
    where either has too few clicks. needed: requests of the variant and the base together. versions: seen, rising.
    """

    sums: OnlineSums
    ctr: float | None
    ctr_interval: Interval | None
    calibration: float | None
    calibration_interval: Interval | None
    versions: tuple[int, ...]
    difference: Difference | None = None
    needed: int | None = None
    detectable: float | None = None


@dataclass(frozen=True)
class Outcomes:
    """Of one model and stretch of time. mismatch_p: how likely the requests fall so by chance, None if not judged."""

    base: str | None
    variants: Mapping[str, Outcome]
    all: Outcome
    minutes: int
    mismatch_p: float | None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_mismatched(self) -> bool:
        """Whether the requests do not fall as the shares say."""
        return self.mismatch_p is not None and self.mismatch_p < MISMATCH_P


def outcomes(
    cells: Iterable[tuple[Cell, OnlineSums]],
    shares: Mapping[str, float],
    base: str | None,
    effect: float,
) -> Outcomes:
    """Add up cells. shares: the variants' parts of the traffic, empty if they are not to be judged.

    base: None for the first of the shares that was seen, or else the variant with most requests.
    """
    sums: dict[str, OnlineSums] = {}
    versions: dict[str, set[int]] = {}
    minutes = set()
    for (minute, version, variant), each in cells:
        sums[variant] = sums.get(variant, OnlineSums()) + each
        versions.setdefault(variant, set()).add(version)
        minutes.add(minute)
    base = base if base is not None else _base(sums, shares)
    place = {name: number for number, name in enumerate(shares)}
    ordered = sorted(sums, key=lambda name: (name != base, place.get(name, len(place)), name))
    against = sums.get(base, OnlineSums()) if base is not None else OnlineSums()
    return Outcomes(
        base=base,
        variants={
            name: _outcome(sums[name], versions[name], None if name == base else against, effect)
            for name in ordered
        },
        all=_outcome(sum(sums.values(), OnlineSums()), set().union(*versions.values()), None, effect),
        minutes=len(minutes),
        mismatch_p=_mismatch(sums, shares),
        shares=shares,
    )


def _base(sums: Mapping[str, OnlineSums], shares: Mapping[str, float]) -> str | None:
    first = next((name for name in shares if name in sums), None)
    return first or max(sums, key=lambda name: sums[name].requests, default=None)


def _outcome(sums: OnlineSums, versions: set[int], base: OnlineSums | None, effect: float) -> Outcome:
    rate, calibrated = click_rate(sums), calibration(sums)
    against = _comparable(base) if base is not None else None
    own = _comparable(sums)
    return Outcome(
        sums=sums,
        ctr=rate.value if rate else None,
        ctr_interval=click_rate_interval(sums),
        calibration=calibrated.value if calibrated else None,
        calibration_interval=calibrated.logarithmic() if calibrated and not is_tiny(sums) else None,
        versions=tuple(sorted(versions)),
        difference=difference(own, against),
        needed=requests_needed(own, against, effect),
        detectable=detectable(own, against),
    )


def _comparable(sums: OnlineSums) -> Ratio | None:
    return None if is_tiny(sums) else click_rate(sums)


def _mismatch(sums: Mapping[str, OnlineSums], shares: Mapping[str, float]) -> float | None:
    judged = {name: share for name, share in shares.items() if share > 0.0}
    counts = [sums.get(name, OnlineSums()).requests for name in judged]
    return mismatch_p(counts, list(judged.values()))
