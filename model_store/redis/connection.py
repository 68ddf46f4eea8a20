"""Store URLs and connections, Lua scripts, and the translation of redis-py's exceptions into `model_store.errors`.

One server, the master that Sentinel names, and a cluster differ here only: `StoreConnection.at` gives the client for a
key, and whatever is done with the keys of one hash tag is done as on one server.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha1
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from model_store.clock import SYSTEM, Clock
from model_store.errors import StoreError, StoreUnavailable, UnreadableValue
from model_store.keys import answer_key, cure, shown, unreadable
from model_store.redis.embedded import EmbeddedValkey
from model_store.redis.servers import (
    CLUSTER,
    EMBEDDED,
    NEVER_AGAIN,
    ONE,
    SENTINEL,
    Address,
    Nodes,
    NotThatKind,
    Rerouted,
    RoutedConnection,
    RoutedTlsConnection,
    StoreUrl,
    check_sentinels,
    sentinels_of,
    slot_of,
    without_password,
)

# A longer wait is made of several: a connection that died silently is noticed after one of them.
LONGEST_BLOCK_S = 2.0
RETRIES, RETRY_S = 3, 0.1
"""Of a command to a cluster or to Sentinel's master, and the pause between: the key may be changing its holder."""
# On a cluster a client serves one slot with one time limit; beyond this many the oldest one is closed.
MOST_CLIENTS = 64
# Less than 1, so that the answer arrives before the socket gives up.
WAIT_PART = 0.8
"""The part of a command's time that its replicas have to confirm it."""
# Errors are told apart by their texts: most have the code ERR, and the error of a script quotes that of its command,
# in some releases with the dash of the protocol before it.
_UNREADABLE = re.compile(r"WRONGTYPE|not an integer|would overflow|not a valid float")
_TAKES_NO_WRITES = re.compile(r"-?(OOM|READONLY|MISCONF|NOREPLICAS) ")
_AWAY = re.compile(r"-?(UNBLOCKED|ASK|TRYAGAIN|CLUSTERDOWN) ")
_NODE_OF_A_CLUSTER = re.compile(r"-?(MOVED|CROSSSLOT) ")

Command = Sequence[Any]
"""A command and its arguments."""


