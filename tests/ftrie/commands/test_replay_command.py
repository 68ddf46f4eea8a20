"""`ftrie replay` from its command line: rows and events, what it answers, what it refuses."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, NoSupport
from model_store.store import Store
from tests.ftrie.conftest import Ask, Say
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
BARE_SPEC = '[model]\nname = "shop"\n[input]\nlabel = "click"\nitem = "item"\n[learner]\nl1 = 0.0\n'
VIEWS_SPEC = '[model]\nname = "v"\n[input]\nlabel = "clicks"\nviews = "views"\n[fields]\nsite = {}\n'
Refuse = Callable[..., str]


@pytest.fixture
def refusal(say: Say) -> Refuse:
    """What `ftrie replay` says of what it does not do."""

    def refused(*words: object) -> str:
        code, _, err = say("replay", *words)
        assert code != 0
        return err

    return refused


def written(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return written(tmp_path, SPEC)


@pytest.fixture
def events_spec(tmp_path: Path) -> Path:
    return written(tmp_path, EVENTS_SPEC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "log.csv", rows_of(20, seed=1))


def test_a_replay_of_rows_learns_what_a_training_does(spec: Path, tmp_path: Path, ask: Ask) -> None:
    replayed, trained, report = (tmp_path / name for name in ("r.arrow", "t.arrow", "report.json"))
    log = write_rows(tmp_path / "log.csv", rows_of(500, seed=1))
    found = ask("replay", spec, log, "--save", replayed, "--report", report)
    ask("train", spec, log, "--save", trained)
    assert replayed.read_bytes() == trained.read_bytes()
    assert found["sha256"] == Artefact.read(trained).sha256
    assert (found["kind"], found["examples"], found["estimates"]) == ("rows", 500, None)
    assert json.loads(report.read_text()) == found


def test_a_replay_of_events_joins_them_however_their_files_are_cut_and_called(
    events_spec: Path, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = lists_of(200, seed=2)
    impressions, clicks = write_events(tmp_path, lists)
    found = ask("replay", events_spec, impressions, clicks)
    clicked = sum(len(each["clicked"]) for each in lists)
    assert (found["kind"], found["examples"]) == ("events", 400)
    assert (found["events"]["impressions"], found["events"]["feedback"]) == (200, clicked)
    assert (found["join"]["positives"], found["join"]["negatives"]) == (clicked, 400 - clicked)
    assert found["span_s"] == pytest.approx(199.0)
    assert found["speed"] > 0.0

    lines = impressions.read_bytes().splitlines(keepends=True)
    monkeypatch.chdir(tmp_path)
    folder = Path("impressions")  # a folder may be called like a kind of source
    folder.mkdir()
    for part in range(3):
        packed = gzip.compress(b"".join(lines[part * 70 : part * 70 + 70]))
        (folder / f"{part}.jsonl.gz").write_bytes(packed)
    assert ask("replay", events_spec, folder, clicks)["sha256"] == found["sha256"]


def test_the_lists_of_events_are_those_of_the_request_id_also_if_the_spec_names_none(
    tmp_path: Path, ask: Ask
) -> None:
    logs = write_events(tmp_path, lists_of(400, seed=2))
    flags = ("--policy", "uniform", "--policy", "learning", "--bootstrap", "0")
    named, unnamed = (
        ask("replay", written(tmp_path, text), *logs, *flags)["estimates"]
        for text in (EVENTS_SPEC, EVENTS_SPEC.replace('request = "request_id"\n', ""))
    )
    assert unnamed == named
    assert named["policies"][0]["warnings"] == []


def test_what_a_stores_streams_hold_is_replayed(
    events_spec: Path, tmp_path: Path, store: Store, store_url: str, ask: Ask
) -> None:
    impressions, clicks = write_events(tmp_path, lists_of(50, seed=4))
    store.impressions("shop").append(impressions.read_bytes().splitlines())
    store.clicks("shop").append(clicks.read_bytes().splitlines())
    found = ask("replay", events_spec, "store", "--store", store_url, "--publish")
    assert (found["examples"], found["version"]) == (100, 1)
    assert store.model("shop").materialise(1).sha256 == found["sha256"]
    assert store.model("shop").active() is None


def trained(ask: Ask, spec: Path, store_url: str, *logs: Path) -> bytes:
    """The model that `ftrie trainer` learns from the same logs."""
    saved, state = spec.with_name("trained.arrow"), spec.with_name("state")
    sources = [word for log in logs for word in ("--from", log)]
    flags = ["--once", "--no-publish", "--store", store_url, "--checkpoint", state, "--save", saved]
    ask("trainer", spec, *sources, *flags)
    return saved.read_bytes()


def test_a_spec_without_fields_takes_those_of_the_events_as_the_trainer_does(
    tmp_path: Path, store_url: str, ask: Ask
) -> None:
    spec, replayed = written(tmp_path, BARE_SPEC), tmp_path / "replayed.arrow"
    logs = write_events(tmp_path, lists_of(50, seed=4))
    assert ask("replay", spec, *logs, "--save", replayed, "--policy", "learning")["examples"] == 100
    assert set(Artefact.read(replayed).spec.fields) == {"age", "brand"}
    assert replayed.read_bytes() == trained(ask, spec, store_url, *logs)


def test_a_folder_of_rows_is_replayed_as_the_trainer_reads_it(
    spec: Path, tmp_path: Path, store_url: str, ask: Ask
) -> None:
    folder, replayed, rows = tmp_path / "day=1", tmp_path / "replayed.arrow", rows_of(60, seed=8)
    folder.mkdir()
    write_rows(folder / "b.csv", rows[40:])
    write_rows(folder / "a.csv", rows[:40])
    found = ask("replay", spec, folder, "--save", replayed)
    assert (found["kind"], found["examples"]) == ("rows", 60)
    assert replayed.read_bytes() == trained(ask, spec, store_url, folder)
    assert ask("replay", spec, f"rows={folder}")["sha256"] == found["sha256"]


def test_a_replay_of_which_too_many_rows_are_rejected_is_not_published_unless_forced(
    spec: Path, tmp_path: Path, store: Store, store_url: str, say: Say
) -> None:
    rows = rows_of(60, seed=8)
    bad = write_rows(tmp_path / "bad.csv", [row | {"click": "?"} for row in rows[::5]] + rows[12:])
    publish = ["--publish", "--store", store_url]
    code, _, err = say("replay", spec, bad, *publish)
    assert (code, "12 rows were rejected, 20 % of those read" in err) == (InputError.exit_code, True)
    assert not store.model("shop").versions()
    assert say("replay", spec, bad, *publish, "--force")[0] == 0
    assert len(store.model("shop").versions()) == 1

    lines = [f"{3 if row % 8 else 'x'},9,s{row % 3}" for row in range(80)]  # each good row is two examples
    bad.write_text("\n".join(["clicks,views,site", *lines]) + "\n")
    code, _, err = say("replay", written(tmp_path, VIEWS_SPEC), bad, *publish)
    assert (code, "10 rows were rejected, 12.5 % of those read" in err) == (InputError.exit_code, True)


def test_a_replay_reads_rows_from_a_pipe_once_and_estimates_need_a_file(
    spec: Path, tmp_path: Path, log: Path, ask: Ask, refusal: Refuse
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        done = pool.submit(pipe.write_bytes, log.read_bytes())
        assert ask("replay", spec, pipe)["sha256"] == ask("replay", spec, log)["sha256"]
        done.result()
    assert "can be read only once" in refusal(spec, pipe, "--policy", "logged")


def slow_lists(lists: list[Row], best: set[str]) -> tuple[float, float]:
    """IPS and SNIPS of a policy that shows the best two."""
    weighted = weights = shown = 0.0
    for each in lists:
        for item in each["items"]:
            w = (item["id"] in best) / item["propensity"]
            weighted += w * (item["id"] in each["clicked"])
            weights += w
            shown += 1
    return weighted / shown, weighted / weights


def test_lists_are_weighed_by_the_chance_of_being_among_those_shown(
    events_spec: Path, tmp_path: Path, ask: Ask
) -> None:
    """Given lists of two drawn alike, when a model's best two are judged, each item's chance is 0 or 1 by 2 / 5."""
    lists = lists_of(600, seed=5)
    logs = write_events(tmp_path, lists)
    before, saved = write_rows(tmp_path / "before.csv", rows_of(2000, seed=6)), tmp_path / "shop.arrow"
    only_items = tmp_path / "items.toml"
    only_items.write_text(BARE_SPEC[: BARE_SPEC.index("item =")] + '[fields]\nitem = { side = "item" }\n')
    ask("train", only_items, before, "--save", saved)
    policies = ["--policy", saved, "--policy", "uniform", "--choose", "greedy"]
    found = ask("replay", events_spec, *logs, *policies)["estimates"]
    model, uniform = found["policies"]
    ips, snips = slow_lists(lists, {"a", "c"})  # by far the most clicked
    assert (found["decision"], found["size"], found["candidates"]) == ("list", 2.0, 5)
    assert model["estimates"]["ips"]["value"] == pytest.approx(ips)
    assert model["estimates"]["snips"]["value"] == pytest.approx(snips)
    assert model["support"]["mean"] == pytest.approx(1.0, abs=0.1)
    rate = np.mean([len(each["clicked"]) / 2 for each in lists])
    assert uniform["estimates"]["snips"]["value"] == pytest.approx(rate)
    assert model["positions"] == {}


def test_a_late_click_that_corrects_a_row_counts_once(tmp_path: Path, ask: Ask) -> None:
    join = '\n[join]\nwindow = "10s"\nlateness = "0s"\nlate = "correct"\nlate_within = "1h"\n'
    impressions, clicks = write_events(tmp_path, lists_of(100, seed=7))
    late = [json.loads(line) for line in clicks.read_text().splitlines()]
    clicks.write_text("".join(json.dumps({**each, "ts": each["ts"] + 30.0}) + "\n" for each in late))
    words = [written(tmp_path, EVENTS_SPEC + join), impressions, clicks, "--policy", "logged"]
    found = ask("replay", *words)
    assert found["join"]["corrections"] > 0
    clicked = found["join"]["corrections"] + found["join"]["positives"]
    assert found["estimates"]["rows"] == 200
    assert found["estimates"]["policies"][0]["estimates"]["ips"]["value"] == pytest.approx(clicked / 200)


def test_what_is_printed_names_the_policies_and_their_warnings(spec: Path, log: Path, say: Say) -> None:
    write_rows(log, rows_of(300, seed=1))
    code, out, err = say("replay", spec, log, "--policy", "uniform", "--policy", "learning@plain")
    assert code == 0
    assert "learning@plain greedy" in out
    assert "effective rows" in out
    assert "learning@plain greedy: its effective sample is" in err


def test_a_log_that_cannot_answer_for_a_policy_says_why_beside_what_it_can(
    spec: Path, log: Path, say: Say
) -> None:
    """Given 20 rows, when a greedy policy is estimated, which they show a few times, it has no estimates."""
    words = ("replay", spec, log, "--policy", "logged", "--policy", "learning@plain")
    code, out, err = say(*words)
    assert (code, "refused" in out) == (NoSupport.exit_code, True)
    assert "learning@plain greedy: refused: its effective sample is" in err
    code, out, _ = say(*words, "--json")
    logged, greedy = json.loads(out)["estimates"]["policies"]
    assert (code, greedy["estimates"], logged["refused"]) == (NoSupport.exit_code, {}, [])
    assert "would help" in greedy["refused"][0] and logged["estimates"]["snips"]["value"] is not None


def test_places_are_counted_as_numbers_are_and_every_item_of_a_file_is_a_candidate(
    spec: Path, tmp_path: Path, ask: Ask, say: Say
) -> None:
    log = write_rows(tmp_path / "log.csv", rows_of(20, seed=1, per_request=11))
    uniform = ["--policy", "uniform", "--bootstrap", "0"]
    places = list(ask("replay", spec, log, *uniform)["estimates"]["policies"][0]["positions"])
    assert places == [str(place) for place in range(1, 12)]
    halves = {"a": 0.25, "b": 0.75}  # the chances of both, of a log that shows no other
    shown = [
        row | {"propensity": halves[row["item"]]} for row in rows_of(400, seed=1) if row["item"] in halves
    ]
    write_rows(log, shown)
    assert ask("replay", spec, log, *uniform)["estimates"]["candidates"] == 2
    items = ["--items", write_items(tmp_path / "items.csv")]
    code, out, _ = say("replay", spec, log, *uniform, *items, "--json")
    found = json.loads(out)["estimates"]
    assert (code, found["candidates"]) == (NoSupport.exit_code, len(ITEMS))
    assert "60.0% of the items it shows are never shown in the log" in found["policies"][0]["refused"][0]


def test_a_policy_that_is_none_is_refused(spec: Path, log: Path, refusal: Refuse) -> None:
    for policy, reason in (
        ("learning@nobody", "no variant 'nobody'"),
        ("uniform@base", "uniform has no variants"),
        ("@base", "expected MODEL"),
        ("nowhere.arrow", "nowhere.arrow"),
    ):
        assert reason in refusal(spec, log, "--policy", policy)


def without(name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != name} for row in rows_of(20, seed=1)]


def test_a_log_without_useful_propensities_says_only_what_it_did(
    spec: Path, log: Path, ask: Ask, refusal: Refuse
) -> None:
    write_rows(log, [{**row, "propensity": 1} for row in rows_of(20, seed=1)])
    assert "every propensity is 1" in refusal(spec, log, "--policy", "uniform")
    logged = ask("replay", spec, log, "--policy", "logged")["estimates"]["policies"][0]
    assert logged["name"] == "logged"
    write_rows(log, without("propensity"))
    assert "--propensity" in refusal(spec, log, "--policy", "learning")
    logged = ask("replay", spec, log, "--policy", "logged")["estimates"]["policies"][0]
    clicked = np.mean([row["click"] for row in rows_of(20, seed=1)])
    assert logged["estimates"]["ips"]["value"] == pytest.approx(clicked)


def test_models_and_items_that_are_not_told_apart_are_refused(
    tmp_path: Path, log: Path, refusal: Refuse
) -> None:
    flat = written(tmp_path, BARE_SPEC + "[fields]\nage = {}\n")
    assert 'no field with side = "item"' in refusal(flat, log, "--policy", "learning")
    numbers = 'brand = { side = "item", kind = "number" }'
    spec = written(tmp_path, SPEC.replace('brand = { side = "item" }', numbers))
    items = write_items(tmp_path / "items.csv")
    items.write_text(items.read_text().replace("puma", "7").replace("nike", "8"))
    write_rows(log, [row for row in without("brand") if row["item"] != "d"])
    assert "item 'd' cannot be a candidate" in refusal(spec, log, "--items", items, "--policy", "learning")


def test_a_log_without_an_event_or_a_label_is_refused_and_a_model_of_nothing_not_saved(
    spec: Path, log: Path, tmp_path: Path, refusal: Refuse
) -> None:
    neither, model = tmp_path / "log.jsonl", tmp_path / "model.arrow"
    neither.write_text('{"age": 1}\n' * 3)
    said = refusal(spec, neither)
    assert "no line is an event (got neither items nor item" in said
    assert "none is a row with the label 'click'" in said
    write_rows(log, [{**row, "click": "maybe"} for row in rows_of(5, seed=1)])
    assert "no row could be learned from (5 rejected" in refusal(spec, log, "--save", model)
    assert not model.exists()


def test_what_does_not_go_with_events_is_refused(
    events_spec: Path, tmp_path: Path, log: Path, refusal: Refuse
) -> None:
    logs = write_events(tmp_path, lists_of(20, seed=1))
    assert "logs of one kind" in refusal(events_spec, logs[0], log)
    for flag in ("--format jsonl", "--rejects r.jsonl", "--items i.csv", "--users u.csv"):
        said = refusal(events_spec, *logs, *flag.split())
        assert f"{flag.split()[0]} is for labelled rows" in said
    said = refusal(events_spec, *logs, "--policy", "learning", "--choose", "softmax:1")
    assert "softmax chooses one item" in said
