"""A client of several servers: what may be named, and those who call several. What servers do is in machines/."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from ftrie.api.access import BALANCES, Access, Balance, cookie_metadata, service_config, target_of
from ftrie.api.client import Client
from model_store.errors import ServerError
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from server.serve.ranking_service import SERVICE
from tests.ftrie.conftest import Ask
from tests.server import echo
from tests.server.certificates import identity
from tests.server.serve.test_tls import credentials

ROOT = Path(__file__).resolve().parents[2]
COOKIES = [f"user-{number}" for number in range(300)]


class Named:
    """A server that names itself in its answers, as their model. `refuses`: calls that it answers UNAVAILABLE."""

    def __init__(self) -> None:
        health = Health()
        health.say(serving=True)
        self.calls = self.refuses = 0
        forms = RankRequest.FromString, RankResponse.SerializeToString
        rank = grpc.unary_unary_rpc_method_handler(self._rank, *forms)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank})
        self.grpc = grpc_server(handlers, health, 4)
        self.address = listen(self.grpc, "127.0.0.1", 0)
        self.grpc.start()

    def _rank(self, request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
        self.calls += 1
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


def homes(client: Client) -> dict[str, str]:
    return {cookie: client.rank(cookie=cookie, candidates=["a"]).model for cookie in COOKIES}


def test_a_server_or_proxy_without_a_health_service_is_called() -> None:
    plain = grpc.server(ThreadPoolExecutor(2))
    port = plain.add_insecure_port("127.0.0.1:0")
    rank = grpc.unary_unary_rpc_method_handler(lambda request, context: RankResponse().SerializeToString())
    plain.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank}),))
    plain.start()
    with Client(f"127.0.0.1:{port}", balance="cookie", timeout_s=20) as connected:
        assert connected.rank(cookie="u1", candidates=["a"]).items == ()
    plain.stop(0).wait()


def test_a_long_call_that_is_refused_is_made_again(servers: list[Named]) -> None:
    """Longer than gRPC keeps by itself."""
    for server in servers:
        server.refuses = 1
    with Client(",".join(server.address for server in servers), timeout_s=20) as connected:
        assert connected.rank(candidates=["x" * 1000] * 2000).model
    assert sum(server.calls for server in servers) >= 2


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
