"""Logs whose truth is known: fields of random values, with a cross that matters, or with none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SPEC = """
[model]
name = "known"
[input]
label = "click"
timestamp = "ts"
[fields]
a = {}
b = {}
c = {}
d = {}
[learner]
alpha = 0.2
l1 = 0.0
"""
START = 1_700_000_000


def write_log(path: Path, rows: int, seed: int, *, effect: float = 0.0, values: int = 3) -> str:
    """A log of one row a minute. Clicks depend on a, and, with an effect, on whether a equals b."""
    random = np.random.default_rng(seed)
    fields = random.integers(0, values, (rows, 4))
    score = -1.0 + 0.4 * fields[:, 0] + effect * np.where(fields[:, 0] == fields[:, 1], 1.0, -0.5)
    clicks = random.random(rows) < 1.0 / (1.0 + np.exp(-score))
    lines = [
        ",".join(
            [
                str(int(click)),
                str(START + 60 * row),
                *(f"{name}{value}" for name, value in zip("abcd", found, strict=True)),
            ]
        )
        for row, (click, found) in enumerate(zip(clicks, fields.tolist(), strict=True))
    ]
    path.write_text("\n".join(["click,ts,a,b,c,d", *lines]) + "\n", encoding="utf-8")
    return str(path)