class StoreConnection:
    """An open store: its URL without the password, for messages, and connections to it.

    `at(key)` is a redis-py client that returns bytes, for this key and all of its hash tag; `patient_at(key)` one for
    commands that block for up to LONGEST_BLOCK_S (a server may unblock them a tenth of a second late). They are shared
    by all threads. `single(timeout_s)` makes a separate connection that decodes answers to text, for one thread's hot
    path. wait: how many replicas confirm what is published or added to a stream.
    """

    def __init__(self, url: str, timeout_s: float, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.shown_url = without_password(url)
        self._embedded: EmbeddedValkey | None = None
        self._timeout_s = timeout_s
        self._url = self._parsed(url)
        self.wait = self._url.wait
        self.is_cluster = self._url.kind == CLUSTER
        self.nodes = Nodes(self._url, clock) if self.is_cluster else None
        """Where the masters of a cluster are."""
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, float], Any] = {}
        self._node_clients: dict[Address, Any] = {}
        self._whole_cluster: Any = None
        self._sentinels: dict[float, Sentinel] = {}
        if not self.is_cluster:
            self.at("")  # raises for a URL that redis-py cannot read

    # -- clients

    @property
    def client(self) -> Any:
        """A client for any key: for a cluster redis-py's RedisCluster, opened at the first use."""
        if not self.is_cluster:
            return self.at("")
        with self._lock:
            if self._whole_cluster is None:
                # Only for callers outside this package: its own commands use `nodes`, whose time limits hold for
                # redirections too (docs/adr/0006).
                options = self._url.options | self._limits(self._timeout_s)
                is_tls = options.pop("connection_class", None) is SSLConnection
                seeds: Any = [redis.cluster.ClusterNode(*seed) for seed in self._url.seeds]  # type: ignore[no-untyped-call]
                self._whole_cluster = redis.RedisCluster(
                    startup_nodes=seeds, protocol=2, ssl=is_tls, **options
                )
        return self._whole_cluster

    def at(self, key: str | bytes) -> Any:
        """The client for this key, and for all others of its hash tag."""
        return self._client(slot_of(key) if self.is_cluster else 0, self._timeout_s)

    def patient_at(self, key: str | bytes) -> Any:
        """Same as `at`, for commands that block."""
        return self._client(slot_of(key) if self.is_cluster else 0, self._timeout_s + 2 * LONGEST_BLOCK_S)

    def scan(self, match: bytes, count: int) -> Iterator[list[bytes]]:
        """The names of all keys that match, some of them twice, in batches. O(keys of the store).

        If slots of a cluster are moved meanwhile, it begins again, so that no key is missed. Raises StoreUnavailable.
        """
        scanned = None
        # A key that moves to a node that was scanned already would be missed. A repeated key does no harm.
        while (layout := self._layout()) != scanned:
            scanned = layout
            masters = [self.at("")] if self.nodes is None else map(self.node, self.nodes.masters)
            for client in masters:
                keys = client.scan_iter(match=match, count=count)
                with self.answers():
                    while batch := list(islice(keys, count)):
                        yield batch

    def holder(self, key: bytes) -> str:
        """A name of the server that holds a key, for telling servers apart; empty for one server."""
        if self.nodes is None:
            return ""
        known = self.nodes.layout_at(slot_of(key))
        return f"{known[0]}:{known[1]}" if known else ""

    def single(self, timeout_s: float, fixed: Address | None = None) -> Any:
        """A new connection, not yet open, owned by the caller. fixed: the node of a cluster."""
        options: dict[str, Any] = {"decode_responses": True, "encoding_errors": "surrogateescape"}
        if self.nodes is None:
            # Without retries: `DirectConnection` repeats by itself, within its time limit.
            pool = self._one(timeout_s, retry=NEVER_AGAIN, **options).connection_pool
        else:
            pool = self._pool(timeout_s, retry=NEVER_AGAIN, fixed=fixed, **options)
        return pool.connection_class(**pool.connection_kwargs)

    # -- commands

    def replication(self) -> tuple[bool, float] | None:
        """Of a replica: whether it has its primary, and for how many seconds it has heard nothing; None of others.

        Raises StoreUnavailable if the store does not answer, StoreError if it does not say.
        """
        if self.is_cluster:
            self.ping()
            return None
        with self.answers():
            said = self.at("").info("replication")
        if said["role"] != "slave":
            return None
        # While the link is down, the first one is -1, and only then there is the second one.
        silent = said["master_last_io_seconds_ago"], said.get("master_link_down_since_seconds", 0)
        return said["master_link_status"] == "up", float(max(0, *silent))

    def ping(self) -> None:
        """Raise StoreUnavailable unless the store answers."""
        with self.answers():
            if self.nodes is not None:
                self.nodes.refresh(self._timeout_s)
                return
            if self._url.kind == SENTINEL:
                # Asked first, since it names what is wrong with the URL; redis-py only says that it found no master.
                check_sentinels(self._sentinels_at(self._timeout_s), self._url.master)
            self.at("").ping()

    def each(self, keyed: Sequence[tuple[bytes, Sequence[Command]]]) -> list[list[Any]]:
        """Run the commands of each key, in one round trip a server; returns the answers of each key, errors raised.

        Of a key that begins with MULTI all or none are run. On a cluster the commands of a key whose server failed are
        run again, so they must be such that this does not matter. Raises RedisError.
        """
        answers: list[list[Any]] = [[] for _ in keyed]
        todo = list(range(len(keyed)))
        for left in range(RETRIES, -1, -1):
            again = []
            for client, numbers in self._by_server([key for key, _ in keyed], todo):
                try:
                    found = _run(client, [keyed[number][1] for number in numbers])
                except RedisConnectionError:
                    # At one server redis-py has repeated it already (`_new_client`); the clients of a node never do.
                    if not left or not self.is_cluster:
                        raise
                    again += numbers
                else:
                    for number, ours in zip(numbers, found, strict=True):
                        answers[number] = self._asked(keyed[number][1], ours)
            if not again:
                break
            todo = again
            time.sleep(RETRY_S)
        # Raised only now, so that an error of one key does not keep the commands of others from being run.
        for each in answers:
            for answer in each:
                if isinstance(answer, RedisError):
                    raise answer
        return answers

    def write(self, key: str | bytes, commands: Sequence[Command]) -> None:
        """Run commands of one key or hash tag in one transaction, and wait for the replicas of `wait`.

        Raises RedisError; then the commands may have been run.
        """
        waits = self.wait_words()
        # In one pipeline, hence on one connection: WAIT counts the replicas that have the writes of its own.
        answers = _run(self.at(key), [[("MULTI",), *commands, ("EXEC",), *waits]])[0]
        # The answer to EXEC comes after one to MULTI and a QUEUED for each command. Errors may be in either place.
        done = answers[len(commands) + 1]
        for answer in [*answers, *(done if isinstance(done, list) else [])]:
            if isinstance(answer, RedisError):
                raise answer
        if waits:
            self.check_confirmed(answers[-1])

    def wait_words(self, timeout_s: float | None = None) -> list[Command]:
        """The command that waits for `wait` replicas, sent after a write on its connection; empty if `wait` is 0."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return [("WAIT", self.wait, max(1, int(wait_s * WAIT_PART * 1000)))] if self.wait else []

    def check_confirmed(self, replicas: int) -> None:
        """Raise StoreUnavailable if too few replicas have a write. It is written, and may be lost at a failover."""
        if replicas < self.wait:
            raise StoreUnavailable(
                f"{self.shown_url}: {replicas} replicas have confirmed a write in time, and `wait` asks for "
                f"{self.wait}; are the replicas running?"
            )

    @contextmanager
    def answers(self, key: str = "") -> Iterator[None]:
        """Wraps every use of `client`: raises redis-py's exceptions as StoreUnavailable or StoreError.

        key: the key used, for the message of UnreadableValue.
        """
        try:
            yield
        except RedisError as error:
            raise self.translated(error, key) from error
        except OSError as error:
            # redis-py opens a file for each new connection, and translates only what its socket raises.
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise StoreUnavailable(
                f"{self.shown_url} cannot be asked: {error.strerror} (ulimit -n)"
            ) from error

    def now_us(self, key: str) -> int:
        """The clock of the store, of the server that holds this key: microseconds since 1970."""
        with self.answers():
            seconds, micros = self.at(key).time()
        return int(seconds) * 1_000_000 + int(micros)

    def script(self, name: str) -> Script:
        """The Lua script of this name in this folder, ready to run."""
        return Script(self, name)

    def translated(self, error: RedisError, key: str = "") -> StoreError:
        """The StoreError for an exception of redis-py. key: as in `answers`."""
        # The order matters: to redis-py AuthenticationError and BusyLoadingError are ConnectionErrors, and a
        # MovedError is an AskError.
        if isinstance(error, Rerouted):
            return self.translated(error.cause, key)
        if isinstance(error, NotThatKind):
            return StoreError(f"{self.shown_url}: {error}")
        if isinstance(error, MovedError | ClusterCrossSlotError) and not self.is_cluster:
            return self._is_a_node()
        if isinstance(error, AuthenticationError):
            return StoreUnavailable(
                f"{self.shown_url} refused the name or password ({error}); "
                "expected redis://NAME:PASSWORD@HOST:PORT"
            )
        if isinstance(error, BusyLoadingError):
            return StoreUnavailable(f"{self.shown_url} is still reading its data; try again shortly")
        if isinstance(error, AskError | TryAgainError):
            return StoreUnavailable(
                f"{self.shown_url} is moving the key's slot to another node; try again shortly"
            )
        if isinstance(error, ClusterDownError):  # also from a replica without its primary
            return StoreUnavailable(f"{self.shown_url} cannot answer now: {error}")
        if isinstance(error, RedisConnectionError | RedisTimeoutError):
            cause = str(error).partition(" : <")[0]  # of Sentinels redis-py also prints its connections
            return StoreUnavailable(
                f"{self.shown_url} does not answer ({cause}); is it running, and is --store right?"
            )
        if isinstance(error, OutOfMemoryError | ReadOnlyError):  # redis-py removes the error's prefix
            return StoreUnavailable(f"{self.shown_url} accepts no writes now: {error}")
        return self.refused(str(error), key)

    def refused(self, text: str, key: str = "") -> StoreError:
        """The StoreError for an error answer; StoreUnavailable if the store accepts no writes (full, or a replica)."""
        if _UNREADABLE.search(text):
            found = f"{self.shown_url} answered with an error: {text}; {cure('')} finds the key"
            return unreadable(key, text) if key else UnreadableValue(found)
        if _NODE_OF_A_CLUSTER.match(text) and not self.is_cluster:
            return self._is_a_node()
        if _AWAY.match(text):
            return StoreUnavailable(f"{self.shown_url} cannot answer now: {text}")
        if _TAKES_NO_WRITES.search(text):
            return StoreUnavailable(f"{self.shown_url} accepts no writes now: {text}")
        return StoreError(f"{self.shown_url} answered with an error: {text}")

    def close(self) -> None:
        """Close the connections, then leave the embedded server, if any."""
        for client in [*self._clients.values(), *self._node_clients.values()]:
            client.close()
            client.connection_pool.disconnect()
        if self._whole_cluster is not None:
            self._whole_cluster.close()
        for sentinels in self._sentinels.values():
            for each in sentinels.sentinels:
                each.close()
        # Last: it stops the server if no other process uses it.
        if self._embedded is not None:
            self._embedded.close()

    # -- steps

    def _layout(self) -> tuple[Address | None, ...]:
        """Who holds each slot of a cluster, now; empty for one server."""
        if self.nodes is None:
            return ()
        with self.answers():
            self.nodes.refresh(self._timeout_s)
        return self.nodes.layout()

    def _parsed(self, url: str) -> StoreUrl:
        """The URL; for `embedded:DIR` that of the server there, once it answers."""
        if url.startswith(EMBEDDED):
            directory = url.removeprefix(EMBEDDED)
            if not directory:
                raise StoreError("expected embedded:DIR, got no directory")
            self._embedded = EmbeddedValkey.join(os.path.expanduser(directory))
            return StoreUrl(ONE, f"unix://{quote(str(self._embedded.socket))}")
        try:
            return StoreUrl.parse(url)
        except ValueError as error:
            raise StoreError(f"cannot read the store's URL {self.shown_url!r}: {error}") from error

    def _client(self, slot: int, timeout_s: float) -> Any:
        with self._lock:
            client = self._clients.get((slot, timeout_s))
            if client is None:
                if len(self._clients) >= MOST_CLIENTS:  # it opens connections again should it be used again
                    self._clients.pop(next(iter(self._clients))).connection_pool.disconnect()
                client = self._clients[slot, timeout_s] = self._new_client(slot, timeout_s)
        return client

    def _new_client(self, slot: int, timeout_s: float) -> Any:
        # Repeated until a new holder is known; at one server once, since a connection may have been closed meanwhile.
        times, pause = (1, NoBackoff()) if self._url.kind == ONE else (RETRIES, ConstantBackoff(RETRY_S))
        retry = Retry(pause, times, supported_errors=(RedisConnectionError,))
        if self.nodes is None:
            return self._one(timeout_s, retry=retry)
        return _RoutedClient(self, self._pool(timeout_s, slot=slot, retry=retry))

    def node(self, address: Address) -> Any:
        """A client for one node of a cluster; it follows no redirection."""
        with self._lock:
            if address not in self._node_clients:
                pool = self._pool(self._timeout_s, fixed=address, retry=NEVER_AGAIN)
                self._node_clients[address] = redis.Redis(connection_pool=pool)
            return self._node_clients[address]

    def _limits(self, timeout_s: float) -> dict[str, Any]:
        return {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}

    def _one(self, timeout_s: float, **options: Any) -> Any:
        """redis-py's client for one server, or for the master that Sentinel names to each new connection."""
        # redis-py's default protocol, hence the shape of answers, differs by release.
        options |= self._limits(timeout_s) | {"protocol": 2}
        if self._url.kind == SENTINEL:
            options |= self._url.options
            options["ssl"] = options.pop("connection_class", None) is SSLConnection
            # Sentinel is asked at each new connection, so that it goes to the new master after a failover.
            return self._sentinels_at(timeout_s).master_for(self._url.master, **options)  # type: ignore[no-untyped-call]
        try:
            return redis.Redis.from_url(self._url.url, **options)
        except ValueError as error:
            raise StoreError(f"cannot read the store's URL {self.shown_url!r}: {error}") from error

    def _sentinels_at(self, timeout_s: float) -> Sentinel:
        if timeout_s not in self._sentinels:  # of two threads that make one, both take the first's
            self._sentinels.setdefault(timeout_s, sentinels_of(self._url, timeout_s))
        return self._sentinels[timeout_s]

    def _pool(
        self, timeout_s: float, *, slot: int = 0, fixed: Address | None = None, **options: Any
    ) -> ConnectionPool:
        kind = RoutedTlsConnection if "connection_class" in self._url.options else RoutedConnection
        options = self._url.options | options | self._limits(timeout_s) | {"connection_class": kind}
        # RESP2, as in `_one`.
        return ConnectionPool(nodes=self.nodes, slot=slot, fixed=fixed, protocol=2, **options)

    def _by_server(self, keys: Sequence[bytes], numbers: Sequence[int]) -> list[tuple[Any, list[int]]]:
        """The numbers of the keys that each server holds, with a client for it."""
        if self.nodes is None:
            return [(self.at(""), list(numbers))]
        by_address = defaultdict[Address, list[int]](list)
        for number in numbers:
            by_address[self.nodes.address(slot_of(keys[number]), self._timeout_s)].append(number)
        return [(self.node(address), found) for address, found in by_address.items()]

    def _asked(self, commands: Sequence[Command], answers: list[Any]) -> list[Any]:
        """The answers; those of the node that imports the slot, if the key has moved there already."""
        ask = next((each for each in answers if isinstance(each, AskError)), None)
        if ask is None:
            return answers
        there = self.node((ask.host, ask.port))
        is_whole = commands[0][0] == "MULTI"  # ASKING counts for one command, or for a whole transaction
        asking = (
            [("ASKING",), *commands] if is_whole else [w for each in commands for w in (("ASKING",), each)]
        )
        found = _run(there, [asking])[0]
        return found[1:] if is_whole else found[1::2]

    def _is_a_node(self) -> StoreError:
        return StoreError(
            f"{self.shown_url} is a node of a cluster, which holds a part of the keys; "
            "name the cluster: cluster://HOST:PORT, with some of its nodes"
        )


