"""Four commands on impressions and clicks: init, tune, train, evaluate; and audit, on the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.spec.spec import load_spec


@pytest.fixture
def logs(event_folder: Path) -> list[str]:
    return [str(next(event_folder.glob(f"{kind}.jsonl*"))) for kind in ("impressions", "clicks")]


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_from_event_files_to_a_judged_model_in_four_commands(
    logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, best, model = tmp_path / "hotels.toml", tmp_path / "best.toml", tmp_path / "hotels.arrow"
    answer(capsys, "init", *logs, "--output", spec)
    answer(capsys, "tune", spec, *logs, "--try", "alpha=0.02,0.1", "--output", best)
    report = answer(capsys, "train", best, *logs, "--save", model)
    found = answer(capsys, "evaluate", model, *logs)

    given = load_spec(spec).input
    assert (given.request, given.timestamp, given.item, given.label) == ("request_id", "ts", "item", "click")
    assert load_spec(spec).fields["price"].side == "item" and load_spec(spec).fields["city"].side == "context"
    assert report["rejected"] == 0 and report["rows"] == found["rows"]
    requests = found["requests"]
    assert requests["clicked"] == report["labels"]["1"] > 100
    own, shown = requests["orders"]["base"], requests["orders"]["shown order"]
    assert 0.0 < shown["hit_1"] <= shown["hit_3"] <= shown["hit_10"] <= 1.0
    assert shown["hit_1"] < shown["mrr"] and 0.4 < own["auc"] < 1.0

    audit = answer(capsys, "audit", model, *logs, "--row", 3)
    assert (audit["file"], audit["line"]) == (logs[0], 1)


def test_the_order_shown_of_the_hotel_lists_is_the_known_one(
    trivago_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [trivago_folder / "impressions.jsonl.gz", trivago_folder / "clicks.jsonl.gz"]
    spec, model = tmp_path / "hotels.toml", tmp_path / "hotels.arrow"
    spec.write_text(
        '[model]\nname = "hotels"\n[input]\nlabel = "click"\n[fields]\nprice = { side = "item" }\n'
    )
    answer(capsys, "train", spec, *logs, "--save", model)
    requests = answer(capsys, "evaluate", model, *logs)["requests"]
    assert (requests["requests"], requests["clicked"]) == (6842, 6842)
    assert 0.446 < requests["orders"]["shown order"]["mrr"] < 0.450


def test_a_run_over_events_has_no_checkpoint(
    logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "hotels.toml"
    spec.write_text(
        '[model]\nname = "hotels"\n[input]\nlabel = "click"\n[fields]\nprice = { side = "item" }\n'
    )
    assert run(["train-distributed", str(spec), *logs, "--workers", "2"]) == 3
    assert "no part of a file can be joined alone" in capsys.readouterr().err
    assert run(["train", str(spec), *logs, "--checkpoint", str(tmp_path / "saved")]) == 3
    said = capsys.readouterr().err
    assert "--checkpoint:" in said and "holds events" in said and "`ftrie trainer` resumes" in said


def test_two_logs_of_rows_have_no_common_guess(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("click,x\n1,a\n0,b\n")
    assert run(["init", str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]) == 3
    assert "expected one log, or impressions and their clicks" in capsys.readouterr().err
