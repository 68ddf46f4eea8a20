"""Small models to publish, and the processes the store's tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_store.artefact.artefact import Artefact
from model_store.spec.spec import ModelSpec, parse_spec

ROOT = Path(__file__).resolve().parents[2]

SPEC_TEXT = """
[model]
name = "ads"
[input]
label = "click"
[fields]
age = { side = "user" }
brand = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["age*brand"] }
"""
SPEC = parse_spec(SPEC_TEXT)
OWN_SPEC = parse_spec(
    f"{SPEC_TEXT}lean = {{ share = 0.0, l1 = 3.0, alpha = 0.5 }}\n"
    '[learner]\nalgorithm = "ftrl"\nvalues = "per_variant"\n'
)
OWN_NAMES = ["base", "plain", "lean"]
KEYS = [b"bias", b"age=25", b"age=31", b"brand=acme", b"age*brand=25*acme"]
# Each key's weight for base, plain and lean.
OWN = np.array([[0.5, 0, 2], [0, 0, -1], [1, 2, 3], [0, 4, 0], [0.25, 0, 0.25]], np.float32)


def model(
    keys: list[bytes] | None = None,
    weights: list[float] | None = None,
    *,
    spec: ModelSpec = SPEC,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    **columns: Any,
) -> Artefact:
    """An artefact of these keys, in whatever order they come."""
    keys = KEYS if keys is None else keys
    rows = len(keys)
    given = {
        "weight": np.array([0.5 + row for row in range(rows)] if weights is None else weights, np.float32),
        "variants": np.ones(rows, np.uint32),
        "rate": np.full(rows, 0.1, np.float32),
        **columns,
    }
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)]),
        spec=spec,
        metrics={"base": {"logloss": 0.4}} if metrics is None else metrics,
        **given,
    )


def own_model(keys: list[bytes] = KEYS, weight: Any = OWN, **columns: Any) -> Artefact:
    """A model of three variants with a weight of a key each; they use what they weigh."""
    weight = np.asarray(weight, np.float32)
    variants = ((weight != 0) << np.arange(weight.shape[-1])).sum(axis=-1).astype(np.uint32)
    given = {"variants": variants, "rate": np.full_like(weight, 0.1), "spec": OWN_SPEC, **columns}
    metrics = {name: {"logloss": number / 10} for number, name in enumerate(OWN_NAMES)}
    return model(keys, weight=weight, metrics=metrics, **given)


def large_model(rows: int, seed: int = 0) -> Artefact:
    """A model of `rows` keys whose weights do not compress."""
    random = np.random.default_rng(seed)
    return model([b"age=%08d" % row for row in range(rows)], weights=random.normal(size=rows).tolist())


def python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start another Python process that runs `code`; it can import what the tests can."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    command = [sys.executable, "-c", code, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    process: subprocess.Popen[str] = subprocess.Popen(command, **{**pipes, **options})
    return process
