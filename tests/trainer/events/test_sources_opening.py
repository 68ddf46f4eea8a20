"""From names to sources: what is understood, what is refused, and positions of other sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store.errors import InputError, StoreError
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import Source, SourcePosition
from trainer.events.open_sources import EVENTS, ROWS, kind_of, known_as, open_rows, open_sources

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


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no source of events: expected a file, a folder"),
        (["clicks="], "got an empty source"),
        (["s3://bucket/key"], "'s3' is no kind of source; expected"),
        (["store"], "there is none"),
        (["a.jsonl", "impressions=a.jsonl"], "named more than once"),
    ],
)
def test_names_that_cannot_be_understood_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_sources(names, SPEC, None)


def test_a_store_that_is_none_is_refused_and_what_was_open_is_closed(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        open_sources([str(tmp_path / "a"), "redis://127.0.0.1:1/0"], SPEC, None)


def test_places_belong_to_the_sources_that_told_them(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for name in names:
        Path(name).write_bytes(EVENT)
    positions = [position_after(source) for source in open_sources(names, SPEC, None)]
    assert [source.read() for source in open_sources(names, SPEC, None, positions)] == [None, None]
    for others in ([names[0]], [*names, "c.jsonl"], [names[1], names[0]], [names[0], "c.jsonl"]):
        with pytest.raises(InputError, match=r"the checkpoint has read .*begin anew with another folder"):
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


def test_a_name_is_kept_without_what_may_change(tmp_path: Path) -> None:
    assert (
        known_as("redis://user:secret@host:1/0")
        == known_as("embedded:.ftrie")
        == known_as("store")
        == "store"
    )
    assert known_as("clicks=unix:///socket#clicks") == "store#clicks"
    assert known_as("kafka://h:1,g:2/clicks?sasl.password=secret") == "kafka clicks"
    assert known_as("impressions=logs/*.jsonl") == "logs/*.jsonl"


def test_rows_are_told_from_events_by_the_label(tmp_path: Path) -> None:
    rows, events, table = (tmp_path / name for name in ("rows.jsonl", "events.jsonl", "table.csv"))
    rows.write_bytes(b'{"click": 1, "age": 2}\n')
    events.write_bytes(EVENT)
    table.write_bytes(b"click,age\n1,2\n")
    assert kind_of([str(rows)], LABEL) == ROWS and kind_of([str(table)], LABEL) == ROWS
    assert (
        kind_of([str(tmp_path / "later.csv")], LABEL) == ROWS and kind_of([f"rows={tmp_path}"], LABEL) == ROWS
    )
    assert kind_of([str(events)], LABEL) == EVENTS and kind_of([str(tmp_path / "later")], LABEL) == EVENTS
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "part").write_bytes(b'{"age": 2}\n{"click": 0, "age": 2}\n')
    unlabelled, sparse = tmp_path / "unlabelled.csv", tmp_path / "sparse.log"
    unlabelled.write_bytes(b"age,item\n1,2\n")
    sparse.write_bytes(b"1 |user a |item b\n")
    for path in (tmp_path / "day=1", unlabelled, sparse):
        assert kind_of([str(path)], LABEL) == ROWS, path
    assert kind_of(["store"], LABEL) == EVENTS and kind_of([f"clicks={rows}"], LABEL) == EVENTS
    assert kind_of(["-"], LABEL) == ROWS and kind_of([str(events)], LABEL, "csv") == ROWS
    with pytest.raises(InputError, match="expected logs of one kind"):
        kind_of([str(events), str(table)], LABEL)


def test_only_one_source_of_rows_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name it alone"):
        open_rows([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], SPEC)
    with pytest.raises(InputError, match="expected a file, a folder or a glob"):
        open_rows(["-"], SPEC)


def test_rows_are_opened_at_their_place(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(b"click,age\n1,2\n")
    source = open_rows([f"rows={log}"], SPEC)
    assert source.columns() == ("click", "age")
    rows = source.read(("click",))
    assert rows is not None
    assert open_rows([f"rows={log}"], SPEC, [rows.after]).read(("click",)) is None
    with pytest.raises(InputError, match="begin anew"):
        open_rows(["rows=other.csv"], SPEC, [rows.after])
    with pytest.raises(InputError, match="expected a file, a folder or a glob"):
        open_rows(["rows=kafka://h/t"], SPEC)
