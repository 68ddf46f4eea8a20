"""`ctr.v1.ModelAdminService` of a real server: a supervisor, a worker, a store, and calls over gRPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

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
from server.rpc.admin_service import page_token
from tests.integration.processes import FTRIE, ROOT
from tests.server import shop
from tests.server.certificates import identity
from tests.waiting import eventually

TOKENS = {"rank": "rank-token-0123456789", "admin": "admin-token-0123456789"}


class Served:
    """A running `ftrie serve shop`, and where it answers."""

    def __init__(self, store_url: str, folder: Path, *flags: str) -> None:
        self._log = folder / "log"
        command = [*FTRIE, "serve", shop.NAME, "--store", store_url, "--json", *flags]
        ports = ["--port", "0", "--admin-port", "0"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *ports], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, self._log.read_text()
        self.address = str(json.loads(ready)["address"])
        told = next(line for line in self.log() if line["event"] == "administered on")
        self.admin_address = str(told["address"])

    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def serve(store_url: str, shop_store: Store, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a server of the shop; it ends with the test."""
    started: list[Served] = []

    def begun(*flags: str) -> Served:
        started.append(Served(store_url, tmp_path, *flags))
        started[-1].await_ready()
        return started[-1]

    yield begun
    for each in started:
        each.process.terminate()
        assert each.process.wait(30) == 0


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def admin(served: Served) -> Iterator[AdminClient]:
    with AdminClient(served.admin_address) as connected:
        yield connected


def code_of(call: Callable[[], object]) -> tuple[str, str]:
    """The status and the message that a call ends with."""
    with pytest.raises(AdminFailed) as failed:
        call()
    return failed.value.code.name, str(failed.value)


@pytest.mark.slow
def test_the_status_names_the_version_its_workers_and_its_traffic(admin: AdminClient, served: Served) -> None:
    status = admin.status()
    assert (status.address, status.ready, status.draining) == (served.address, True, False)
    [model], [worker] = status.models, status.workers
    assert (model.name, model.version, model.kind, model.source) == (
        "shop",
        1,
        pb.VERSION_KIND_SNAPSHOT,
        pb.MODEL_SOURCE_STORE,
    )
    assert (model.key_count, model.item_count) == (len(shop.masks()), len(shop.ITEMS))
    assert 0 < model.publish_time.seconds <= model.serve_start_time.seconds
    assert [(s.variant, s.share) for s in model.traffic_split.shares] == [("base", 0.5), ("plain", 0.5)]
    assert (worker.state, worker.restart_count, dict(worker.versions)) == (
        pb.WORKER_STATE_SERVING,
        0,
        {"shop": 1},
    )
    assert worker.pid != served.process.pid
    assert list(admin.models().models) == [model]


def test_versions_are_listed_activated_and_rolled_back_and_answers_follow(
    admin: AdminClient, served: Served, shop_store: Store
) -> None:
    second = shop_store.model(shop.NAME).publish(shop.artefact(seed=2))
    assert [(v.version, v.active, v.kind) for v in admin.versions()] == [
        (1, True, pb.VERSION_KIND_SNAPSHOT),
        (second, False, pb.VERSION_KIND_SNAPSHOT),
    ]
    with Client(served.address, timeout_s=20.0) as client:

        def version() -> int:
            return client.rank(candidates=["item-1"]).version

        assert version() == 1
        activated = admin.activate("shop", second)
        assert (activated.version, activated.previous_version) == (second, 1)
        eventually(lambda: version() == second)
        back = admin.roll_back("shop")
        assert (back.version, back.previous_version) == (1, second)
        eventually(lambda: version() == 1)
        assert admin.roll_back("shop", second).version == second
        assert admin.reload().model.version == second
    audited = shop_store.model(shop.NAME).audit.read()
    assert [(each.action, each.before, each.after) for each in audited] == [
        ("rollback", "1", str(second)),
        ("rollback", str(second), "1"),
        ("activate", "1", str(second)),
    ]
    assert {each.tool for each in audited} == {"admin service"}
    assert all("127.0.0.1" in each.who for each in audited)
    assert [line["call"] for line in served.log() if line["event"] == "admin call"] == [
        "ActivateVersion",
        "RollBack",
        "RollBack",
        "Reload",
    ]


