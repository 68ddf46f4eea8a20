"""docs/degradation.md, "The trainer": what it learns from is trimmed, deleted, damaged, or comes too fast."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import StoreError
from model_store.keys import SNAPSHOT, ModelKeys
from model_store.store import Store
from tests.degradation.learning import LONG_S, Learning, OfFiles, OfStreams, served
from tests.degradation.recovered import Recovered
from tests.degradation.system import Valkey
from tests.trainer.runs.running import NAME
from tests.waiting import eventually
from tests.worlds import event_logs

AN_HOUR_MS = 3_600_000
MANY = 15_000  # so many that they are not all read ahead before the first line of status
APART_MS = 50
OF_SEEN = """
[model]
name = "hotels"
[input]
label = "click"
[fields]
price = { side = "item", kind = "number", bucket = "log" }
[join]
window = "5m"
negatives = "seen"
"""


@pytest.mark.slow
def test_stream_is_trimmed_before_it_was_read(of_streams: OfStreams, recovered: Recovered) -> None:
    system, trainer = of_streams, of_streams.trainer
    lost = trainer.metric("ftrie_trainer_lost_total")
    trainer.signal(signal.SIGSTOP)
    system.more(100)
    with Store.open(system.valkey.url) as store:
        gone = store.client.xlen(ModelKeys(NAME).impressions) - 10
        store.client.xtrim(ModelKeys(NAME).impressions, maxlen=10, approximate=False)
    trainer.signal(signal.SIGCONT)
    recovered.from_now()
    unread = 90
    assert gone >= unread
    system.day.given -= unread
    recovered.when(system.has_learned_all, "what is left is learned and served", LONG_S)
    eventually(lambda: trainer.metric("ftrie_trainer_lost_total") == lost + unread, "those lost are counted")
    assert "deleted before they were read" in trainer.said()


@pytest.mark.slow
def test_streams_are_deleted(of_streams: OfStreams, recovered: Recovered) -> None:
    system = of_streams
    with Store.open(system.valkey.url) as store:
        store.client.flushall()
    eventually(lambda: "though it was read up to" in system.trainer.said(), "what it says of it")
    system.more()
    recovered.then(system.has_learned_all, "what comes since is learned and served", LONG_S)
    with Store.open(system.valkey.url) as store:
        first = store.model(NAME).versions()[0]
    assert (first.version, first.kind) == (1, SNAPSHOT)


def test_events_that_cannot_be_learned_from(of_streams: OfStreams, recovered: Recovered) -> None:
    system, before = of_streams, of_streams.trainer.status()["dead_letters"]
    bad = [b"not JSON", b'{"request_id": "r"}', b'{"request_id": "r", "ts": 1, "items": [{"id": ""}]}']
    system.append(bad)
    system.day.given += len(bad)
    recovered.from_now()
    system.more()
    recovered.when(system.has_learned_all, "the events behind them are learned and served", LONG_S)
    count = before + len(bad)
    eventually(lambda: system.trainer.metric("ftrie_trainer_dead_letters_total") == count, "the count")
    with Store.open(system.valkey.url) as store:
        stream = store.dead_letters(NAME)  # written after the count
        eventually(lambda: [letter.json for _, letter in stream.latest(3)][::-1] == bad, "the dead letters")


def visits(first: int, seen: bool) -> list[dict[str, object]]:
    """Lists of four items, of which the first two are seen and one list in five has a click; then an hour passes."""
    found: list[dict[str, object]] = []
    for number in range(first, first + 100):
        common = {"request_id": f"v{number}", "ts": 1_700_000_000 + 60 * first + number}
        items = [
            {"id": f"h{(number + k) % 7}", "position": k + 1, "features": {"price": 50 + k}} for k in range(4)
        ]
        found.append({**common, "items": items})
        if seen:
            found.append({**common, "event": "seen", "position": 2})
        if number % 5 == 0:
            found.append({**common, "item": items[1]["id"]})
    return [*found, {"request_id": f"end{first}", "ts": 1_700_003_600 + 60 * first, "items": []}]


def test_seen_events_are_lost(tmp_path: Path, recovered: Recovered) -> None:
    events = tmp_path / "events.jsonl"
    valkey = Valkey(tmp_path)
    try:
        trainer: Learning | None = None
        statuses = []
        for first, seen in ((0, True), (200, False), (400, True)):
            with events.open("a") as log:
                log.writelines(json.dumps(event) + "\n" for event in visits(first, seen))
            recovered.from_now()
            if trainer is None:
                flags = ["--from", events, "--once"]
                trainer = Learning(tmp_path, valkey.url, flags, OF_SEEN)
            else:
                trainer.start()
            assert trainer.process.wait(LONG_S) == 0, trainer.said()
            statuses.append(trainer.lines()[-1])
        before, lost, again = statuses
        recovered.when(lambda: served(valkey.url, again), "what was learned again is served", LONG_S)
    finally:
        valkey.kill()
    joined = [each["join"] for each in statuses]
    assert [(each["positives"], each["negatives"], each["unseen"]) for each in joined] == [
        (20, 180, 200), (40, 180, 580), (60, 360, 780),
    ]  # fmt: skip
    (said,) = lost["warnings"]
    assert "no `seen` or `activated` event came" in said and "380 rows were dropped" in said
    assert before["warnings"] == again["warnings"] == []


def test_guard_withholds_what_is_learned_without_seen_events(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Given a log whose `seen` events stop, more is clicked than predicted: no version learned of it is served."""
    events, spec, versions = tmp_path / "events.jsonl", tmp_path / "seen.toml", store.model(NAME)
    words = ["trainer", str(spec), "--from", str(events), "--once", "--store", store_url]
    active = []
    guard = "[guard]\nmin_examples = 20\n"  # from then on: so few rows of an empty model are far off anyway
    for first, seen, more, code in ((0, True, "", 0), (200, False, guard, StoreError.exit_code)):
        spec.write_text(OF_SEEN + more)
        with events.open("a") as log:
            log.writelines(json.dumps(event) + "\n" for event in visits(first, seen))
        assert run([*words, "--checkpoint", str(tmp_path / "state")]) == code
        active.append(versions.active())
    newest = versions.versions()[-1]
    assert active[0] == active[1] != newest.version
    assert "calibration of base" in (newest.refused or "") and "below the band" in (newest.refused or "")