class _RoutedClient(redis.Redis):
    """redis-py's client for one slot of a cluster."""

    def __init__(self, store: StoreConnection, pool: ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._store = store

    def execute_command(self, *words: Any, **options: Any) -> Any:
        """As redis-py's. Follows the redirection of a key that is being moved."""
        try:
            return super().execute_command(*words, **options)  # type: ignore[no-untyped-call]
        # An AskError to Python. `RoutedConnection` has followed it, as often as it may.
        except MovedError:
            raise
        except AskError as error:
            node = self._store.node((error.host, error.port))
            with node.pipeline(transaction=False) as pipe:
                pipe.execute_command("ASKING")
                pipe.execute_command(*words, **options)
                return pipe.execute()[1]


class Script:
    """A Lua script, preceded by `checks.lua`; `once.lua` runs it once a call. Thread safety: any thread."""

    def __init__(self, store: StoreConnection, name: str) -> None:
        folder = Path(__file__).parent
        self._store = store
        checks, own, once = ((folder / f"{each}.lua").read_text() for each in ("checks", name, "once"))
        # Without once.lua: nothing repeats a transaction that watches its keys.
        self._bare = f"{checks}\n{own}"
        self._text = f"{checks}\nlocal function run()\n{own}\nend\n{once}"
        # SHA-1, since that is the name that EVALSHA knows a script by.
        self._sha = sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[str], words: Sequence[Any] = ()) -> Any:
        """Run it. Raises StoreUnavailable, StoreError, and UnreadableValue if a key holds an unreadable value.

        In the last case nothing has changed.
        """
        client = self._store.at(keys[0])
        # One id for all repetitions of this call, those by redis-py too: once.lua answers them as it did the first.
        rest = (len(keys) + 1, *keys, answer_key(keys[0], uuid.uuid4().hex), *words)
        with self._store.answers():
            try:
                answer = self._run(client, ("EVALSHA", self._sha, *rest))
            except NoScriptError:
                # A server that was restarted, or has become master, knows no script. SCRIPT LOAD and not EVAL, which
                # the ACL of a trainer does not have (`keys.ROLES`).
                client.script_load(self._text)
                answer = self._run(client, ("EVALSHA", self._sha, *rest))
        if isinstance(answer, list) and answer and answer[0] == b"junk":
            _, key, got, expected = answer
            raise unreadable(key.decode(), f"got {shown(got)}, expected {expected.decode()}")
        return answer

    def queue(self, pipe: Any, keys: Sequence[str], words: Sequence[Any]) -> None:
        """Add it to a transaction, which watches keys so that it is made once."""
        pipe.execute_command("EVAL", self._bare, len(keys), *keys, *words)

    def _run(self, client: Any, command: Command) -> Any:
        if not self._store.wait:
            return client.execute_command(*command)
        # WAIT after the script on the same connection: it counts the replicas of this connection's writes.
        answer, replicas = _run(client, [[command, *self._store.wait_words()]])[0]
        for each in (answer, replicas):
            if isinstance(each, RedisError):
                raise each
        self._store.check_confirmed(replicas)
        return answer


def _run(client: Any, commands: Sequence[Sequence[Command]]) -> list[list[Any]]:
    """The answers to several groups of commands, sent at once over one connection. Errors are among them."""
    with client.pipeline(transaction=False) as pipe:
        for group in commands:
            for words in group:
                pipe.execute_command(*words)
        answers = iter(pipe.execute(raise_on_error=False))
    return [[next(answers) for _ in group] for group in commands]