@pytest.mark.slow
def test_reload_takes_up_a_version_that_was_refused_a_moment_ago(
    admin: AdminClient, shop_store: Store
) -> None:
    versions = shop_store.model(shop.NAME)
    second = versions.publish(shop.artefact(seed=2))
    [chunk] = versions.keys.chunks(second, 1)
    whole = shop_store.client.get(chunk)
    shop_store.client.setrange(chunk, len(whole) // 2, b"\0\0\0\0\0\0\0\0")
    shop_store.client.set(versions.keys.active, second)
    refused = admin.reload().model
    assert (refused.version, sum(refused.refusal_counts.values()) >= 1, bool(refused.problem)) == (
        1,
        True,
        True,
    )
    shop_store.client.set(chunk, whole)
    taken = admin.reload().model
    assert (taken.version, taken.problem) == (second, "")


@pytest.mark.slow
def test_an_experiment_is_read_changed_and_visible_in_answers_without_a_restart(
    admin: AdminClient, served: Served, shop_store: Store
) -> None:
    assert not admin.experiment().HasField("experiment")
    wanted = pb.Experiment(shares={"plain": 1.0}, pins={"me": "base"}, salt="autumn", shadows=["base"])
    stored = admin.update_experiment(wanted).experiment
    assert (stored.revision, stored.state, dict(stored.pins)) == (
        1,
        pb.EXPERIMENT_STATE_RUNNING,
        {"me": "base"},
    )
    eventually(lambda: admin.experiment().traffic_split.revision == 1)
    split = admin.experiment().traffic_split
    assert [(s.variant, s.share) for s in split.shares] == [("base", 0.0), ("plain", 1.0)]
    assert (list(split.shadows), split.problem) == (["base"], "")
    with Client(served.address, timeout_s=20.0) as client:
        eventually(lambda: client.rank(cookie="anybody", candidates=["item-1"]).variant == "plain")
        assert client.rank(cookie="me", candidates=["item-1"]).variant == "base"
        stop = pb.Experiment(state=pb.EXPERIMENT_STATE_STOPPED, winner="base")
        assert admin.update_experiment(stop, expected_revision=1).experiment.revision == 2
        eventually(lambda: client.rank(cookie="anybody", candidates=["item-1"]).variant == "base")
    assert [each.action for each in shop_store.model(shop.NAME).audit.read()] == ["stop", "shares"]


@pytest.mark.slow
def test_a_worker_that_takes_the_place_of_a_dead_one_divides_as_it_did(
    admin: AdminClient, served: Served
) -> None:
    admin.update_experiment(pb.Experiment(shares={"plain": 1.0}))
    eventually(lambda: admin.experiment().traffic_split.revision == 1)
    [worker] = admin.status().workers
    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: admin.status().workers[0].restart_count == 1 and admin.status().ready)
    eventually(lambda: admin.status().workers[0].state == pb.WORKER_STATE_SERVING)
    with Client(served.address, timeout_s=20.0) as client:
        assert {client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for n in range(20)} == {"plain"}


@pytest.mark.slow
def test_a_change_that_cannot_be_is_told_apart_by_its_status(admin: AdminClient, shop_store: Store) -> None:
    def update(**parts: object) -> tuple[str, str]:
        return code_of(lambda: admin.update_experiment(pb.Experiment(**parts)))  # type: ignore[arg-type]

    for parts, code, text in (
        ({"shares": {"base": 0.4}}, "INVALID_ARGUMENT", "sum to 0.4; expected 1"),
        (
            {"shares": {"other": 1.0}},
            "INVALID_ARGUMENT",
            "no variant 'other' in the model; it has: base, plain",
        ),
        ({"objective": "import os"}, "INVALID_ARGUMENT", "objective: "),
        ({"winner": "base"}, "INVALID_ARGUMENT", "experiment.winner: "),
        ({"state": 7}, "INVALID_ARGUMENT", "experiment.state: got 7, expected EXPERIMENT_STATE_RUNNING or"),
    ):
        answered, message = update(**parts)
        assert (answered, text in message) == (code, True), message
    assert shop_store.model(shop.NAME).experiment() is None
    for call, code, text in (
        (
            lambda: admin.update_experiment(pb.Experiment(), expected_revision=9),
            "ABORTED",
            "expected revision 9",
        ),
        (lambda: list(admin.versions("other")), "NOT_FOUND", "this server serves 'shop', not 'other'"),
        (lambda: admin.activate("shop", 77), "NOT_FOUND", "shop has no version 77"),
        (lambda: admin.activate("shop", 0), "INVALID_ARGUMENT", "version: got 0, expected at least 1"),
        (lambda: admin.roll_back("shop"), "NOT_FOUND", "no version before the active one"),
    ):
        answered, message = code_of(call)
        assert (answered, text in message) == (code, True), message


def test_an_update_changes_the_fields_of_its_mask_alone(admin: AdminClient, shop_store: Store) -> None:
    stopped = Experiment(shares={"plain": 1.0}, salt="autumn").stopped("base")
    shop_store.model(shop.NAME).experiments.write(stopped)
    pinned = admin.update_experiment(pb.Experiment(pins={"me": "plain"})).experiment
    assert (pinned.state, pinned.winner, pinned.salt) == (pb.EXPERIMENT_STATE_STOPPED, "base", "autumn")
    assert (dict(pinned.shares), dict(pinned.pins)) == ({"plain": 1.0}, {"me": "plain"})
    cleared = admin.update_experiment(pb.Experiment(salt="winter"), mask=["pins"]).experiment
    assert (dict(cleared.pins), cleared.salt, cleared.winner) == ({}, "autumn", "base")
    running = pb.Experiment(state=pb.EXPERIMENT_STATE_RUNNING)
    assert admin.update_experiment(running, mask=["state", "winner"]).experiment.winner == ""
    whole = admin.update_experiment(running, mask=["*"], expected_revision=4).experiment
    assert (whole.revision, dict(whole.shares), whole.salt) == (5, {}, "")
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
    assert shop_store.model(shop.NAME).experiments.read().revision == 5  # type: ignore[union-attr]


