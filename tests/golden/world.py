"""The logs, specs and requests of the golden file: functions of a seed alone, written without the code they test."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

import ftrie

START_S = 1_700_000_000
BRANDS = ("acorn", "birch", "cedar", "d*o", "e=f%", "ülme", "")
TAGS = ("new", "red", "sale", "xl", "ünik")
DEVICES = ("phone", "desk", "tablet", "")
ITEMS = {
    f"i{n}": {"brand": BRANDS[n % 7], "price": round(1.7 ** (n % 17) - 1.5, 3), "size": n % 5 - 1.5}
    for n in range(60)
}
USERS = {f"u{n}": {"age": str(20 + n % 7 * 10), "tags": list(TAGS[n % 5 : n % 5 + n % 3])} for n in range(40)}

_FIELDS = """
[model]
name = "golden"
[input]
label = "click"
request = "request"
cookie = "cookie"
item = "item"
timestamp = "time"
WEIGHT
[fields]
age = { side = "user" }
tags = { side = "user", kind = "set", separator = "|" }
brand = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
price_rank = { side = "item", kind = "number", list = "rank", of = "price" }
cost = { side = "item", kind = "number", column = "price", bucket = "quantile:8", main = false }
size = { side = "item", kind = "number", scale = "standard", clip = [-1.0, 2.0] }
device = {}
hour = { kind = "time", part = "hour", format = "epoch_s", column = "time" }
query = { kind = "text", ngrams = 2, optional = true }
[[crosses]]
fields = ["device", "brand"]
[[crosses]]
fields = ["tags", "cost", "age"]
"""
_SHARED = """
[variants]
base = { share = 0.5 }
plain = { share = 0.3, without = ["device*brand"] }
lean = { share = 0.2, without = ["tags", "hour", "query"] }
"""
_OWN = """
[variants]
base = { share = 0.6 }
bold = { share = 0.3, alpha = 0.5 }
plain = { share = 0.1, without = ["device*brand"] }
"""
LEARNERS = {
    "ftrl": _SHARED
    + '[learner]\nalpha = 0.2\nbeta = 0.8\nl1 = 0.05\nl2 = 0.3\n[calibration]\nkind = "power"\nby = "device"\n',
    "ftrl_own_q213": _OWN + '[learner]\nvalues = "per_variant"\nl1 = 0.02\nprecision = "q2.13"\nseed = 7\n',
    "ftrl_averaged": _OWN
    + 'mean = { average = "bold", share = 0.0 }\n[learner]\nvalues = "per_variant"\nl1 = 0.02\n'
    + '[calibration]\nkind = "isotonic"\n',
    "ftrl_bloom_rules": _SHARED
    + '[learner]\nl1 = 0.1\ninclusion = { kind = "bloom", count = 3, keys = 5000 }\nttl = 2500\n'
    + 'subsample = { unclicked = 0.5 }\n[rules."brand="]\ninclusion = { kind = "poisson", p = 0.5 }\nl1 = 0.5\n',
    "ftrl_buckets": _SHARED + '[learner]\nhash_buckets = 3001\nl1 = 0.01\nrate = "counts"\n',
    "adpredictor": _SHARED + '[learner]\nalgorithm = "adpredictor"\nprior_ctr = 0.2\nforgetting = 0.001\n',
    "fobos": _OWN + '[learner]\nalgorithm = "fobos"\nvalues = "per_variant"\nl1 = 0.001\nl2 = 0.001\n',
    "rda": _SHARED + '[learner]\nalgorithm = "rda"\nl1 = 0.001\n',
    "ogd": _SHARED + '[learner]\nalgorithm = "ogd"\nrate = "global"\nl2 = 0.001\n',
    "truncated": _SHARED + '[learner]\nalgorithm = "truncated_gradient"\nk = 5\ntheta = 0.5\nl1 = 0.001\n',
    "truncation": _SHARED + '[learner]\nalgorithm = "truncation"\nk = 10\ntheta = 0.02\n',
}
HISTORIES = (
    _FIELDS.replace("WEIGHT", "")
    .replace('timestamp = "time"', 'timestamp = "ts"')
    # In an event the time is that of the event.
    .replace('hour = { kind = "time", part = "hour", format = "epoch_s", column = "time" }\n', "")
    .replace(
        "[[crosses]]",
        'seen = { side = "user", kind = "set", history = "seen", measure = "last", last = 5 }\n'
        'clicks = { side = "user", kind = "number", bucket = "log", history = "clicked", measure = "count", '
        'within = "7d" }\n'
        "[[crosses]]",
        1,
    )
    + _SHARED.replace('"hour", ', "")
    + '[learner]\nl1 = 0.05\n[join]\nwindow = "2m"\n'
)
OPEN = {
    "vw": '[model]\nname = "golden"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.02\n',
    "libsvm": '[model]\nname = "golden"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.02\n',
    "libffm": '[model]\nname = "golden"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.02\n',
}


def spec(learner: str) -> str:
    """The text of the spec of labelled rows with this learner."""
    weight = "" if learner == "ftrl_buckets" else 'weight = "importance"'
    return _FIELDS.replace("WEIGHT", weight) + LEARNERS[learner]


def rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Labelled rows, six a request; about 1 of 90 is bad."""
    draw = random.Random(seed)
    for n in range(count):
        if n % 6 == 0:
            user, at = draw.randrange(45), START_S + n * 7 + draw.randrange(5)
            device, query = (
                draw.choice(DEVICES),
                " ".join(draw.choice(("Red", "shoe", "Straße", "2")) for _ in range(n % 4)),
            )
        item = draw.randrange(60)
        features = ITEMS[f"i{item}"]
        rate = 0.08 + 0.2 * (item % 7 == 2) + 0.15 * (user % 5 == item % 5) + 0.1 * (device == "phone")
        row = {
            "click": int(draw.random() < rate),
            "importance": draw.choice((1, 1, 1, 0.5, 2.25)),
            "request": f"r{seed}-{n // 6}",
            "cookie": f"u{user}",
            "item": f"i{item}",
            "time": at,
            "age": str(20 + user % 7 * 10) if user < 40 else "",
            "tags": "|".join(TAGS[user % 5 : user % 5 + user % 3]),
            **features,
            "device": device,
            "query": query,
        }
        if n % 90 == 89:
            name, value = (("click", "maybe"), ("price", "dear"), ("time", "noon"), ("importance", -1))[
                n // 90 % 4
            ]
            row[name] = value
        yield row


