"""Impressions and clicks as a log of labelled rows: whole requests as the join labels them, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ftrie
from ftrie.demo.market import looked_at
from model_store.errors import InputError
from model_store.spec.spec import ModelSpec, parse_spec
from tests.matrix import examples
from tests.trainer.events.oracle import Event, OracleJoin
from trainer.events.join import Closed, Joined
from trainer.events.waiting_rows import Segments
from trainer.examples.joined import EventLog, _ClosedRequests
from trainer.examples.open_log import Log, open_log
from trainer.examples.side_tables import side_tables
from trainer.formats.batch import RowBatch
from trainer.formats.reader import EVENTS as OF_EVENTS
from trainer.runs import replay
from trainer.runs.replay import replay_events
from trainer.sources.open_sources import ROWS, kind_of

TEXT = """
[model]
name = "ads"
[input]
label = "click"
request = "request_id"
item = "item"
[fields]
brand = { side = "item", optional = true }
[join]
window = "10s"
lateness = "2s"
late_within = "20s"
"""
SPEC = parse_spec(TEXT)
BARE = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
SHOWN = {"request_id": "r1", "ts": 1000, "items": [{"id": "a", "features": {"brand": "x"}}, {"id": "b"}]}
CLICK = {"request_id": "r1", "ts": 1001, "item": "b"}
CLOSING = {"rows": 2, "positives": 0, "clicks": 0, "conversions": 0, "time_us": 0, "clicked": 0}
Row = tuple[Any, ...]


def spec(old: str, new: str) -> ModelSpec:
    assert old in TEXT
    return parse_spec(TEXT.replace(old, new))


def written(path: Path, events: Sequence[Any]) -> str:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read(
    inputs: Sequence[str], given: ModelSpec = SPEC, more: Sequence[str] = (), **options: Any
) -> list[RowBatch]:
    with open_log(Log(inputs, **options), given) as opened:
        return list(opened.batches(more))


@pytest.fixture
def log(tmp_path: Path) -> str:
    return written(tmp_path / "log.jsonl", [SHOWN, CLICK])


def rows(batches: Sequence[RowBatch], *columns: str) -> list[Row]:
    """The values of columns, row by row, as text."""
    return [
        tuple(_text(batch.columns[name][row]) for name in columns)
        for batch in batches
        for row in range(batch.rows)
    ]


def _text(value: pa.Scalar) -> Any:
    value = value.as_py()
    return value.decode() if isinstance(value, bytes) else value


TIMES = st.integers(0, 40)


def as_json(event: Event) -> dict[str, Any]:
    common = {"request_id": f"q{event.request}", "ts": 1_700_000_000 + event.time // 1_000_000}
    if event.shows is None:
        return {**common, "item": f"i{event.item}"}
    return {**common, "items": [{"id": f"i{item}"} for item in event.shows]}


SHOWS = st.lists(st.integers(0, 3), max_size=3, unique=True).map(tuple)
MICROS = TIMES.map(lambda second: second * 1_000_000)
EVENTS = st.lists(
    st.tuples(MICROS, st.integers(0, 4), SHOWS)
    | st.tuples(MICROS, st.integers(0, 4), st.none(), st.integers(0, 4)),
    min_size=1,
    max_size=30,
).map(lambda drawn: [Event(*each) for each in drawn])  # builds() would also draw what has a default


@examples(30)
@given(EVENTS, st.booleans())
def test_requests_come_whole_in_the_order_of_closing_with_the_labels_of_the_join(events, packed):
    oracle = OracleJoin(SPEC.join)
    late_by = max((max(each.time for each in events[: n + 1]) - event.time for n, event in enumerate(events)))
    in_order = sorted(events, key=lambda event: event.time) if late_by > SPEC.join.lateness_us else events
    shown = [event for event in in_order if event.shows is not None]
    for event in in_order:
        oracle.take(event)
    oracle.finish()
    positive = {(row.impression, row.row) for row in oracle.rows if row.label}
    expected = [
        (f"q{shown[number].request}", f"i{item}", int((number, row) in positive))
        for number, *_ in oracle.closed
        for row, item in enumerate(shown[number].shows or ())
    ]
    with TemporaryDirectory() as folder:
        name = "events.jsonl.gz" if packed else "events.jsonl"
        first = {"request_id": "none", "ts": 1_700_000_000, "items": []}  # so that the log is one of events
        log = written(Path(folder) / name, [first, *map(as_json, events)])
        found = read([log], spec("brand = { side", "item = { side"))
    assert rows(found, "request_id", "item", "click") == expected


def test_a_log_has_the_rows_that_were_seen_where_the_spec_learns_from_these(tmp_path: Path) -> None:
    shown = [
        {**SHOWN, "request_id": name, "items": [{"id": each} for each in "abcd"]} for name in ("r1", "r2")
    ]
    told = [
        {"request_id": "r1", "ts": 1001, "event": "seen", "position": 2},
        {"request_id": "r1", "ts": 1001, "item": "d"},
        {"request_id": "r2", "ts": 1001, "event": "seen", "item": "c"},
        {"request_id": "r3", "ts": 1001, "event": "activated"},
        {"request_id": "r4", "ts": 1001, "item": "a"},
    ]
    deferred = [{**SHOWN, "request_id": name, "event": "deferred"} for name in ("r3", "r4")]
    log = written(tmp_path / "log.jsonl", [*shown, *deferred, *told])
    given = spec('window = "10s"', 'window = "10s"\nnegatives = "seen"')
    found = rows(read([log], given, ["item"]), "request_id", "item", "click")
    assert found == [("r1", "a", 0), ("r1", "b", 0), ("r1", "d", 1), ("r2", "c", 0)]
    everything = rows(read([log], more=["item"]), "request_id", "item", "click")
    assert [row for row in everything if row[0] in ("r3", "r4")] == [("r3", "a", 0), ("r3", "b", 0)]
    assert len(everything) == 10


def test_a_log_has_the_clicked_rows_with_their_conversions_where_the_spec_learns_these(
    tmp_path: Path,
) -> None:
    shown = [{**SHOWN, "request_id": name} for name in ("r1", "r2", "r3")]
    told = [
        {"request_id": "r1", "ts": 1001, "item": "a", "event": "conversion"},  # before its click
        {"request_id": "r1", "ts": 1002, "item": "a"},
        {"request_id": "r2", "ts": 1001, "item": "b"},
        {"request_id": "r2", "ts": 1001, "item": "a", "event": "conversion"},  # without a click
        {"request_id": "r3", "ts": 1900, "item": "a"},  # late
    ]
    log = written(tmp_path / "log.jsonl", [*shown, *told])
    text = TEXT.replace('label = "click"', 'label = "click"\nrows = "clicked"')
    given = parse_spec(text + 'positive = "conversion"\n')
    found = rows(read([log], given, ["item"]), "request_id", "item", "click")
    assert found == [("r1", "a", 1), ("r2", "b", 0)]


@pytest.mark.slow
def test_what_was_seen_takes_the_position_out_of_what_is_learned(tmp_path: Path) -> None:
    """Items ordered by how good they are, looked at less further down: what is said of those who look."""
    random, places, ads = np.random.default_rng(3), 8, 30
    good = np.sort(np.exp(random.normal(-2.5, 0.7, ads)).clip(0, 0.6))
    events, views = list[dict[str, Any]](), np.zeros(ads)
    for number in range(4_000):
        order = np.argsort(-np.log(good) + random.normal(0, 0.7, ads))[:places]
        drawn = random.random(places)
        common = {"request_id": f"q{number}", "ts": 1_700_000_000 + number}
        events.append(
            {**common, "items": [{"id": f"i{ad}", "features": {"ad": f"i{ad}"}} for ad in order.tolist()]}
        )
        views[order] += 1
        looked = drawn < looked_at(places)
        for at in np.flatnonzero(looked).tolist():
            clicked = drawn[at] < looked_at(places)[at] * good[order[at]]
            events.append({**common, "item": f"i{order[at]}", "event": "click" if clicked else "seen"})
    log, names = written(tmp_path / "log.jsonl", events), [f"i{ad}" for ad in range(ads)]
    errors = {}
    for negatives in ("shown", "seen"):
        text = f'{BARE}[fields]\nad = {{ side = "item" }}\n[learner]\nl1 = 0\n[join]\nnegatives = "{negatives}"\n'
        model = ftrie.train(text, log, progress=False).model
        said = model.predict(pa.table({"ad": names}))["base"].to_numpy()
        errors[negatives] = float(np.abs(said - good) @ views / (good @ views))
    assert errors["seen"] < 0.2 < 0.35 < errors["shown"]


def test_what_other_models_predicted_is_a_column_like_any_other(tmp_path: Path) -> None:
    """So that an order by two models can be computed again from its log, and learned with."""
    rates = {"a": 0.2, "b": 0.5}
    items = [
        {"id": item, "ctr": 0.1, "models": {"purchase": {"version": 3, "ctr": ctr}}}
        for item, ctr in rates.items()
    ]
    log = written(tmp_path / "log.jsonl", [{**SHOWN, "objective": "ctr * purchase.ctr", "items": items}])
    columns = ["item", "models.purchase.ctr", "models.purchase.version", "objective"]
    found = rows(read([log], more=columns), *columns)
    assert found == [(item, str(ctr), "3", "ctr * purchase.ctr") for item, ctr in rates.items()]


def test_clicks_may_be_in_a_file_of_their_own_and_files_may_overlap_in_time(tmp_path: Path) -> None:
    """Given requests dealt to two files of impressions, when read with their clicks, they are joined as if in one."""
    shown = [SHOWN | {"request_id": f"r{n}", "ts": 1000 + 5 * n} for n in range(40)]
    clicks = [{"request_id": f"r{n}", "ts": 1000 + 5 * n + 1, "item": "a"} for n in range(0, 40, 3)]
    dealt = [
        written(tmp_path / "one.jsonl", shown[::2]),
        written(tmp_path / "two.jsonl.gz", shown[1::2]),
        written(tmp_path / "clicks.jsonl", clicks),
    ]
    found = rows(read(dealt), "request_id", "click")
    assert found == [(f"r{n}", int(n % 3 == 0 and row == 0)) for n in range(40) for row in range(2)]
    in_order = sorted([*shown, *clicks], key=lambda event: event["ts"])
    assert found == rows(read([written(tmp_path / "all.jsonl", in_order)]), "request_id", "click")


def test_rows_and_rejects_name_their_file_and_line(tmp_path: Path) -> None:
    shown = written(tmp_path / "shown.jsonl", [SHOWN, "", "{broken", SHOWN | {"request_id": "r2"}])
    clicks = written(tmp_path / "clicks.jsonl", [CLICK, {"request_id": "r2", "item": "a", "ts": "soon"}])
    found = read([shown, clicks])
    assert [(batch.file, batch.lines.tolist()) for batch in found if batch.rows] == [(shown, [1, 1, 4, 4])]
    rejects = sorted((each.file, each.line, each.category) for batch in found for each in batch.rejects)
    assert rejects == [(clicks, 2, "ts"), (shown, 3, "malformed JSON")]


def test_reserved_columns_and_those_of_the_request_can_be_had(tmp_path: Path) -> None:
    shown = SHOWN | {"cookie": "u1", "items": [{"id": "a", "position": 7}, {"id": "b"}]}
    found = read([written(tmp_path / "log.jsonl", [shown, CLICK])], more=["@position", "cookie", "ts"])
    expected = [(7, "u1", "1000", 0), (None, "u1", "1000", 1)]
    assert rows(found, "@position", "cookie", "ts", "click") == expected


def test_items_that_the_server_did_not_know_are_left_out_unless_the_spec_learns_them(tmp_path: Path) -> None:
    shown = SHOWN | {"items": [{"id": "a", "unknown": 1}, {"id": "b"}]}
    log = written(tmp_path / "log.jsonl", [shown, CLICK])
    assert rows(read([log]), "click") == [(1,)]
    assert rows(read([log], spec("[join]", '[join]\nunknown_items = "learn"')), "click") == [(0,), (1,)]


def test_a_spec_without_a_request_gets_that_of_the_events(log: str) -> None:
    with open_log(Log([log]), spec('request = "request_id"\n', "")) as opened:
        assert opened.spec.input.request == "request_id"
        with opened.examples(1) as stream:
            (examples,) = stream
    assert np.unique(examples.requests).size == 1 and examples.hashed.labels.tolist() == [0.0, 1.0]


def test_columns_that_events_lack_come_from_a_file_of_items(log: str, tmp_path: Path) -> None:
    items = tmp_path / "items.csv"
    items.write_text("id,colour,brand\na,red,y\nb,blue,z\n")
    given = spec("[join]", 'colour = { side = "item" }\n[join]')
    found = read([log], given, tables=side_tables(items, None, given.input))
    assert rows(found, "item", "colour", "brand") == [("a", "red", "x"), ("b", "blue", "")]


@pytest.mark.parametrize(
    ("lines", "format", "label", "expected"),
    [
        ([SHOWN], None, None, True),
        ([CLICK, SHOWN], None, None, True),
        ([SHOWN | {"items": []}], None, None, True),
        (["", SHOWN], "jsonl", None, True),
        ([CLICK], None, None, False),
        ([CLICK], None, "click", True),
        ([CLICK | {"click": 1}], None, "click", False),
        ([CLICK, CLICK | {"click": 1}], None, "click", False),
        ([{"f": "a"}, SHOWN], None, "click", True),
        ([{"f": "a"}], None, "click", False),
        (["", "no JSON", CLICK], None, "click", True),
        ([SHOWN | {"click": 1}], None, "click", False),
        ([{"items": ["a", "b"], "click": 1}], None, None, False),
        ([{"click": 1, "f": "a"}], "events", None, True),
        (["click,f", "1,a"], "csv", None, False),
    ],
)
def test_events_are_told_by_their_first_lines_or_the_format(tmp_path, lines, format, label, expected):
    log = written(tmp_path / "log.jsonl", lines)
    assert (kind_of([log], label, format) == OF_EVENTS) is expected


def test_an_event_longer_than_the_head_of_a_file_is_told_too(tmp_path: Path) -> None:
    many = SHOWN | {"items": [{"id": f"item-{number}"} for number in range(9_000)]}
    log = written(tmp_path / "log.jsonl", [many])
    assert kind_of([log]) == OF_EVENTS and len(rows(read([log]), "click")) == 9_000


def test_events_beside_labelled_rows_are_refused(tmp_path: Path) -> None:
    shown = written(tmp_path / "shown.jsonl", [SHOWN])
    other = written(tmp_path / "rows.jsonl", [{"click": 1, "brand": "x"}])
    with pytest.raises(InputError, match=r"shown\.jsonl holds events and .*rows\.jsonl labelled rows"):
        read([shown, other])
    with pytest.raises(InputError, match="holds events and - labelled rows"):
        kind_of([shown, "-"])


@contextmanager
def pipe_of(text: str) -> Iterator[str]:
    """The name of a pipe that has the text, as a shell's process substitution has."""
    source, sink = os.pipe()
    os.write(sink, text.encode())  # less than a pipe holds
    os.close(sink)
    yield f"/dev/fd/{source}"
    os.close(source)


