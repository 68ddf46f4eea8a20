"""Every defect, planted into a clean log at a known rate, is found: its severity, its count, its example and remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.spec.spec import ModelSpec, parse_spec
from tests.trainer.inspect import planted
from tests.trainer.inspect.planted import BEGAN_S, DAYS, Columns, csv, diagnosed, jsonl, only, parquet
from trainer.inspect.findings import Finding

ROWS = 6_000
ROW = np.arange(ROWS)
SPEC = """
[model]
name = "shop"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
cookie = "user_id"
item = "item_id"
[fields]
item_id = { side = "item" }
device = { side = "context" }
price = { side = "item", kind = "number", bucket = "log" }
"""


def clean() -> Columns:
    return planted.clean(ROWS)


def spec(**fields: str) -> ModelSpec:
    """The spec above with more fields, each as its TOML."""
    return parse_spec(SPEC + "".join(f"{name} = {text}\n" for name, text in fields.items()))


def found(columns: Columns, tmp_path: Path, check: str, **options: Any) -> Finding:
    return only(diagnosed(parquet(columns, tmp_path), **options), check)


def says(finding: Finding, **expected: Any) -> None:
    """Each member is as expected; places end so, and `message` and `remedy` have these words in them."""
    for name, value in expected.items():
        got = getattr(finding, name)
        if name == "where" or str(value).startswith("log.parquet:"):
            assert got.endswith(value), got
        elif name in {"message", "remedy"}:
            assert value in got
        else:
            assert got == value, name


# --- Defects of whole columns, all in one log ---


def with_columns_that_are_odd() -> Columns:
    columns = clean()
    click = np.asarray(columns["click"])
    draw = np.random.default_rng(1)
    columns["click_time"] = [int(ts) + 20 if c else None for ts, c in zip(columns["ts"], click, strict=True)]
    bought = (click == 1) & (ROW % 3 == 0)
    columns["revenue"] = np.where(bought, np.round(draw.lognormal(2, 1, ROWS), 2), 0.0)
    columns["dwell"] = np.round(click + 0.15 * draw.normal(size=ROWS), 3)
    columns["clicked_too"] = click.astype(float)
    columns["status"] = np.where(click == 1, "landed", np.where(ROW % 5 == 0, "seen", "sent"))
    columns["session"] = [f"s{number}" for number in ROW * 3 // 4]
    columns["gadget"] = columns["device"]
    columns["nearly"] = np.where(ROW == 3500, "phone!", columns["device"])
    columns["row"] = np.arange(10**9, 10**9 + ROWS)
    columns["colour"] = np.where(ROW % 100 == 1, "NULL", np.array(["red", "blue", "green"])[ROW % 7 % 3])
    size = np.round(draw.lognormal(3.0, 0.6, ROWS), 2)
    columns["size"] = np.where(ROW % 600 == 2, np.inf, np.where(ROW % 600 == 3, np.nan, size))
    return columns | {"site": ["a"] * ROWS, "unit": [3] * ROWS, "zone": [""] * ROWS}


def test_columns_that_are_odd_are_found_and_no_others(tmp_path: Path) -> None:
    columns = with_columns_that_are_odd()
    clicks, first = int(columns["click"].sum()), int(np.argmax(columns["click"]))
    path = parquet(columns, tmp_path)
    by = {(each.check, each.columns): each for each in diagnosed(path).findings}
    assert {key: each.severity for key, each in by.items()} == {
        ("label-leak", ("click_time",)): "warning",  # `ftrie init` leaves it out
        ("label-leak", ("revenue",)): "error",
        ("label-leak", ("dwell",)): "error",
        ("label-leak", ("clicked_too",)): "error",
        ("label-leak", ("status",)): "error",
        ("values-explode", ("session",)): "warning",
        ("equal-columns", ("device", "gadget")): "warning",
        ("ids-never-repeat", ("row",)): "note",
        ("missing-as-text", ("colour",)): "note",
        ("not-finite", ("size",)): "warning",
        ("constant-columns", ("site", "unit")): "note",
        ("empty-columns", ("zone",)): "note",
    }
    says(
        by["label-leak", ("click_time",)],
        count=clicks,
        of=clicks,
        where=f":{first + 1}",
        example=str(columns["click_time"][first]),
        message="it is filled in clicked rows only",
    )
    bought = np.count_nonzero(columns["revenue"])
    assert by["label-leak", ("revenue",)].count == pytest.approx(bought, abs=3)
    assert by["label-leak", ("status",)].example == "landed"
    says(by["values-explode", ("session",)], example="s0", remedy='ignore = ["session"]')
    assert by["values-explode", ("session",)].count == pytest.approx(ROWS * 3 / 4, rel=0.05)
    assert by["equal-columns", ("device", "gadget")].remedy.startswith('[input] ignore = ["gadget"]')
    says(by["missing-as-text", ("colour",)], count=ROWS // 100, example="NULL")
    says(by["not-finite", ("size",)], count=20, example="inf", where=":3")

    learned = spec(click_time="{}", size='{ kind = "number" }')
    leaks = {each.columns[0]: each for each in diagnosed(path, spec=learned).of_check("label-leak")}
    assert leaks["revenue"].severity == "note"  # nothing is learned of it
    says(leaks["click_time"], severity="error", remedy='take "click_time" out of [fields]')


def test_a_strong_feature_or_users_who_click_everything_do_not_tell_the_label(tmp_path: Path) -> None:
    """Clicks at a rate of 2 to 40 % by quality: an AUC of 0.75, and nothing to report."""
    columns = clean()
    quality = np.random.default_rng(3).integers(0, 5, ROWS)
    rate = np.array([0.02, 0.04, 0.1, 0.2, 0.4])[quality]
    columns["click"] = (np.random.default_rng(4).random(ROWS) < rate).astype(int)
    bots = np.array([user in ("u3", "u70", "u111", "u300") for user in columns["user_id"]])
    columns["click"] = np.where(bots, 1, columns["click"])
    columns["quality"] = quality
    assert not diagnosed(parquet(columns, tmp_path)).of_check("label-leak")


# --- Defects of rows ---


def every(step: int, at: int, name: str, value: Any) -> Callable[[Columns], Columns]:
    """Every step-th row has this value, or this function of its own one."""

    def plant(columns: Columns) -> Columns:
        own = columns.get(name, np.full(ROWS, 1.5))
        return columns | {name: np.where(ROW % step == at, value(own) if callable(value) else value, own)}

    return plant


def rows(order: Any) -> Callable[[Columns], Columns]:
    return lambda columns: {name: np.asarray(values)[order] for name, values in columns.items()}


def column(name: str, values: Any) -> Callable[[Columns], Columns]:
    return lambda columns: columns | {name: values}


def swapped(*pairs: tuple[int, int]) -> Callable[[Columns], Columns]:
    order = np.arange(ROWS)
    for one, other in pairs:
        order[[one, other]] = order[[other, one]]
    return rows(order)


def twice(step: int) -> Callable[[Columns], Columns]:
    return rows(np.sort(np.concatenate([ROW, np.arange(0, ROWS, step)])))


def on_day(day: int, value: Any, share: float = 1.0) -> Callable[[Columns], Columns]:
    """Of the clicks of one day, or a share of them."""

    def plant(columns: Columns) -> Columns:
        of_day = (np.asarray(columns["ts"]) - BEGAN_S) // 86_400 == day
        some = np.random.default_rng(8).random(ROWS) < share
        return columns | {"click": np.where(of_day & some, value, columns["click"])}

    return plant


def item_twice(columns: Columns) -> Columns:
    items = np.array(columns["item_id"])
    again = np.arange(3, ROWS, 400)
    items[again] = items[again - 1]
    return columns | {"item_id": items}


def thin_days(columns: Columns) -> Columns:
    day = (np.asarray(columns["ts"]) - BEGAN_S) // 86_400
    return rows((day != 2) & ((day != 4) | (ROW % 20 == 0)))(columns)


def jittering(columns: Columns) -> Columns:
    return columns | {"ts": columns["ts"] + np.random.default_rng(6).integers(-300, 300, ROWS)}


def with_position_bias(columns: Columns) -> Columns:
    rate = 0.3 * 0.6 ** (columns["position"] - 1.0)
    return columns | {"click": (np.random.default_rng(5).random(ROWS) < rate).astype(int)}


NEVER = [None if row % 1000 == 4 else 0.05 for row in range(ROWS)]
WARNING, ERROR, NOTE = ({"severity": each} for each in ("warning", "error", "note"))
PLANTED: list[tuple[str, Callable[[Columns], Columns], dict[str, Any]]] = [
    (
        "label-values",
        every(200, 7, "click", 2),
        {**WARNING, "count": 30, "of": ROWS, "example": "2", "where": ":8"},
    ),
    ("label-constant", column("click", np.zeros(ROWS, int)), {**ERROR, "count": 0}),
    ("label-constant", column("click", np.ones(ROWS, int)), {**ERROR, "count": ROWS}),
    ("label-order", column("click", (ROW > ROWS // 2).astype(int)), ERROR),
    ("label-extreme", column("click", (ROW % 30 != 0).astype(int)), WARNING),
    ("few-clicks", column("click", (ROW % 200 == 0).astype(int)), {"count": 30}),
    (
        "duplicate-rows",
        twice(50),
        {**ERROR, "count": 120, "of": ROWS + 120, "where": ":2", "example": "log.parquet:1"},
    ),
    ("duplicate-rows", twice(500), {**WARNING, "count": 12, "of": ROWS + 12}),
    (
        "duplicate-requests",
        item_twice,
        {
            **WARNING,
            "count": 15,
            "columns": ("request_id", "item_id"),
            "where": ":4",
            "example": "log.parquet:3",
        },
    ),
    # One time far in the future of its place: all rows before it are behind.
    ("time-backwards", swapped((100, 5500)), WARNING),
    (
        "time-backwards",
        rows(np.random.default_rng(9).permutation(ROWS)),
        {**WARNING, "count": pytest.approx(ROWS, rel=0.01), "remedy": "sort the log by ts"},
    ),
    ("time-backwards", jittering, {**NOTE, "message": "by 9."}),
    ("time-odd", every(1000, 5, "ts", 0), {**WARNING, "count": 6, "where": ":6"}),
    ("time-odd", every(50, 5, "ts", 4_000_000_000), {**ERROR, "count": 120, "message": "in the future"}),
    (
        "time-unit",
        every(40, 3, "ts", lambda ts: ts * 1000),
        {**ERROR, "count": 150, "of": ROWS, "where": ":4", "message": "milliseconds"},
    ),
    (
        "click-rate-shift",
        on_day(3, 0),
        {**ERROR, "count": 1, "of": DAYS, "unit": "days", "example": "2023-11-18"},
    ),
    ("click-rate-shift", on_day(2, 1, 0.15), {**WARNING, "example": "2023-11-17"}),
    ("days-missing", thin_days, {"count": 2, "of": DAYS, "message": "2023-11-17"}),
    (
        "propensity",
        every(300, 9, "propensity", 0.0),
        {**WARNING, "count": 20, "example": "0.0", "where": ":10"},
    ),
    ("propensity", every(30, 9, "propensity", -0.1), {**ERROR, "example": "-0.1"}),
    ("propensity", every(30, 9, "propensity", 1.5), {**ERROR, "example": "1.5"}),
    ("propensity", column("propensity", NEVER), {"count": 6, "of": ROWS, "message": "missing"}),
    # Each of twenty items is shown in a twentieth of the rows.
    (
        "propensity",
        column("propensity", np.full(ROWS, 0.01)),
        {**WARNING, "message": "20 are shown far more often"},
    ),
    ("position-bias", with_position_bias, {**NOTE, "columns": ("position",)}),
]


@pytest.mark.parametrize(
    ("check", "plant", "expected"), PLANTED, ids=[f"{n}-{each[0]}" for n, each in enumerate(PLANTED)]
)
def test_a_defect_of_rows_is_found(tmp_path, check, plant, expected):
    diagnosis = diagnosed(parquet(plant(clean()), tmp_path))
    says(only(diagnosis, check), **expected)
    if check in {"duplicate-rows", "click-rate-shift"} and expected["severity"] == "warning":
        assert {each.check for each in diagnosis.findings if each.severity != "note"} == {check}


def test_a_label_of_many_other_values_that_is_named_is_an_error(tmp_path: Path) -> None:
    columns = every(50, 7, "click", 2)(clean())
    assert found(columns, tmp_path, "label-values", label="click").severity == "error"


def test_what_a_spec_reads_is_judged_by_it(tmp_path: Path) -> None:
    columns = every(5, 3, "price", np.nan)(clean())
    columns["ts"] = columns["ts"] * 1000
    columns = swapped(*((first + 3, first + 4) for first in range(0, ROWS, 1200)))(columns)
    hour = '{ kind = "time", part = "hour", format = "epoch_s", column = "ts" }'
    found = diagnosed(
        parquet(columns, tmp_path), spec=spec(hour=hour, brand="{}", color="{ optional = true }")
    )
    says(only(found, "not-finite"), severity="error", columns=("price",))
    says(only(found, "time-unit"), severity="error", count=ROWS, remedy='format = "epoch_ms"')
    says(only(found, "split-requests"), severity="warning", count=10, of=ROWS // 4)
    assert only(found, "missing-columns").columns == ("brand",)


def test_one_click_among_many_rows(tmp_path: Path) -> None:
    columns = planted.clean() | {"click": (np.arange(planted.ROWS) == 77).astype(int)}
    assert found(columns, tmp_path, "label-extreme").count == 1


def test_more_clicks_than_views_and_weights_below_zero(tmp_path: Path) -> None:
    """Both beyond the rows of which the roles of columns are guessed."""
    columns, row = planted.clean(), np.arange(planted.ROWS)
    columns |= {
        "views": np.full(row.size, 10),
        "clicks": columns["click"] * 3,
        "weight": np.full(row.size, 1.5),
    }
    del columns["click"]
    assert not diagnosed(parquet(columns, tmp_path)).errors
    columns["clicks"] = np.where(row == 11_000, 25, columns["clicks"])
    columns["weight"] = np.where(row == 10_500, -1.0, 1.5)
    diagnosis = diagnosed(parquet(columns, tmp_path))
    bad = only(diagnosis, "clicks-above-views")
    says(bad, count=1, severity="warning", where=":11001")
    assert "25 clicks of 10 views" in bad.example
    says(only(diagnosis, "weights"), count=1, example="-1.0", severity="warning")


def test_a_file_that_is_given_twice_or_many_times(tmp_path: Path) -> None:
    path = parquet(clean(), tmp_path)
    for copies in (2, 6, 20):
        found = only(diagnosed(*[path] * copies), "duplicate-rows")
        says(found, severity="error", count=(copies - 1) * ROWS, of=copies * ROWS)


def test_equal_rows_of_a_log_without_ids_are_no_defect(tmp_path: Path) -> None:
    columns = clean()
    kept = {name: columns[name] for name in ("click", "device", "position", "item_id")}
    assert not diagnosed(parquet(kept, tmp_path)).findings
    kept = twice(20)({name: columns[name] for name in (*kept, "price", "user_id")})
    assert found(kept, tmp_path, "duplicate-rows").severity == "note"


def test_ids_that_never_repeat(tmp_path: Path) -> None:
    columns = clean()
    columns["request_id"] = [f"q{number}" for number in range(ROWS)]
    columns["item_id"] = [f"i{number}" for number in range(ROWS)]
    columns["row"] = np.arange(10**9, 10**9 + ROWS)
    found = diagnosed(parquet(columns, tmp_path), spec=spec(row="{}")).of_check("ids-never-repeat")
    by = {each.columns: each for each in found}
    assert by.keys() == {("request_id",), ("item_id",)}
    assert all(each.severity == "warning" for each in by.values())
    assert "each row is a request of its own" in by["request_id",].message


# --- Cells of texts ---


@pytest.mark.parametrize(("word", "check"), [("cheap", "mixed-types"), ("null", "missing-as-text")])
def test_text_among_numbers(tmp_path: Path, word: str, check: str) -> None:
    columns: dict[str, Any] = clean()
    columns["price"] = [word if row % 400 == 1 else price for row, price in enumerate(columns["price"])]
    path = csv(columns, tmp_path)
    if word == "null":  # of a CSV it is told by the first lines, and is no fault
        assert not diagnosed(path).of_check(check)
        plain = [np.array(each, object).tolist() for each in columns.values()]
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True))
        path = jsonl(list(rows), tmp_path, "log.jsonl")
    says(
        only(diagnosed(path), check),
        severity="warning",
        count=15,
        columns=("price",),
        example=word,
        where=f"{path.name}:{2 if word == 'null' else 3}",
    )
    assert "training rejects these rows" in only(diagnosed(path, spec=spec()), check).message


@pytest.mark.parametrize(
    "broken", ["Köln".encode("latin-1"), "Köln".encode().decode("latin-1").encode(), "K�ln".encode()]
)
def test_broken_encodings_and_rows_that_cannot_be_read(tmp_path: Path, broken: bytes) -> None:
    columns: dict[str, Any] = clean()
    columns["city"] = ["XX" if row % 1000 == 1 else "Köln" for row in range(ROWS)]
    path = csv(columns, tmp_path)
    lines = path.read_bytes().replace(b"XX", broken).splitlines()
    path.write_bytes(
        b"".join((line + b",1" if row % 1000 == 10 else line) + b"\n" for row, line in enumerate(lines))
    )
    diagnosis = diagnosed(path)
    says(only(diagnosis, "encoding"), severity="warning", count=6, columns=("city",), where="log.csv:3")
    says(only(diagnosis, "rejected-rows"), severity="warning", count=6, of=ROWS, where="log.csv:11")
    assert diagnosis.rejected == 6