def csv_line(cells: list[Any], separator: str) -> str:
    """A line of CSV with quotes where one is needed."""
    texts = [str(cell) for cell in cells]
    return separator.join(f'"{text}"' if separator in text or '"' in text else text for text in texts) + "\n"


def write_log(path: Path, kind: str, count: int, seed: int) -> None:
    """Write labelled rows in one format; bad lines of the format's own kind among them."""
    given = list(rows(count, seed))
    if kind in ("csv", "tsv"):
        separator = "," if kind == "csv" else "\t"
        lines = [
            csv_line(list(given[0]), separator),
            *(csv_line(list(row.values()), separator) for row in given),
        ]
        lines.insert(200, "1,2,3\n".replace(",", separator))
        path.write_text("".join(lines), "utf-8")
    elif kind == "jsonl":
        lines = [json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(given)]
        lines[200:200] = [
            '{"click": 1, "device": \n',
            "[1, 2]\n",
            '{"click": 1, "device": {"a": [1]}, "brand": "b"}\n',
        ]
        path.write_text("".join(lines), "utf-8")
    elif kind == "parquet":
        columns: dict[str, Any] = {name: [row[name] for row in given] for name in given[0]}
        columns["tags"] = [row["tags"].split("|") if row["tags"] else None for row in given]
        for name in ("click", "importance", "price", "time"):  # a column has one type: bad values are texts
            columns[name] = [str(row[name]) for row in given]
        parquet.write_table(pa.table(columns), path, row_group_size=701)
    elif kind == "vw":
        lines = [
            f"{(-1, 1)[row['click'] == 1]} {row['importance']} '{row['request']} "
            f"|u age={row['age'] or 'none'} {row['cookie']} |i {row['item']} price:{row['price']}\n"
            for row in given
        ]
        lines.insert(200, "1 |u a:b:c\n")
        path.write_text("".join(lines), "utf-8")
    else:
        user, item = ("1:", "2:") if kind == "libffm" else ("", "")
        lines = [
            f"{row['click']} {user}{1 + int(row['cookie'][1:])}:1 {item}{100 + int(row['item'][1:])}:{row['size']}\n"
            for row in given
        ]
        lines.insert(200, "1 7:\n")
        path.write_text("".join(lines), "utf-8")


