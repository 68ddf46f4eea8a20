"""Defects planted into impressions and clicks: found before the join hides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.trainer.inspect.planted import clean, diagnosed, events, jsonl, only
from trainer.inspect import event_checks
from trainer.inspect.findings import Diagnosis

ROWS = 6_000
REQUESTS = ROWS // 4
Events = list[dict[str, Any]]


def logs() -> tuple[Events, Events]:
    return events(clean(ROWS))


def diagnosis(impressions: Events, clicks: Events, folder: Path, **options: Any) -> Diagnosis:
    paths = jsonl(impressions, folder, "impressions.jsonl"), jsonl(clicks, folder, "clicks.jsonl")
    return diagnosed(*paths, **options)


def test_clean_events_are_clean(tmp_path: Path) -> None:
    found = diagnosis(*logs(), tmp_path)
    assert found.findings == ()
    assert found.rows == ROWS and found.clicks == clean(ROWS)["click"].sum()
    assert found.roles["position"] == "@position"


def test_every_defect_of_events_is_found_in_one_log_of_them(tmp_path: Path) -> None:
    impressions, clicks = logs()
    clicked = {click["request_id"] for click in clicks}
    again = [each for each in impressions if each["request_id"] not in clicked][:15]
    told = {(click["request_id"], click["item"]) for number, click in enumerate(clicks) if number % 10 > 3}
    for number, impression in enumerate(impressions):
        for item in impression["items"]:
            item["propensity"] = 0.0 if number % 50 == 0 else 0.25
            if (impression["request_id"], item["id"]) in told:
                item["features"]["landed"] = True
    orphans, others, early, late = clicks[::10], clicks[1::10], clicks[2::10], clicks[3::10]
    for click in orphans:
        click["request_id"] = f"other-{click['request_id']}"
    for click in others:
        click["item"] = "sku-of-another-page"
    for click in early:
        click["ts"] -= 90
    for click in late:
        click["ts"] += 3600
    clicks.sort(key=lambda each: each["ts"])
    twice, no_event = clicks[56:62], {"request_id": "r1", "item": "sku1"}
    found = diagnosis([*impressions, *again], [*clicks, *twice, no_event], tmp_path)

    def line(first: dict[str, Any]) -> str:
        return f"clicks.jsonl:{clicks.index(first) + 1}"

    every = len(clicks) + len(twice)
    bad = only(found, "orphan-clicks")
    assert (bad.severity, bad.of, bad.unit) == ("error", every, "clicks")
    assert bad.count >= len(orphans) and bad.where.endswith(line(orphans[0]))
    bad = only(found, "clicks-not-shown")
    assert bad.severity == "error" and bad.count >= len(others) and bad.where.endswith(line(others[0]))
    bad = only(found, "early-clicks")
    assert bad.severity == "error" and bad.count >= len(early) and "by 1 min at most" in bad.message
    bad = only(found, "late-clicks")
    assert bad.severity == "warning" and bad.count >= len(late)
    assert "later than 10 min" in bad.message and "window" in bad.remedy
    bad = only(found, "duplicate-requests")
    assert (bad.severity, bad.count, bad.of) == ("warning", 15, REQUESTS + 15)
    assert bad.where.endswith(f"impressions.jsonl:{REQUESTS + 1}")
    assert bad.example.endswith(f"impressions.jsonl:{impressions.index(again[0]) + 1}")
    bad = only(found, "label-leak")
    assert bad.columns == ("landed",) and "impressions.jsonl:" in bad.where
    bad = only(found, "propensity")
    assert bad.severity == "error" and bad.count >= ROWS // 50
    assert (found.rejected, only(found, "rejected-rows").where) == (1, f"{tmp_path}/clicks.jsonl:{every + 1}")


def test_a_spec_that_needs_what_was_seen_needs_events_that_say_so(tmp_path: Path) -> None:
    impressions, clicks = logs()
    given = parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nprice = {}\n[join]\nnegatives = "seen"\n'
    )
    found = diagnosis(impressions, clicks, tmp_path, spec=given)
    assert [each.severity for each in found.of_check("nothing-seen")] == ["error"]
    seen = [
        {"request_id": each["request_id"], "ts": each["ts"], "event": "seen", "position": 1}
        for each in impressions
    ]
    found = diagnosis(
        impressions, sorted([*clicks, *seen], key=lambda each: each["ts"]), tmp_path, spec=given
    )
    assert not found.of_check("nothing-seen") and not found.of_check("clicks-not-shown") and found.rows < ROWS


def test_few_orphans_are_a_warning_and_many_duplicates_an_error(tmp_path: Path) -> None:
    impressions, clicks = logs()
    for click in clicks[100:102]:
        click["request_id"] = f"other-{click['request_id']}"
    found = diagnosis([*impressions, *impressions], [*clicks, *clicks[:6]], tmp_path)
    assert (only(found, "orphan-clicks").severity, only(found, "orphan-clicks").count) == ("warning", 2)
    assert only(found, "duplicate-requests").severity == "error"
    assert only(found, "duplicate-clicks").count == 6


def test_a_log_that_begins_amid_clicks_is_no_defect(tmp_path: Path) -> None:
    """Clicks of impressions before the first one, within the window, are of the log before."""
    impressions, clicks = logs()
    began = impressions[0]["ts"]
    clicks = [{"request_id": f"b{n}", "ts": began + n, "item": "sku1"} for n in range(200)] + clicks
    assert not diagnosis(impressions, clicks, tmp_path).findings


def test_times_of_events_that_run_backwards(tmp_path: Path) -> None:
    impressions, clicks = logs()
    order = np.random.default_rng(3).permutation(REQUESTS)
    bad = only(diagnosis([impressions[each] for each in order], clicks, tmp_path), "time-backwards")
    assert (bad.severity, bad.columns, bad.unit) == ("warning", ("ts",), "events")
    assert "impressions.jsonl:" in bad.where and "5 s, [join] lateness" in bad.message
    assert "`ftrie trainer` loses the clicks" in bad.remedy


def test_beyond_a_bound_requests_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: counts become estimates, and nothing is found that is not there."""
    monkeypatch.setattr(event_checks, "MOST_KEPT", 2000)
    impressions, clicks = logs()
    assert not diagnosis(impressions, clicks, tmp_path).findings
    for click in clicks[100::4]:
        click["request_id"] = f"other-{click['request_id']}"
    bad = only(diagnosis(impressions, clicks, tmp_path), "orphan-clicks")
    assert bad.is_estimate and bad.count == pytest.approx(len(clicks[100::4]), rel=0.3)


def test_a_spec_says_what_is_learned_of_events(tmp_path: Path) -> None:
    text = '[model]\nname = "m"\n[input]\nlabel = "clicked"\ntimestamp = "ts"\n[fields]\nprice = { kind = "number" }\n'
    found = diagnosis(*logs(), tmp_path, spec=parse_spec(text))
    assert found.rows == ROWS and not found.errors
    assert found.roles["request"] == "request_id" and not found.is_guessed
