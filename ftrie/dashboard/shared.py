"""What the viewers of one model share: its versions as whole models, and its latest traffic.

The traffic is a log: impressions and clicks from the store's streams, as files in a folder. What reads logs reads them:
`trainer.runs.evaluate` joins the clicks to their impressions by the rules of the spec, as training does. Traffic older
than RENEWED_S is read again, into files of its own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from ftrie.api.weights import ModelDiff, diff_of
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.draw.charts import NONE, Row
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError
from model_store.ratios import wilson

Kind = TypeVar("Kind")
MOST_MODELS = 3
"""Whole models that are kept in memory."""
MOST_IMPRESSIONS = 10_000
MOST_CLICKS = 60_000
MOST_BYTES = 256 << 20
RENEWED_S = 20.0
GROUPS = 20


class Shared:
    """What the viewers of one model share: one of each kind, so that several viewers cost no more than one."""

    def __init__(self) -> None:
        self._made: dict[tuple[type, str], Any] = {}

    def of(self, kind: type[Kind], model: str, make: Callable[[], Kind]) -> Kind:
        """The one of this kind, made at first. For the event loop."""
        key = (kind, model)
        if key not in self._made:
            self._made[key] = make()
        found: Kind = self._made[key]
        return found


class Models:
    """Whole models by version, a few of them kept. Thread-safe; every method may take seconds for millions of keys."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def artefact(self, state: ModelState, version: int) -> Artefact:
        """The model of a version. Raises FtrieError if it is gone or damaged."""
        # Held while the model is read: a second viewer waits for it instead of reading it too.
        with self._lock:
            versions = self._feed.store.model(state.name)
            # By content: a store that was emptied gives the same numbers to other versions.
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


@dataclass(frozen=True)
class RecentTraffic:
    """Some impressions and the clicks reported since. at: seconds since 1970 when they were read.

    files: in `folder`, which is removed with the last reference to this traffic; who reads them keeps it until then.
    """

    at: float
    impressions: tuple[bytes, ...]
    clicks: tuple[bytes, ...]
    files: tuple[str, ...]
    folder: tempfile.TemporaryDirectory[str]


@dataclass(frozen=True)
class ItemExposure:
    """How often an item was shown and clicked; variants: impressions by variant."""

    item: str
    shown: int
    clicks: int
    low: float
    high: float
    variants: Mapping[str, int]


@dataclass(frozen=True)
class Exposure:
    """Which items were shown in some traffic, most shown first. never: items of the store that nobody saw, sorted.

    concentration: the share of the impressions that the most shown tenth of the shown items has.
    """

    impressions: int
    items: tuple[ItemExposure, ...]
    never: tuple[str, ...]
    catalogue: int
    concentration: float | None


@dataclass(frozen=True)
class Served:
    """What was served and clicked. calibration: rows of a chart, by variant and group of predicted rates."""

    exposure: Exposure
    calibration: tuple[Row, ...]


class Recent:
    """The latest traffic of one model. Thread-safe."""

    def __init__(self, feed: Feed, model: str) -> None:
        self._feed, self._model, self._lock = feed, model, Lock()
        self._traffic: RecentTraffic | None = None
        self._read_s = 0.0
        self._served: tuple[float, Served] | None = None

    def traffic(self) -> RecentTraffic:
        """The latest impressions. Raises FtrieError, InputError if there are none."""
        with self._lock:
            if self._traffic is None or time.monotonic() - self._read_s > RENEWED_S:
                self._traffic, self._read_s = self._read(), time.monotonic()
            return self._traffic

    def served(self) -> Served:
        """Which items were shown and clicked, and how often as was predicted. Raises FtrieError."""
        # Before the lock, which `traffic` takes too.
        traffic = self.traffic()
        with self._lock:
            if self._served is None or self._served[0] != traffic.at:
                catalogue = {name for name, _ in self._feed.store.records.scan_items()}
                spec = self._feed.model(self._model).spec
                only_seen = spec is not None and spec.join.negatives == "seen"
                self._served = (traffic.at, served_of(traffic, catalogue, only_seen))
            return self._served[1]

    def _read(self) -> RecentTraffic:
        store, model = self._feed.store, self._model
        # Impressions first: a click that comes between the two reads still finds its impression.
        impressions = _limited(store.impressions(model).latest(MOST_IMPRESSIONS))
        clicks = _limited(store.clicks(model).latest(MOST_CLICKS))
        if not impressions:
            raise InputError(
                f"the store has no impressions of {model}: start servers with --impressions store"
            )
        names, folder = [], tempfile.TemporaryDirectory(prefix="ftrie-recent-")
        for name, payloads in (("impressions", impressions), ("clicks", clicks)):
            path = Path(folder.name, f"{name}.jsonl")
            path.write_bytes(b"".join(payload + b"\n" for payload in payloads))
            names += [str(path)] if payloads else []
        return RecentTraffic(time.time(), tuple(impressions), tuple(clicks), tuple(names), folder)