def test_versions_are_listed_page_by_page(admin: AdminClient, served: Served, shop_store: Store) -> None:
    versions = shop_store.model(shop.NAME)
    for seed in (2, 3):
        versions.publish(shop.artefact(seed=seed))
    assert [each.version for each in admin.versions(page_size=2)] == [1, 2, 3]
    with grpc.insecure_channel(served.admin_address) as channel:
        listing = ModelAdminServiceStub(channel).ListVersions
        first = listing(pb.ListVersionsRequest(page_size=1), timeout=20)
        assert [each.version for each in first.versions] == [1]
        rest = listing(pb.ListVersionsRequest(page_token=first.next_page_token), timeout=20)
        assert (rest.versions[-1].version, rest.next_page_token) == (3, "")
        for wrong in ({"page_size": -1}, {"page_token": "x"}, {"page_token": page_token("other", 1)}):
            with pytest.raises(grpc.RpcError) as failed:
                listing(pb.ListVersionsRequest(**wrong), timeout=20)  # type: ignore[arg-type]
            assert [each.field for each in AdminFailed.of("", failed.value).violations] == list(wrong)


@pytest.mark.slow
def test_an_experiment_that_does_not_fit_is_in_the_status_and_the_last_good_one_stays(
    admin: AdminClient, shop_store: Store
) -> None:
    versions = shop_store.model(shop.NAME)
    good = versions.experiments.write(Experiment(shares={"plain": 1.0}))
    eventually(lambda: admin.experiment().traffic_split.revision == good.revision)
    versions.experiments.change(lambda before: before.divided({"other": 1.0}))
    eventually(lambda: "no variant 'other'" in admin.status().models[0].traffic_split.problem)
    split = admin.status().models[0].traffic_split
    assert (split.revision, [s.share for s in split.shares]) == (good.revision, [0.0, 1.0])


@pytest.mark.slow
def test_only_the_role_admin_may_call_over_tls_where_there_is_tls(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(f'{role} = ["{token}"]\n' for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    pem = identity(tmp_path, "server")
    served = serve("--tokens", str(tokens), "--tls-cert", pem.cert, "--tls-key", pem.key)

    def status(token: str) -> object:
        with AdminClient(served.admin_address, access=Access(ca=pem.ca, token=token)) as admin:
            return admin.status().ready

    assert code_of(lambda: status(""))[0] == "UNAUTHENTICATED"
    assert code_of(lambda: status("x" * 24))[0] == "UNAUTHENTICATED"
    assert code_of(lambda: status(TOKENS["rank"]))[0] == "PERMISSION_DENIED"
    assert status(TOKENS["admin"]) is True
    with AdminClient(served.admin_address, access=Access(token=TOKENS["admin"])) as plain:
        assert code_of(plain.status)[0] == "UNAVAILABLE"


@pytest.mark.slow
def test_it_is_on_the_loopback_interface_on_a_port_of_its_own(served: Served) -> None:
    assert served.admin_address.startswith("127.0.0.1:")
    assert served.admin_address != served.address
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/ctr.v1.ModelAdminService/GetStatus")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_command_prints_tables_and_json(
    served: Served, shop_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert run(["admin", *arguments, "--address", served.admin_address]) == 0
        return capsys.readouterr().out

    lines = said("status").splitlines()
    assert lines[0] == f"{served.address}: ready"
    assert "base 50.0%, plain 50.0%" in lines[4]
    assert lines[4].split()[:3] == ["shop", "1", "snapshot"]
    plain = json.loads(said("status", "--json"))
    assert (plain["ready"], plain["models"][0]["version"], plain["models"][0]["source"]) == (True, 1, "store")
    assert plain["workers"][0]["versions"] == {"shop": 1}
    shop_store.model(shop.NAME).publish(shop.artefact(seed=2))
    assert [v["active"] for v in json.loads(said("versions", "shop", "--json"))] == [True, False]
    assert said("activate", "shop", "2") == "shop: version 2 is active (before: 1)\n"
    assert json.loads(said("reload", "shop", "--json"))["version"] == 2
    assert json.loads(said("rollback", "shop", "--json")) == {"model": "shop", "active": 1, "before": 2}
    assert "snapshot" in said("versions", "shop")


def test_nobody_listening_is_an_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "status", "--address", "127.0.0.1:1"]) == 6
    assert "127.0.0.1:1: UNAVAILABLE" in capsys.readouterr().err
