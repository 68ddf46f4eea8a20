"""From names to sources: what is understood, what is refused, and positions of other sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store.errors import InputError, StoreError
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import Source, SourcePosition
from trainer.formats.reader import EVENTS
from trainer.sources.open_sources import ROWS, kind_of, known_as, open_rows, open_sources

SPEC = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})
LABEL = SPEC.input.label
EVENT = b'{"request_id": "r1", "item": "a", "ts": 1}\n'


def position_after(source: Source) -> SourcePosition:
    chunk = source.read()
    assert chunk is not None
    position: SourcePosition = json.loads(json.dumps(source.position(chunk, len(chunk))))
    return position


def test_a_store_is_both_streams_of_the_model(store: Store, store_url: str) -> None:
    for name in ("store", store_url):
        sources = open_sources([name], SPEC, store)
        assert [source.name for source in sources] == ["ftrie:{ads}:impressions", "ftrie:{ads}:clicks"]
        for source in sources:
            source.close()
    assert store.client.ping()


def test_one_stream_can_be_named_by_what_it_is_or_by_its_key(store: Store) -> None:
    store.event_stream("elsewhere").append([EVENT.strip()])
    [clicks] = open_sources(["clicks=store#clicks"], SPEC, store)
    [other] = open_sources(["store#elsewhere"], SPEC, store)
    assert clicks.name == "ftrie:{ads}:clicks" and clicks.read() is None
    chunk = other.read()
    assert chunk is not None and chunk.data == EVENT


def test_files_folders_and_globs_need_not_be_there_yet(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "folder/", "*.x")]
    sources = open_sources([f"clicks={names[0]}", *names[1:]], SPEC, None)
    assert [source.name for source in sources] == names
    assert all(source.read() is None for source in sources)


def test_names_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    for names, said in (
        ([], "no source of events: expected a file, a folder"),
        (["clicks="], "got an empty source"),
        (["s3://bucket/key"], "'s3' is no kind of source; expected"),
        (["store"], "there is none"),
        (["a.jsonl", "impressions=a.jsonl"], "named more than once"),
    ):
        with pytest.raises(InputError, match=said):
            open_sources(names, SPEC, None)
    with pytest.raises(StoreError):
        open_sources([str(tmp_path / "a"), "redis://127.0.0.1:1/0"], SPEC, None)


def test_places_belong_to_the_sources_that_told_them(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for name in names:
        Path(name).write_bytes(EVENT)
    positions = [position_after(source) for source in open_sources(names, SPEC, None)]
    assert [source.read() for source in open_sources(names, SPEC, None, positions)] == [None, None]
    for others in ([names[0]], [*names, "c.jsonl"], [names[1], names[0]], [names[0], "c.jsonl"]):
        with pytest.raises(InputError, match=r"the checkpoint has read .*start over with another folder"):
            open_sources(others, SPEC, None, positions)


def test_a_source_that_had_brought_nothing_has_no_place_and_begins_at_the_beginning(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    Path(names[0]).write_bytes(EVENT)
    position = position_after(open_sources(names[:1], SPEC, None)[0])
    Path(names[1]).write_bytes(EVENT)
    first, second = open_sources(names, SPEC, None, [position, {}])
    assert first.read() is None and second.read() is not None


def test_what_the_merger_adds_to_a_place_does_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(EVENT)
    position = position_after(open_sources([str(log)], SPEC, None)[0])
    [source] = open_sources([str(log)], SPEC, None, [{**position, "order_us": 1}])
    assert source.read() is None


def test_a_name_is_kept_without_what_may_change() -> None:
    for name in ("redis://user:secret@host:1/0", "embedded:.ftrie", "store"):
        assert known_as(name) == "store"
    assert known_as("clicks=unix:///socket#clicks") == "store#clicks"
    assert known_as("kafka://h:1,g:2/clicks?sasl.password=secret") == "kafka clicks"
    assert known_as("impressions=logs/*.jsonl") == "logs/*.jsonl"


def test_rows_are_told_from_events_by_the_label(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    for name, data in (
        ("rows.jsonl", b'{"click": 1, "age": 2}\n'),
        ("events.jsonl", EVENT),
        ("table.csv", b"click,age\n1,2\n"),
        ("day=1/part", b'{"age": 2}\n{"click": 0, "age": 2}\n'),
        ("unlabelled.csv", b"age,item\n1,2\n"),
        ("sparse.log", b"1 |user a |item b\n"),
    ):
        (tmp_path / name).write_bytes(data)
    rows, events, table = (str(tmp_path / name) for name in ("rows.jsonl", "events.jsonl", "table.csv"))
    for name in ("rows.jsonl", "table.csv", "later.csv", "day=1", "unlabelled.csv", "sparse.log"):
        assert kind_of([str(tmp_path / name)], LABEL, are_sources=True) == ROWS, name
    for name in (f"rows={tmp_path}", "-"):
        assert kind_of([name], LABEL, are_sources=True) == ROWS, name
    for name in (events, str(tmp_path / "later"), "store", f"clicks={rows}"):
        assert kind_of([name], LABEL, are_sources=True) == EVENTS, name
    assert kind_of([events], LABEL, "csv", are_sources=True) == ROWS
    with pytest.raises(InputError, match="expected logs of one kind"):
        kind_of([events, table], LABEL, are_sources=True)


def test_rows_are_opened_at_their_place_and_only_of_one_source_that_grows(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(b"click,age\n1,2\n")
    source = open_rows([f"rows={log}"], SPEC)
    assert source.columns() == ("click", "age")
    rows = source.read(("click",))
    assert rows is not None
    assert open_rows([f"rows={log}"], SPEC, [rows.after]).read(("click",)) is None
    with pytest.raises(InputError, match="start over"):
        open_rows(["rows=other.csv"], SPEC, [rows.after])
    with pytest.raises(InputError, match="name it alone"):
        open_rows([str(log), str(tmp_path / "b.csv")], SPEC)
    for name in ("-", "rows=kafka://h/t"):
        with pytest.raises(InputError, match="expected a file, a folder or a glob"):
            open_rows([name], SPEC)