@pytest.mark.parametrize("format", [None, "jsonl"])
def test_rows_from_a_pipe_are_read_from_the_first_on(format: str | None) -> None:
    with pipe_of("".join(f'{{"click": {row % 2}, "f": "v{row}"}}\n' for row in range(100))) as pipe:
        assert kind_of([pipe], format=format) == ROWS
        with open_log(Log([pipe], format), parse_spec(BARE)) as opened:
            first = next(opened.rows())
    assert first.columns["f"].to_pylist()[:2] == ["v0", "v1"]


def test_a_pipe_holds_events_only_if_the_format_says_so_and_fields_do_not_learn_from_it(log: str) -> None:
    with pipe_of(json.dumps(SHOWN) + "\n") as pipe:
        with pytest.raises(InputError, match=f"{pipe} labelled rows.*: give --format events"):
            kind_of([log, pipe])
        assert kind_of([log, pipe], format="events") == OF_EVENTS
        spec = parse_spec(BARE + '[fields]\nx = {kind = "number", scale = "standard"}\n')
        message = "is a pipe, which can be read only once, and fields that learn"
        with pytest.raises(InputError, match=message), open_log(Log([pipe], "events"), spec):
            pass


def test_a_part_of_a_log_of_events_cannot_be_read_alone(log: str) -> None:
    with pytest.raises(InputError, match="joined from the first to the last in one run.*`ftrie trainer`"):
        read([log], readers=2)
    with pytest.raises(InputError, match="--no-header is for CSV and TSV"):
        read([log], no_header=True)


