"""What a server takes from its store: deltas in their order, snapshots where these do not lead, or its own disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog

from ftrie.client.client import Client, RankFailed
from model_store.artefact.artefact import Artefact
from model_store.store import Store
from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.model_builder import ModelBuilder
from server.sync.model_sync import ModelSync, State
from server.telemetry.meter import Meter
from server.telemetry.status import ModelStatus
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

Start = Callable[..., Server]
CANDIDATES = list(shop.ITEMS)


@pytest.fixture
def begin(store_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a server with a state folder; ended with the test, if it has not been before."""
    running: list[Server] = []

    def begun(*models: str, store: str = store_url) -> Server:
        settings = Settings(
            models or (shop.NAME,), store, drain_s=1.0, store_budget_s=0.2, state=str(tmp_path)
        )
        server = Server(settings)
        running.append(server)
        server.startup()
        return server

    yield begun
    for server in running:
        end(server)


def end(server: Server) -> None:
    server.drain()
    server.shutdown()


def part_of(whole: Artefact, rows: slice) -> Artefact:
    """A model of some of the rows."""
    ends = whole.key_offsets
    first, last = int(ends[rows.start]), int(ends[rows.stop])
    return Artefact.from_columns(
        key_data=whole.key_data[first:last],
        key_offsets=ends[rows.start : rows.stop + 1] - first,
        weight=whole.weight[rows],
        variants=whole.variants[rows],
        rate=whole.rate[rows],
        spec=whole.spec,
        metrics={},
    )


def some_models() -> list[Artefact]:
    """Models that differ in weights, and in which keys they have."""
    rows = shop.artefact(1).rows
    return [
        part_of(shop.artefact(1), slice(0, rows - 20)),
        part_of(shop.artefact(2), slice(0, rows - 20)),
        part_of(shop.artefact(2), slice(10, rows - 5)),
        part_of(shop.artefact(3), slice(0, rows)),
    ]


def publish(store: Store, model: Artefact, before: Artefact | None = None, parent: int = 0) -> int:
    """Publish and activate a snapshot, or the delta that leads there."""
    versions = store.model(shop.NAME)
    version = versions.publish(model) if before is None else publish_delta(store, model, before, parent)
    versions.activate(version)
    return version


def publish_delta(store: Store, model: Artefact, before: Artefact, parent: int) -> int:
    """Publish the delta that leads from the version `parent` to this model, without activating it."""
    return store.model(shop.NAME).publish(model.changes_since(before), parent=parent)


def status(server: Server) -> ModelStatus:
    return server.status()[0]


def scores(client: Client, variant: str) -> list[float]:
    answer = client.rank(cookie="u1", candidates=CANDIDATES, variant=variant)
    by_item = {item.id: item.score for item in answer.items}
    return [by_item[item] for item in CANDIDATES]


def reloads(server: Server, kind: str) -> int:
    taken = server.meter.take()
    server.totals.add("supervisor", taken)
    return sum(
        int(n) for name, labels, n in server.totals.counts() if "reloads" in name and labels[-1] == kind
    )


def test_a_server_that_came_by_deltas_answers_as_one_that_loaded_the_snapshot(
    store: Store, store_url: str, begin: Start, start: Start
) -> None:
    shop.fill(store)
    models = some_models()
    version = publish(store, models[0])
    by_deltas = begin()
    assert by_deltas.ready.wait(180)
    for before, after in itertools.pairwise(models):
        version = publish(store, after, before, version)
        eventually(lambda version=version: status(by_deltas).version == version)  # type: ignore[misc]
    assert status(by_deltas).kind == "delta"
    assert reloads(by_deltas, "delta") == 3
    snapshot = store.model(shop.NAME).publish(models[-1])
    assert store.model(shop.NAME).manifest(snapshot).content == status(by_deltas).content
    by_snapshot = start()
    assert by_snapshot.ready.wait(180)
    with Client(by_deltas.address) as one, Client(by_snapshot.address) as other:
        eventually(lambda: one.rank(candidates=CANDIDATES).version == version)
        for variant in shop.VARIANTS:
            assert scores(one, variant) == scores(other, variant)


