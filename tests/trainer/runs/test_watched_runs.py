"""Whole runs that are watched: what `ftrie train` writes of them, and what never changes it."""

from __future__ import annotations

from ftrie.cli import run
from ftrie.draw.runs import read_runs
from model_store.artefact.artefact import Artefact
from tests.trainer.learn.test_metrics import lines_of
from tests.trainer.runs.runs import Shop


def test_what_is_watched_does_not_change_the_model(shop: Shop) -> None:
    log, alone = shop.log(600), shop.folder / "alone.arrow"
    shop.learned("watched", [log])
    assert run(["train", str(shop.spec), str(log), "--save", str(alone)]) == 0
    one, two = map(Artefact.read, (shop.folder / "watched/save.arrow", alone))
    assert (one.sha256, one.metrics) == (two.sha256, two.metrics)


def test_the_file_holds_what_the_report_says(shop: Shop, capsys) -> None:
    shop.spec.write_text(shop.spec.read_text().replace("[learner]\n", '[learner]\nttl = "2h"\n'))
    report = shop.learned("run", [shop.log(600)], "--slice=tags", "--slice=brand*age=nike0*").report
    lines = lines_of(shop.folder / "run/metrics.jsonl")
    (read,) = read_runs([shop.folder / "run/metrics.jsonl"])
    assert read.ended and not read.notes
    assert [line.rows for line in read.windows] == [250, 500, report["rows"]]
    assert read.windows[0].time == "2023-11-16T03:24:00+00:00"
    assert read.header.clustered_by == "request"
    assert (lines[-1]["kind"], lines[-1]["rows"]) == ("end", report["rows"])
    assert lines[-1]["collisions"]["setting"] == ""
    total = read.windows[-1].total
    assert report["variants"] == {name: each.as_dict() for name, each in total.variants.items()}
    assert report["slices"] == {n: [v.as_dict() for v in each] for n, each in read.detail.slices.items()}
    assert [each["value"] for each in report["slices"]["tags"]]
    assert report["slices"].keys() == {"age", "tags", "brand*age=nike0*"}
    assert {each["value"][:6] for each in report["slices"]["brand*age=nike0*"]} == {"nike0*"}
    found = report["variants"]["plain"]["difference"]
    half = (found["high"] - found["low"]) / 2
    assert f"{found['logloss']:+.5f} ± {half:.5f}" in capsys.readouterr().out


def test_slices_that_there_are_not_and_a_resumed_run_with_other_metrics_options_are_refused(shop, capsys):
    log, training = shop.log(300), shop.training()
    assert run(training.arguments([log], "--slice=size")) == 2
    assert "size is a real number and has one key for all its values" in capsys.readouterr().err
    assert run(training.keeping([log])) == 0 and run(training.keeping([log], "--window=300")) == 7
    assert "--window 250 --slice age and is resumed with --window 300" in capsys.readouterr().err
