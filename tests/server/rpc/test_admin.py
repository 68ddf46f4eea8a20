"""`ctr.v1.ModelAdminService` of a real server: a supervisor, a worker, a store, and calls over gRPC.

Most tests share one server, so each begins with a new version, and counts revisions from what it finds.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ctr.v1 import admin_pb2 as pb
from ctr.v1.admin_pb2_grpc import ModelAdminServiceStub
from ftrie.cli import run
from ftrie.client.access import Access
from ftrie.client.admin import AdminClient, AdminFailed
from ftrie.client.client import Client
from model_store.store import Store
from model_store.versions.experiments import Experiment
from model_store.versions.model_versions import ModelVersions
from server.rpc.admin_service import page_token
from tests.degradation.system import COMPILE_S, Running, serving
from tests.server import shop
from tests.server.certificates import identity
from tests.waiting import eventually

TOKENS = {"rank": "rank-token-0123456789", "admin": "admin-token-0123456789"}


class Administered:
    """A running server with an admin port, and the store behind it."""

    def __init__(self, running: Running, store: Store) -> None:
        self.running, self.store = running.await_ready(), store
        self.versions = store.model(shop.NAME)
        self.admin_address = str(running.logs("administered on")[0]["address"])

    def calls(self) -> list[str]:
        return [line["call"] for line in self.running.logs("admin call")]


@contextmanager
def administered(*flags: str) -> Iterator[Administered]:
    """`ftrie serve shop` with a store of its own."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        shop.fill(store)
        with serving(f"embedded:{folder}", Path(folder), "--admin-port", "0", *flags) as running:
            yield Administered(running, store)


@pytest.fixture(scope="module")
def served() -> Iterator[Administered]:
    with administered("--impressions", "store") as made:
        yield made


@pytest.fixture
def versions(served: Administered) -> ModelVersions:
    return served.versions


@pytest.fixture
def admin(served: Administered) -> Iterator[AdminClient]:
    with AdminClient(served.admin_address) as connected:
        yield connected


@pytest.fixture
def first(admin: AdminClient, served: Administered, versions: ModelVersions) -> int:
    """The version that is served: a new one, with no other in its history, and no experiment that is applied."""
    if versions.experiment() is not None:
        revision = versions.experiments.clear().revision
        eventually(lambda: admin.experiment().traffic_split.revision == revision)
    version = versions.publish(shop.artefact())
    versions.activate(version)
    served.store.client.delete(versions.keys.history, versions.keys.audit)
    assert admin.reload().model.version == version
    return version


def code_of(call: Callable[[], object]) -> tuple[str, str]:
    """The status and the message that a call ends with."""
    with pytest.raises(AdminFailed) as failed:
        call()
    return failed.value.code.name, str(failed.value)


def test_the_status_names_the_version_its_workers_and_its_traffic(
    admin: AdminClient, served: Administered, first: int
) -> None:
    status = admin.status()
    assert (status.address, status.ready, status.draining) == (served.running.address, True, False)
    [model], [worker] = status.models, status.workers
    assert (model.name, model.version, model.kind, model.source) == (
        "shop",
        first,
        pb.VERSION_KIND_SNAPSHOT,
        pb.MODEL_SOURCE_STORE,
    )
    assert (model.key_count, model.item_count) == (len(shop.masks()), len(shop.ITEMS))
    assert 0 < model.publish_time.seconds <= model.serve_start_time.seconds
    assert [(s.variant, s.share) for s in model.traffic_split.shares] == [("base", 0.5), ("plain", 0.5)]
    assert (worker.state, worker.restart_count) == (pb.WORKER_STATE_SERVING, 0)
    assert worker.pid != served.running.process.pid
    eventually(lambda: dict(admin.status().workers[0].versions) == {"shop": first})
    assert list(admin.models().models) == list(admin.status().models)


