"""docs/events.md has what the code does: members, places, reasons; and its examples are events."""

from __future__ import annotations

import json
import re
from pathlib import Path

from model_store.spec.spec import parse_spec
from tests.trainer.events.sources import block_of
from tests.trainer.events.test_parse import REASONS, parsed, told
from trainer.events.columns import ITEMS, RESERVED, Wanted, paths_of
from trainer.events.columns import Path as SourcePosition
from trainer.events.events import MAX_ITEMS, MAX_LINE_BYTES
from trainer.events.parse import AHEAD_US, RESERVED_TYPES, parse
from trainer.sources.merge import FIRST_WAIT_S, LONGEST_WAIT_S

PAGE = (Path(__file__).resolve().parents[3] / "docs/events.md").read_text("utf-8")
SPEC = parse_spec(
    '[model]\nname = "m"\n[input]\nlabel = "click"\nrequest = "request"\ntimestamp = "timestamp"\ncookie = "cookie"\n'
    'item = "item"\n[fields]\nhour = {}'
)


def section(title: str) -> str:
    return re.split(r"\n##+ ", PAGE.split(f"\n### {title}\n")[1])[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's tables, heads and rules left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rules = {i for i, line in enumerate(lines) if set(line) <= set("|-")}
    return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


def written(place: SourcePosition) -> str:
    return "`" + ".".join(("items[]", *place[1:]) if place[0] == ITEMS else place) + "`"


def test_a_column_is_looked_for_where_the_table_says() -> None:
    table = rows("From an event to the columns of its rows")
    assert [row[1] for row in table[:5]] == [written(place) for place in paths_of(SPEC, "hour")]
    own = {row[0]: row[1] for row in table[5:9]}
    assert own == {
        f"`input.{name}`": written(paths_of(SPEC, name)[0])
        for name in ("request", "timestamp", "cookie", "item")
    }


def test_reserved_columns_are_those_of_the_table() -> None:
    table = rows("From an event to the columns of its rows")[9:]
    assert [[name, path, kind.partition(";")[0]] for name, path, kind in table] == [
        [f"`{name}`", written(path), f"`{RESERVED_TYPES[kind]}`"] for name, (path, kind) in RESERVED.items()
    ]


def reasons_found() -> list[str]:
    too_late = block_of([json.dumps(told(ts="2500-01-01T00:00:00Z")).encode()])
    late = parse(*too_late, Wanted.of(SPEC)).bad[0]
    long = parsed(told(note="x" * MAX_LINE_BYTES)).bad[0]
    huge = parsed(told(items=[{"id": "a", "ctr": 10**400}], item=None)).bad[0]
    return [*(reason for _, reason in REASONS), late, long, huge]


def test_every_reason_is_in_the_table_and_every_one_there_comes_up() -> None:
    patterns = {
        row[0]: re.compile(re.escape(row[0].strip("`")).replace("…", ".+"), re.DOTALL)
        for row in rows("Bad events")
    }
    met = set()
    for reason in reasons_found():
        fitting = [text for text, pattern in patterns.items() if pattern.fullmatch(reason)]
        assert fitting, reason
        met.update(fitting)
    assert met == set(patterns)


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {MAX_ITEMS:,}" in section("An impression")
    assert f"{MAX_LINE_BYTES >> 20} MiB" in section("Bad events") and AHEAD_US == 5 * 60 * 1_000_000
    assert f"after {FIRST_WAIT_S} s, doubling to {LONGEST_WAIT_S:.0f} s" in section("One order")


def test_the_examples_are_events() -> None:
    form = PAGE.partition("\n## The form of an event\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```json\n(.+?)```", form, re.DOTALL)
    commands = re.findall(r"'(\{\".+?\})'", form)
    lines = [json.dumps(json.loads(text)).encode() for text in (*blocks, *commands)]
    events = parsed(*lines)
    assert len(lines) == 10 and events.bad == {}
    assert events.columns["brand"].to_pylist() == [b"b3", b"b1", b"b3", b"", b"", b"b3"]
