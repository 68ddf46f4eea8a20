"""Every defect, planted into a clean log at a known rate, is found: its severity, its count, its example and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.spec.spec import ModelSpec, parse_spec
from tests.trainer.doctor.planted import BEGAN_S, DAYS, ROWS, Columns, clean, csv, diagnosed, only, parquet
from trainer.doctor.findings import Finding

random = np.random.default_rng(17)
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


def spec(**fields: str) -> ModelSpec:
    """The spec above with more fields, each as its TOML."""
    return parse_spec(SPEC + "".join(f"{name} = {text}\n" for name, text in fields.items()))


def found(columns: Columns, tmp_path: Path, check: str, **options: Any) -> Finding:
    return only(diagnosed(parquet(columns, tmp_path), **options), check)


def others(columns: Columns, tmp_path: Path, *checks: str) -> None:
    """No check finds more than a note but these."""
    worse = {each.check for each in diagnosed(parquet(columns, tmp_path)).findings if each.severity != "note"}
    assert worse <= set(checks)


# --- The label ---


def test_a_column_that_is_filled_for_clicks_only_tells_the_label(tmp_path: Path) -> None:
    columns = clean()
    columns["click_time"] = [
        int(ts) + 20 if click else None for ts, click in zip(columns["ts"], columns["click"], strict=True)
    ]
    clicks = int(columns["click"].sum())
    first = int(np.argmax(columns["click"]))
    leak = found(columns, tmp_path, "label-leak")
    assert leak.columns == ("click_time",)
    assert leak.severity == "warning"  # `ftrie init` leaves it out
    assert (leak.count, leak.of) == (clicks, clicks)
    assert leak.message.endswith("it is filled in clicked rows only")
    assert leak.where.endswith(f":{first + 1}") and leak.example == str(columns["click_time"][first])
    used = found(columns, tmp_path, "label-leak", spec=spec(click_time="{}"))
    assert used.severity == "error"
    assert used.remedy == '[input] ignore = ["click_time"]'
    assert found(columns, tmp_path, "label-leak", spec=spec()).severity == "note"
    others(columns, tmp_path, "label-leak")


def test_a_value_that_some_clicks_bring_tells_the_label(tmp_path: Path) -> None:
    """The revenue is 0 but for the third of the clicks that were bought, where it is any number."""
    columns = clean()
    bought = (columns["click"] == 1) & (np.arange(ROWS) % 3 == 0)
    columns["revenue"] = np.where(bought, np.round(np.random.default_rng(1).lognormal(2, 1, ROWS), 2), 0.0)
    leak = found(columns, tmp_path, "label-leak")
    assert leak.columns == ("revenue",)
    assert leak.severity == "error"
    assert leak.count == pytest.approx(int(bought.sum()), abs=3)


@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_number_near_the_label_tells_it(tmp_path: Path, noise: float) -> None:
    columns = clean()
    columns["dwell"] = np.round(columns["click"] + noise * np.random.default_rng(2).normal(size=ROWS), 3)
    leak = found(columns, tmp_path, "label-leak")
    assert leak.columns == ("dwell",)
    assert leak.severity == "error"
    others(columns, tmp_path, "label-leak")


def test_a_category_that_follows_the_click_tells_the_label(tmp_path: Path) -> None:
    columns = clean()
    columns["status"] = np.where(
        columns["click"] == 1, "landed", np.where(np.arange(ROWS) % 5 == 0, "seen", "sent")
    )
    leak = found(columns, tmp_path, "label-leak")
    assert (leak.columns, leak.severity, leak.example) == (("status",), "error", "landed")


def test_a_strong_feature_does_not_tell_the_label(tmp_path: Path) -> None:
    """Clicks at a rate of 2 to 40 % by quality: an AUC of 0.75, and nothing to report."""
    columns = clean()
    quality = np.random.default_rng(3).integers(0, 5, ROWS)
    columns["click"] = (
        np.random.default_rng(4).random(ROWS) < np.array([0.02, 0.04, 0.1, 0.2, 0.4])[quality]
    ).astype(int)
    columns["quality"] = quality
    assert not diagnosed(parquet(columns, tmp_path)).of_check("label-leak")


def test_users_who_click_everything_do_not_tell_the_label(tmp_path: Path) -> None:
    columns = clean()
    bots = np.array([user in ("u3", "u70", "u111", "u300") for user in columns["user_id"]])
    columns["click"] = np.where(bots, 1, columns["click"])
    assert not diagnosed(parquet(columns, tmp_path)).of_check("label-leak")


def test_labels_other_than_two_values(tmp_path: Path) -> None:
    columns = clean()
    odd = np.arange(ROWS) % 200 == 7
    columns["click"] = np.where(odd, 2, columns["click"])
    bad = found(columns, tmp_path, "label-values")
    assert (bad.severity, bad.count, bad.of, bad.example) == ("warning", 60, ROWS, "2")
    assert bad.where.endswith(":8")
    columns["click"] = np.where(np.arange(ROWS) % 50 == 7, 2, columns["click"])
    assert found(columns, tmp_path, "label-values", label="click").severity == "error"


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_of_one_value(tmp_path: Path, label: int) -> None:
    columns = clean()
    columns["click"] = np.full(ROWS, label)
    bad = found(columns, tmp_path, "label-constant")
    assert (bad.severity, bad.count) == ("error", label * ROWS)


def test_a_label_that_is_rarely_a_click_and_one_that_is_so_nearly_always(tmp_path: Path) -> None:
    columns = clean()
    columns["click"] = (np.arange(ROWS) == 77).astype(int)
    assert found(columns, tmp_path, "label-extreme").count == 1
    columns["click"] = (np.arange(ROWS) % 30 != 0).astype(int)
    assert found(columns, tmp_path, "label-extreme").severity == "warning"


def test_few_clicks_are_worth_a_note(tmp_path: Path) -> None:
    columns = clean()
    columns["click"] = (np.arange(ROWS) % 400 == 0).astype(int)
    assert found(columns, tmp_path, "few-clicks").count == 30


def test_more_clicks_than_views(tmp_path: Path) -> None:
    columns = clean()
    columns["views"] = np.full(ROWS, 10)
    columns["clicks"] = columns.pop("click") * 3
    assert not diagnosed(parquet(columns, tmp_path)).errors
    columns["clicks"] = np.where(np.arange(ROWS) == 11_000, 25, columns["clicks"])
    bad = found(columns, tmp_path, "clicks-above-views")
    assert (bad.count, bad.severity) == (1, "warning")
    assert bad.where.endswith(":11001")
    assert "25 clicks of 10 views" in bad.example


def test_weights_below_zero(tmp_path: Path) -> None:
    columns = clean()
    columns["weight"] = np.where(np.arange(ROWS) == 10_500, -1.0, 1.5)
    bad = found(columns, tmp_path, "weights")
    assert (bad.count, bad.example, bad.severity) == (1, "-1.0", "warning")


# --- Repetition ---


@pytest.mark.parametrize(("every", "severity"), [(50, "error"), (500, "warning")])
def test_rows_that_are_there_twice(tmp_path: Path, every: int, severity: str) -> None:
    columns = clean()
    rows = np.sort(np.concatenate([np.arange(ROWS), np.arange(0, ROWS, every)]))
    again = {name: np.asarray(values)[rows] for name, values in columns.items()}
    bad = found(again, tmp_path, "duplicate-rows")
    assert (bad.severity, bad.count, bad.of) == (severity, ROWS // every, rows.size)
    assert bad.where.endswith(":2") and bad.example.endswith("log.parquet:1")
    others(again, tmp_path, "duplicate-rows")


def test_a_file_that_is_given_twice(tmp_path: Path) -> None:
    path = parquet(clean(), tmp_path)
    bad = only(diagnosed(path, path), "duplicate-rows")
    assert (bad.severity, bad.count, bad.of) == ("error", ROWS, 2 * ROWS)


def test_equal_rows_of_a_log_without_ids_are_no_defect(tmp_path: Path) -> None:
    columns = clean()
    kept = {name: columns[name] for name in ("click", "device", "position", "item_id")}
    assert not diagnosed(parquet(kept, tmp_path)).findings
    rows = np.sort(np.concatenate([np.arange(ROWS), np.arange(0, ROWS, 20)]))
    kept = {name: np.asarray(columns[name])[rows] for name in (*kept, "price", "user_id")}
    assert found(kept, tmp_path, "duplicate-rows").severity == "note"


def test_an_item_twice_in_a_request(tmp_path: Path) -> None:
    columns = clean()
    items = np.array(columns["item_id"])
    twice = np.arange(3, ROWS, 400)
    items[twice] = items[twice - 1]
    bad = found(columns | {"item_id": items}, tmp_path, "duplicate-requests")
    assert (bad.severity, bad.count, bad.columns) == ("warning", 30, ("request_id", "item_id"))
    assert bad.where.endswith(":4") and bad.example.endswith("log.parquet:3")


def test_requests_that_go_on_after_rows_of_others(tmp_path: Path) -> None:
    columns = clean()
    rows = np.arange(ROWS)
    for first in range(0, ROWS, 1200):
        rows[[first + 3, first + 4]] = rows[[first + 4, first + 3]]
    mixed = {name: np.asarray(values)[rows] for name, values in columns.items()}
    bad = found(mixed, tmp_path, "split-requests", spec=spec())
    assert (bad.severity, bad.count, bad.of) == ("warning", 20, ROWS // 4)


# --- Times ---


def test_times_that_run_backwards(tmp_path: Path) -> None:
    columns = clean()
    rows = np.arange(ROWS)
    rows[[100, 11_000]] = rows[[11_000, 100]]
    bad = found(
        {name: np.asarray(values)[rows] for name, values in columns.items()}, tmp_path, "time-backwards"
    )
    assert bad.severity == "warning"  # one time far in the future of its place: all rows before it are behind
    rows = np.random.default_rng(9).permutation(ROWS)
    bad = found(
        {name: np.asarray(values)[rows] for name, values in columns.items()}, tmp_path, "time-backwards"
    )
    assert bad.severity == "warning"
    assert bad.count > 0.99 * ROWS
    assert "sort the log by ts" in bad.remedy


def test_times_that_jitter_are_worth_a_note(tmp_path: Path) -> None:
    columns = clean()
    columns["ts"] = columns["ts"] + np.random.default_rng(6).integers(-300, 300, ROWS)
    bad = found(columns, tmp_path, "time-backwards")
    assert bad.severity == "note"
    assert "by 9." in bad.message and "min" in bad.message


def test_times_of_1970_and_in_the_future(tmp_path: Path) -> None:
    columns = clean()
    columns["ts"] = np.where(np.arange(ROWS) % 1000 == 5, 0, columns["ts"])
    bad = found(columns, tmp_path, "time-odd")
    assert (bad.severity, bad.count) == ("warning", 12)
    assert bad.where.endswith(":6")
    columns["ts"] = np.where(np.arange(ROWS) % 50 == 5, 4_000_000_000, clean()["ts"])
    bad = found(columns, tmp_path, "time-odd")
    assert (bad.severity, bad.count) == ("error", 240)
    assert "in the future" in bad.message


def test_times_of_two_units(tmp_path: Path) -> None:
    columns = clean()
    columns["ts"] = np.where(np.arange(ROWS) % 40 == 3, columns["ts"] * 1000, columns["ts"])
    bad = found(columns, tmp_path, "time-unit")
    assert (bad.severity, bad.count, bad.of) == ("error", 300, ROWS)
    assert bad.where.endswith(":4") and "milliseconds" in bad.message


def test_times_of_another_unit_than_the_spec_says(tmp_path: Path) -> None:
    columns = clean()
    columns["ts"] = columns["ts"] * 1000
    hour = '{ kind = "time", part = "hour", format = "epoch_s", column = "ts" }'
    bad = found(columns, tmp_path, "time-unit", spec=spec(hour=hour))
    assert (bad.severity, bad.count) == ("error", ROWS)
    assert 'format = "epoch_ms"' in bad.remedy


def test_a_day_whose_clicks_were_lost(tmp_path: Path) -> None:
    columns = clean()
    day = (np.asarray(columns["ts"]) - BEGAN_S) // 86_400
    columns["click"] = np.where(day == 3, 0, columns["click"])
    bad = found(columns, tmp_path, "click-rate-shift")
    assert (bad.severity, bad.count, bad.of, bad.unit) == ("error", 1, DAYS, "days")
    assert bad.example == "2023-11-18"


def test_a_day_with_a_higher_click_rate(tmp_path: Path) -> None:
    columns = clean()
    day = (np.asarray(columns["ts"]) - BEGAN_S) // 86_400
    more = np.random.default_rng(8).random(ROWS) < 0.15
    columns["click"] = np.where((day == 2) & more, 1, columns["click"])
    bad = found(columns, tmp_path, "click-rate-shift")
    assert (bad.severity, bad.example) == ("warning", "2023-11-17")
    others(columns, tmp_path, "click-rate-shift")


def test_days_that_are_missing_and_thin(tmp_path: Path) -> None:
    columns = clean()
    day = (np.asarray(columns["ts"]) - BEGAN_S) // 86_400
    kept = (day != 2) & ((day != 4) | (np.arange(ROWS) % 20 == 0))
    bad = found(
        {name: np.asarray(values)[kept] for name, values in columns.items()}, tmp_path, "days-missing"
    )
    assert (bad.count, bad.of) == (2, DAYS)
    assert "2023-11-17" in bad.message and "2023-11-19" in bad.message


# --- Values and ids ---


def test_a_field_whose_values_explode(tmp_path: Path) -> None:
    columns = clean()
    columns["session"] = [f"s{number}" for number in np.arange(ROWS) * 3 // 4]
    bad = found(columns, tmp_path, "values-explode")
    assert (bad.severity, bad.columns) == ("warning", ("session",))
    assert bad.count == pytest.approx(ROWS * 3 / 4, rel=0.05)
    assert 'ignore = ["session"]' in bad.remedy
    assert bad.example == "s0"
    others(columns, tmp_path, "values-explode")


def test_ids_that_never_repeat(tmp_path: Path) -> None:
    columns = clean()
    columns["request_id"] = [f"q{number}" for number in range(ROWS)]
    columns["item_id"] = [f"i{number}" for number in range(ROWS)]
    columns["row"] = np.arange(10**9, 10**9 + ROWS)
    text = spec(row="{}").model_copy()
    by = {
        each.columns: each
        for each in diagnosed(parquet(columns, tmp_path), spec=text).of_check("ids-never-repeat")
    }
    assert by.keys() == {("request_id",), ("item_id",)}
    assert all(each.severity == "warning" for each in by.values())
    assert "each row is a request of its own" in by["request_id",].message
    guessed = diagnosed(parquet(clean() | {"row": columns["row"]}, tmp_path))
    assert only(guessed, "ids-never-repeat").columns == ("row",)
    assert only(guessed, "ids-never-repeat").severity == "note"


# --- Propensities and positions ---


@pytest.mark.parametrize("impossible", [0.0, -0.1, 1.5])
def test_impossible_propensities(tmp_path: Path, impossible: float) -> None:
    columns = clean()
    columns["propensity"] = np.where(np.arange(ROWS) % 300 == 9, impossible, columns["propensity"])
    bad = found(columns, tmp_path, "propensity")
    assert (bad.severity, bad.count, bad.example) == ("warning", 40, str(impossible))
    assert bad.where.endswith(":10")
    columns["propensity"] = np.where(np.arange(ROWS) % 30 == 9, impossible, columns["propensity"])
    assert found(columns, tmp_path, "propensity").severity == "error"


def test_missing_propensities(tmp_path: Path) -> None:
    columns = clean()
    columns["propensity"] = [None if row % 1000 == 4 else 0.05 for row in range(ROWS)]
    bad = found(columns, tmp_path, "propensity")
    assert (bad.count, bad.of) == (12, ROWS)
    assert "missing" in bad.message


def test_propensities_that_contradict_how_often_items_are_shown(tmp_path: Path) -> None:
    columns = clean()
    columns["propensity"] = np.full(ROWS, 0.01)  # each of twenty items is shown in a twentieth of the rows
    bad = found(columns, tmp_path, "propensity")
    assert bad.severity == "warning"
    assert "20 are shown far more often" in bad.message


def test_position_bias_is_worth_a_note(tmp_path: Path) -> None:
    columns = clean()
    rate = 0.3 * 0.6 ** (columns["position"] - 1.0)
    columns["click"] = (np.random.default_rng(5).random(ROWS) < rate).astype(int)
    note = found(columns, tmp_path, "position-bias")
    assert note.severity == "note"
    assert note.columns == ("position",)


# --- Cells ---


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    columns = clean()
    columns["price"] = np.where(np.arange(ROWS) % 600 == 2, np.inf, columns["price"])
    columns["price"] = np.where(np.arange(ROWS) % 600 == 3, np.nan, columns["price"])
    bad = found(columns, tmp_path, "not-finite", spec=spec())
    assert (bad.severity, bad.count, bad.columns, bad.example) == ("warning", 40, ("price",), "inf")
    assert bad.where.endswith(":3")
    columns["price"] = np.where(np.arange(ROWS) % 5 == 3, np.nan, columns["price"])
    assert found(columns, tmp_path, "not-finite", spec=spec()).severity == "error"


@pytest.mark.parametrize("word", ["cheap", "null"])
def test_text_among_numbers(tmp_path: Path, word: str) -> None:
    columns: dict[str, Any] = clean()
    columns["price"] = [word if row % 400 == 1 else price for row, price in enumerate(columns["price"])]
    check = "missing-as-text" if word == "null" else "mixed-types"
    bad = only(diagnosed(csv(columns, tmp_path)), check)
    assert (bad.severity, bad.count, bad.columns, bad.example) == ("warning", 30, ("price",), word)
    assert bad.where.endswith("log.csv:3")
    bad = only(diagnosed(csv(columns, tmp_path), spec=spec()), check)
    assert "training rejects these rows" in bad.message


def test_a_word_for_no_value_among_categories_is_worth_a_note(tmp_path: Path) -> None:
    columns = clean()
    columns["device"] = np.where(np.arange(ROWS) % 100 == 1, "NULL", columns["device"])
    note = found(columns, tmp_path, "missing-as-text")
    assert (note.severity, note.count, note.example) == ("note", 120, "NULL")


@pytest.mark.parametrize(
    "broken", ["Köln".encode("latin-1"), "Köln".encode().decode("latin-1").encode(), "K�ln".encode()]
)
def test_broken_encodings(tmp_path: Path, broken: bytes) -> None:
    columns: dict[str, Any] = clean()
    columns["city"] = ["XX" if row % 1000 == 1 else "Köln" for row in range(ROWS)]
    path = csv(columns, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"XX", broken))
    bad = only(diagnosed(path), "encoding")
    assert (bad.severity, bad.count, bad.columns) == ("warning", 12, ("city",))
    assert bad.where.endswith("log.csv:3")


def test_equal_columns(tmp_path: Path) -> None:
    columns = clean()
    columns["gadget"] = columns["device"]
    bad = found(columns, tmp_path, "equal-columns")
    assert (bad.severity, bad.columns) == ("warning", ("device", "gadget"))
    assert bad.remedy == '[input] ignore = ["gadget"]'
    columns["gadget"] = np.where(np.arange(ROWS) == 7000, "phone!", columns["device"])
    assert not diagnosed(parquet(columns, tmp_path)).of_check("equal-columns")


def test_constant_and_empty_columns(tmp_path: Path) -> None:
    columns: dict[str, Any] = clean() | {"site": ["a"] * ROWS, "zone": [""] * ROWS, "unit": [3] * ROWS}
    diagnosis = diagnosed(csv(columns, tmp_path))
    assert only(diagnosis, "constant-columns").columns == ("site", "unit")
    assert only(diagnosis, "empty-columns").columns == ("zone",)
    assert {each.severity for each in diagnosis.findings} == {"note"}


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    path = csv(clean(), tmp_path)
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(f"{line},1" if row % 1000 == 10 else line for row, line in enumerate(lines)) + "\n"
    )
    diagnosis = diagnosed(path)
    bad = only(diagnosis, "rejected-rows")
    assert (bad.severity, bad.count, bad.of, diagnosis.rejected) == ("warning", 12, ROWS, 12)
    assert bad.where.endswith("log.csv:11")


def test_columns_that_the_spec_reads_and_the_log_lacks(tmp_path: Path) -> None:
    bad = found(clean(), tmp_path, "missing-columns", spec=spec(brand="{}", color="{ optional = true }"))
    assert bad.columns == ("brand",)