def test_feedback_that_is_of_no_row_is_noted(log: str, tmp_path: Path) -> None:
    def notes_of(*events: Any) -> list[str]:
        notes: list[str] = []
        read([written(tmp_path / "noted.jsonl", events)], on_note=notes.append)
        return notes

    late, stray, odd = (CLICK | each for each in ({"ts": 1011}, {"request_id": "r9"}, {"item": "z"}))
    assert notes_of(SHOWN, CLICK) == []
    (note,) = notes_of(SHOWN, odd, stray, late)
    assert "3 clicks or conversions of 3 are not of a row: 1 came after the window of 10s" in note
    assert "1 have no impression, 1 are of an item not shown" in note
    assert "so there is no row" in notes_of(SHOWN | {"items": []})[-1]


def hours(seconds: Sequence[int]) -> list[dict[str, Any]]:
    """Impressions of these seconds, all of whose first items are clicked: first all impressions, then the clicks."""
    shown = [SHOWN | {"request_id": f"r{second}", "ts": 1000 + second} for second in seconds]
    return shown + [{"request_id": f"r{each}", "ts": 1002 + each, "item": "a"} for each in seconds]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_events_out_of_order_are_sorted_if_they_fit_in_memory_and_refused_if_not(
    tmp_path, monkeypatch, suffix
):
    """Given the clicks behind all impressions and the second hour first, when read, every click is of its row."""
    events = [*hours(range(3600, 7200, 5)), "{broken", *hours(range(0, 3600, 5))]
    notes: list[str] = []
    log = written(tmp_path / f"log.{suffix}", events)
    found = read([log], on_note=notes.append)
    assert rows(found, "request_id", "click") == [
        (f"r{second}", label) for second in range(0, 7200, 5) for label in (1, 0)
    ]
    assert notes == [f"{log}: events are out of order, by 7,197 s at most: sorted by their ts"]
    ((file, line),) = [(each.file, each.line) for batch in found for each in batch.rejects]
    assert (file, line) == (log, 1441) and {batch.file for batch in found if batch.rows} == {log}
    lines = dict(
        zip(
            (row[0] for row in rows(found, "request_id")),
            np.concatenate([b.lines for b in found]),
            strict=True,
        )
    )
    replayed = replay_events(SPEC, [log]).join
    assert (replayed["joined"], replayed["orphans"], replayed["out_of_order"]) == (1440, 0, 0)
    assert (lines["r3600"], lines["r0"]) == (1, 1442)
    monkeypatch.setattr("trainer.sources.merge.SORT_BYTES", 1 << 10)
    with pytest.raises(
        InputError, match=r"events are out of order: [\d,]+ of [\d,]+ came after .*sort the file by ts"
    ):
        read([log])
    with pytest.raises(InputError, match="events are out of order"):
        replay_events(SPEC, [log])
    notes.clear()
    few = [*hours(range(0, 36000, 5)), CLICK | {"ts": 1000}]
    few = [*sorted(few[:-1], key=lambda event: event["ts"]), few[-1]]  # one click, hours late, in a large log
    read([written(tmp_path / f"few.{suffix}", few)], on_note=notes.append)
    assert (
        "1 click or" in notes[0]
        and "0 have no impression" in notes[0]
        and "1 are out of order in time" in notes[0]
    )


