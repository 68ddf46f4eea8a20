"""Small logs with propensities, for tests of replays: as labelled rows, and as events. Known chances, known clicks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

SPEC = """
[model]
name = "shop"
[input]
label = "click"
request = "request"
item = "item"
[fields]
age = { side = "user" }
place = { column = "position" }
item = { side = "item" }
brand = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[[crosses]]
fields = ["place", "item"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["age*brand"] }
[learner]
alpha = 0.3
l1 = 0.0
"""
ITEMS = {"a": "nike", "b": "puma", "c": "nike", "d": "fila", "e": "puma"}
RATES = {"a": 0.5, "b": 0.1, "c": 0.3, "d": 0.05, "e": 0.2}
CHANCES = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.25, "e": 0.15}

Row = dict[str, Any]


def rows_of(requests: int, seed: int, per_request: int = 1) -> list[Row]:
    """Rows of requests of one or more places; each item drawn with its own chance, clicked at its own rate."""
    random = np.random.default_rng(seed)
    names = list(ITEMS)
    rows = []
    for request in range(requests):
        age = str(random.choice(["20", "30", "40"]))
        for position in range(per_request):
            item = str(random.choice(names, p=[CHANCES[name] for name in names]))
            rows.append(
                {
                    "click": int(random.random() < RATES[item] * (1.5 if age == "20" else 1.0)),
                    "request": f"r{request}",
                    "age": age,
                    "position": position + 1,
                    "item": item,
                    "brand": ITEMS[item],
                    "propensity": CHANCES[item],
                }
            )
    return rows


def write_rows(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_items(path: Path) -> Path:
    path.write_text("item,brand\n" + "".join(f"{item},{brand}\n" for item, brand in ITEMS.items()))
    return path


def lists_of(requests: int, seed: int, size: int = 2) -> list[Row]:
    """Requests that show `size` of the items, drawn alike without repetition: each item's propensity is size / 5."""
    random = np.random.default_rng(seed)
    found = []
    for request in range(requests):
        shown = [str(each) for each in random.choice(list(ITEMS), size, replace=False)]
        found.append(
            {
                "request_id": f"r{request}",
                "ts": 1700000000.0 + request,
                "user": {"age": str(random.choice(["20", "30", "40"]))},
                "items": [
                    {
                        "id": item,
                        "position": place + 1,
                        "propensity": size / len(ITEMS),
                        "features": {"brand": ITEMS[item]},
                    }
                    for place, item in enumerate(shown)
                ],
                "clicked": [item for item in shown if random.random() < RATES[item]],
            }
        )
    return found


def write_events(folder: Path, lists: list[Row]) -> tuple[Path, Path]:
    """As files of impressions and of clicks."""
    impressions, clicks = folder / "impressions.jsonl", folder / "clicks.jsonl"
    with impressions.open("w") as shown, clicks.open("w") as clicked:
        for each in lists:
            shown.write(json.dumps({name: value for name, value in each.items() if name != "clicked"}) + "\n")
            for item in each["clicked"]:
                event = {"request_id": each["request_id"], "ts": each["ts"] + 2.0, "item": item}
                clicked.write(json.dumps(event) + "\n")
    return impressions, clicks
