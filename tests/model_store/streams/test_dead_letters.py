"""Dead letters: each number once, the latest first, and no event too large."""

from __future__ import annotations

from model_store.store import Store
from model_store.streams.event_streams import JSON_BYTES, Letter
from tests.model_store.kinds import on_every_kind


def letters(*numbers: int) -> list[Letter]:
    return [Letter("redis#clicks", str(number), "no request_id", b'{"n": %d}' % number) for number in numbers]


@on_every_kind
def test_letters_are_listed_once_and_latest_first_with_all_they_say(store: Store) -> None:
    dead = store.dead_letters("ads")
    dead.add(1, [])
    assert (list(dead.latest(9)), dead.last()) == ([], 0)
    dead.add(1, letters(1, 2, 3))
    assert list(dead.latest(2)) == [(3, letters(3)[0]), (2, letters(2)[0])]
    assert dead.last() == 3
    dead.add(2, letters(2, 3, 4))
    assert [number for number, _ in dead.latest(9)] == [4, 3, 2, 1]


def test_the_stream_keeps_about_so_many_a_large_event_is_cut_and_any_bytes_are_kept(store: Store) -> None:
    dead = store.dead_letters("ads")
    for start in range(1, 12_000, 1000):
        dead.add(start, letters(*range(start, start + 1000)))
    assert 10_000 <= store.client.xlen(dead.key) < 10_200
    odd = Letter("file:ü\udcff", "7", "not UTF-8", b"\xff\0" * JSON_BYTES)
    dead.add(20_000, [odd])
    ((_, kept),) = dead.latest(1)
    assert (kept.source, len(kept.json)) == (odd.source, JSON_BYTES)
