"""Histories of users in logs of labelled rows."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ftrie.cli import run
from model_store.spec.spec import ModelSpec, parse_spec
from tests.trainer.oracles.histories import plain, value_of
from trainer.events.columns import digests
from trainer.examples.derived import RowHistories
from trainer.formats.batch import Position, RowBatch

TEXT = """
[model]
name = "m"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "id"
request = "request"
[fields]
brand = {side = "item"}
seen_items = {side = "user", kind = "set", history = "seen", measure = "last", last = 4}
clicked_brands = {side = "user", kind = "set", history = "clicked", measure = "last", of = "brand", last = 2}
clicks = {side = "user", kind = "number", bucket = "log", history = "clicked", measure = "count", within = "60s"}
seen_ago = {side = "item", kind = "number", bucket = "log", history = "seen", measure = "age"}
brand_clicks = {side = "item", kind = "number", bucket = "log", history = "clicked", measure = "count", of = "brand"}
"""
COLUMNS = ("click", "ts", "cookie", "id", "request", "brand")
SPEC = parse_spec(TEXT).resolve(COLUMNS)
FIELDS = [name for name, field in SPEC.fields.items() if field.history is not None]
Row = dict[str, str]


def a_log(seed: int, requests: int = 150) -> list[Row]:
    draw = random.Random(seed)
    rows, now = list[Row](), 1_700_000_000
    for number in range(requests):
        now += draw.choice([0, 1, 7])
        cookie = draw.choice(["ann", "bob", "ann", ""])
        for k in draw.sample(range(7), draw.randint(1, 4)):
            click = "1" if draw.random() < 0.3 else "0"
            brand = f"b{k % 3}" if k else ""
            values = (click, str(now), cookie, f"i{k}", f"r{number}", brand)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def test_labelled_rows_have_no_views_which_is_said():
    viewed = TEXT.replace(
        "[fields]",
        '[fields]\nviews = {side = "user", kind = "number", history = "viewed", measure = "count"}',
    )
    found = RowHistories.of(parse_spec(viewed).resolve(COLUMNS))
    assert found is not None and any("labelled rows have no views" in each for each in found.warnings())
    known = RowHistories.of(SPEC)
    assert known is not None and list(known.warnings()) == []


def oracle(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each row: the values by all rows of earlier requests of its user."""
    expected = []
    for row in rows:
        before = [each for each in rows[: rows.index(row)] if each["request"] != row["request"]]
        found = {}
        for name in FIELDS:
            field = SPEC.fields[name]
            mine = [
                (int(each["ts"]) * 1_000_000, each["id"], {"brand": each["brand"]})
                for each in before
                if each["cookie"] == row["cookie"] and (field.history == "seen" or each["click"] == "1")
            ]
            candidate = {"id": row["id"], "features": {"brand": row["brand"]}}
            now_us = int(row["ts"]) * 1_000_000
            found[name] = value_of(field, mine, now_us, candidate) if row["cookie"] else None
        expected.append(found)
    return expected


def batch(rows: Sequence[Row]) -> RowBatch:
    columns: dict[str, Any] = {name: pa.array([row[name] for row in rows]) for name in COLUMNS}
    columns |= {name: pa.nulls(len(rows)) for name in FIELDS}
    return RowBatch(columns, np.arange(len(rows)), "log", (), len(rows), Position("log"))


def filled(histories: RowHistories, rows: Sequence[Row]) -> list[dict[str, Any]]:
    return values_of(histories.fill(batch(rows)))


def values_of(batch: RowBatch) -> list[dict[str, Any]]:
    values = zip(*(batch.columns[name].to_pylist() for name in FIELDS), strict=True)
    return [dict(zip(FIELDS, map(plain, row), strict=True)) for row in values]


def new(spec: ModelSpec = SPEC) -> RowHistories:
    histories = RowHistories.of(spec)
    assert histories is not None
    return histories


@pytest.mark.parametrize("seed", range(2))
def test_a_row_has_what_the_rows_of_earlier_requests_say_however_the_log_is_cut(seed: int) -> None:
    rows = a_log(seed, 100)
    expected = oracle(rows)
    assert filled(new(), rows) == expected
    draw = random.Random(seed)
    histories, found, first = new(), list[Mapping[str, Any]](), 0
    while first < len(rows):
        stop = first + draw.randint(1, 9)
        found += filled(histories, rows[first:stop])
        saved = {name: array.copy() for name, array in histories.state().items()}
        histories = new()
        histories.restore(saved)
        first = stop
    assert found == expected


