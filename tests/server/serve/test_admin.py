"""`ctr.v1.ModelAdminService` of a real server: a supervisor, a worker, a store, and calls over gRPC.

Most tests share one server, so each begins with a new version.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from ctr.v1 import admin_pb2 as pb
from ftrie.api.access import Access
from ftrie.api.admin import AdminClient, AdminFailed
from ftrie.api.client import Client
from ftrie.cli import run
from model_store.store import Store
from model_store.versions.experiments import PROBABILISTIC, Experiment
from model_store.versions.model_versions import ModelVersions
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
        eventually(lambda: split_of(admin).revision == revision)
    version = versions.publish(shop.artefact())
    versions.activate(version)
    served.store.client.delete(versions.keys.history, versions.keys.audit)
    assert admin.reload().model.version == version
    return version


def split_of(admin: AdminClient) -> pb.TrafficSplit:
    """How the server's only model's traffic is split."""
    return admin.status().models[0].traffic_split


def code_of(call: Callable[[], object]) -> tuple[str, str]:
    """The status and the message that a call ends with."""
    with pytest.raises(AdminFailed) as failed:
        call()
    return failed.value.code.name, str(failed.value)


def command_says(capsys: pytest.CaptureFixture[str], served: Administered, *arguments: str) -> str:
    """What `ftrie admin` prints."""
    assert run(["admin", *arguments, "--address", served.admin_address]) == 0
    return capsys.readouterr().out


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


def test_it_is_on_the_loopback_interface_on_a_port_of_its_own(served: Administered) -> None:
    assert served.admin_address.startswith("127.0.0.1:")
    assert served.admin_address != served.running.address
    with grpc.insecure_channel(served.running.address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/ctr.v1.ModelAdminService/GetStatus")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_what_the_store_changes_is_in_the_status_and_answers_without_a_restart(
    admin: AdminClient,
    served: Administered,
    versions: ModelVersions,
    first: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def variant(cookie: str) -> str:
        return served.running.client.rank(cookie=cookie, candidates=["item-1"]).variant

    second, calls = versions.publish(shop.artefact(seed=2)), len(served.calls())
    versions.activate(second)
    eventually(lambda: served.running.client.rank(candidates=["item-1"]).version == second)
    assert versions.rollback() == first
    assert admin.reload("shop").model.version == first
    eventually(lambda: served.calls()[calls:] == ["Reload"])
    wanted = Experiment(shares={"plain": 1.0}, pins={"me": "base"}, salt="autumn", shadows=("base",))
    revision = versions.experiments.change(lambda _: wanted).revision
    eventually(lambda: split_of(admin).revision == revision)
    split = split_of(admin)
    assert [(s.variant, s.share) for s in split.shares] == [("base", 0.0), ("plain", 1.0)]
    assert (list(split.shadows), split.problem) == (["base"], "")
    eventually(lambda: variant("anybody") == "plain")
    assert variant("me") == "base"
    both = versions.experiments.change(lambda before: before.interleaved(("base", "plain"), PROBABILISTIC))
    eventually(lambda: split_of(admin).revision == both.revision)
    split = split_of(admin)
    assert (list(split.interleave), split.draft) == (["base", "plain"], "probabilistic")
    assert "base+plain, probabilistic draft" in command_says(capsys, served, "status")
    revision = versions.experiments.change(lambda before: before.stopped("base")).revision
    eventually(lambda: variant("anybody") == "base")
    assert not split_of(admin).interleave and not split_of(admin).draft
    # One that does not fit is in the status, and the last good one stays.
    versions.experiments.change(lambda stopped: stopped.divided({"other": 1.0}))
    eventually(lambda: "no variant 'other'" in split_of(admin).problem)
    split = split_of(admin)
    assert (split.revision, [s.share for s in split.shares]) == (revision, [1.0, 0.0])


def test_a_reload_of_a_model_that_is_not_served_is_refused_by_name(admin: AdminClient) -> None:
    answered, message = code_of(lambda: admin.reload("other"))
    assert (answered, "this server serves 'shop', not 'other'" in message) == ("NOT_FOUND", True), message


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


def test_the_command_prints_tables_and_json(
    served: Administered, versions: ModelVersions, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = partial(command_says, capsys, served)
    lines = said("status").splitlines()
    assert lines[0] == f"{served.running.address}: ready"
    assert "base 50.0%, plain 50.0%" in lines[4]
    assert lines[4].split()[:3] == ["shop", str(first), "snapshot"]
    plain = json.loads(said("status", "--json"))
    assert (plain["ready"], plain["models"][0]["version"]) == (True, first)
    assert plain["models"][0]["source"] == "store"
    assert plain["workers"][0]["versions"].keys() == {"shop"}
    assert plain["workers"][0]["state"] == "serving" and plain["predecessor_pids"] == []
    model = plain["models"][0]
    assert (model["kind"], model["key_count"]) == ("snapshot", len(shop.masks()))
    assert model["refusal_counts"].keys() <= {"damaged"}, "what another test of this server has damaged"
    assert model["publish_time"].endswith("Z") and model["traffic_split"]["shares"] == [
        {"variant": "base", "share": 0.5},
        {"variant": "plain", "share": 0.5},
    ]
    versions.activate(versions.publish(shop.artefact(seed=2)))
    assert json.loads(said("reload", "shop", "--json"))["version"] == first + 1
    assert "snapshot" in said("reload", "shop")
    assert run(["admin", "status", "--address", "127.0.0.1:1"]) == 6
    assert "no server at 127.0.0.1:1: Connection refused" in capsys.readouterr().err


def test_a_worker_that_takes_the_place_of_a_dead_one_divides_and_logs_as_it_did(
    admin: AdminClient, served: Administered, first: int
) -> None:
    stored = served.versions.experiments.change(lambda before: before.divided({"plain": 1.0}))
    eventually(lambda: split_of(admin).revision == stored.revision)
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
