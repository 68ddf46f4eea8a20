"""`ftrie replay` from its command line: rows and events, what it answers, what it refuses."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError
from model_store.spec.spec import load_spec
from model_store.store import Store
from tests.trainer.off_policy.rows import (
    ITEMS,
    SPEC,
    Row,
    lists_of,
    rows_of,
    write_events,
    write_items,
    write_rows,
)

EVENTS_SPEC = SPEC.replace('request = "request"', 'request = "request_id"\ntimestamp = "ts"')
Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    """What `ftrie replay … --json` prints."""
    capsys.readouterr()  # of commands before
    assert run(["replay", *map(str, arguments), "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: Capture, *arguments: str | Path) -> str:
    """What it says of what it does not do."""
    assert run(["replay", *map(str, arguments)]) != 0
    return capsys.readouterr().err


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def events_spec(tmp_path: Path) -> Path:
    path = tmp_path / "events.toml"
    path.write_text(EVENTS_SPEC)
    return path


def test_a_replay_of_rows_learns_what_a_training_does(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(500, seed=1))
    found = answer(
        capsys, spec, log, "--save", tmp_path / "replayed.arrow", "--report", tmp_path / "report.json"
    )
    assert run(["train", str(spec), str(log), "--save", str(tmp_path / "trained.arrow")]) == 0
    assert (tmp_path / "replayed.arrow").read_bytes() == (tmp_path / "trained.arrow").read_bytes()
    assert found["sha256"] == Artefact.read(tmp_path / "trained.arrow").sha256
    assert (found["kind"], found["examples"], found["estimates"]) == ("rows", 500, None)
    assert json.loads((tmp_path / "report.json").read_text()) == found


def test_a_replay_of_events_joins_them(events_spec: Path, tmp_path: Path, capsys: Capture) -> None:
    lists = lists_of(200, seed=2)
    impressions, clicks = write_events(tmp_path, lists)
    found = answer(capsys, events_spec, impressions, clicks)
    clicked = sum(len(each["clicked"]) for each in lists)
    assert (found["kind"], found["examples"]) == ("events", 400)
    assert (found["events"]["impressions"], found["events"]["feedback"]) == (200, clicked)
    assert (found["join"]["positives"], found["join"]["negatives"]) == (clicked, 400 - clicked)
    assert found["span_s"] == pytest.approx(199.0)
    assert found["speed"] > 0.0


def test_a_replay_is_the_same_however_its_files_are_cut(
    events_spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    impressions, clicks = write_events(tmp_path, lists_of(300, seed=3))
    lines = impressions.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        (folder / f"{part}.jsonl.gz").write_bytes(
            gzip.compress(b"".join(lines[part * 100 : part * 100 + 100]))
        )
    whole = answer(capsys, events_spec, impressions, clicks)
    parts = answer(capsys, events_spec, folder, clicks)
    assert parts["sha256"] == whole["sha256"]


def test_what_a_stores_streams_hold_is_replayed(
    events_spec: Path, tmp_path: Path, store: Store, store_url: str, capsys: Capture
) -> None:
    impressions, clicks = write_events(tmp_path, lists_of(50, seed=4))
    store.impressions("shop").append(impressions.read_bytes().splitlines())
    store.clicks("shop").append(clicks.read_bytes().splitlines())
    found = answer(capsys, events_spec, "store", "--store", store_url, "--publish")
    assert (found["examples"], found["version"]) == (100, 1)
    assert store.model("shop").materialise(1).sha256 == found["sha256"]
    assert store.model("shop").active() is None


def trained(spec: Path, folder: Path, store_url: str, *logs: Path) -> bytes:
    """The model that `ftrie trainer` learns from the same logs."""
    sources = [word for log in logs for word in ("--from", str(log))]
    flags = ["--once", "--no-publish", "--store", store_url, "--checkpoint", str(folder / "state")]
    saved = folder / "trained.arrow"
    assert run(["trainer", str(spec), *sources, *flags, "--save", str(saved)]) == 0
    return saved.read_bytes()


def test_a_spec_without_fields_takes_those_of_the_events_as_the_trainer_does(
    tmp_path: Path, store_url: str, capsys: Capture
) -> None:
    spec = tmp_path / "bare.toml"
    spec.write_text('[model]\nname = "shop"\n[input]\nlabel = "click"\nitem = "item"\n[learner]\nl1 = 0.0\n')
    logs = write_events(tmp_path, lists_of(50, seed=4))
    found = answer(capsys, spec, *logs, "--save", tmp_path / "replayed.arrow", "--policy", "learning")
    assert found["examples"] == 100
    assert set(Artefact.read(tmp_path / "replayed.arrow").spec.fields) == {"age", "brand"}
    assert (tmp_path / "replayed.arrow").read_bytes() == trained(spec, tmp_path, store_url, *logs)


def test_a_folder_of_rows_is_replayed_as_the_trainer_reads_it(
    spec: Path, tmp_path: Path, store_url: str, capsys: Capture
) -> None:
    folder = tmp_path / "day=1"
    folder.mkdir()
    rows = rows_of(60, seed=8)
    write_rows(folder / "b.csv", rows[40:])
    write_rows(folder / "a.csv", rows[:40])
    found = answer(capsys, spec, folder, "--save", tmp_path / "replayed.arrow")
    assert (found["kind"], found["examples"]) == ("rows", 60)
    assert (tmp_path / "replayed.arrow").read_bytes() == trained(spec, tmp_path, store_url, folder)
    assert answer(capsys, spec, f"rows={folder}")["sha256"] == found["sha256"]


def test_a_replay_of_which_too_many_rows_are_rejected_is_not_published_unless_forced(
    spec: Path, tmp_path: Path, store: Store, store_url: str, capsys: Capture
) -> None:
    log = tmp_path / "bad.csv"
    write_rows(
        log, [row if index % 5 else row | {"click": "?"} for index, row in enumerate(rows_of(60, seed=8))]
    )
    publish = ["replay", str(spec), str(log), "--publish", "--store", store_url]
    assert run(publish) == InputError.exit_code
    assert "12 rows were rejected, 20 % of those read" in capsys.readouterr().err
    assert not store.model(load_spec(spec).model.name).versions()
    assert run([*publish, "--force"]) == 0
    assert len(store.model(load_spec(spec).model.name).versions()) == 1


def test_a_row_of_many_views_counts_once_among_those_that_are_rejected(
    tmp_path: Path, store_url: str, capsys: Capture
) -> None:
    spec, log = tmp_path / "views.toml", tmp_path / "views.csv"
    spec.write_text('[model]\nname = "v"\n[input]\nlabel = "clicks"\nviews = "views"\n[fields]\nsite = {}\n')
    lines = [f"{3 if row % 8 else 'x'},9,s{row % 3}" for row in range(80)]  # each good row is two examples
    log.write_text("\n".join(["clicks,views,site", *lines]) + "\n")
    assert run(["replay", str(spec), str(log), "--publish", "--store", store_url]) == InputError.exit_code
    assert "10 rows were rejected, 12.5 % of those read" in capsys.readouterr().err


def test_a_replay_reads_rows_from_a_pipe_once_and_estimates_need_a_file(
    spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(60, seed=8))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        done = pool.submit(pipe.write_bytes, log.read_bytes())
        assert answer(capsys, spec, pipe)["sha256"] == answer(capsys, spec, log)["sha256"]
        done.result()
    assert run(["replay", str(spec), str(pipe), "--policy", "logged"]) == InputError.exit_code
    assert "can be read only once" in capsys.readouterr().err


def slow_lists(lists: list[Row], included: Any) -> tuple[float, float]:
    """IPS and SNIPS of a policy that has item i among two with the chance included(i)."""
    weighted = weights = shown = 0.0
    for each in lists:
        for item in each["items"]:
            w = included(item["id"]) / item["propensity"]
            weighted += w * (item["id"] in each["clicked"])
            weights += w
            shown += 1
    return weighted / shown, weighted / weights


def test_lists_are_weighed_by_the_chance_of_being_among_those_shown(
    events_spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Given lists of two drawn alike, when a model's best two are judged, each item's chance is 0 or 1 by 2 / 5."""
    lists = lists_of(600, seed=5)
    impressions, clicks = write_events(tmp_path, lists)
    before = write_rows(tmp_path / "before.csv", rows_of(2000, seed=6))
    saved = tmp_path / "shop.arrow"
    only_items = tmp_path / "items.toml"
    only_items.write_text(
        '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nitem = { side = "item" }\n'
    )
    assert run(["train", str(only_items), str(before), "--save", str(saved)]) == 0
    capsys.readouterr()
    found = answer(
        capsys,
        events_spec,
        impressions,
        clicks,
        "--policy",
        saved,
        "--policy",
        "uniform",
        "--choose",
        "greedy",
    )["estimates"]
    model, uniform = found["policies"]
    best = {"a", "c"}  # by far the most clicked
    ips, snips = slow_lists(lists, lambda item: float(item in best))
    assert (found["decision"], found["size"], found["candidates"]) == ("list", 2.0, 5)
    assert model["estimates"]["ips"]["value"] == pytest.approx(ips)
    assert model["estimates"]["snips"]["value"] == pytest.approx(snips)
    assert model["support"]["mean"] == pytest.approx(1.0, abs=0.1)
    rate = np.mean([len(each["clicked"]) / 2 for each in lists])
    assert uniform["estimates"]["snips"]["value"] == pytest.approx(rate)
    assert model["positions"] == {}


