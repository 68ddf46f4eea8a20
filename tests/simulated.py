"""Event logs of the simulated market (ftrie/demo), in the shape of a travel site's: lists of 18 to 25 items with
their prices, and one click each.

Request n is a function of n alone: the first n requests are the same however many are made. The market's ages stand
for cities; a user's number decides which of 64 platforms is theirs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ftrie.demo.market import DEVICES, Market, looked_at
from ftrie.demo.visitors import Habits, Visit, visit

BEGAN_S = 1_700_000_000
DAY = 6912
"""Requests of a day."""
MARKET = Market(seed=7)
HABITS = Habits(rate=DAY / 86_400, candidates=25)
PLATFORMS = [a + b for a in "ABCDEFGH" for b in "QRSTUVWX"]
CITIES = ("Bendigo, Australia", "Okayama, Japan", "Perth, Australia", "Osaka, Japan")
Event = dict[str, Any]


@dataclass(frozen=True)
class EventLogs:
    """Impressions and a click for each, as lines of JSON without a newline, both sorted by time."""

    impressions: list[bytes] = field(default_factory=list)
    clicks: list[bytes] = field(default_factory=list)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """As impressions.jsonl and clicks.jsonl of a folder."""
        paths = folder / "impressions.jsonl", folder / "clicks.jsonl"
        for path, lines in zip(paths, (self.impressions, self.clicks), strict=True):
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        return paths


_shown: list[bytes] = []
_clicked: list[Event] = []


def event_logs(requests: int) -> EventLogs:
    """The first requests. What was made once is kept: a request takes about 0.1 ms to make."""
    for number in range(len(_shown), requests):
        impression, click = _events(visit(MARKET, HABITS, number))
        _shown.append(_line(impression))
        _clicked.append(click)
    clicks = sorted(_clicked[:requests], key=lambda click: int(click["ts"]))
    return EventLogs(_shown[:requests], [_line(click) for click in clicks])


def _events(seen: Visit) -> tuple[Event, Event]:
    shown = seen.candidates[: 18 + seen.number % 8]
    ts, request_id = BEGAN_S + int(seen.due_s), f"s{seen.number:05d}-1"
    chance = looked_at(shown.size) * MARKET.attraction(seen.due_s, seen.user, shown, seen.device)
    # Of all that a visitor would click, the one with the highest chance for its draw.
    clicked = int(np.argmax(chance / seen.uniform[: shown.size]))
    impression = {
        "request_id": request_id,
        "ts": ts,
        "cookie": MARKET.cookies[seen.user],
        "session": request_id.removesuffix("-1"),
        "context": {
            "platform": PLATFORMS[seen.user % len(PLATFORMS)],
            "city": CITIES[MARKET.age[seen.user]],
            "device": DEVICES[seen.device],
        },
        "items": [
            {
                "id": MARKET.skus[item],
                "position": place,
                "features": {"price": max(1, round(MARKET.price[item]))},
            }
            for place, item in enumerate(shown.tolist(), 1)
        ],
    }
    after_s = min(int(seen.click_s[clicked]), 60)
    return impression, {"request_id": request_id, "ts": ts + after_s, "item": MARKET.skus[shown[clicked]]}


def _line(event: Event) -> bytes:
    return json.dumps(event).encode()
