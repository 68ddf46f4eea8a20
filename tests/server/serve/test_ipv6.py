"""Every port of a server on an IPv6 address, with and without the brackets that URLs have."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from ftrie.api.client import Client
from model_store.store import Store
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from server.serve.takeover import Port
from server.telemetry.meter import Totals
from server.telemetry.prometheus import MetricsPage, registry
from tests.server import echo
from tests.server.one_process import Server


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe, suppress(OSError):
        probe.bind(("::1", 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_every_port_of_a_server_listens(host: str) -> None:
    page = MetricsPage(host, 0, registry(Totals()), lambda: {"ready": True})
    try:
        assert page.address.startswith("[::1]:")
        with urllib.request.urlopen(f"http://{page.address}/healthz", timeout=20) as answered:
            assert answered.status == 200
    finally:
        page.close()
    port = Port(host, 0, shared=False)  # which a supervisor holds, and its workers listen on
    server = grpc_server(echo.handlers(), Health(), 1, shares_port=True)
    try:
        assert listen(server, host, port.number) == port.address
        server.start()
        assert echo.outcome(port.address) is grpc.StatusCode.OK
    finally:
        server.stop(0).wait()
        port.close()


def test_a_server_answers(shop_store: Store, start: Callable[..., Server]) -> None:
    server = start(host="::1")
    assert server.ready.wait(180)
    with Client(server.address, timeout_s=20) as client:
        assert client.rank(candidates=["item-1"]).items
