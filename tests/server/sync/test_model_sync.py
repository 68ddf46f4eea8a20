"""What a server takes from its store: the active version, by deltas or a snapshot; or from its own disk.

And versions that cannot be taken: one log line a cause, a count by reason, and pauses between the tries.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist

import grpc
import numpy as np
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ftrie.api.client import Client, RankFailed
from ftrie.cli import run
from model_store.errors import ArtefactError, NewerFormat, StoreError, VersionNotFound
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.store import Store
from server.model import shared_memory
from server.settings import Settings
from server.sync.distribution import Distribution
from server.sync.last_good import check_state
from server.sync.model_builder import ModelBuilder
from server.sync.model_sync import RELOADS, ModelSync, SyncState
from server.sync.version_retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, VersionRetry, reason_of
from server.telemetry.meter import Meter
from tests.clocks import ManualClock
from tests.server import shop
from tests.server.one_process import Server
from tests.server.sync.served_models import (
    CANDIDATES,
    asking,
    expected,
    publish,
    publish_delta,
    scores,
    some_models,
    status,
)
from tests.waiting import eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Start = Callable[..., Server]


@pytest.fixture
def begin(start: Start, shop_store: Store, tmp_path: Path) -> Start:
    """Starts a server of the shop with a state folder."""
    return partial(start, state=str(tmp_path))


def reloads(server: Server, kind: str) -> int:
    server.totals.add("supervisor", server.meter.take())
    return sum(int(n) for labels, n in server.totals.samples()[RELOADS.name] if labels[-1] == kind)


def test_a_server_that_came_by_deltas_answers_as_one_that_loaded_the_snapshot(
    store: Store, begin: Start, start: Start
) -> None:
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
    with asking(by_deltas) as one, asking(start()) as other:
        eventually(lambda: one.rank(candidates=CANDIDATES).version == version)
        for variant in shop.VARIANTS:
            assert scores(one, "u1", variant) == scores(other, "u1", variant)


def test_a_gap_in_the_deltas_is_closed_by_the_snapshot_and_a_damaged_one_refused(
    store: Store, begin: Start
) -> None:
    models, versions = some_models(), store.model(shop.NAME)
    first = publish(store, models[0])
    server = begin()
    with asking(server) as client:
        # Another line of versions, which does not go through the one served.
        other = versions.publish(models[1])
        version = publish(store, models[2], models[1], other)
        eventually(lambda: status(server).version == version)
        assert reloads(server, "snapshot") == 2
        # From there on by deltas again, two at once, of which the first was never active: a guard refuses it.
        between = publish_delta(store, models[3], models[2], version, refused="for the test")
        version = publish(store, models[0], models[3], between)
        eventually(lambda: status(server).version == version)
        assert reloads(server, "delta") == 1
        assert status(server).refused == {}
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
        now = scores(client, "u1")
        versions.rollback(first)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == first)
        assert scores(client, "u1") == now, "the same content, whichever way it came"
        bad = publish_delta(store, models[1], models[0], first)
        chunk = versions.keys.chunks(bad, 1)[0]
        store.client.setrange(chunk, store.client.strlen(chunk) // 2, b"\x00\xff\x00")
        with structlog.testing.capture_logs() as logs:
            store.client.set(versions.keys.active, bad)  # activate would have refused it
            eventually(lambda: status(server).refused.get("damaged", 0) >= 2)
        refused = next(line for line in logs if line["event"] == "version refused")
        assert (refused["version"], refused["still_serving"], refused["log_level"]) == (bad, first, "error")
        assert status(server).version == first
        assert "was refused (damaged)" in status(server).problem
        version = publish(store, models[2])
        eventually(lambda: (status(server).version, status(server).problem) == (version, ""))


def health_of(server: Server, model: str) -> int:
    with grpc.insecure_channel(server.address) as channel:
        asked = health_pb2.HealthCheckRequest(service=f"ctr.v1.RankingService{model}" if model else "")
        return int(health_pb2_grpc.HealthStub(channel).Check(asked, timeout=20).status)


def test_one_server_serves_several_models(shop_store: Store, store_url: str) -> None:
    server = Server(Settings((shop.NAME, "ads"), store_url, drain_s=1.0))
    server.startup()
    with Client(server.address, timeout_s=20.0) as client:
        eventually(lambda: server.models[shop.NAME].served is not None)
        assert client.rank(shop.NAME, candidates=["item-1"]).version == 1
        assert server.ready.wait(180), "a model without a version keeps no other from its callers"
        with pytest.raises(RankFailed, match="'ads' is not served here: the store names no active version"):
            client.rank("ads", candidates=["item-1"])
        assert (health_of(server, ""), health_of(server, f"/{shop.NAME}")) == (SERVING, SERVING)
        assert health_of(server, "/ads") == NOT_SERVING
        versions = shop_store.model("ads")
        damaged = versions.publish(shop.artefact(seed=3))
        shop_store.client.set(versions.keys.chunks(damaged, 1)[0], b"no artefact")
        shop_store.client.set(versions.keys.active, damaged)
        eventually(lambda: "was refused (damaged)" in server.status()[1].lacking)
        versions.publish_and_activate(shop.artefact(seed=2))
        eventually(lambda: health_of(server, "/ads") == SERVING)
        assert server.status()[1].lacking == ""
        answers = [client.rank(name, candidates=["item-1"], variant="base") for name in (shop.NAME, "ads")]
        assert [answer.model for answer in answers] == [shop.NAME, "ads"]
        wanted = [shop.expected_score(shop.ITEMS["item-1"], 0, seed) for seed in (1, 2)]
        assert [answer.items[0].score for answer in answers] == pytest.approx(wanted)
        with pytest.raises(RankFailed, match="model: empty, and this server serves several"):
            client.rank(candidates=["item-1"])
    server.end()


def test_a_server_starts_from_disk_while_the_store_is_away_or_empty_and_says_so(
    store: Store, begin: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin()
    with asking(first) as client:
        before = [scores(client, "u1", variant) for variant in shop.VARIANTS]
    first.end()
    nobody = f"unix://{tmp_path}/nobody.sock"
    assert check_state(tmp_path) == {shop.NAME: ""} and run(["warmup", "--state", str(tmp_path)]) == 0
    with monkeypatch.context() as upgrade:
        upgrade.setattr(shared_memory, "FORMAT_VERSION", 99)
        assert "of parts, expected 99" in check_state(tmp_path)[shop.NAME]
        assert run(["warmup", "--state", str(tmp_path)]) == ArtefactError.exit_code
        upgraded = begin(nobody)
        eventually(lambda: "on disk cannot be served" in status(upgraded).disk_problem)
        assert status(upgraded).version is None
        upgraded.end()
    away = begin(nobody)
    with asking(away) as client:
        assert (status(away).version, status(away).source, status(away).store_away) == (1, "disk", True)
        answer = client.rank(candidates=CANDIDATES, variant="base")
        said = "model: the store is away; version 1 is from this server's disk"
        assert list(map(str, answer.degraded)) == [said]
        inline = {"age": "20", "likes": ["red", "blue"], "device": "u1"}
        for variant, expected in zip(shop.VARIANTS, before, strict=True):
            again = client.rank(user=inline, candidates=CANDIDATES, variant=variant)
            assert {item.id: item.score for item in again.items} == expected
    away.end()
    back = begin()
    with asking(back) as client:
        eventually(lambda: client.rank(candidates=CANDIDATES).degraded == ())
        assert reloads(back, "snapshot") == 0, "nothing is fetched: what is on disk is the store's version"
        version = shop.publish(store, seed=2)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
    back.end()
    store.client.flushall()
    with asking(begin()) as client:
        assert "the store names no active version" in client.rank(candidates=CANDIDATES).degraded[0].detail


def test_items_and_experiment_follow_while_a_version_is_refused_and_what_is_from_disk_stays_so(
    store: Store, begin: Start
) -> None:
    def takes(client: Client, record: dict[str, str]) -> None:
        store.records.put_items([("item-1", record)])
        score = pytest.approx(shop.expected_score(record, 0))
        eventually(lambda: client.rank(candidates=["item-1"], variant="base").items[0].score == score)

    first = begin()
    with asking(first) as client:
        store.client.set(store.model(shop.NAME).keys.active, 7)
        eventually(lambda: status(first).refused.get("gone"))
        takes(client, shop.ITEMS["item-2"])
        store.client.set(store.model(shop.NAME).keys.active, "junk")
        eventually(lambda: status(first).refused.get("unreadable"))
        store.model(shop.NAME).experiments.change(
            lambda found: replace(found, state="stopped", winner="plain")
        )
        eventually(lambda: client.rank(cookie="u1", candidates=CANDIDATES).variant == "plain")
        eventually(lambda: client.rank(cookie="u2", candidates=CANDIDATES).variant == "plain")
    first.end()
    from_disk = begin()
    with asking(from_disk) as client:
        assert status(from_disk).source == "disk"
        takes(client, shop.ITEMS["item-3"])
        assert status(from_disk).source == "disk"
        assert "from this server's disk" in client.rank(candidates=CANDIDATES).degraded[0].detail
        version = shop.publish(store, seed=2)
        eventually(lambda: status(from_disk).version == version)
        eventually(lambda: status(from_disk).source == "store")


def test_a_damaged_copy_on_disk_is_not_served(begin: Start, tmp_path: Path) -> None:
    first = begin()
    assert first.ready.wait(180)
    first.end()
    values = next(tmp_path.rglob("values-*.part"))
    data = bytearray(values.read_bytes())
    data[-1] ^= 1
    values.write_bytes(data)
    with structlog.testing.capture_logs() as logs:
        server = begin()
        assert server.ready.wait(180)
    assert "the last good model on disk is of no use" in [line["event"] for line in logs]
    assert reloads(server, "snapshot") == 1


def test_a_state_folder_that_takes_nothing_costs_only_the_copy(begin: Start, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no folder")
    server = begin()
    with asking(server) as client:
        eventually(lambda: status(server).disk_problem != "")
        assert client.rank(candidates=CANDIDATES).degraded == ()


def test_buffers_are_used_in_turns_however_many_deltas_come(store: Store, begin: Start) -> None:
    one, other = shop.artefact(1), shop.artefact(2)
    version = publish(store, one)
    server = begin()
    assert server.ready.wait(180)
    seen: set[int] = set()
    for turn in range(8):
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

    def commands() -> int:
        """How many reads of manifests and chunks the store has answered."""
        stats = store.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "hgetall", "mget"))

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
        manifest, reads = versions.manifest(served), commands()
        assert builder.bring_to(versions, manifest) == "delta"
        # One chunk each, and the manifests of those between the served version and the new one.
        assert commands() - reads == deltas + (deltas - 1)


def test_the_states_of_a_model_that_is_followed(store: Store, store_url: str) -> None:
    def problem() -> str:
        return sync.status.problem

    sync = ModelSync(shop.NAME, store_url, Distribution(lambda model, uid: None), None, Meter())
    assert sync.state is SyncState.CONNECTING
    sync.start()
    try:
        eventually(lambda: sync.state is SyncState.NO_ACTIVE_VERSION)
        assert problem() == "the store names no active version"
        shop.fill(store)
        eventually(lambda: sync.state is SyncState.SERVING)
        assert problem() == ""
        store.client.set(store.model(shop.NAME).keys.active, 7)
        eventually(lambda: sync.state is SyncState.REFUSED)
        assert problem() == "version 7 was refused (gone)"
        shop.publish(store, seed=2)
        eventually(lambda: sync.state is SyncState.SERVING)
        assert sync.status.version == 2
    finally:
        sync.stop()
        sync.join(20.0)


def test_the_active_version_is_served_when_it_comes_changes_and_is_rolled_back(
    store: Store, start: Callable[[], Server]
) -> None:
    store.client.set("ftrie:item:no hash", "text")  # keys that are no items keep no version from being served
    store.client.hset("ftrie:item:", "brand", "b1")
    server = start()
    first = shop.fill(store)
    assert server.ready.wait(180)
    assert server.current.served is not None
    assert len(server.current.served.catalogue) == len(shop.ITEMS)
    with Client(server.address, timeout_s=20.0) as client:
        assert client.rank(candidates=["item-1"]).version == first
        version = shop.publish(store, seed=2)
        eventually(lambda: client.rank(candidates=CANDIDATES).version == version)
        assert scores(client) == pytest.approx(expected(seed=2))
        assert store.model(shop.NAME).rollback() == first
        eventually(lambda: client.rank(candidates=CANDIDATES).version == first)
        assert scores(client) == pytest.approx(expected())


def test_versions_of_another_link_are_served_changed_and_rolled_back(client: Client, store: Store) -> None:
    alpha, beta, versions = 0.4, 0.5, store.model(shop.NAME)
    learner = f'[learner]\nalgorithm = "adpredictor"\nalpha = {alpha}\nbeta = {beta}\n'
    parsed = parse_spec(shop.SPEC + learner)
    spec = parsed.resolve(["click", "device", *parsed.fields])
    first, second = (replace(shop.artefact(seed), spec=spec) for seed in (2, 3))
    delta = second.changes_since(first, version=versions.publish_and_activate(first))
    changed = versions.publish_and_activate(delta)
    eventually(lambda: client.rank(candidates=["item-1"]).version == changed)

    explained = client.explain(candidates=["item-1"], variant="base").items[0].item
    score = shop.expected_score(shop.ITEMS["item-1"], 0, seed=3)
    keys = [key for key in FeaturePlan.of(spec).keys(shop.ITEMS["item-1"]) if key[2] & 1]
    rate = float(shop.artefact().rate[0])
    variance = sum((rate if key in shop.masks() else alpha) * x * x for key, x, _ in keys)
    assert explained.score == pytest.approx(score)
    assert explained.uncertainty == pytest.approx(math.sqrt(variance))
    assert explained.ctr == pytest.approx(NormalDist().cdf(score / math.sqrt(beta**2 + variance)), abs=1e-9)
    ranked = client.rank(candidates=["item-1"], variant="base").items[0]
    assert ranked == replace(explained, uncertainty=None), "a plain answer has none"

    versions.activate(1)
    eventually(lambda: client.rank(candidates=["item-1"]).version == 1)
    plain = client.rank(candidates=["item-1"]).items[0]
    assert plain.ctr == pytest.approx(1 / (1 + math.exp(-plain.score)))


def test_a_store_that_was_emptied_leaves_the_model_in_service_until_a_number_is_given_out_again(
    client: Client, store: Store
) -> None:
    before = client.rank(candidates=CANDIDATES, variant="base").items
    with structlog.testing.capture_logs() as logs:
        store.client.flushall()
        eventually(lambda: bool(logs))
        assert client.rank(candidates=CANDIDATES, variant="base").items == before
        assert shop.fill(store, seed=2) == 1
        eventually(lambda: scores(client) == pytest.approx(expected(seed=2)))
        eventually(lambda: any(line["event"] == "serving" for line in logs))
    reports = [line for line in logs if line["event"] == "no version is active any more"]
    assert [(line["still_serving"], line["log_level"]) for line in reports] == [(1, "error")]


def test_a_store_that_died_is_found_again(start: Callable[..., Server]) -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}"
        with Store.open(url) as store:
            shop.fill(store)
            server = start(url)
            assert server.ready.wait(180)
            os.kill(store.client.info("server")["process_id"], signal.SIGKILL)
        with Client(server.address) as client:
            assert client.rank(cookie="u1", candidates=CANDIDATES).version == 1
            with Store.open(url) as again:
                version = shop.fill(again, seed=2)
                eventually(lambda: scores(client) == pytest.approx(expected(seed=2)))
                eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).degraded == ())
            assert client.rank(candidates=["item-1"]).version == version
        server.end()


def test_a_server_waits_for_a_store_that_is_away_but_for_no_url_that_is_none(start: Start) -> None:
    with Client(start("redis://127.0.0.1:1").address) as client, pytest.raises(RankFailed) as failed:
        client.rank(candidates=["item-1"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(StoreError, match="expected redis://"):
        start("http://127.0.0.1:1")


def test_each_cause_has_a_word() -> None:
    for error, reason in (
        (ArtefactError("bad"), "damaged"),
        (NewerFormat("new"), "newer"),
        (VersionNotFound("none"), "gone"),
        (MemoryError(), "memory"),
        (OSError(28, "no space"), "memory"),
        (StoreError("odd"), "failed"),
        (ZeroDivisionError(), "failed"),
    ):
        assert reason_of(error) == reason


def test_a_cause_is_said_once_and_counted_each_time() -> None:
    retry = VersionRetry("shop", Meter())
    with structlog.testing.capture_logs() as logs:
        for error in (ArtefactError("a"), ArtefactError("a"), ArtefactError("b"), ZeroDivisionError("c")):
            retry.refuse(7, error, still_serving=6)
    told = [(line.get("error"), line["reason"]) for line in logs]
    assert told == [("a", "damaged"), ("b", "damaged"), (None, "failed")]
    assert retry.counts == {"damaged": 3, "failed": 1}


def test_a_refused_version_rests_and_another_one_does_not() -> None:
    clock = ManualClock()
    retry = VersionRetry("shop", Meter(), clock)
    retry.refuse(7, ArtefactError("bad"), still_serving=6)
    assert retry.resting(7)
    assert not retry.resting(8)
    clock.advance(FIRST_PAUSE_S)
    assert not retry.resting(7)
    for _ in range(40):
        retry.refuse(7, ArtefactError("bad"), still_serving=6)
    clock.advance(LONGEST_PAUSE_S / 2 - 0.01)
    assert retry.resting(7)
    retry.forgive()
    assert not retry.resting(7)