def test_it_is_on_the_loopback_interface_on_a_port_of_its_own(served: Administered) -> None:
    assert served.admin_address.startswith("127.0.0.1:")
    assert served.admin_address != served.running.address
    with grpc.insecure_channel(served.running.address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/ctr.v1.ModelAdminService/GetStatus")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_versions_are_listed_activated_and_rolled_back_and_answers_follow(
    admin: AdminClient, served: Administered, versions: ModelVersions, first: int
) -> None:
    second, before = versions.publish(shop.artefact(seed=2)), len(served.calls())
    assert [(v.version, v.active, v.kind) for v in admin.versions()][-2:] == [
        (first, True, pb.VERSION_KIND_SNAPSHOT),
        (second, False, pb.VERSION_KIND_SNAPSHOT),
    ]

    def is_served(version: int) -> bool:
        return served.running.client.rank(candidates=["item-1"]).version == version

    eventually(lambda: is_served(first))
    activated = admin.activate("shop", second)
    assert (activated.version, activated.previous_version) == (second, first)
    eventually(lambda: is_served(second))
    back = admin.roll_back("shop")
    assert (back.version, back.previous_version) == (first, second)
    eventually(lambda: is_served(first))
    assert admin.roll_back("shop", second).version == second
    assert admin.reload().model.version == second
    audited = versions.audit.read()
    assert [(each.action, each.before, each.after) for each in audited] == [
        ("rollback", str(first), str(second)),
        ("rollback", str(second), str(first)),
        ("activate", str(first), str(second)),
    ]
    assert {each.tool for each in audited} == {"admin service"}
    assert all("127.0.0.1" in each.who for each in audited)
    eventually(lambda: served.calls()[before:] == ["ActivateVersion", "RollBack", "RollBack", "Reload"])


