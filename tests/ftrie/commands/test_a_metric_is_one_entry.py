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
        # With what is compiled already, but not what another process is just writing.
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.pyc.*"))
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


# Each command as a process of its own would run it, and the pages last; each prints for itself, into its file.
PROGRAM = """
import contextlib, json, runpy, sys
from ftrie.cli import run

for name, *words in json.loads(sys.argv[1]):
    with open(name, "w") as file, contextlib.redirect_stdout(file):
        if words[0].endswith(".py"):
            runpy.run_path(words[0], run_name="__main__")
        else:
            assert run(words) == 0, words
"""


@pytest.mark.slow
def test_it_is_in_reports_tables_charts_files_choices_and_docs(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    write(tmp_path / "log.csv", rows_of(2400, 1), NAMES)
    log, pages = ("model.arrow", "log.csv"), str(changed / "docs/generate.py")
    commands = [
        ("table", "train", "spec.toml", "log.csv", "--metrics", "run.jsonl", "--save", "model.arrow"),
        ("judged", "evaluate", *log, "--report", "page.html", "--json"),
        ("shown", "evaluate", *log),
        ("drawn", "report", "run.jsonl", "-o", "run.html"),
        ("tuned", "tune", "spec.toml", "log.csv", "--try", "alpha=0.1,0.3", "--by", "information_gain"),
        ("generated", pages),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(changed), str(ROOT / "proto")]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = {name: (tmp_path / name).read_text() for name, *_ in commands}
    for name in ("table", "shown", "tuned"):
        assert "information gain" in said[name]
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    judged = json.loads(said["judged"])
    learned = next(line for line in lines if line["kind"] == "window")["total"]["variants"]["base"]
    for figures in (learned, judged["variants"]["base"], judged["report"]["total"]["variants"]["base"]):
        assert figures["information_gain"] == pytest.approx(1.0 - figures["normalized_entropy"])
    assert "Information gain by period" in (tmp_path / "page.html").read_text()
    assert "The share of the entropy of clicks" in (tmp_path / "run.html").read_text()
    assert (
        "| information gain | 1 − normalized entropy | higher |" in (changed / "docs/metrics.md").read_text()
    )
