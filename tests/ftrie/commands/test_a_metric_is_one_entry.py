"""A metric is added by one entry, as CONTRIBUTING.md shows: reports, tables, files, charts and choices have it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.pages import ROOT
from tests.trainer.runs.judging import NAMES, SPEC, rows_of, write


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages in which the diff of CONTRIBUTING.md is applied."""
    folder = tmp_path_factory.mktemp("changed")
    for package in ("ftrie", "model_store", "server", "trainer"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("images"))
    ((name, diff),) = re.findall(
        r"^```diff\n--- a/(trainer/learn/metrics/\S+)\n.*\n@@ .*\n((?:[+ ].*\n)*)```$",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.MULTILINE,
    )
    before = "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] == " ")
    text = (folder / name).read_text("utf-8")
    assert text.count(before) == 1
    changed = text.replace(before, "".join(f"{line[1:]}\n" for line in diff.splitlines()))
    (folder / name).write_text(changed, "utf-8")
    return folder


def test_it_is_in_reports_tables_charts_files_choices_and_docs(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    write(tmp_path / "log.csv", rows_of(2400, 1), NAMES)
    program = "import sys; from ftrie.cli import run; sys.exit(run(sys.argv[1:]))"
    path = os.pathsep.join([str(changed), str(ROOT / "proto")])

    def said(*arguments: str) -> str:
        found = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    def ftrie(*arguments: str) -> str:
        return said("-c", program, *arguments)

    table = ftrie("train", "spec.toml", "log.csv", "--metrics", "run.jsonl", "--save", "model.arrow")
    assert "information gain" in table
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    judged = json.loads(ftrie("evaluate", "model.arrow", "log.csv", "--report", "page.html", "--json"))
    learned = next(line for line in lines if line["kind"] == "window")["total"]["variants"]["base"]
    for figures in (learned, judged["variants"]["base"], judged["report"]["total"]["variants"]["base"]):
        assert figures["information_gain"] == pytest.approx(1.0 - figures["normalized_entropy"])
    assert "information gain" in ftrie("evaluate", "model.arrow", "log.csv")
    assert "Information gain by period" in (tmp_path / "page.html").read_text()
    ftrie("report", "run.jsonl", "-o", "run.html")
    assert "The share of the entropy of clicks" in (tmp_path / "run.html").read_text()
    tuned = ftrie("tune", "spec.toml", "log.csv", "--try", "alpha=0.1,0.3", "--by", "information_gain")
    assert "information gain" in tuned
    said(str(changed / "docs/generate.py"))
    assert (
        "| information gain | 1 − normalized entropy | higher |" in (changed / "docs/metrics.md").read_text()
    )
