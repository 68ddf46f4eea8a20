"""init → tune → train → evaluate, four commands, on logs that nobody prepared, and on impressions and clicks."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import load_spec
from tests.ftrie.conftest import Ask, Say
from tests.worlds import event_logs

ADS = {f"ad{number}": 0.8 * math.cos(number) for number in range(20)}
SITES = {"news": 0.6, "mail": -0.6, "shop": 1.1, "games": -1.1}


def visits(count: int, seed: int) -> list[tuple[bool, str, str, int, str]]:
    """Rows whose clicks depend on ad, site and age."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        ad, site, device = draw.choice([*ADS]), draw.choice([*SITES]), draw.choice(["phone", "desk"])
        age = draw.randint(18, 70)
        score = ADS[ad] + SITES[site] - 0.02 * (age - 40) - 1.2
        rows.append((draw.random() < 1 / (1 + math.exp(-score)), site, device, age, ad))
    return rows


def write_tsv(path: Path, seed: int) -> Path:
    lines = (
        "\t".join(["clicked" if row[0] else "skipped", row[1], row[2], str(row[3]), row[4]])
        for row in visits(3000, seed)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def write_vw(path: Path, seed: int) -> Path:
    lines = (
        f"{1 if clicked else -1} |user {device} age:{age / 40:.3f} |site {site} |ad {ad}"
        for clicked, site, device, age, ad in visits(3000, seed)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    # Its kernel takes 10 s to compile, and no other fast test needs it.
    [("tsv", write_tsv), pytest.param("vw", write_vw, marks=pytest.mark.slow)],
)
def test_four_commands_lead_from_a_log_to_an_evaluated_model(
    name: str, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / f"day-1.{name}", 1)
    write(tmp_path / f"day-2.{name}", 2)
    ask("init", f"day-1.{name}", "-o", "ads.toml")
    ask("tune", "ads.toml", f"day-1.{name}", "-o", "best.toml", "--try", "alpha=0.03,0.3")
    ask("train", "best.toml", f"day-1.{name}", "--save", "ads.arrow")
    judged = ask("evaluate", "ads.arrow", f"day-2.{name}")
    assert (judged["rows"], judged["rejected"]) == (3000, 0)
    assert judged["variants"]["base"]["auc"] > 0.65
    assert judged["variants"]["base"]["normalized_entropy"] < 0.95


def test_init_lists_the_columns_of_a_log_without_a_header(tmp_path: Path, say: Say) -> None:
    log, output = write_tsv(tmp_path / "day.csv", 1), tmp_path / "ads.toml"
    code, _, told = say("init", log, "-o", output)
    assert code == 0
    assert "its cells are separated by tabs: read as tsv" in told
    assert "read as a file without a header, with columns c1 to c5" in told
    spec = load_spec(output)
    assert spec.input.columns == ("c1", "c2", "c3", "c4", "c5")
    assert (spec.input.label, spec.input.positive) == ("c1", "clicked")
    assert set(spec.fields) == {"c2", "c3", "c4", "c5"}
    code, _, told = say("tune", output, log, "-o", tmp_path / "best.toml", "--try", "alpha=0.03,0.3")
    assert code == 0 and told.count("its cells are separated by tabs") == 1  # it reads the log several times
    code, _, told = say("train", output, log, "--json")
    assert (code, "header" in told) == (0, False)


def test_a_model_of_a_log_without_a_header_knows_its_columns(tmp_path: Path, ask: Ask, say: Say) -> None:
    """--no-header once: the model is evaluated on such logs without it, and on a log with the names as a header."""
    for command in ("train", "evaluate", "tune", "audit", "replay", "init", "train-distributed"):
        code, out, _ = say(command, "--help")
        assert (code, "--no-header" in out) == (0, True), command
    log, spec, model = tmp_path / "day.csv", tmp_path / "spec.toml", tmp_path / "m.arrow"
    log.write_text("".join(f"{int(row[0])},{row[1]},{row[4]}\n" for row in visits(500, 3)))
    spec.write_text('[model]\nname = "m"\n[input]\nlabel = "c1"\n')
    ask("train", spec, log, "--no-header", f"--save={model}")
    named = tmp_path / "named.csv"
    named.write_text("c1,c2,c3\n" + log.read_text())
    found = []
    for path in (log, named):
        out = tmp_path / f"{path.name}.predictions"
        ask("evaluate", model, path, f"--predictions={out}")
        found.append([line.split(",")[2:] for line in out.read_text().splitlines()])
    assert found[0] == found[1]
    assert len(found[0]) == 501


def test_init_writes_views_for_clicks_beside_views_which_estimates_refuse(
    tmp_path: Path, ask: Ask, say: Say
) -> None:
    log, spec = tmp_path / "day.csv", tmp_path / "ads.toml"
    log.write_text("site,clicks,impressions\nnews,0,12\nmail,3,9\nshop,2,2\nnews,1,30\n")
    ask("init", log, "-o", spec)
    section = load_spec(spec).input
    assert (section.label, section.views) == ("clicks", "impressions")
    ask("train", spec, log)
    log.write_text("ad,clicks,views,propensity\na,0,12,0.5\nb,3,9,0.5\n")
    given = 'label = "clicks"\nviews = "views"\nitem = "ad"'
    spec.write_text(f'[model]\nname = "m"\n[input]\n{given}\n[fields]\nad = {{ side = "item" }}\n')
    code, _, err = say("replay", spec, log, "--policy", "logged")
    assert code != 0
    assert "input.views: estimates judge single impressions" in err


SPEC = '[model]\nname = "hotels"\n[input]\nlabel = "click"\n[fields]\nprice = { side = "item" }\n'


@pytest.fixture(params=["simulated", pytest.param("trivago_folder", marks=pytest.mark.slow)])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Impressions and clicks: simulated, then real."""
    if request.param == "simulated":
        return [*map(str, event_logs(300).write(tmp_path))]
    folder = request.getfixturevalue(request.param)
    return [str(next(folder.glob(f"{kind}.jsonl*"))) for kind in ("impressions", "clicks")]


def test_from_event_files_to_a_judged_model_in_four(logs: list[str], tmp_path: Path, ask: Ask) -> None:
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


def test_a_run_over_events_has_no_checkpoint_and_logs_of_rows_no_guess(tmp_path: Path, say: Say) -> None:
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
