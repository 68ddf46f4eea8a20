"""Derived fields of labelled rows: whole requests are compared, however batches, threads and samples fall."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.hash_kernels import hash_keys
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.waiting import StopRequest
from trainer.distributed.dealing import plan_shards
from trainer.examples.open_log import Log, open_log
from trainer.runs.first_events import resolve_by_file
from trainer.sources.files import RowSource

TEXT = """
[model]
name = "m"
[input]
label = "click"
request = "rq"
[fields]
price = { side = "item", kind = "number", main = false }
budget = { side = "user", kind = "number", bucket = "log" }
rank = { side = "item", kind = "number", list = "rank", of = "price" }
share = { side = "item", kind = "number", ratio = ["price", "budget"] }
share_gap = { side = "item", kind = "number", list = "gap", of = "share", best = "max" }
"""
SPEC = parse_spec(TEXT)
NAMES = ("rank", "share", "share_gap")


def rows_of(requests: int, seed: int = 0, **given: str) -> list[dict[str, str]]:
    random, rows = np.random.default_rng(seed), []
    for number in range(requests):
        budget = random.choice(["", "0", "10", "250.5"])
        for _ in range(random.integers(1, 40)):
            price = random.choice(["", *map(str, random.integers(1, 30, 3)), "7.25"])
            click = str(int(random.random() < 0.05))
            rows.append({"click": click, "rq": f"r{number}", "price": price, "budget": str(budget), **given})
    return rows


def expected(rows: list[dict[str, str]]) -> list[dict[str, float]]:
    found = [dict.fromkeys(NAMES, math.nan) for _ in rows]
    for request in dict.fromkeys(row["rq"] for row in rows):
        mine = [number for number, row in enumerate(rows) if row["rq"] == request]
        price = {number: float(rows[number]["price"]) for number in mine if rows[number]["price"]}
        budget = float(rows[mine[0]]["budget"] or 0)
        for number, value in price.items():
            found[number]["rank"] = 1.0 + sum(other < value for other in price.values())
            if budget:
                found[number]["share"] = value / budget
                found[number]["share_gap"] = abs(value / budget - max(price.values()) / budget)
    return found


def write(folder: Path, rows: list[dict[str, str]], suffix: str = "csv", **options: Any) -> Log:
    if suffix == "jsonl":
        lines = [json.dumps({k: v for k, v in row.items() if v}) for row in rows]
    else:
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path = folder / f"log.{suffix}"
    path.write_text("\n".join(lines) + "\n")
    return Log([str(path)], **options)


def learned(log: Log, spec: ModelSpec = SPEC, threads: int = 1) -> list[dict[str, float]]:
    """The x of each row's keys `name=`, NaN where it has none, as the trainer hashes them."""
    keys = [f"{name}=".encode() for name in NAMES]
    hashes = np.empty(len(keys), np.uint64)
    starts = np.cumsum([0, *map(len, keys)])
    hash_keys(np.frombuffer(b"".join(keys), np.uint8).copy(), starts, hashes)
    names, found = dict(zip(hashes.tolist(), NAMES, strict=True)), []
    with open_log(log, spec) as opened, opened.examples(threads) as stream:
        for examples in stream:
            assert examples.rejects == ()
            hashed = examples.hashed
            for row in range(examples.rows.size):
                part = slice(int(hashed.starts[row]), int(hashed.starts[row + 1]))
                own = dict.fromkeys(NAMES, math.nan)
                pairs = zip(hashed.hashes[part].tolist(), hashed.x[part].tolist(), strict=True)
                found.append(own | {names[key]: x for key, x in pairs if key in names})
    return found


@pytest.mark.parametrize(("suffix", "batch_bytes"), [("csv", 200), ("jsonl", 1000), ("csv", 1 << 20)])
def test_requests_are_compared_whole_across_batches(tmp_path: Path, suffix: str, batch_bytes: int) -> None:
    rows = rows_of(20)
    log = write(tmp_path, rows, suffix, batch_bytes=batch_bytes)
    assert repr(learned(log, threads=3)) == repr(expected(rows))


def test_they_are_compared_before_requests_are_sampled(tmp_path: Path) -> None:
    rows = rows_of(40)
    log = write(tmp_path, rows, batch_bytes=500)
    sampled = learned(log, parse_spec(TEXT + "[learner]\nsubsample = { unclicked = 0.3 }\n"))
    assert 0 < len(sampled) < len(rows)
    assert {repr(each) for each in sampled} <= {repr(each) for each in expected(rows)}


def test_a_value_of_the_log_wins_and_empty_ones_are_computed(tmp_path: Path) -> None:
    rows = rows_of(20, rank="")
    wanted = expected(rows)
    for row, each in zip(rows[::3], wanted[::3], strict=True):
        row["rank"], each["rank"] = "77", 77.0
    assert repr(learned(write(tmp_path, rows))) == repr(wanted)


def test_rows_that_are_not_adjacent_are_counted(tmp_path: Path) -> None:
    rows = [row for row in rows_of(12) if row["price"]]
    with open_log(write(tmp_path, [*rows[::2], *rows[1::2]]), SPEC) as opened:
        with opened.examples(1) as stream:
            assert sum(examples.rows.size for examples in stream) == len(rows)
        (warning,) = opened.requests.warnings()
    assert "list features take each run of rows as a request of its own" in warning
    assert "sort the log by 'rq'" in warning


def test_a_list_needs_the_rows_of_a_request(tmp_path: Path) -> None:
    log = write(tmp_path, rows_of(30))
    bare = parse_spec(TEXT.replace('request = "rq"\n', ""))
    said = r'fields.rank: list = "rank" compares the rows of a request: set input.request'
    with pytest.raises(SpecError, match=said), open_log(log, bare):
        pass
    with pytest.raises(SpecError, match="fields.rank needs the rows of each request on one worker"):
        plan_shards(SPEC, log, 2)
    source = RowSource(log.inputs[0], {}, lambda text: None, once=True)
    said = r"fields.rank: list compares the rows of a request, and in a file that grows"
    with pytest.raises(SpecError, match=said):
        resolve_by_file(SPEC, source, StopRequest(), once=True)


def test_a_bad_number_rejects_its_row_and_leaves_the_others_to_be_compared(tmp_path: Path) -> None:
    rows = [{"click": "0", "rq": "a", "price": price, "budget": "2"} for price in ("3", "cheap", "1")]
    with open_log(write(tmp_path, rows), SPEC) as opened, opened.examples(1) as stream:
        (examples,) = stream
    assert examples.rows.tolist() == [0, 2]
    assert [reject.reason for reject in examples.rejects] == ["price: got 'cheap', expected a number"]
    x = examples.hashed.x[: examples.hashed.starts[-1]].tolist()
    assert sorted(x) == sorted([1, 1, 2.0, 1.5, 0.0, 1, 1, 1.0, 0.5, 1.0])
