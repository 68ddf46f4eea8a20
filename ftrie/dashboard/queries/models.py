"""What the models page shows: the published versions with their figures, who serves them, and how two differ."""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from ftrie.dashboard.feed import Feed, ModelState
from ftrie.library.weights import ModelDiff, diff_of
from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError
from model_store.versions.manifest import RecentFigures, chain_of, parents_of

MOST_LISTED = 100
MOST_CHANGED = 30
LEAST_SETTLED = 10
MOST_MODELS = 3
"""Whole models that are kept in memory."""


@dataclass(frozen=True)
class VersionLine:
    """One version. age_s: since its publication; metrics: by variant; servers: the addresses that serve it."""

    version: int
    age_s: float
    kind: str
    keys: int
    size: int
    metrics: Mapping[str, Mapping[str, float]]
    servers: Sequence[str]
    active: bool
    refused: str


def version_lines(feed: Feed, state: ModelState) -> list[VersionLine]:
    """The latest versions, newest first. keys: of a delta those that changed."""
    now = time.time()
    served: dict[int, list[str]] = {}
    for server in feed.servers:
        for model in server.models:
            if model.get("name") == state.name and isinstance(model.get("version"), int):
                served.setdefault(model["version"], []).append(server.address)
    return [
        VersionLine(
            version=info.version,
            age_s=max(0.0, now - info.published.timestamp()),
            kind=info.kind,
            keys=info.rows,
            size=info.size,
            metrics=state.manifests[info.version].metrics if info.version in state.manifests else {},
            servers=served.get(info.version, ()),
            active=info.version == state.active,
            refused=info.refused,
        )
        for info in reversed(state.versions[-MOST_LISTED:])
    ]


def chain_text(state: ModelState, version: int) -> str:
    """The versions that make up this one: its snapshot, then its deltas."""
    try:
        chain = chain_of(version, parents_of(state.versions))
    except (FtrieError, KeyError) as error:
        return str(error)
    if len(chain) == 1:
        return f"version {version} is a snapshot"
    middle = f", {len(chain) - 1:,} deltas" if len(chain) > 6 else ""
    listed = chain if len(chain) <= 6 else [chain[0], "…", *chain[-3:]]
    return f"snapshot {' → '.join(map(str, listed))}{middle}"


def guard_lines(state: ModelState) -> list[list[Any]]:
    """A line for every version that a guard judged, newest first, by variant."""
    rows: list[list[Any]] = []
    for info in reversed(state.versions[-MOST_LISTED:]):
        manifest = state.manifests.get(info.version)
        if manifest is None or not (manifest.recent or info.refused):
            continue
        verdict = info.refused or "passed"
        try:
            recent = RecentFigures.from_json(manifest.recent) if manifest.recent else None
        except (ValueError, json.JSONDecodeError):
            recent = None
        if recent is None:
            rows.append([info.version, verdict, "", None, None, None])
            continue
        for name, figures in recent.variants.items():
            calibration = figures.predicted / recent.clicks if recent.clicks else None
            rows.append([info.version, verdict, name, f"{recent.examples:,}", figures.logloss, calibration])
    return rows


def metric_rows(state: ModelState, metric: str, most: int) -> list[dict[str, Any]]:
    """A metric of every variant by the time of publication, at most so many rows: time, series, value, version."""
    rows = [
        {"time": learned.at * 1000.0, "series": name, "value": metrics[metric], "version": learned.version}
        for learned in state.learned
        for name, metrics in learned.metrics.items()
        if np.isfinite(metrics.get(metric, np.nan))
    ]
    return thinned(rows, most)


def settled_range(values: Sequence[float]) -> tuple[float, float] | None:
    """The axis of values that begin far from where they stay: that of the later half, with room on both sides.

    None where no value is beyond it, or too few are there. Rounded, so that it seldom changes.
    """
    later = values[len(values) // 2 :]
    if len(later) < LEAST_SETTLED:
        return None
    least, most = min(later), max(later)
    room = max(most - least, 0.01 * abs(most), 1e-9)
    step = 10.0 ** math.floor(math.log10(room))
    axis = step * math.floor((least - 0.5 * room) / step), step * math.ceil((most + 0.5 * room) / step)
    return axis if min(values) < axis[0] or max(values) > axis[1] else None


def thinned(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many rows, evenly over time; the last moment is among them."""
    moments = sorted({row["time"] for row in rows})
    series = len({row["series"] for row in rows}) or 1
    step = -(-len(moments) * series // most)
    if step <= 1:
        return rows
    kept = set(moments[::-1][::step])
    return [row for row in rows if row["time"] in kept]


class Models:
    """Whole models by version, a few of them kept. Thread-safe; every method may take seconds for millions of keys."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def artefact(self, state: ModelState, version: int) -> Artefact:
        """The model of a version. Raises FtrieError if it is gone or damaged."""
        with self._lock:
            versions = self._feed.store.model(state.name)
            key = (state.name, versions.manifest(version).sha256)
            if key not in self._kept:
                self._kept[key] = versions.materialise(version)
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_MODELS:
                self._kept.popitem(last=False)
            found: Artefact = self._kept[key]
            return found

    def difference(self, state: ModelState, older: int, newer: int, variant: str) -> ModelDiff:
        """How a variant differs between two versions. Raises FtrieError."""
        return diff_of(self.artefact(state, older), self.artefact(state, newer), variant)

    def nonzero(self, state: ModelState, version: int) -> dict[str, int]:
        """Keys with a weight other than 0, by variant. Raises FtrieError."""
        artefact = self.artefact(state, version)
        return {
            name: int(np.count_nonzero(artefact.weights_of(bit)))
            for bit, name in enumerate(artefact.spec.variants)
        }
