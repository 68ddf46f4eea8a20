"""A client of several servers: which server takes a call, who is left out, and which calls are made again."""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from ftrie.api.access import BALANCES, Access, Balance, cookie_metadata, service_config, target_of
from ftrie.api.client import Client, RankFailed
from model_store.errors import ServerError
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from server.serve.ranking_service import SERVICE
from tests.ftrie.conftest import Ask
from tests.server import echo
from tests.server.certificates import identity
from tests.server.serve.test_tls import credentials
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
COOKIES = [f"user-{number}" for number in range(300)]
ENOUGH = 200
"""Calls of which every server that is in use gets one: with three servers it gets none with a chance of 1e-35."""


class Named:
    """A server that names itself in its answers, as their model. `refuses`: calls that it answers UNAVAILABLE."""

    def __init__(self, connection_age_s: float = 0.0) -> None:
        self.health = Health()
        self.health.say(serving=True)
        self.calls = self.refuses = 0
        forms = RankRequest.FromString, RankResponse.SerializeToString
        rank = grpc.unary_unary_rpc_method_handler(self._rank, *forms)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank})
        self.peers = set[str]()
        self.grpc = grpc_server(handlers, self.health, 4, connection_age_s=connection_age_s)
        self.address = listen(self.grpc, "127.0.0.1", 0)
        self.grpc.start()

    def _rank(self, request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
        self.calls += 1
        self.peers.add(context.peer())
        if self.refuses:
            self.refuses -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        return RankResponse(model=self.address)


@pytest.fixture
def servers() -> Iterator[list[Named]]:
    started = [Named() for _ in range(3)]
    yield started
    for server in started:
        server.grpc.stop(0).wait()


@pytest.fixture
def client(servers: list[Named]) -> Iterator[Callable[[Balance | None], Client]]:
    made: list[Client] = []

    def connect(balance: Balance | None = None) -> Client:
        made.append(Client(",".join(server.address for server in servers), balance=balance, timeout_s=20))
        return made[-1]

    yield connect
    for each in made:
        each.close()


Connect = Callable[..., Client]


def homes(client: Client) -> dict[str, str]:
    return {cookie: client.rank(cookie=cookie, candidates=["a"]).model for cookie in COOKIES}


def used(client: Client) -> Counter[str]:
    """The calls of users without a cookie, by server."""
    return Counter(client.rank(candidates=["a"]).model for _ in range(ENOUGH))


def test_a_list_is_called_in_turn(servers: list[Named], client: Connect) -> None:
    connected = client()
    eventually(lambda: len(used(connected)) == 3)
    before = [server.calls for server in servers]
    used(connected)
    calls = [server.calls - earlier for server, earlier in zip(servers, before, strict=True)]
    assert max(calls) - min(calls) <= 1, calls
    servers[0].health.say(serving=False)  # one address is one server: its answer is better than none
    with Client(servers[0].address, timeout_s=20) as alone:
        assert alone.rank(candidates=["a"]).model == servers[0].address


@pytest.mark.parametrize("balance", BALANCES)
def test_a_server_that_is_not_serving_gets_no_call_until_it_is(
    servers: list[Named], client: Connect, balance: Balance
) -> None:
    connected = client(balance)
    eventually(lambda: len(used(connected)) == 3)
    servers[0].health.say(serving=False)
    eventually(lambda: servers[0].address not in used(connected))
    before = servers[0].calls
    assert len(used(connected)) == 2
    assert servers[0].calls == before
    servers[0].health.say(serving=True)
    eventually(lambda: servers[0].address in used(connected))


def test_a_user_s_calls_go_to_one_server_whoever_makes_them_and_only_those_of_one_that_leaves_are_moved(
    servers: list[Named], client: Connect
) -> None:
    first, connected = client("cookie"), client("cookie")
    eventually(lambda: homes(first) == homes(connected))
    before = homes(connected)
    shares = Counter(before.values())
    assert len(shares) == 3
    assert min(shares.values()) > len(COOKIES) / 6
    gone = servers[0].address
    servers[0].health.say(serving=False)
    eventually(lambda: gone not in homes(connected).values())
    meanwhile = homes(connected)
    moved = {cookie for cookie in COOKIES if meanwhile[cookie] != before[cookie]}
    assert moved == {cookie for cookie in COOKIES if before[cookie] == gone}
    assert len({meanwhile[cookie] for cookie in moved}) == 2
    servers[0].health.say(serving=True)
    eventually(lambda: homes(connected) == before)


@pytest.mark.parametrize("balance", BALANCES)
def test_a_refused_call_is_made_again(servers: list[Named], client: Connect, balance: Balance) -> None:
    connected = client(balance)
    for server in servers:
        server.refuses = 1
    assert all(connected.rank(cookie=cookie, candidates=["a"]).model for cookie in COOKIES[:50])
    assert not any(server.refuses for server in servers)
    for server in servers:
        server.refuses = 1
    before = sum(server.calls for server in servers)
    assert connected.rank(candidates=["x" * 1000] * 2000).model  # also if it is long
    assert sum(server.calls for server in servers) >= before + 2


def test_a_server_or_proxy_without_a_health_service_is_called() -> None:
    plain = grpc.server(ThreadPoolExecutor(2))
    port = plain.add_insecure_port("127.0.0.1:0")
    rank = grpc.unary_unary_rpc_method_handler(lambda request, context: RankResponse().SerializeToString())
    plain.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank}),))
    plain.start()
    with Client(f"127.0.0.1:{port}", balance="cookie", timeout_s=20) as connected:
        assert connected.rank(cookie="u1", candidates=["a"]).items == ()
    plain.stop(0).wait()