def test_a_late_click_that_corrects_a_row_counts_once(tmp_path: Path, capsys: Capture) -> None:
    spec = tmp_path / "late.toml"
    spec.write_text(
        EVENTS_SPEC + '\n[join]\nwindow = "10s"\nlateness = "0s"\nlate = "correct"\nlate_within = "1h"\n'
    )
    lists = lists_of(100, seed=7)
    impressions, clicks = write_events(tmp_path, lists)
    late = [json.loads(line) for line in clicks.read_text().splitlines()]
    clicks.write_text("".join(json.dumps({**each, "ts": each["ts"] + 30.0}) + "\n" for each in late))
    found = answer(capsys, spec, impressions, clicks, "--policy", "logged")
    assert found["join"]["corrections"] > 0
    clicked = found["join"]["corrections"] + found["join"]["positives"]
    assert found["estimates"]["rows"] == 200
    assert found["estimates"]["policies"][0]["estimates"]["ips"]["value"] == pytest.approx(clicked / 200)


def test_what_is_printed_names_the_policies_and_their_warnings(
    spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(50, seed=1))
    assert run(["replay", str(spec), str(log), "--policy", "uniform", "--policy", "learning@plain"]) == 0
    printed = capsys.readouterr()
    assert "learning@plain greedy" in printed.out
    assert "effective rows" in printed.out
    assert "learning@plain greedy: its effective sample is" in printed.err


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("learning@nobody", "no variant 'nobody'"),
        ("uniform@base", "uniform has no variants"),
        ("@base", "expected MODEL"),
        ("nowhere.arrow", "nowhere.arrow"),
    ],
)
def test_a_policy_that_is_none_is_refused(
    policy: str, reason: str, spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(20, seed=1))
    assert reason in refusal(capsys, spec, log, "--policy", policy)


