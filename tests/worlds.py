"""What most tests learn: a shop's log of clicks, as text, and the event logs of a simulated travel market.

The shop is a spec with every kind of field, and rows as a CSV file would hold them. The market (ftrie/demo) has the
shape of a travel site's: lists of 18 to 25 items with their prices, and one click each. Request n is a function of n
alone: the first n requests are the same however many are made. The market's ages stand for cities; a user's number
decides which of 64 platforms is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftrie.demo.market import DEVICES, Market, Visit, looked_at, visit
from ftrie.demo.settings import Habits
from model_store.ratios import BUCKETS
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.versions.online_metrics import OnlineCell
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch
from trainer.learn.model import LearningModel

# -- the shop

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
[fields]
age = { side = "user" }
tags = { side = "user", kind = "set", separator = "|" }
brand = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
size = { side = "item", kind = "number" }
hour = { kind = "time", part = "hour", format = "epoch_s" }
hashes = { kind = "raw", separator = " " }
[[crosses]]
fields = ["brand", "age"]
[[crosses]]
fields = ["tags", "brand", "size"]
[variants]
base = { share = 0.5 }
plain = { share = 0.3, without = ["age*brand"] }
lean = { share = 0.2, without = ["tags", "hour"] }
[learner]
alpha = 0.3
beta = 0.7
l1 = 0.05
l2 = 0.4
"""


def shop_spec(variants: int = 3) -> ModelSpec:
    """The spec above, with its three variants or with one."""
    text = SPEC
    if variants == 1:
        text = SPEC[: SPEC.index("[variants]")] + SPEC[SPEC.index("[learner]") :]
    return parse_spec(text)


def shop_rows(rows: int, seed: int) -> list[dict[str, bytes]]:
    """Rows of text as a CSV file would hold them: missing values, sets, characters that must be escaped."""
    random = np.random.default_rng(seed)
    return [
        {
            "click": random.choice([b"0", b"1", b"true", b"false"]),
            "importance": b"%.3f" % random.uniform(0.1, 3.0),
            "age": random.choice([b"", b"20", b"30", b"4*0", b"5=0%"]),
            "tags": b"|".join(random.choice([b"a", b"b", b"c", b"a*", "ü".encode()], random.integers(0, 4))),
            "brand": random.choice([b"", b"nike", b"b2%2A", b"puma", b"x" * 30]),
            "price": random.choice([b"", b"0", b"-3.5", b"12", b"1e6"]),
            "size": random.choice([b"", b"0.5", b"-2", b"1"]),
            "hour": b"%d" % random.integers(0, 10**9),
            "hashes": random.choice([b"", b"P_N_1", b"P_N_2 P*N=3", b"P_N_1 P_N_1"]),
        }
        for _ in range(rows)
    ]


def batch_of(rows: Sequence[Mapping[str, bytes]], file: str = "log") -> RowBatch:
    """Rows as a batch of binary columns."""
    columns = {name: pa.array([row[name] for row in rows], pa.binary()) for name in rows[0]}
    return RowBatch(columns, np.arange(2, len(rows) + 2), file, (), len(rows), Position(file))


def model_of(spec: ModelSpec, columns: Sequence[str], *, keep_seen: bool = False) -> LearningModel:
    """An untrained model of the spec."""
    return LearningModel(ExampleMaker(spec.resolve(columns)), keep_seen=keep_seen)


def learn(model: LearningModel, rows: Sequence[Mapping[str, bytes]], size: int = 10**9) -> Any:
    """Learn rows in batches of `size`."""
    for start in range(0, len(rows), size):
        model.learn(model.maker.make(batch_of(rows[start : start + size])))
    return model


def state_of(model: LearningModel) -> dict[bytes, tuple[float, float]]:
    """(z, n) of every key in the table."""
    keys = model.table.keys()
    data = keys.data.tobytes()
    state = {}
    for index, slot in enumerate(keys.slots):
        held = model.table.slots[slot]
        state[data[keys.offsets[index] : keys.offsets[index + 1]]] = (float(held["z"]), float(held["n"]))
    return state


# -- the market

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


def online_cell(versions: tuple[int, int] = (1, 1), seed: int = 1, **sums: int) -> OnlineCell:
    """Outcomes whose sums fall into the buckets at random, as those of many cookies do."""
    random, cell = np.random.default_rng(seed), OnlineCell.empty()
    for name, total in sums.items():
        cell[name][:] = random.multinomial(total, np.full(BUCKETS, 1.0 / BUCKETS))
    return replace(cell, versions=versions)