def _limited(payloads: Sequence[bytes]) -> list[bytes]:
    """The latest of these, as many as are small enough together."""
    kept, size = [], 0
    for payload in reversed(payloads):
        size += len(payload)
        if size > MOST_BYTES:
            break
        kept.append(payload)
    return kept[::-1]


@dataclass(frozen=True)
class _Shown:
    """One item of one answer."""

    item: str
    variant: str
    ctr: float | None
    clicked: bool


def served_of(traffic: RecentTraffic, catalogue: set[str], only_seen: bool = False) -> Served:
    """The items of impressions that count as shown (docs/join.md, What was seen), with their clicks. O(bytes).

    An event that cannot be read is left out.
    """
    clicked, looked_at = set[tuple[str, str]](), set[tuple[str, str]]()
    seen_to, activated = dict[str, int](), set[str]()
    for event in map(_event, traffic.clicks):
        what, request, position = (
            event.get("event", "click"),
            str(event.get("request_id")),
            event.get("position"),
        )
        if what == "click":
            clicked.add((request, str(event.get("item"))))
        elif what == "activated":
            activated.add(request)
        elif isinstance(position, int):
            seen_to[request] = max(position, seen_to.get(request, 0))
        looked_at.add((request, str(event.get("item"))))
    shown = []
    for event in map(_event, traffic.impressions):
        request, variant, items = (
            str(event.get("request_id")),
            str(event.get("variant") or ""),
            event.get("items"),
        )
        if event.get("event") == "deferred" and request not in activated:
            continue
        for place, item in enumerate(items if isinstance(items, list) else (), 1):
            if isinstance(item, dict) and "id" in item:
                name, ctr = str(item["id"]), item.get("ctr")
                if only_seen and (request, name) not in looked_at and place > seen_to.get(request, 0):
                    continue
                known = ctr if isinstance(ctr, float) and 0.0 < ctr < 1.0 else None
                shown.append(_Shown(name, variant, known, (request, name) in clicked))
    return Served(_exposure(shown, catalogue), tuple(_calibration(shown)))


def _exposure(shown: Sequence[_Shown], catalogue: set[str]) -> Exposure:
    counts = Counter(each.item for each in shown)
    clicks = Counter(each.item for each in shown if each.clicked)
    by_variant = Counter((each.item, each.variant) for each in shown)
    names = sorted({each.variant for each in shown})
    ordered = counts.most_common()
    items = []
    for name, count in ordered:
        interval = wilson(clicks[name] / count, count)
        variants = {variant: by_variant[name, variant] for variant in names}
        items.append(ItemExposure(name, count, clicks[name], interval.low, interval.high, variants))
    top = sum(count for _, count in ordered[: max(1, len(ordered) // 10)])
    return Exposure(
        impressions=len(shown),
        items=tuple(items),
        never=tuple(sorted(catalogue - set(counts))),
        catalogue=len(catalogue),
        concentration=top / len(shown) if shown else None,
    )


def _calibration(shown: Sequence[_Shown]) -> list[Row]:
    """Of each variant, groups of equally many items by their predicted rate, the lowest first, with intervals."""
    rows: list[Row] = []
    for variant in sorted({each.variant for each in shown}):
        rated = sorted(
            (each.ctr, each.clicked) for each in shown if each.variant == variant and each.ctr is not None
        )
        for begin in range(0, len(rated), -(-len(rated) // GROUPS) or 1):
            group = rated[begin : begin + -(-len(rated) // GROUPS)]
            clicks = sum(c for _, c in group)
            interval = wilson(clicks / len(group), len(group))
            # A rate of 0 has no place on a logarithmic axis.
            if clicks:
                rows.append(
                    {
                        "series": variant or NONE,
                        "predicted": sum(ctr for ctr, _ in group) / len(group),
                        "observed": clicks / len(group),
                        "low": interval.low or None,  # the axes are logarithmic
                        "high": interval.high,
                    }
                )
    return rows


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