def test_reload_takes_up_a_version_that_was_refused_a_moment_ago(
    admin: AdminClient, served: Administered, versions: ModelVersions, first: int
) -> None:
    client, second = served.store.client, versions.publish(shop.artefact(seed=2))
    [chunk] = versions.keys.chunks(second, 1)
    whole = client.get(chunk)
    client.setrange(chunk, len(whole) // 2, b"\0\0\0\0\0\0\0\0")
    client.set(versions.keys.active, second)
    refused = admin.reload().model
    assert (refused.version, bool(refused.problem)) == (first, True)
    assert sum(refused.refusal_counts.values()) >= 1
    client.set(chunk, whole)
    taken = admin.reload().model
    assert (taken.version, taken.problem) == (second, "")


def test_an_experiment_is_read_changed_and_visible_in_answers_without_a_restart(
    admin: AdminClient, served: Administered, versions: ModelVersions, first: int
) -> None:
    def variant(cookie: str) -> str:
        return served.running.client.rank(cookie=cookie, candidates=["item-1"]).variant

    assert admin.experiment().HasField("experiment") == (versions.experiment() is not None)
    before = admin.experiment().experiment.revision
    wanted = pb.Experiment(shares={"plain": 1.0}, pins={"me": "base"}, salt="autumn", shadows=["base"])
    stored = admin.update_experiment(wanted).experiment
    assert (stored.revision, stored.state) == (before + 1, pb.EXPERIMENT_STATE_RUNNING)
    assert dict(stored.pins) == {"me": "base"}
    eventually(lambda: admin.experiment().traffic_split.revision == before + 1)
    split = admin.experiment().traffic_split
    assert [(s.variant, s.share) for s in split.shares] == [("base", 0.0), ("plain", 1.0)]
    assert (list(split.shadows), split.problem) == (["base"], "")
    eventually(lambda: variant("anybody") == "plain")
    assert variant("me") == "base"
    stop = pb.Experiment(state=pb.EXPERIMENT_STATE_STOPPED, winner="base")
    assert admin.update_experiment(stop, expected_revision=before + 1).experiment.revision == before + 2
    eventually(lambda: variant("anybody") == "base")
    assert [each.action for each in versions.audit.read()] == ["stop", "shares"]
    # One that does not fit is in the status, and the last good one stays.
    versions.experiments.change(lambda stopped: stopped.divided({"other": 1.0}))
    eventually(lambda: "no variant 'other'" in admin.status().models[0].traffic_split.problem)
    split = admin.status().models[0].traffic_split
    assert (split.revision, [s.share for s in split.shares]) == (before + 2, [1.0, 0.0])


def test_a_change_that_cannot_be_is_told_apart_by_its_status(
    admin: AdminClient, served: Administered, versions: ModelVersions, first: int
) -> None:
    revision = admin.experiment().experiment.revision
    versions.activate(versions.versions()[0].version)
    served.store.client.delete(versions.keys.history)

    def update(**parts: Any) -> Callable[[], object]:
        return lambda: admin.update_experiment(pb.Experiment(**parts))

    for call, code, text in (
        (update(shares={"base": 0.4}), "INVALID_ARGUMENT", "sum to 0.4; expected 1"),
        (
            update(shares={"other": 1.0}),
            "INVALID_ARGUMENT",
            "no variant 'other' in the model; it has: base, ",
        ),
        (update(objective="import os"), "INVALID_ARGUMENT", "objective: "),
        (update(winner="base"), "INVALID_ARGUMENT", "experiment.winner: "),
        (
            update(state=7),
            "INVALID_ARGUMENT",
            "experiment.state: got 7, expected EXPERIMENT_STATE_RUNNING or",
        ),
        (
            lambda: admin.update_experiment(pb.Experiment(), expected_revision=revision + 9),
            "ABORTED",
            f"expected revision {revision + 9}",
        ),
        (lambda: list(admin.versions("other")), "NOT_FOUND", "this server serves 'shop', not 'other'"),
        (lambda: admin.activate("shop", 77), "NOT_FOUND", "shop has no version 77"),
        (lambda: admin.activate("shop", 0), "INVALID_ARGUMENT", "version: got 0, expected at least 1"),
        (lambda: admin.roll_back("shop"), "NOT_FOUND", "no version before the active one"),
    ):
        answered, message = code_of(call)
        assert (answered, text in message) == (code, True), message
    active = served.store.client.getdel(versions.keys.active)  # the objective depends on no version
    answered, message = code_of(update(objective="import os"))
    served.store.client.set(versions.keys.active, active)
    assert (answered, "experiment.objective: " in message) == ("INVALID_ARGUMENT", True), message
    assert admin.experiment().experiment.revision == revision


def test_an_update_changes_the_fields_of_its_mask_alone(admin: AdminClient, versions: ModelVersions) -> None:
    stopped = Experiment(shares={"plain": 1.0}, salt="autumn").stopped("base")
    versions.experiments.clear()
    before = versions.experiments.change(lambda _: stopped).revision
    pinned = admin.update_experiment(pb.Experiment(pins={"me": "plain"})).experiment
    assert (pinned.state, pinned.winner, pinned.salt) == (pb.EXPERIMENT_STATE_STOPPED, "base", "autumn")
    assert (dict(pinned.shares), dict(pinned.pins)) == ({"plain": 1.0}, {"me": "plain"})
    cleared = admin.update_experiment(pb.Experiment(salt="winter"), mask=["pins"]).experiment
    assert (dict(cleared.pins), cleared.salt, cleared.winner) == ({}, "autumn", "base")
    running = pb.Experiment(state=pb.EXPERIMENT_STATE_RUNNING)
    assert admin.update_experiment(running, mask=["state", "winner"]).experiment.winner == ""
    whole = admin.update_experiment(running, mask=["*"], expected_revision=before + 3).experiment
    assert (whole.revision, dict(whole.shares), whole.salt) == (before + 4, {}, "")
    for mask, field in (
        (["state"], "experiment.state"),
        (["*"], "experiment.state"),
        (["pins", "revision"], "update_mask"),
        (["pins.me"], "update_mask"),
        (["*", "pins"], "update_mask"),
    ):
        with pytest.raises(AdminFailed) as failed:
            admin.update_experiment(pb.Experiment(), mask=mask)
        assert failed.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [each.field for each in failed.value.violations] == [field], failed.value
    assert versions.experiments.read().revision == before + 4  # type: ignore[union-attr]


def test_versions_are_listed_page_by_page(
    admin: AdminClient, served: Administered, versions: ModelVersions
) -> None:
    for seed in (2, 3):
        versions.publish(shop.artefact(seed=seed))
    published = [each.version for each in versions.versions()]
    assert [each.version for each in admin.versions(page_size=2)] == published
    with grpc.insecure_channel(served.admin_address) as channel:
        listing = ModelAdminServiceStub(channel).ListVersions
        page = listing(pb.ListVersionsRequest(page_size=1), timeout=20)
        assert [each.version for each in page.versions] == published[:1]
        rest = listing(pb.ListVersionsRequest(page_token=page.next_page_token), timeout=20)
        assert [each.version for each in rest.versions] == published[1:]
        assert rest.next_page_token == ""
        for wrong in ({"page_size": -1}, {"page_token": "x"}, {"page_token": page_token("other", 1)}):
            with pytest.raises(grpc.RpcError) as failed:
                listing(pb.ListVersionsRequest(**wrong), timeout=20)  # type: ignore[arg-type]
            assert [each.field for each in AdminFailed.of("", failed.value).violations] == list(wrong)


def test_the_command_prints_tables_and_json(
    served: Administered, versions: ModelVersions, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert run(["admin", *arguments, "--address", served.admin_address]) == 0
        return capsys.readouterr().out

    lines = said("status").splitlines()
    assert lines[0] == f"{served.running.address}: ready"
    assert "base 50.0%, plain 50.0%" in lines[4]
    assert lines[4].split()[:3] == ["shop", str(first), "snapshot"]
    plain = json.loads(said("status", "--json"))
    assert (plain["ready"], plain["models"][0]["version"]) == (True, first)
    assert plain["models"][0]["source"] == "store"
    assert plain["workers"][0]["versions"].keys() == {"shop"}
    second = versions.publish(shop.artefact(seed=2))
    assert [v["active"] for v in json.loads(said("versions", "shop", "--json"))][-2:] == [True, False]
    assert said("activate", "shop", str(second)) == f"shop: version {second} is active (before: {first})\n"
    assert json.loads(said("reload", "shop", "--json"))["version"] == second
    back = {"model": "shop", "active": first, "before": second}
    assert json.loads(said("rollback", "shop", "--json")) == back
    assert "snapshot" in said("versions", "shop")
    assert run(["admin", "status", "--address", "127.0.0.1:1"]) == 6
    assert "no server at 127.0.0.1:1: Connection refused" in capsys.readouterr().err


def test_a_worker_that_takes_the_place_of_a_dead_one_divides_and_logs_as_it_did(
    admin: AdminClient, served: Administered, first: int
) -> None:
    stored = admin.update_experiment(pb.Experiment(shares={"plain": 1.0})).experiment
    eventually(lambda: admin.experiment().traffic_split.revision == stored.revision)
    before = [f"b{n}" for n in range(20)]
    for request_id in before:
        served.running.client.rank(candidates=["item-1"], request_id=request_id)

    def logged() -> list[str]:
        payloads = served.store.impressions(shop.NAME).read((0, 0), 10_000).payloads
        return [json.loads(payload)["request_id"] for payload in payloads]

    eventually(lambda: set(before) <= set(logged()))
    [worker] = admin.status().workers
    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: admin.status().workers[0].restart_count == 1, "another worker")
    eventually(lambda: admin.status().ready, "which serves", within_s=COMPILE_S)
    eventually(lambda: admin.status().workers[0].state == pb.WORKER_STATE_SERVING)
    with Client(served.running.address, timeout_s=20.0) as client:
        assert {client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for n in range(20)} == {"plain"}
        client.rank(candidates=["item-1"], request_id="after")
    eventually(lambda: "after" in logged())
    assert len(set(logged())) == len(logged())


@pytest.mark.slow
def test_only_the_role_admin_may_call_over_tls_where_there_is_tls(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(f'{role} = ["{token}"]\n' for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    pem = identity(tmp_path, "server")
    with administered("--tokens", str(tokens), "--tls-cert", pem.cert, "--tls-key", pem.key) as served:

        def status(token: str) -> object:
            with AdminClient(served.admin_address, access=Access(ca=pem.ca, token=token)) as admin:
                return admin.status().ready

        assert code_of(lambda: status(""))[0] == "UNAUTHENTICATED"
        assert code_of(lambda: status("x" * 24))[0] == "UNAUTHENTICATED"
        assert code_of(lambda: status(TOKENS["rank"]))[0] == "PERMISSION_DENIED"
        assert status(TOKENS["admin"]) is True
        with AdminClient(served.admin_address, access=Access(token=TOKENS["admin"])) as plain:
            assert code_of(plain.status)[0] == "UNAVAILABLE"
