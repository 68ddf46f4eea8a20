"""Defects planted into impressions and clicks: found before the join hides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.doctor.planted import ROWS, clean, diagnosed, events, jsonl, only
from trainer.doctor import event_checks
from trainer.doctor.findings import Diagnosis

REQUESTS = ROWS // 4
Events = list[dict[str, Any]]


def diagnosis(impressions: Events, clicks: Events, folder: Path, **options: Any) -> Diagnosis:
    paths = jsonl(impressions, folder, "impressions.jsonl"), jsonl(clicks, folder, "clicks.jsonl")
    return diagnosed(*paths, **options)


def test_clean_events_are_clean(tmp_path: Path) -> None:
    found = diagnosis(*events(clean()), tmp_path)
    assert found.findings == ()
    assert found.rows == ROWS and found.clicks == clean()["click"].sum()
    assert found.roles["position"] == "@position"


def test_clicks_without_impressions(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    for click in clicks[100:400:3]:
        click["request_id"] = f"other-{click['request_id']}"
    found = diagnosis(impressions, clicks, tmp_path)
    bad = only(found, "orphan-clicks")
    assert (bad.severity, bad.count, bad.of, bad.unit) == ("error", 100, len(clicks), "clicks")
    assert bad.where.endswith("clicks.jsonl:101")
    few = diagnosis(impressions, [*clicks[:105], *clicks[400:]], tmp_path)
    assert (only(few, "orphan-clicks").severity, only(few, "orphan-clicks").count) == ("warning", 2)


def test_a_log_that_begins_amid_clicks_is_no_defect(tmp_path: Path) -> None:
    """Clicks of impressions before the first one, within the window, are of the log before."""
    impressions, clicks = events(clean())
    began = impressions[0]["ts"]
    clicks = [{"request_id": f"b{n}", "ts": began + n, "item": "sku1"} for n in range(200)] + clicks
    assert {each.check for each in diagnosis(impressions, clicks, tmp_path).findings} == {"time-backwards"}


def test_clicks_of_items_that_were_not_shown(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    for click in clicks[10::40]:
        click["item"] = "sku-of-another-page"
    bad = only(diagnosis(impressions, clicks, tmp_path), "clicks-not-shown")
    assert (bad.severity, bad.count) == ("warning", len(clicks[10::40]))
    assert bad.where.endswith("clicks.jsonl:11")


def test_clicks_before_their_impression(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    for click in clicks[5::10]:
        click["ts"] -= 90
    bad = only(diagnosis(impressions, sorted(clicks, key=lambda each: each["ts"]), tmp_path), "early-clicks")
    assert (bad.severity, bad.count) == ("error", len(clicks[5::10]))
    assert "by 1 min at most" in bad.message


def test_clicks_after_the_window(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    for click in clicks[::10]:
        click["ts"] += 3600
    bad = only(diagnosis(impressions, sorted(clicks, key=lambda each: each["ts"]), tmp_path), "late-clicks")
    assert (bad.severity, bad.count) == ("warning", len(clicks[::10]))
    assert "later than 10 min" in bad.message and "window" in bad.remedy


def test_clicks_and_impressions_that_are_there_twice(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    found = diagnosis([*impressions, *impressions[::100]], [*clicks, *clicks[:6]], tmp_path)
    bad = only(found, "duplicate-requests")
    assert (bad.severity, bad.count, bad.of) == ("warning", 30, REQUESTS + 30)
    assert bad.where.endswith(f"impressions.jsonl:{REQUESTS + 1}") and bad.example.endswith(
        "impressions.jsonl:1"
    )
    assert only(found, "duplicate-clicks").count == 6
    assert (
        only(diagnosis([*impressions, *impressions], clicks, tmp_path), "duplicate-requests").severity
        == "error"
    )


def test_times_of_events_that_run_backwards(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    order = np.random.default_rng(3).permutation(REQUESTS)
    found = diagnosis([impressions[each] for each in order], clicks, tmp_path)
    bad = only(found, "time-backwards")
    assert (bad.severity, bad.columns, bad.unit) == ("warning", ("ts",), "events")
    assert "impressions.jsonl:" in bad.where


def test_a_feature_of_the_event_that_tells_the_click(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    clicked = {(click["request_id"], click["item"]) for click in clicks}
    for impression in impressions:
        for item in impression["items"]:
            if (impression["request_id"], item["id"]) in clicked:
                item["features"]["landed"] = True
    bad = only(diagnosis(impressions, clicks, tmp_path), "label-leak")
    assert bad.columns == ("landed",)
    assert "impressions.jsonl:" in bad.where


def test_impossible_propensities_of_events(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    for number, impression in enumerate(impressions):
        for item in impression["items"]:
            item["propensity"] = 0.0 if number % 100 == 0 else 0.25
    bad = only(diagnosis(impressions, clicks, tmp_path), "propensity")
    assert (bad.severity, bad.count) == ("error", ROWS // 100)


def test_lines_that_are_no_events(tmp_path: Path) -> None:
    impressions, clicks = events(clean())
    clicks[7] = {"request_id": "r1", "item": "sku1"}
    found = diagnosis(impressions, clicks, tmp_path)
    assert (found.rejected, only(found, "rejected-rows").where) == (1, f"{tmp_path}/clicks.jsonl:8")


def test_beyond_a_bound_requests_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: counts become estimates, and nothing is found that is not there."""
    monkeypatch.setattr(event_checks, "MOST_KEPT", 4000)
    impressions, clicks = events(clean())
    assert not diagnosis(impressions, clicks, tmp_path).findings
    for click in clicks[100::4]:
        click["request_id"] = f"other-{click['request_id']}"
    bad = only(diagnosis(impressions, clicks, tmp_path), "orphan-clicks")
    assert bad.is_estimate
    assert bad.count == pytest.approx(len(clicks[100::4]), rel=0.3)


def test_a_spec_says_what_is_learned_of_events(tmp_path: Path) -> None:
    from model_store.spec.spec import parse_spec

    text = '[model]\nname = "m"\n[input]\nlabel = "clicked"\ntimestamp = "ts"\n[fields]\nprice = { kind = "number" }\n'
    found = diagnosis(*events(clean()), tmp_path, spec=parse_spec(text))
    assert found.rows == ROWS and not found.errors
    assert found.roles["request"] == "request_id" and not found.is_guessed
