"""Whole runs that are watched: what `ftrie train` writes of them, and what never changes it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ftrie.cli import run
from ftrie.report.series import read_runs
from model_store.artefact.artefact import Artefact
from tests.trainer.learn.test_metrics import lines_of

SPEC = """
[model]
name = "shop"
[input]
label = "click"
request = "request"
timestamp = "at"
[fields]
age = {}
brand = {}
tags = { kind = "set", separator = "|" }
[[crosses]]
fields = ["age", "brand"]
[variants]
base = {}
plain = { without = ["age*brand"] }
[learner]
ttl = "2d"
"""


@pytest.fixture
def log(tmp_path):
    """1,500 rows in requests of up to four, a click more likely for some ages and brands together."""
    random = np.random.default_rng(8)
    lines = ["click,request,at,age,brand,tags"]
    requests = np.repeat(np.arange(1500), random.integers(1, 5, 1500))[:1500]
    for number, request in enumerate(requests):
        age, brand = random.integers(0, 4, 2)
        tags = "|".join(random.choice(["a", "b", "c"], random.integers(0, 3), replace=False))
        click = int(random.random() < (0.4 if age == brand else 0.1))
        at = f"2026-11-{1 + number // 100:02}T12:00:00"
        lines.append(f"{click},r{request},{at},{age},{brand},{tags}")
    (tmp_path / "shop.toml").write_text(SPEC)
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def train(folder, name, *flags):
    """Run the command in this process; return the metrics file's bytes."""
    command = ["train", str(folder / "shop.toml"), str(folder / "log.csv"), "--metrics", str(folder / name)]
    assert run([*command, "--window", "350", "--slice", "tags", "--slice", "brand*age=1*", *flags]) == 0
    return (folder / name).read_bytes()


def test_threads_and_batches_change_no_byte_and_what_is_watched_does_not_change_the_model(log):
    saved = [log / "one.arrow", log / "two.arrow"]
    whole = train(log, "whole.jsonl", "--save", str(saved[0]))
    assert train(log, "parts.jsonl", "--batch-bytes", "1024", "--threads", "3") == whole
    assert run(["train", str(log / "shop.toml"), str(log / "log.csv"), "--save", str(saved[1])]) == 0
    one, two = map(Artefact.read, saved)
    assert one.sha256 == two.sha256
    assert one.metrics == two.metrics


def test_the_file_holds_what_the_report_says(log, capsys):
    train(log, "m.jsonl", "--report", str(log / "report.json"))
    report = json.loads((log / "report.json").read_text())
    (read,) = read_runs([log / "m.jsonl"])
    assert read.ended and not read.notes
    assert [line.rows for line in read.windows] == [350, 700, 1050, 1400, 1500]
    assert read.windows[0].time == "2026-11-04T12:00:00+00:00"
    assert read.header.clustered_by == "request"
    total = read.windows[-1].total
    assert report["variants"] == {name: each.as_dict() for name, each in total.variants.items()}
    assert report["slices"] == {n: [v.as_dict() for v in each] for n, each in read.detail.slices.items()}
    assert [each["value"] for each in report["slices"]["tags"]] and set(report["slices"]) == {
        "tags",
        "brand*age=1*",
    }
    assert {each["value"][:2] for each in report["slices"]["brand*age=1*"]} == {"1*"}
    shown = capsys.readouterr().out
    found = report["variants"]["plain"]["difference"]
    assert f"{found['logloss']:+.5f} ± {(found['high'] - found['low']) / 2:.5f}" in shown


def test_an_interrupted_and_resumed_run_leaves_the_same_file(log):
    whole = train(log, "whole.jsonl")
    lines = (log / "log.csv").read_text().splitlines(keepends=True)
    text = "".join(lines)
    keep = ["--checkpoint", str(log / "state"), "--every", "250"]
    (log / "log.csv").write_text("".join(lines[:901]))
    train(log, "m.jsonl", *keep)
    end = lines_of(log / "m.jsonl")[-1]
    assert (end["kind"], end["rows"]) == ("end", 900) and end["collisions"]["hash_bits"] is None
    (log / "log.csv").write_text(text)
    assert train(log, "m.jsonl", *keep, "--resume") == whole


def test_slices_that_there_are_not_and_a_resumed_run_with_other_metrics_options_are_refused(log, capsys):
    command = ["train", str(log / "shop.toml"), str(log / "log.csv")]
    assert run([*command, "--slice", "agee"]) == 2
    assert "--slice 'agee' is neither a field nor a key prefix such as" in capsys.readouterr().err
    keep = ["--checkpoint", str(log / "state"), "--every", "250"]
    train(log, "m.jsonl", *keep)
    assert run([*command, "--window", "300", *keep, "--resume"]) == 7
    said = "--window 350 --slice tags --slice brand*age=1* and is resumed with --window 300"
    assert said in capsys.readouterr().err
