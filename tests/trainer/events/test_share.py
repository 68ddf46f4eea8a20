"""Which events are a partition's own: each line is one partition's, an impression and its clicks the same one's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import UsageError
from tests.trainer.events.sources import block_of
from tests.worlds import event_logs
from trainer.events.columns import Wanted
from trainer.events.events import BAD, OTHER
from trainer.events.parse import Parser, PartitionShare, parse
from trainer.settings import parse_partition

WANTED = Wanted(())
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters='"\\'), min_size=1).filter(
    lambda text: all(ord(each) >= 32 for each in text)
)
IDS = PLAIN | st.text(min_size=1) | st.integers(0, 10**18) | st.integers()
OTHERS = st.dictionaries(
    st.sampled_from(["a", "request_id ", "context", "ts", "note"]), st.text() | st.integers()
)


def owner(line: bytes, count: int) -> int:
    starts = np.array([0, len(line)], np.int64)
    owners = [n for n in range(1, count + 1) if PartitionShare(n, count).mine(line, starts)[0]]
    assert len(owners) == 1
    return owners[0]


@given(IDS, OTHERS, st.integers(1, 9), st.booleans(), st.sampled_from([None, " ", ": "]))
def test_impressions_and_clicks_of_a_request_are_one_partitions(request, others, count, ascii_only, space):
    def line(event: dict[str, Any]) -> bytes:
        separators = (",", ":") if space is None else (", ", space if ":" in space else f"{space}:{space}")
        text = json.dumps(event, ensure_ascii=ascii_only, separators=separators)
        return text.encode("utf-8", "surrogatepass") + b"\n"

    first = owner(line({"request_id": request, **others}), count)
    assert owner(line({**others, "request_id": request}), count) == first
    assert owner(line({"request_id": str(request), "item": "request_id"}), count) == first
    nested = {"context": {"request_id": "another"}, "request_id": request, "items": [{"request_id": 7}]}
    assert owner(line(nested), count) == first


@given(st.binary(max_size=60).filter(lambda line: b"\n" not in line), st.integers(1, 5))
@example(b'{"request_id": "a", "request_id": "b"}', 7)
@example(b'{"request\\u005fid": "a"}', 7)
@example(b'{"context": {"request_id": "a"}}', 7)
@example(b'{"request_id": "a\\"b"}', 7)
@example(b'{"request_id": 1.0}', 7)
@example(b'{"request_id": ["a"]}', 7)
@example(b'{"request_id"', 7)
@example(b'{"request_id": ', 7)
@example(b'{"request_id": "', 7)
@example(b"", 3)
def test_any_bytes_are_one_partitions(line: bytes, count: int) -> None:
    owner(line + b"\n", count)


def test_escaped_and_plain_spellings_of_an_id_are_one() -> None:
    for count in (2, 3, 7):
        lines = b'{"request_id": "caf\\u00e9"}\n', '{"request_id": "café"}\n'.encode()
        assert owner(lines[0], count) == owner(lines[1], count)


def test_the_partitions_of_a_log_are_about_equal_and_parse_to_the_events_of_the_whole() -> None:
    logs = event_logs(600)
    bad = [b"[]", b'{"request_id": "x"}', *[b"no %d" % n for n in range(9)]]
    lines = [*logs.impressions, *logs.clicks, *bad]
    data, starts = block_of(lines)
    whole = parse(data, starts, WANTED)
    parts = [Parser(WANTED, PartitionShare(n, 3)).parse(data, starts) for n in (1, 2, 3)]
    mine = np.stack([part.kind != OTHER for part in parts])
    assert (mine.sum(axis=0) == 1).all()
    assert all(0.25 * len(lines) < each < 0.42 * len(lines) for each in mine.sum(axis=1))
    for name in ("kind", "time_us", "request", "item", "what"):
        together = np.zeros_like(getattr(whole, name))
        for part, own in zip(parts, mine, strict=True):
            together[own] = getattr(part, name)[own]
        assert np.array_equal(together, getattr(whole, name)), name
    assert {number: reason for part in parts for number, reason in part.bad.items()} == whole.bad
    for part, own in zip(parts, mine, strict=True):
        assert np.array_equal(whole.items[np.repeat(own, np.diff(whole.first))], part.items)
        assert int(part.first[-1]) == part.items.size and (part.kind[list(part.bad)] == BAD).all()


def test_partitions_as_they_are_written() -> None:
    for text in ("1/2", "2/2", "any/3", "1/1", "1000/1000"):
        number, count = parse_partition(text)
        assert text == f"{number or 'any'}/{count}"
    for text in ("", "1", "0/2", "3/2", "1/0", "a/2", "1/1001", "any", "-1/2", "1/2/3", "²/2"):
        with pytest.raises(UsageError, match="expected I/N or any/N"):
            parse_partition(text)