def test_entry_has_an_id_from_the_future(of_streams: OfStreams, recovered: Recovered) -> None:
    """Each later entry gets an id of that hour too."""
    system, key = of_streams, ModelKeys(NAME).impressions
    lost = system.trainer.metric("ftrie_trainer_lost_total")
    with Store.open(system.valkey.url) as store:
        ahead_ms = int(store.client.time()[0]) * 1000 + AN_HOUR_MS
        store.client.xadd(key, {"json": system.day.some(1)[0]}, id=f"{ahead_ms}-0")
        system.more()
        assert store.client.xinfo_stream(key)["last-generated-id"].startswith(str(ahead_ms).encode())
        recovered.then(system.has_learned_all, "it and those after it are learned and served", LONG_S)
        labels = {"source": key, "of": "ids_ahead"}
        skew = "ftrie_trainer_clock_skew_seconds"
        eventually(lambda: system.trainer.metric(skew, **labels) > 3_000, "the metric")
        eventually(
            lambda: any("ahead of the store's" in text for text in system.trainer.status()["warnings"]), "it"
        )
        assert all(each.repaired for each in store.check([NAME], repair=True))
    system.more()
    eventually(system.has_learned_all, "what comes after the repair is learned and served", LONG_S)
    eventually(lambda: system.trainer.metric(skew, **labels) == 0, "the metric falls")
    assert (
        system.trainer.metric("ftrie_trainer_lost_total") == lost
        and "got ids of the present" in system.trainer.said()
    )


@pytest.mark.slow
def test_trainer_is_behind_its_sources(tmp_path: Path, recovered: Recovered) -> None:
    valkey = Valkey(tmp_path)
    an_hour_ago(valkey, MANY)
    trainer = Learning(tmp_path, valkey.url, [])
    try:
        eventually(lambda: any(line["behind"] for line in trainer.lines()), "a status that says so", 150.0)
        assert max(source["seconds"] or 0 for source in behind(trainer)) > AN_HOUR_MS / 2000
        recovered.then(lambda: trainer.has("events", MANY), "it has caught up", LONG_S)
        recovered.when(lambda: served(valkey.url, trainer.status()), "all is served", LONG_S)
        eventually(lambda: not trainer.status()["behind"], "a status that says so")
        assert trainer.metric("ftrie_trainer_lag_events") == 0
    finally:
        trainer.kill()
        valkey.kill()


def an_hour_ago(valkey: Valkey, count: int) -> None:
    """Put impressions into the stream, as if they had come an hour ago, in the course of some minutes.

    Their own times go on too, so that each batch closes windows, and so brings something to publish, up to the last.
    """
    lines = [json.loads(line) for line in event_logs(100).impressions]
    with Store.open(valkey.url) as store, store.client.pipeline(transaction=False) as pipe:
        began_ms = int(store.client.time()[0]) * 1000 - AN_HOUR_MS
        for number in range(count):
            ms = began_ms + number * APART_MS
            event = json.dumps({**lines[number % 100], "request_id": f"{number}", "ts": ms / 1000})
            pipe.execute_command("XADD", ModelKeys(NAME).impressions, f"{ms}-1", "json", event)
        pipe.execute()


def behind(trainer: Learning) -> list[dict[str, float]]:
    """The sources' lags in the first line of status that says that it is behind."""
    line = next(line for line in trainer.lines() if line["behind"])
    return list(line["lags"].values())


@pytest.mark.slow
def test_file_vanishes_while_it_is_read(of_files: OfFiles, recovered: Recovered) -> None:
    trainer = of_files.trainer
    trainer.signal(signal.SIGSTOP)
    of_files.more()
    of_files.file.unlink()
    of_files.more()
    trainer.signal(signal.SIGCONT)
    recovered.then(lambda: trainer.has("events", of_files.day.given), "its rest and the next are read")
    recovered.when(of_files.is_served, "and served", LONG_S)
    assert trainer.metric("ftrie_trainer_lost_total") == 0