def test_a_gap_in_the_deltas_is_closed_by_the_snapshot(store: Store, begin: Start) -> None:
    shop.fill(store)
    models = some_models()
    first = publish(store, models[0])
    server = begin()
    assert server.ready.wait(180)
    # Another line of versions, which does not go through the one served.
    other = store.model(shop.NAME).publish(models[1])
    version = publish(store, models[2], models[1], other)
    eventually(lambda: status(server).version == version)
    assert reloads(server, "snapshot") == 2
    # From there on by deltas again, two at once.
    versions = store.model(shop.NAME)
    between = publish_delta(store, models[3], models[2], version)
    version = publish(store, models[0], models[3], between)
    eventually(lambda: status(server).version == version)
    assert reloads(server, "delta") == 1
    assert status(server).refused == {}
    with Client(server.address) as client:
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
        now = scores(client, "base")
        versions.rollback(first)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == first)
        assert scores(client, "base") == now, "the same content, whichever way it came"


def test_a_damaged_delta_is_refused_and_what_is_served_stays(store: Store, begin: Start) -> None:
    shop.fill(store)
    models = some_models()
    first = publish(store, models[0])
    server = begin()
    assert server.ready.wait(180)
    versions = store.model(shop.NAME)
    bad = publish_delta(store, models[1], models[0], first)
    chunk = versions.keys.chunks(bad, 1)[0]
    store.client.setrange(chunk, store.client.strlen(chunk) // 2, b"\x00\xff\x00")
    store.client.set(versions.keys.active, bad)
    eventually(lambda: status(server).refused.get("damaged", 0) >= 2)
    assert status(server).version == first
    assert "was refused (damaged)" in status(server).problem
    version = publish(store, models[2])
    eventually(lambda: status(server).version == version)
    assert status(server).problem == ""


def test_one_server_serves_several_models(store: Store, begin: Start) -> None:
    shop.fill(store)
    server = begin(shop.NAME, "ads")
    with Client(server.address) as client:
        eventually(lambda: server.models[shop.NAME].served is not None)
        assert client.rank(shop.NAME, candidates=["item-1"]).version == 1
        with pytest.raises(RankFailed, match="'ads' is still loading"):
            client.rank("ads", candidates=["item-1"])
        assert not server.ready.is_set()
        store.model("ads").publish_and_activate(shop.artefact(seed=2))
        assert server.ready.wait(180)
        answers = [client.rank(name, candidates=["item-1"], variant="base") for name in (shop.NAME, "ads")]
        assert [answer.model for answer in answers] == [shop.NAME, "ads"]
        wanted = [shop.expected_score(shop.ITEMS["item-1"], 0, seed) for seed in (1, 2)]
        assert [answer.items[0].score for answer in answers] == pytest.approx(wanted)
        with pytest.raises(RankFailed, match="model: empty, and this server serves several"):
            client.rank(candidates=["item-1"])


def test_a_server_starts_from_disk_while_the_store_is_away_and_says_so(
    store: Store, begin: Start, tmp_path: Path
) -> None:
    shop.fill(store)
    first = begin()
    assert first.ready.wait(180)
    with Client(first.address) as client:
        before = [scores(client, variant) for variant in shop.VARIANTS]
    end(first)
    away = begin(store=f"unix://{tmp_path}/nobody.sock")
    assert away.ready.wait(180)
    assert (status(away).version, status(away).source, status(away).store_away) == (1, "disk", True)
    with Client(away.address) as client:
        answer = client.rank(candidates=CANDIDATES, variant="base")
        assert tuple(map(str, answer.degraded)) == (
            "model: the store is away; version 1 is from this server's disk",
        )
        inline = {"age": "20", "likes": ["red", "blue"], "device": "u1"}
        for variant, expected in zip(shop.VARIANTS, before, strict=True):
            again = client.rank(user=inline, candidates=CANDIDATES, variant=variant)
            by_item = {item.id: item.score for item in again.items}
            assert [by_item[item] for item in CANDIDATES] == expected
    end(away)
    back = begin()
    assert back.ready.wait(180)
    with Client(back.address) as client:
        eventually(lambda: client.rank(candidates=CANDIDATES).degraded == ())
        assert reloads(back, "snapshot") == 0, (
            "what is on disk is the store's very version: nothing is fetched"
        )
        version = shop.publish(store, seed=2)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)


