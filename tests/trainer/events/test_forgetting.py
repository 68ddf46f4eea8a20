"""Forgetting in the stream of events: rows, histories and what was read ahead are gone, and others' are as ever."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from model_store.spec.spec import parse_spec
from tests.trainer.runs.running import SPEC
from tests.worlds import event_logs
from trainer.events.columns import Wanted, digests
from trainer.events.join import Join, Joined
from trainer.events.join_kernels import PENDING
from trainer.events.waiting_rows import Segments
from trainer.examples.joined import EventRows
from trainer.runs.replay import as_events
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_sources

HISTORY = """
[fields.seen]
side = "user"
kind = "number"
bucket = "log"
history = "seen"
measure = "count"
"""
REQUESTS = 1_000
COLUMNS = ("request_id", "cookie", "item", "seen")


def lines() -> list[bytes]:
    logs = event_logs(REQUESTS)
    return sorted([*logs.impressions, *logs.clicks], key=lambda line: json.loads(line)["ts"])


def hashes(names: Sequence[str]) -> np.ndarray:
    return digests(pa.array([name.encode() for name in names], pa.binary()))


def joined_rows(
    folder: Path,
    log: Sequence[bytes],
    forget: Callable[[EventRows], tuple[str, Sequence[str]]] | None,
    after: int,
) -> list[tuple]:
    """The rows that are joined: columns and label. forget: gives a cookie and requests, after so many steps."""
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(b"\n".join([*log, b""]))
    resolved = as_events(parse_spec(SPEC + HISTORY))
    sources = open_sources([str(folder / "events.jsonl")], resolved, None, (), print, once=True)
    segments = Segments(folder / "rows", 1 << 26)
    merger = Merger(sources, Wanted.of(resolved), segments, once=True)
    rows = EventRows(merger, Join(resolved.join), segments, resolved)
    found: list[tuple] = []

    def take(joined: Joined) -> None:
        for first, columns in segments.gather(joined.segment, joined.row):
            values = zip(*(columns[name].to_pylist() for name in COLUMNS), strict=True)
            found.extend((*row, int(joined.label[first + at])) for at, row in enumerate(values))

    steps = 0
    while not merger.ended:
        if steps == after and forget is not None:
            cookie, requests = forget(rows)
            rows.forget(hashes([cookie]), hashes(requests))
            found.append(())
            forget = None
        step = rows.step(0.2)
        if step is not None:
            take(step[1])
            steps += 1
    take(rows.join.finish())
    merger.close()
    assert steps > 1
    return found


@pytest.fixture(scope="module")
def visits() -> Counter[str]:
    """How many requests each cookie makes."""
    return Counter(json.loads(line)["cookie"] for line in event_logs(REQUESTS).impressions)


def test_requests_that_are_read_ahead_never_happened(tmp_path, visits):
    """Given requests that are forgotten before their events come, the rows are those of a log without them."""
    [(cookie, count)] = visits.most_common(1)
    shown = map(json.loads, event_logs(REQUESTS).impressions)
    theirs = sorted({event["request_id"] for event in shown if event["cookie"] == cookie})
    others = [line for line in lines() if json.loads(line)["request_id"] not in theirs]
    assert len(theirs) == count > 2
    got = joined_rows(tmp_path / "all", lines(), lambda rows: (cookie, theirs), 0)
    assert got[1:] == joined_rows(tmp_path / "others", others, None, 0)


def test_a_cookie_is_found_in_rows_that_wait_and_in_histories(tmp_path, visits):
    """Given a cookie alone, no row that waited is joined later, others' are the same, and who comes back is new."""
    chosen = []

    def waiting(rows: EventRows) -> tuple[str, Sequence[str]]:
        """Of those whose rows wait, who comes most often."""
        shown = rows.join.shown()
        waits = shown[shown["state"] == PENDING]
        places = zip(waits["segment"].tolist(), waits["row"].tolist(), strict=True)
        cookies = {rows.segments.table(segment)["cookie"][row].as_py().decode() for segment, row in places}
        chosen.append(max(sorted(cookies), key=visits.get))
        return chosen[0], []

    whole = joined_rows(tmp_path / "whole", lines(), None, 1)
    got = joined_rows(tmp_path / "forgotten", lines(), waiting, 1)
    at, cookie = got.index(()), chosen[0].encode()
    before, later = ([row for row in part if row[1] == cookie] for part in (got[:at], got[at + 1 :]))
    as_ever = [row for row in whole[at:] if row[1] == cookie]
    assert got[:at] == whole[:at]
    assert [row for row in got[at:] if row and row[1] != cookie] == [
        row for row in whole[at:] if row[1] != cookie
    ]
    gone = {row[0] for row in as_ever} - {row[0] for row in later}
    assert gone and before
    assert later[0][3] == 0.0 < next(row[3] for row in as_ever if row[:3] == later[0][:3])