def write_events(impressions: Path, clicks: Path, count: int, seed: int) -> None:
    """Write impressions of six items and their clicks, some late, repeated, of unknown requests, or bad."""
    given, draw = list(rows(count, seed)), random.Random(seed + 1)
    shown, clicked = [], []
    for n in range(0, count - 5, 6):
        first, at = given[n], START_S + n * 7
        items = [{"id": row["item"], "features": ITEMS[row["item"]]} for row in given[n : n + 6]]
        shown.append(
            {
                "request_id": first["request"],
                "ts": at,
                "cookie": first["cookie"],
                "user": USERS.get(first["cookie"], {}),
                "context": {"device": first["device"], "query": first["query"]},
                "items": items,
            }
        )
        for row in given[n : n + 6]:
            if row["click"] == 1:
                delay = draw.choice((1, 5, 40, 100, 500))
                event = {
                    "request_id": row["request"],
                    "ts": at + delay,
                    "item": row["item"],
                    "id": f"c{n}-{row['item']}",
                }
                clicked += [event] * draw.choice((1, 1, 1, 2))
    clicked.sort(key=lambda event: event["ts"])
    clicked.insert(30, {"request_id": "unheard", "ts": clicked[30]["ts"], "item": "i1"})
    for path, events in ((impressions, shown), (clicks, clicked)):
        lines = [json.dumps(event) + "\n" for event in events]
        lines[20:20] = ['{"request_id": 3.5, "ts": 1}\n', "not json\n", '{"ts": 1700000000, "items": []}\n']
        path.write_text("".join(lines), "utf-8")


def requests(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Arguments of `rank`: stored and given users, stored and given items, filters, caps, objectives, exploration."""
    draw = random.Random(seed)
    for n in range(count):
        user: Any = f"u{draw.randrange(48)}"
        if n % 5 == 1:
            user = {"age": str(draw.choice((20, 30, 99))), "tags": ["new", "xl"][: n % 3]}
        request: dict[str, Any] = {
            "user": user,
            "context": {
                "device": draw.choice(DEVICES),
                "hour": START_S + n * 61,
                "query": draw.choice(("red shoe", "Straße 2", "")),
            },
            "request_id": f"q{n}",
        }
        chosen = [f"i{draw.randrange(64)}" for _ in range(2 + n % 23)]
        if n % 4 == 3:
            request["items"] = {
                id: {"brand": draw.choice(BRANDS), "price": draw.randrange(900) / 7, "size": 0.5}
                for id in dict.fromkeys(chosen)
            }
        else:
            request["candidates"] = list(dict.fromkeys(chosen))
        if n % 3:
            request["top_k"] = 1 + n % 7
        if n % 7 == 2:
            request["objective"] = draw.choice(("ctr * price", "ctr", "ctr * (1 + abs(price)) ** 0.5"))
        if n % 11 == 3:
            request["variant"] = draw.choice(("base", "plain"))
        if n % 9 == 4:
            request["caps"] = {"brand": 2}
        if n % 8 == 5:
            request["filters"] = [
                {"brand": ["acorn", "birch", "cedar"]},
                {"price": (1, None)},
                {"size": (None, 0.5)},
            ][n // 8 % 3]
        if n % 6 == 5:
            request["exploration"] = ftrie.UpperConfidenceBound(0.5) if n % 12 == 5 else ftrie.Thompson(2.0)
        if n % 50 == 49:
            request |= BAD[n // 50 % len(BAD)]
        yield request


BAD: tuple[dict[str, Any], ...] = (
    {"objective": "ctr * dear"},
    {"objective": "ctr *"},
    {"caps": {"brand": 0}},
    {"caps": {"colour": 1}},
    {"top_k": 0},
    {"variant": "unheard of"},
    {"filters": {"brand": []}},
    {"filters": {"price": (3, 1)}},
    {"context": {"hour": "noon"}},
    {"context": {"device": ["a", "b"]}},
    {"context": {"device": "\ud800"}},
    {"user": {"tags": {"new": float("nan")}}},
    {"exploration": ftrie.UpperConfidenceBound(-1.0)},
    {"request_id": "x" * 5000},
    {"candidates": [""], "items": None},
    {"candidates": [], "items": None},
    {"user": 3},
)