def test_without_request_ids_each_row_is_a_request() -> None:
    histories = new(parse_spec(TEXT.replace('request = "request"', "")).resolve(COLUMNS))
    rows = [dict(zip(COLUMNS, ("1", str(ts), "ann", "i1", "r", "b"), strict=True)) for ts in (5, 6, 7)]
    found = [row for each in rows for row in filled(histories, [each])]
    assert [row["brand_clicks"] for row in found] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("input_line", "labels"),
    [
        ('positive = "yes"', {"0": "no", "1": "yes"}),
        ('positive = ["2", "3"]', {"0": "1", "1": "2"}),
        ('views = "shown"', {"0": "0", "1": "3"}),
    ],
)
def test_a_click_is_what_the_input_section_says(input_line: str, labels: Mapping[str, str]) -> None:
    rows = a_log(2, 40)
    spec = parse_spec(TEXT.replace('label = "click"', f'label = "click"\n{input_line}'))
    histories = new(spec.resolve((*COLUMNS, *(["shown"] if spec.input.views else []))))
    written = batch([row | {"click": labels[row["click"]]} for row in rows])
    shown = {"shown": pa.array(["5"] * len(rows))}
    assert values_of(histories.fill(replace(written, columns={**written.columns, **shown}))) == oracle(rows)


def test_a_log_that_is_not_sorted_by_time_is_reported() -> None:
    histories = new()
    rows = a_log(1)
    filled(histories, [*rows[60:], *rows[:60]])
    assert histories.unsorted and "sort the log by 'ts'" in "".join(histories.warnings())


def write(path: Path, rows: Sequence[Row]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_a_resumed_run_learns_as_one_that_never_stopped(tmp_path: Path) -> None:
    rows = a_log(5)
    spec = tmp_path / "spec.toml"
    spec.write_text(TEXT)
    cut = len(rows) // 2
    whole = [write(tmp_path / "a.csv", rows[:cut]), write(tmp_path / "b.csv", rows[cut:])]
    assert run(["train", str(spec), *whole, "--save", str(tmp_path / "once.arrow")]) == 0
    checkpoints = ["--checkpoint", str(tmp_path / "run")]
    assert run(["train", str(spec), whole[0], *checkpoints]) == 0
    again = ["train", str(spec), *whole, *checkpoints, "--resume"]
    assert run([*again, "--save", str(tmp_path / "twice.arrow")]) == 0
    assert run(["train", str(spec), whole[1], *checkpoints, "--resume"]) == 3
    assert (tmp_path / "once.arrow").read_bytes() == (tmp_path / "twice.arrow").read_bytes()


def test_an_audit_explains_a_row_by_the_histories_that_it_was_scored_with(tmp_path, capsys) -> None:
    log = write(tmp_path / "log.csv", a_log(3, requests=60))
    spec, model, scores = (str(tmp_path / name) for name in ("m.toml", "m.arrow", "scores.csv"))
    Path(spec).write_text(TEXT + "[learner]\nl1 = 0.0\n")
    assert run(["train", spec, log, "--save", model]) == 0
    assert run(["evaluate", model, log, "--predictions", scores]) == 0
    with open(scores, newline="") as file:
        scored = [float(row["score"]) for row in csv.DictReader(file)]
    for row in (1, len(scored)):
        capsys.readouterr()
        assert run(["audit", model, log, "--row", str(row), "--json"]) == 0
        audit = json.loads(capsys.readouterr().out)
        assert audit["score"] == pytest.approx(scored[row - 1], abs=1e-12)


@pytest.mark.parametrize("cut", [0, 101, 102, 103, 250])
def test_a_user_who_is_forgotten_is_new_afterwards(cut: int) -> None:
    """Given a user who is forgotten, also within a request, what follows is as if their rows were nobody's."""
    rows = a_log(4)
    begun = {row["request"] for row in rows[:cut]}
    nobodys = [
        {**row, "cookie": ""} if row["cookie"] == "ann" and row["request"] in begun else row for row in rows
    ]
    histories, expected = new(), new()
    filled(histories, rows[:cut])
    filled(expected, nobodys[:cut])
    gone = histories.forget(digests(pa.array([b"ann"], pa.binary())))
    assert gone == ([b"ann"] if cut else [])
    assert filled(histories, rows[cut:]) == filled(expected, nobodys[cut:])
