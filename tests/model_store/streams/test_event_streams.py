"""Streams of events: what was appended is read, in order, once; what was trimmed unread can be told."""

from __future__ import annotations

import json

import pytest

from model_store.errors import StoreError
from model_store.store import Store
from model_store.streams.event_streams import StreamInfo
from tests.model_store.kinds import on_every_kind


def payloads(count: int, start: int = 0) -> list[bytes]:
    return [b'{"n": %d}' % number for number in range(start, start + count)]


def after(ids: object) -> tuple[int, int]:
    milliseconds, number = ids[-1].tolist()  # type: ignore[index]
    return milliseconds, number


@on_every_kind
def test_what_is_appended_is_read_in_order_and_read_on_from_there(store: Store) -> None:
    for stream in (store.clicks("ads"), store.event_stream("shop:clicks")):  # any key can hold events
        nothing = stream.read((0, 0), 10)
        found = (len(nothing), nothing.ids.shape, nothing.first_id, nothing.removed)
        assert found == (0, (0, 2), None, 0)
        assert stream.info() == StreamInfo(0, None, (0, 0), 0)
        assert stream.append(payloads(5)) == 5
        first = stream.read((0, 0), 3)
        rest = stream.read(after(first.ids), 3)
        assert first.payloads + rest.payloads == payloads(5)
        assert first.ids.shape == (3, 2)
        assert len(stream.read(after(rest.ids), 3)) == 0
        stream.append([b'{\n  "item": "a"\n}'])  # line feeds between members become spaces
        later = stream.read(after(rest.ids), 1)
        assert later.payloads == [b'{   "item": "a" }']
        # The clock of a read is not before what it read and not behind what comes after.
        assert rest.ids[-1, 0] * 1000 <= rest.now_us <= later.ids[0, 0] * 1000 + 999
        assert store.client.xlen(stream.key) == 6


def test_flat_fields_become_json_with_the_entrys_time(store: Store) -> None:
    stream = store.clicks("ads")
    store.client.xadd(stream.key, {"request_id": "7", "item": "ü"}, id="1700000000123-0")
    store.client.xadd(stream.key, {"item": "a", "ts": "1.5", "value": "2", "event_id": "0"})
    store.client.xadd(stream.key, {"item": b"\xff", "ts": "2023-11-14T22:13:20Z"})
    own, given, odd = map(json.loads, stream.read((0, 0), 9).payloads)
    assert own == {"request_id": "7", "item": "ü", "ts": 1700000000.123}
    assert given == {"item": "a", "ts": 1.5, "value": 2, "event_id": "0"}
    assert odd == {"item": "\udcff", "ts": "2023-11-14T22:13:20Z"}


def test_a_flat_number_that_is_none_stays_the_text_it_is(store: Store) -> None:
    stream = store.clicks("ads")
    numbers = ["1e999", "-1e999", "9" * 5000, "NaN", "0x1", "1_0", " 1", ""]
    for number in numbers:
        store.client.xadd(stream.key, {"ts": number, "value": number})
    read = map(json.loads, stream.read((0, 0), 9).payloads)
    assert list(read) == [{"ts": number, "value": number} for number in numbers]


def test_a_reader_can_tell_how_many_were_trimmed_unread(store: Store) -> None:
    stream = store.clicks("ads")
    stream.append(payloads(10))
    read = stream.read((0, 0), 4)
    store.client.xtrim(stream.key, maxlen=3, approximate=False)
    rest = stream.read(after(read.ids), 10)
    assert rest.payloads == payloads(3, 7)
    assert rest.first_id == tuple(rest.ids[0].tolist())
    assert rest.removed == 7  # four had been read: three were missed
    assert stream.info().added == 10


def test_another_kind_of_key_is_an_error_that_names_it(store: Store) -> None:
    stream = store.clicks("ads")
    store.client.set(stream.key, "text")
    for use in (lambda: stream.append(payloads(1)), lambda: stream.read((0, 0), 1), stream.info):
        with pytest.raises(StoreError, match=r"ftrie:\{ads\}:clicks.*WRONGTYPE"):
            use()  # type: ignore[operator]


def test_what_is_too_old_by_the_stores_clock_is_trimmed_whatever_this_machines_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    stream = store.event_stream("events")
    stream.age_s = 60.0
    for number in range(1, 501):  # long ago, and several of the blocks that a stream is trimmed by
        store.client.execute_command("XADD", "events", f"{number}-1", "json", "{}")
    stream.append([b"{}"])
    info = stream.info()
    assert info.added == 501
    assert 1 <= info.length <= 200
