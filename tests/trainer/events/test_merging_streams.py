"""Two streams of a real store in one order, while they are written and the merger is stopped and begun again."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.trainer.events.sources import Tables
from trainer.events.columns import Wanted
from trainer.events.events import FEEDBACK, IMPRESSION, SourcePosition
from trainer.events.merge import Merger
from trainer.events.open_sources import open_sources

SPEC = parse_spec('[model]\nname = "ads"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\n')
WANTED = Wanted.of(SPEC)
EVENTS = 400
START_S = 1_700_000_000


def write(store: Store) -> None:
    """Impressions and clicks in small batches, now to one stream, now to the other."""
    random = np.random.default_rng(1)
    shown = {"items": [{"id": "a", "features": {"brand": "x"}}]}
    ways = (store.impressions("ads"), shown), (store.clicks("ads"), {"item": "a"})
    number = 0
    while number < EVENTS:
        batch = range(number, number + int(random.integers(1, 9)))
        stream, said = ways[random.integers(2)]
        stream.append([json.dumps({"request_id": n, "ts": START_S + n, **said}).encode() for n in batch])
        number = batch.stop


def in_order(store: Store) -> list[tuple[int, int]]:
    """(kind, second) of every entry by (its milliseconds, impressions first, its position): read once all is there."""
    found = []
    for kind, stream in ((IMPRESSION, store.impressions("ads")), (FEEDBACK, store.clicks("ads"))):
        read = stream.read((0, 0), 10 * EVENTS)
        for (ms, number), payload in zip(read.ids.tolist(), read.payloads, strict=True):
            found.append((ms, kind, number, json.loads(payload)["ts"] - START_S))
    return [(kind, second) for _, kind, _, second in sorted(found)]


def read_on(
    store: Store, positions: list[SourcePosition], *, once: bool
) -> Generator[tuple[list[tuple[int, int]], list[SourcePosition]]]:
    """What each poll brings, and the positions behind it."""
    sources = open_sources(["store"], SPEC, store, positions, lambda note: pytest.fail(note), once=once)
    merger = Merger(sources, WANTED, Tables(), positions=positions, once=once)
    try:
        while not merger.ended:
            merged = merger.poll(1.0)
            if merged is not None:
                seconds = merged.time_us // 1_000_000 - START_S
                yield list(zip(merged.kind.tolist(), seconds.tolist(), strict=True)), merger.positions()
    finally:
        merger.close()


def test_streams_being_written_are_read_in_the_order_of_their_ids_through_stops(store: Store) -> None:
    writer = threading.Thread(target=write, args=(store,))
    writer.start()
    seen, positions = list[tuple[int, int]](), list[SourcePosition]()
    for _ in range(3):  # stopped after two polls each, what was read ahead forgotten
        reading = read_on(store, positions, once=False)
        for _ in range(2):
            if len(seen) < EVENTS:  # at least so many will come
                events, positions = next(reading)
                seen += events
        reading.close()
        if len(seen) >= EVENTS:
            break
    writer.join()
    for events, _ in read_on(store, json.loads(json.dumps(positions)), once=True):
        seen += events
    assert seen == in_order(store)