def test_a_call_that_every_server_refuses_fails_with_the_server_s_words(
    servers: list[Named], client: Connect
) -> None:
    connected = client()
    for server in servers:
        server.refuses = 100
    with pytest.raises(RankFailed, match="draining") as failed:
        connected.rank(candidates=["a"])
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    assert sum(server.calls for server in servers) == 5


@pytest.mark.parametrize("balance", BALANCES)
def test_no_call_fails_when_a_server_vanishes_under_load(
    servers: list[Named], client: Connect, balance: Balance
) -> None:
    connected = client(balance)
    eventually(lambda: len(used(connected)) == 3)
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(homes, connected) for _ in range(4)]
        eventually(lambda: servers[0].calls > 20)
        servers[0].grpc.stop(0)
        for call in calls:
            call.result()


@pytest.mark.parametrize("balance", BALANCES)
def test_no_call_fails_when_servers_close_connections_by_their_age(balance: Balance) -> None:
    aging = [Named(connection_age_s=0.2) for _ in range(3)]
    addresses = ",".join(server.address for server in aging)
    with Client(addresses, balance=balance, timeout_s=20) as connected, ThreadPoolExecutor(4) as callers:
        while min(len(server.peers) for server in aging) < 4:
            for call in [callers.submit(homes, connected) for _ in range(4)]:
                call.result()
    for server in aging:
        server.grpc.stop(0).wait()


def test_any_cookie_has_a_header_that_grpc_sends() -> None:
    for cookie in ("", "ü日本", "\U0001f600", "%2", "x" * 300, *map(chr, range(256))):
        metadata = cookie_metadata(cookie)
        assert bool(metadata) == bool(cookie)
        assert all(len(value) == 16 and int(value, 16) >= 0 for _, value in metadata)
        assert metadata == cookie_metadata(cookie)


