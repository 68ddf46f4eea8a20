"""The judgement of `make soak` (tests/soak.py): a leak is found and named, and what only moves is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.soak import Points, Series, slope_of, usage

SPAN_S = 600.0
AT = np.arange(0.0, SPAN_S, 5.0)
NOISE = np.random.default_rng(1).normal(0.0, 1.0, len(AT))


def points(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Points:
    return list(zip(AT.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("values", "is_flat"),
    [
        (200 + NOISE, True),
        (200 + 20 * (AT / 90 % 1), True),  # filled and emptied, again and again
        (200 + 5 * NOISE + 4 * AT / SPAN_S, True),  # within its noise
        (200 + NOISE - 50 * AT / SPAN_S, True),  # it shrinks
        (200 + NOISE + 30 * AT / SPAN_S, False),
        (200 + 12 * (AT / 90 % 1) + 45 * AT / SPAN_S, False),
        (200 + 20.0 * (AT > SPAN_S * 2 / 3), False),  # at once, and it stays
    ],
)
def test_slope(values: np.ndarray[tuple[int], np.dtype[np.float64]], is_flat: bool) -> None:
    slope = slope_of("server", "rss_mib", [points(values)], SPAN_S / 3, SPAN_S)
    assert slope is not None and slope.is_flat is is_flat, (slope, slope and slope.allowed)


def test_each_life_of_a_process_has_a_mean_of_its_own() -> None:
    first, second = points(300 + NOISE)[:60], points(200 + NOISE)[60:]
    steady = slope_of("trainer", "rss_mib", [first, second], 0.0, SPAN_S)
    grown = [(at, value + 30 * at / SPAN_S) for at, value in (*first, *second)]
    leaking = slope_of("trainer", "rss_mib", [grown[:60], grown[60:]], 0.0, SPAN_S)
    assert steady is not None and leaking is not None
    assert (steady.lives, steady.is_flat, leaking.is_flat) == (2, True, False)
    assert slope_of("trainer", "rss_mib", [first[:5]], 0.0, SPAN_S) is None


LEAKING = (
    "import time\nkept = []\nwhile True: kept.append((b'x' * 200_000, open('/dev/null'))); time.sleep(0.02)"
)


def test_leak_of_a_process_is_found(tmp_path: Path) -> None:
    series = Series(tmp_path / "samples.jsonl")
    codes = {"leaking": LEAKING, "calm": LEAKING.replace("kept.append(", "str(")}
    processes = {name: subprocess.Popen([sys.executable, "-c", code]) for name, code in codes.items()}
    try:
        for at in range(40):
            time.sleep(0.05)
            for name, process in processes.items():
                series.add(float(at), name, process.pid, usage(process.pid))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    growing = {(slope.part, slope.figure) for slope in series.slopes(10.0, 40.0) if not slope.is_flat}
    assert growing == {("leaking", "rss_mib"), ("leaking", "descriptors")}
