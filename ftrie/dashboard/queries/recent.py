"""The latest traffic of a model as a log: impressions and clicks from the store's streams, as files in a folder.

What reads logs reads them: `trainer.runs.evaluate` joins the clicks to their impressions by the rules of the spec, as
training does. `Recent.log` writes the files again when they are older than RENEWED_S.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from ftrie.dashboard.feed import Feed
from ftrie.outcomes import wilson
from model_store.errors import InputError

MOST_IMPRESSIONS = 10_000
MOST_CLICKS = 60_000
MOST_BYTES = 256 << 20
RENEWED_S = 20.0


@dataclass(frozen=True)
class Traffic:
    """Some impressions and the clicks reported since. at: seconds since 1970 when they were read."""

    at: float
    impressions: tuple[bytes, ...]
    clicks: tuple[bytes, ...]
    files: tuple[str, ...]


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


class Recent:
    """The latest traffic of one model. Thread-safe; `close` removes the files."""

    def __init__(self, feed: Feed, model: str) -> None:
        self._feed, self._model, self._lock = feed, model, Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="ftrie-recent-")
        self._traffic: Traffic | None = None

    def traffic(self) -> Traffic:
        """The latest impressions. Raises FtrieError, InputError if there are none."""
        with self._lock:
            if self._traffic is None or time.time() - self._traffic.at > RENEWED_S:
                self._traffic = self._read()
            return self._traffic

    def exposure(self) -> Exposure:
        """Which items were shown. Raises FtrieError."""
        catalogue = {name for name, _ in self._feed.store.records.scan_items()}
        return exposure_of(self.traffic(), catalogue)

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()

    def _read(self) -> Traffic:
        store, model = self._feed.store, self._model
        impressions = _limited(store.impressions(model).latest(MOST_IMPRESSIONS))
        clicks = _limited(store.clicks(model).latest(MOST_CLICKS))
        if not impressions:
            raise InputError(
                f"the store has no impressions of {model}: start servers with --impressions store"
            )
        names = []
        for name, payloads in (("impressions", impressions), ("clicks", clicks)):
            path = Path(self._folder.name, f"{name}.jsonl")
            path.write_bytes(b"".join(payload + b"\n" for payload in payloads))
            names += [str(path)] if payloads else []
        return Traffic(time.time(), tuple(impressions), tuple(clicks), tuple(names))


def _limited(payloads: Sequence[bytes]) -> list[bytes]:
    """The latest of these, as many as are small enough together."""
    kept, size = [], 0
    for payload in reversed(payloads):
        size += len(payload)
        if size > MOST_BYTES:
            break
        kept.append(payload)
    return kept[::-1]


def exposure_of(traffic: Traffic, catalogue: set[str]) -> Exposure:
    """Count the items of impressions, and the clicks on them. An event that cannot be read is left out. O(bytes)."""
    shown: Counter[str] = Counter()
    clicked: Counter[str] = Counter()
    by_variant: dict[str, Counter[str]] = {}
    requests = {}
    for event in map(_event, traffic.impressions):
        listed = event.get("items")
        ids = (
            {str(i["id"]) for i in listed if isinstance(i, dict) and "id" in i}
            if isinstance(listed, list)
            else set()
        )
        shown.update(ids)
        by_variant.setdefault(str(event.get("variant", "")), Counter()).update(ids)
        requests[str(event.get("request_id"))] = ids
    once = set()
    for event in map(_event, traffic.clicks):
        place = (str(event.get("request_id")), str(event.get("item")))
        if (
            event.get("event", "click") == "click"
            and place not in once
            and place[1] in requests.get(place[0], ())
        ):
            once.add(place)
            clicked[place[1]] += 1
    ordered = shown.most_common()
    total, top = sum(shown.values()), ordered[: max(1, len(ordered) // 10)]
    items = []
    for name, count in ordered:
        interval = wilson(min(clicked[name], count), count)
        variants = {variant: counts[name] for variant, counts in by_variant.items() if counts[name]}
        items.append(ItemExposure(name, count, clicked[name], interval.low, interval.high, variants))
    return Exposure(
        impressions=total,
        items=tuple(items),
        never=tuple(sorted(catalogue - set(shown))),
        catalogue=len(catalogue),
        concentration=sum(count for _, count in top) / total if total else None,
    )


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
