"""Four commands on impressions and clicks: init, tune, train, evaluate; and audit, on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.spec.spec import load_spec
from tests.ftrie.conftest import Ask, Say
from tests.simulated import event_logs

SPEC = '[model]\nname = "hotels"\n[input]\nlabel = "click"\n[fields]\nprice = { side = "item" }\n'


@pytest.fixture(params=["simulated", pytest.param("trivago_folder", marks=pytest.mark.slow)])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Impressions and clicks: simulated, then real."""
    if request.param == "simulated":
        return [*map(str, event_logs(300).write(tmp_path))]
    folder = request.getfixturevalue(request.param)
    return [str(next(folder.glob(f"{kind}.jsonl*"))) for kind in ("impressions", "clicks")]


def test_from_event_files_to_a_judged_model_in_four_commands(
    logs: list[str], tmp_path: Path, ask: Ask
) -> None:
    spec, best, model = tmp_path / "hotels.toml", tmp_path / "best.toml", tmp_path / "hotels.arrow"
    ask("init", *logs, "--output", spec)
    ask("tune", spec, *logs, "--try", "alpha=0.02,0.1", "--output", best)
    report = ask("train", best, *logs, "--save", model)
    found = ask("evaluate", model, *logs)

    given = load_spec(spec).input
    assert (given.request, given.timestamp, given.item, given.label) == ("request_id", "ts", "item", "click")
    assert load_spec(spec).fields["price"].side == "item" and load_spec(spec).fields["city"].side == "context"
    assert report["rejected"] == 0 and report["rows"] == found["rows"]
    requests = found["requests"]
    assert requests["clicked"] == report["labels"]["1"] > 100
    own, shown = requests["orders"]["base"], requests["orders"]["shown order"]
    assert 0.0 < shown["hit_1"] <= shown["hit_3"] <= shown["hit_10"] <= 1.0
    assert shown["hit_1"] < shown["mrr"] and 0.4 < own["auc"] < 1.0

    audit = ask("audit", model, *logs, "--row", 3)
    assert (audit["file"], audit["line"]) == (logs[0], 1)


def test_the_order_shown_of_the_hotel_lists_is_the_known_one(
    trivago_folder: Path, tmp_path: Path, ask: Ask
) -> None:
    logs = [trivago_folder / "impressions.jsonl.gz", trivago_folder / "clicks.jsonl.gz"]
    spec, model = tmp_path / "hotels.toml", tmp_path / "hotels.arrow"
    spec.write_text(SPEC)
    ask("train", spec, *logs, "--save", model)
    requests = ask("evaluate", model, *logs)["requests"]
    assert (requests["requests"], requests["clicked"]) == (6842, 6842)
    assert 0.446 < requests["orders"]["shown order"]["mrr"] < 0.450


def test_a_run_over_events_has_no_checkpoint_and_logs_of_rows_no_common_guess(
    tmp_path: Path, say: Say
) -> None:
    spec, a, b = tmp_path / "hotels.toml", tmp_path / "a.jsonl", tmp_path / "b.csv"
    spec.write_text(SPEC)
    a.write_text('{"request_id": "r", "ts": 1700000000, "items": [{"id": "a", "features": {"price": 1}}]}\n')
    b.write_text("click,x\n1,a\n0,b\n")
    code, _, said = say("train-distributed", spec, a, "--workers", "2")
    assert (code, "no part of a file can be joined alone" in said) == (3, True)
    code, _, said = say("train", spec, a, "--checkpoint", tmp_path / "saved")
    assert code == 3
    assert "--checkpoint:" in said and "holds events" in said and "`ftrie trainer` resumes" in said
    code, _, said = say("init", b, b)
    assert (code, "expected one log, or impressions and their clicks" in said) == (3, True)