def test_a_store_that_was_emptied_leaves_a_server_that_starts_with_its_disk(
    store: Store, begin: Start
) -> None:
    shop.fill(store)
    first = begin()
    assert first.ready.wait(180)
    end(first)
    store.client.flushall()
    again = begin()
    assert again.ready.wait(180)
    with Client(again.address) as client:
        assert "the store names no active version" in client.rank(candidates=CANDIDATES).degraded[0].detail


def test_a_damaged_copy_on_disk_is_not_served(store: Store, begin: Start, tmp_path: Path) -> None:
    shop.fill(store)
    first = begin()
    assert first.ready.wait(180)
    end(first)
    values = next(tmp_path.rglob("values-*.part"))
    data = bytearray(values.read_bytes())
    data[-1] ^= 1
    values.write_bytes(data)
    with structlog.testing.capture_logs() as logs:
        server = begin()
        assert server.ready.wait(180)
    assert "the last good model on disk is of no use" in [line["event"] for line in logs]
    assert reloads(server, "snapshot") == 1


def test_a_state_folder_that_takes_nothing_costs_only_the_copy(
    store: Store, begin: Start, tmp_path: Path
) -> None:
    shop.fill(store)
    (tmp_path / "models").write_text("no folder")
    server = begin()
    assert server.ready.wait(180)
    eventually(lambda: status(server).disk_problem != "")
    with Client(server.address) as client:
        assert client.rank(candidates=CANDIDATES).degraded == ()


def test_buffers_are_used_in_turns_however_many_deltas_come(store: Store, begin: Start) -> None:
    shop.fill(store)
    one, other = shop.artefact(1), shop.artefact(2)
    version = publish(store, one)
    server = begin()
    assert server.ready.wait(180)
    seen: set[int] = set()
    for turn in range(12):
        before, after = (one, other) if turn % 2 == 0 else (other, one)
        version = publish(store, after, before, version)
        eventually(lambda version=version: server.current.served.version == version)  # type: ignore[misc, union-attr]
        served = server.current.served
        assert served is not None and served.parts is not None
        weights = served.parts.values.arrays["weights"]
        np.testing.assert_array_equal(weights[0], after.weight)
        seen.add(weights.__array_interface__["data"][0])
        del served, weights
    assert len(seen) <= 4


def test_a_delta_costs_one_round_trip_for_each_version_since_the_served_one(store: Store) -> None:
    """The chain behind the served version is not walked, however long it is."""
    versions = store.model(shop.NAME)
    versions.activate(versions.publish(shop.artefact(1)))
    before, served = shop.artefact(1), 1
    for seed in range(2, 8):
        after = shop.artefact(seed)
        served = versions.publish(after.changes_since(before, version=served))
        before = after
    versions.activate(served)
    builder = ModelBuilder(shop.NAME)
    builder.opened(store)
    builder.bring_to(versions, versions.manifest(served))
    for deltas in (1, 3):
        for _ in range(deltas):
            after = shop.artefact(served + 1)
            served = versions.publish(after.changes_since(before, version=served))
            before = after
        manifest, reads = versions.manifest(served), commands(store)
        assert builder.bring_to(versions, manifest) == "delta"
        # One chunk each, and the manifests of those between the served version and the new one.
        assert commands(store) - reads == deltas + (deltas - 1)


def commands(store: Store) -> int:
    """How many reads of manifests and chunks the store has answered."""
    stats = store.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "hgetall", "mget"))


def test_the_states_of_a_model_that_is_followed(store: Store, store_url: str) -> None:
    def problem() -> str:
        return sync.status.problem

    sync = ModelSync(shop.NAME, store_url, Distribution(lambda model, uid: None), None, Meter())
    assert sync.state is State.CONNECTING
    sync.start()
    try:
        eventually(lambda: sync.state is State.NO_ACTIVE_VERSION)
        assert problem() == "the store names no active version"
        shop.fill(store)
        eventually(lambda: sync.state is State.SERVING)
        assert problem() == ""
        store.client.set(store.model(shop.NAME).keys.active, 7)
        eventually(lambda: sync.state is State.REFUSED)
        assert problem() == "version 7 was refused (gone)"
        shop.publish(store, seed=2)
        eventually(lambda: sync.state is State.SERVING)
        assert sync.status.version == 2
    finally:
        sync.stop()
        sync.join(20.0)
