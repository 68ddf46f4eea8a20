"""init → tune → train → evaluate as subprocesses, four commands, on logs that nobody prepared."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.spec.spec import load_spec

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


def ftrie(folder: Path, *arguments: str) -> str:
    """Run one command as a user does; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "ftrie", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "write"), [("tsv", write_tsv), ("vw", write_vw)])
def test_four_commands_lead_from_a_log_to_an_evaluated_model(name: str, write: Any, tmp_path: Path) -> None:
    write(tmp_path / f"day-1.{name}", 1)
    write(tmp_path / f"day-2.{name}", 2)
    ftrie(tmp_path, "init", f"day-1.{name}", "-o", "ads.toml")
    ftrie(tmp_path, "tune", "ads.toml", f"day-1.{name}", "-o", "best.toml", "--try", "alpha=0.03,0.1,0.3")
    ftrie(tmp_path, "train", "best.toml", f"day-1.{name}", "--save", "ads.arrow")
    judged = json.loads(ftrie(tmp_path, "evaluate", "ads.arrow", f"day-2.{name}", "--json"))
    assert (judged["rows"], judged["rejected"]) == (3000, 0)
    assert judged["variants"]["base"]["auc"] > 0.65
    assert judged["variants"]["base"]["normalized_entropy"] < 0.95


def test_init_lists_the_columns_of_a_log_without_a_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, output = write_tsv(tmp_path / "day.csv", 1), tmp_path / "ads.toml"
    assert run(["init", str(log), "-o", str(output)]) == 0
    told = capsys.readouterr().err
    assert "its cells are separated by tabs: read as tsv" in told
    assert "read as a file without a header, with columns c1 to c5" in told
    section = load_spec(output).input
    assert (section.columns, section.label, section.positive) == (
        ("c1", "c2", "c3", "c4", "c5"),
        "c1",
        "clicked",
    )
    assert set(load_spec(output).fields) == {"c2", "c3", "c4", "c5"}
    assert run(["train", str(output), str(log), "--json"]) == 0
    assert "header" not in capsys.readouterr().err


def test_a_model_of_a_log_without_a_header_knows_its_columns(tmp_path: Path) -> None:
    """--no-header once: the model is evaluated on such logs without it, and on a log with the names as a header."""
    log, model = tmp_path / "day.csv", tmp_path / "m.arrow"
    log.write_text("".join(f"{int(row[0])},{row[1]},{row[4]}\n" for row in visits(500, 3)))
    spec = tmp_path / "spec.toml"
    spec.write_text('[model]\nname = "m"\n[input]\nlabel = "c1"\n')
    assert run(["train", str(spec), str(log), "--no-header", f"--save={model}"]) == 0
    named = tmp_path / "named.csv"
    named.write_text("c1,c2,c3\n" + log.read_text())
    found = []
    for path in (log, named):
        out = tmp_path / f"{path.name}.predictions"
        assert run(["evaluate", str(model), str(path), f"--predictions={out}"]) == 0
        found.append([line.split(",")[2:] for line in out.read_text().splitlines()])
    assert found[0] == found[1]
    assert len(found[0]) == 501


def test_init_writes_views_for_clicks_beside_views(tmp_path: Path) -> None:
    log, output = tmp_path / "day.csv", tmp_path / "ads.toml"
    log.write_text("site,clicks,impressions\nnews,0,12\nmail,3,9\nshop,2,2\nnews,1,30\n")
    assert run(["init", str(log), "-o", str(output)]) == 0
    section = load_spec(output).input
    assert (section.label, section.views) == ("clicks", "impressions")
    assert run(["train", str(output), str(log)]) == 0


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "tune", "audit", "replay", "init", "train-distributed"]
)
def test_every_command_that_reads_logs_takes_no_header(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    assert "--no-header" in capsys.readouterr().out


def test_estimates_refuse_rows_that_count_many_views(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, spec = tmp_path / "day.csv", tmp_path / "ads.toml"
    log.write_text("ad,clicks,views,propensity\na,0,12,0.5\nb,3,9,0.5\n")
    given = 'label = "clicks"\nviews = "views"\nitem = "ad"'
    spec.write_text(f'[model]\nname = "m"\n[input]\n{given}\n[fields]\nad = {{ side = "item" }}\n')
    assert run(["replay", str(spec), str(log), "--policy", "logged"]) != 0
    assert "input.views: estimates judge single impressions" in capsys.readouterr().err