def test_a_list_of_addresses_is_a_target_and_those_that_grpc_knows_are_left_as_they_are() -> None:
    for hosts in (["127.0.0.1", "0.0.0.0"], ["10.0.0.5", "10.0.0.6", "255.255.255.255"]):
        written = [f"{host}:{port}" for host, port in zip(hosts, (1, 65535, 50051), strict=False)]
        expected = (f"ipv4:{','.join(written)}", hosts)
        assert target_of(", ".join(written)) == target_of(f"ipv4:{','.join(written)}") == expected
    assert target_of("[::1]:5,[fe80::2]:6") == ("ipv6:[::1]:5,[fe80::2]:6", ["::1", "fe80::2"])
    for target in ("127.0.0.1:5", "localhost:5", "dns:///ftrie.example:50051", "unix:/run/ftrie.sock"):
        assert target_of(target)[0] == target


def test_what_grpc_could_not_resolve_or_would_send_to_others_is_refused() -> None:
    for address, message in (
        ("a:1,b:2", r"got 'a:1' in a list .* dns:///"),
        ("127.0.0.1:1,127.0.0.1", "got '127.0.0.1' in a list"),
        ("127.0.0.1:1,127.0.0.1:0", "got '127.0.0.1:0' in a list"),
        ("127.0.0.1:1,127.0.0.1:65536", "got '127.0.0.1:65536' in a list"),
        ("127.0.0.1:1,", "got '' in a list"),
        ("::1:5,::1:6", "got '::1:5' in a list"),
        ("127.0.0.1:1,[::1]:2", "IPv4 or IPv6 addresses, not both"),
        ("ipv6:127.0.0.1:1,127.0.0.1:2", "IPv4 or IPv6 addresses, not both"),
    ):
        with pytest.raises(ServerError, match=message):
            Client(address)
    unknown: Any = "random"
    with pytest.raises(ServerError, match="got balance='random', expected one of round_robin, cookie"):
        Client("127.0.0.1:1", balance=unknown)
    # A token is sent unencrypted only if every server is on this machine.
    Access(token="secret").channel("127.0.0.1:1,127.0.0.1:2").close()
    with pytest.raises(ServerError, match="unencrypted; give --tls-ca"):
        Access(token="secret").channel("127.0.0.1:1,192.0.2.1:2")


@pytest.mark.parametrize("balance", BALANCES)
def test_with_tls_several_servers_have_one_name(tmp_path: Path, balance: Balance) -> None:
    pem = identity(tmp_path, "server")
    access = Access(ca=pem.ca)
    with pytest.raises(ServerError, match="one name: give a name that stands for all servers"):
        access.channel("127.0.0.1:1,127.0.0.1:2", balance=balance)
    with echo.serving(credentials=credentials(pem)) as address:
        port = address.rpartition(":")[2]
        with access.channel(f"dns:///localhost:{port}", balance=balance) as channel:
            assert channel.unary_unary(echo.METHOD)(b"hello", timeout=20) == b"hello"


def test_recorded_requests_are_replayed_to_several(servers: list[Named], tmp_path: Path, ask: Ask) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"cookie": "one user", "item_ids": ["a"]}\n')
    flags = ["--requests", requests, "--duration", "0.3", "--concurrency", "2"]
    bench = ["bench", "serve", ",".join(server.address for server in servers), *flags]
    ask(*bench)
    assert all(server.calls for server in servers)
    before = [server.calls for server in servers]
    ask(*bench, "--balance", "cookie")
    assert sum(server.calls > earlier for server, earlier in zip(servers, before, strict=True)) == 1


def test_the_document_s_examples_run_and_its_config_is_the_client_s(
    servers: list[Named], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/serving.md").read_text("utf-8").partition("\n## Several servers\n")[2]
    (config,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert json.loads(config) == service_config("cookie")
    (tmp_path / "balancing.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    addresses = ",".join(server.address for server in servers)
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    models = []
    for example in examples:
        replaced = re.subn(r"10\.0\.0\.5:50051(,10\.0\.0\.\d:50051)*", addresses, example)
        assert replaced[1] == 1
        (tmp_path / "example.py").write_text(replaced[0])
        here = runpy.run_path("example.py")
        models += [here[name].model for name in ("ranking", "answer") if name in here]
    assert len(models) == len(examples) == 2
    assert models[0] == models[1], "both clients send the user to one server"
