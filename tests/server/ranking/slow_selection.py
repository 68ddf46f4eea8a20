"""The slow, obvious selection: plain Python over lists of records, one candidate at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from server.ranking.select.filters import AnyOf, Cap, Condition, InRange, NoneOf

Record = Mapping[str, str]


def slow_passes(condition: Condition, record: Record) -> bool:
    text = record.get(condition.field, "")
    if isinstance(condition, InRange):
        number = number_in(text)
        return number is not None and condition.least <= number <= condition.most
    has = text != "" and text.encode() in condition.texts
    return has if isinstance(condition, AnyOf) else isinstance(condition, NoneOf) and not has


def number_in(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def slow_select(
    scores: Sequence[float],
    records: Sequence[Record],
    conditions: Sequence[Condition],
    caps: Sequence[Cap],
    value: Callable[[float, Record], float],
    top_k: int | None,
) -> list[int]:
    """The numbers of the candidates returned, best first."""

    def key(at: int) -> tuple[bool, float, int]:
        number = value(scores[at], records[at])
        finite = math.isfinite(number)
        return not finite, -(number if finite else scores[at]), at

    kept = [at for at in range(len(scores)) if all(slow_passes(c, records[at]) for c in conditions)]
    counts: Counter[tuple[int, str]] = Counter()
    taken: list[int] = []
    for at in sorted(kept, key=key):
        mine = [(number, records[at].get(cap.field, "")) for number, cap in enumerate(caps)]
        mine = [(number, text) for number, text in mine if text]
        if all(counts[group] < caps[group[0]].at_most for group in mine):
            counts.update(mine)
            taken.append(at)
    return taken[:top_k]