def test_a_log_that_was_certain_of_what_it_showed_is_refused(
    spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    certain = [{**row, "propensity": 1} for row in rows_of(20, seed=1)]
    log = write_rows(tmp_path / "log.csv", certain)
    assert "every propensity is 1" in refusal(capsys, spec, log, "--policy", "uniform")
    assert answer(capsys, spec, log, "--policy", "logged")["estimates"]["policies"][0]["name"] == "logged"


def test_a_log_without_propensities_says_only_what_it_did(
    spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    rows = [
        {name: value for name, value in row.items() if name != "propensity"} for row in rows_of(20, seed=1)
    ]
    log = write_rows(tmp_path / "log.csv", rows)
    assert "--propensity" in refusal(capsys, spec, log, "--policy", "learning")
    logged = answer(capsys, spec, log, "--policy", "logged")["estimates"]["policies"][0]
    assert logged["estimates"]["ips"]["value"] == pytest.approx(np.mean([row["click"] for row in rows]))


def test_a_model_that_cannot_tell_items_apart_is_refused(tmp_path: Path, capsys: Capture) -> None:
    spec = tmp_path / "flat.toml"
    spec.write_text('[model]\nname = "shop"\n[input]\nlabel = "click"\nitem = "item"\n[fields]\nage = {}\n')
    log = write_rows(tmp_path / "log.csv", rows_of(20, seed=1))
    assert 'no field with side = "item"' in refusal(capsys, spec, log, "--policy", "learning")


def test_an_item_that_does_not_fit_the_model_is_named(tmp_path: Path, capsys: Capture) -> None:
    spec = tmp_path / "numbers.toml"
    spec.write_text(SPEC.replace('brand = { side = "item" }', 'brand = { side = "item", kind = "number" }'))
    rows = [{name: value for name, value in row.items() if name != "brand"} for row in rows_of(20, seed=1)]
    items = write_items(tmp_path / "items.csv")
    items.write_text(items.read_text().replace("puma", "7").replace("nike", "8"))
    shown = [row for row in rows if row["item"] != "d"]
    log = write_rows(tmp_path / "log.csv", shown)
    assert "item 'd' cannot be a candidate" in refusal(
        capsys, spec, log, "--items", items, "--policy", "learning"
    )


def test_a_log_without_an_event_or_a_label_is_refused(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"age": 1}\n' * 3)
    said = refusal(capsys, spec, log)
    assert "no line is an event (got neither items nor item" in said
    assert "none is a row with the label 'click'" in said


def test_a_folder_may_be_called_like_a_kind_of_source(
    events_spec: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, name in zip(
        write_events(tmp_path, lists_of(5, seed=1)), ("impressions", "clicks"), strict=True
    ):
        (tmp_path / name).mkdir()
        path.rename(tmp_path / name / "log.jsonl")
    assert answer(capsys, events_spec, "impressions", "clicks")["examples"] == 10


def test_logs_of_two_kinds_are_refused(events_spec: Path, tmp_path: Path, capsys: Capture) -> None:
    impressions, _ = write_events(tmp_path, lists_of(5, seed=1))
    log = write_rows(tmp_path / "log.csv", rows_of(5, seed=1))
    assert "logs of one kind" in refusal(capsys, events_spec, impressions, log)


def test_flags_of_labelled_rows_are_refused_for_events(
    events_spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    logs = write_events(tmp_path, lists_of(5, seed=1))
    for flag, value in (
        ("--format", "jsonl"),
        ("--rejects", "r.jsonl"),
        ("--items", "i.csv"),
        ("--users", "u.csv"),
    ):
        assert f"{flag} is for labelled rows" in refusal(capsys, events_spec, *logs, flag, value)


def test_places_are_counted_as_numbers_are(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(20, seed=1, per_request=11))
    found = answer(capsys, spec, log, "--policy", "uniform", "--bootstrap", "0")
    places = list(found["estimates"]["policies"][0]["positions"])
    assert places == [str(place) for place in range(1, 12)]


def test_a_choice_of_lists_that_cannot_be_weighed_is_refused(
    events_spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    logs = write_events(tmp_path, lists_of(20, seed=1))
    said = refusal(capsys, events_spec, *logs, "--policy", "learning", "--choose", "softmax:1")
    assert "softmax chooses one item" in said


def test_a_model_of_nothing_is_not_saved(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    log = write_rows(tmp_path / "log.csv", [{**row, "click": "maybe"} for row in rows_of(5, seed=1)])
    assert "nothing was learned" in refusal(capsys, spec, log, "--save", tmp_path / "model.arrow")
    assert not (tmp_path / "model.arrow").exists()


def test_every_item_is_a_candidate_though_the_log_shows_few(
    spec: Path, tmp_path: Path, capsys: Capture
) -> None:
    rows = [row for row in rows_of(60, seed=1) if row["item"] in "ab"]
    log, items = write_rows(tmp_path / "log.csv", rows), write_items(tmp_path / "items.csv")
    without = answer(capsys, spec, log, "--policy", "uniform", "--bootstrap", "0")
    with_file = answer(capsys, spec, log, "--policy", "uniform", "--items", items, "--bootstrap", "0")
    assert without["estimates"]["candidates"] == 2
    assert with_file["estimates"]["candidates"] == len(ITEMS)