def test_a_replay_keeps_the_rows_that_wait_for_clicks_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    class Watched(Segments):
        def free_memory(self, needed: Callable[[], Any]) -> None:
            super().free_memory(needed)
            used.append(self.memory_used)

    log = written(tmp_path / "log.jsonl", hours(range(0, 36000, 5)))
    whole = replay_events(SPEC, [log])
    monkeypatch.setattr(replay, "Segments", Watched)
    bounded = replay_events(SPEC, [log], memory_bytes=1 << 12)
    assert used and max(used) <= 1 << 12
    assert bounded.model.artefact().to_bytes() == whole.model.artefact().to_bytes()


def test_bytes_read_grow_to_the_size_of_the_files(tmp_path: Path) -> None:
    shown = [SHOWN | {"request_id": f"r{n}", "ts": 1000 + n} for n in range(10_000)]
    log = written(tmp_path / "shown.jsonl", shown)
    with EventLog([log]) as events:
        assert events.bytes_read() == 0
        events.resolve(SPEC, {})
        seen = [events.bytes_read() for _ in events.batches(["brand", "click"])]
    assert seen == sorted(seen) and seen[-1] == events.total_bytes == Path(log).stat().st_size


def test_rows_that_wait_for_clicks_may_be_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given more waiting rows than fit the memory, when read, they are the same and no file is left."""
    shown = [SHOWN | {"request_id": f"r{n}", "ts": 1000 + n // 1_000} for n in range(10_000)]
    clicks = [{"request_id": f"r{n}", "item": "a", "ts": 1002 + n // 1_000} for n in range(0, 10_000, 7)]
    logs = [written(tmp_path / "shown.jsonl", shown), written(tmp_path / "clicks.jsonl", clicks)]
    expected = rows(read(logs), "request_id", "brand", "click")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "folder"))
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("trainer.examples.joined.MEMORY_BYTES", 1)
    written_packs: list[int] = []
    write = Segments._write
    monkeypatch.setattr(
        Segments, "_write", lambda self: (written_packs.append(1) or each for each in write(self))
    )
    assert rows(read(logs), "request_id", "brand", "click") == expected
    assert written_packs and not list((tmp_path / "folder").iterdir())


def test_a_step_looks_only_at_the_clicks_of_the_segments_whose_requests_close() -> None:
    requests = _ClosedRequests()

    def step(segment: int, clicks: Sequence[int], closing: Sequence[int]) -> list[int]:
        """Rows clicked in a segment of requests of two rows; the labels of those that close."""
        many = np.array(clicks, np.int64)
        closed = {name: np.full(len(closing), value, np.int32) for name, value in CLOSING.items()}
        joined = Joined(
            *(np.full(many.size, segment, np.int32), many, np.ones(many.size, np.uint8), many > 0),
            Closed(
                **closed
                | {"segment": np.full(len(closing), segment, np.int32), "row": np.array(closing, np.int64)}
            ),
        )
        return requests.of(joined).label.tolist()

    assert step(7, range(0, 2_000_000, 2), []) == []
    others = requests._positives[7]
    assert step(8, [0, 3], []) == []
    assert step(8, [5], [0, 4]) == [1, 0, 0, 1]
    assert step(8, [], [2]) == [0, 1]
    assert requests._positives.keys() == {7} and requests._positives[7] is others
    assert step(7, [], [4]) == [1, 0]
    assert requests._positives[7].size == others.size - 1


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    written(path, [SHOWN, CLICK])
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match="damaged or cut short"):
        read([str(path)])
