"""What counting one answer costs: the meter's hot path in one thread, nothing else. Prints nanoseconds a call.

python -m benchmarks.metering
"""

from __future__ import annotations

from time import perf_counter_ns

from server.ranking.users import USER_CACHE
from server.telemetry.meter import Meter

CALLS = 200_000
ROUNDS = 5


def measure() -> tuple[float, float]:
    """The least of ROUNDS means, nanoseconds: of an answer, of a plain counter."""
    meter = Meter()
    answers, counts = [], []
    for _ in range(ROUNDS):
        began = perf_counter_ns()
        for _ in range(CALLS):
            meter.answered("ads", 7, "base", 200, began, 100, 200, (), "r1")
        answers.append((perf_counter_ns() - began) / CALLS)
        began = perf_counter_ns()
        for _ in range(CALLS):
            meter.count(USER_CACHE, "hit")
        counts.append((perf_counter_ns() - began) / CALLS)
    return min(answers), min(counts)


if __name__ == "__main__":
    print("an answer {:.0f} ns, a counter {:.0f} ns".format(*measure()))
