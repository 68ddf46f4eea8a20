"""Who gets in: a machine's own user, those who know the password, and nobody by way of another site's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from ftrie.dashboard.access import VIEWER, Guarded, is_loopback
from ftrie.dashboard.app import DashboardOptions, run
from model_store.errors import ServerError, UsageError

PASSWORD = "a long secret"


async def whoami(request: Request) -> PlainTextResponse:
    """The viewer's name, as pages get it."""
    return PlainTextResponse(request.scope[VIEWER])


async def echo(socket: WebSocket) -> None:
    """A web socket that greets."""
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def client(password: str | None, base_url: str = "http://127.0.0.1:8600") -> TestClient:
    """A browser of an application behind the checks."""
    app = Starlette(routes=[Route("/", whoami, methods=["GET", "POST"]), WebSocketRoute("/ws", echo)])
    return TestClient(Guarded(app, password, secure=False), base_url=base_url)


@pytest.fixture
def open_to_this_machine() -> Iterator[TestClient]:
    """Without a password."""
    with client(None) as browser:
        yield browser


@pytest.fixture
def locked() -> Iterator[TestClient]:
    """With one, under a name of its own."""
    with client(PASSWORD, "http://testserver") as browser:
        yield browser


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]", "LOCALHOST.", "a.localhost"]
)
def test_loopback_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "localhost.example", "", "::", "127.0.0.1.example"])
def test_other_names(host: str) -> None:
    assert not is_loopback(host)


def test_this_machine_needs_no_password(open_to_this_machine: TestClient) -> None:
    assert open_to_this_machine.get("/").status_code == 200
    assert open_to_this_machine.get("/").text


def test_a_name_that_resolves_here_is_refused(open_to_this_machine: TestClient) -> None:
    answer = open_to_this_machine.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 403 and "loopback" in answer.text


@pytest.mark.parametrize("browser", ["open_to_this_machine", "locked"])
def test_pages_of_other_sites_may_not_change_anything(browser: str, request: pytest.FixtureRequest) -> None:
    page: TestClient = request.getfixturevalue(browser)
    headers = {"Origin": "http://evil.example", "Authorization": f"Bearer {PASSWORD}"}
    assert page.post("/", headers=headers).status_code == 403
    with pytest.raises(WebSocketDisconnect) as refused, page.websocket_connect("/ws", headers=headers):
        pass
    assert refused.value.code == 1008


def test_without_the_password_there_is_nothing(locked: TestClient) -> None:
    assert locked.get("/").status_code == 401
    page = locked.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    with pytest.raises(WebSocketDisconnect), locked.websocket_connect("/ws"):
        pass
    assert locked.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    locked.cookies.set("ftrie-dashboard", "me.forged")
    assert locked.get("/").status_code == 401


def test_a_program_sends_the_password_as_a_token(locked: TestClient) -> None:
    assert locked.get("/", headers={"Authorization": f"Bearer {PASSWORD}"}).text == "token"


def test_a_viewer_signs_in_by_name(locked: TestClient) -> None:
    assert 'name="password"' in locked.get("/login").text
    wrong = locked.post("/login", data={"name": "Ada", "password": "wrong"})
    assert wrong.status_code == 401 and 'role="alert"' in wrong.text
    assert locked.post("/login", data={"name": " ", "password": PASSWORD}).status_code == 401
    assert locked.post("/login", content=b"x" * 5_000).status_code == 413
    right = locked.post(
        "/login", data={"name": "Ada  Lovelace", "password": PASSWORD}, follow_redirects=False
    )
    assert right.status_code == 303
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert locked.get("/").text == "Ada Lovelace"
    with locked.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"host": "0.0.0.0"}, "--password-file"),
        ({"host": "0.0.0.0", "password": "x"}, "--tls-cert"),
        ({"host": "127.0.0.1", "tls_cert": "a.pem"}, "--tls-key"),
    ],
)
def test_others_need_a_password_and_tls(more: dict[str, str], said: str) -> None:
    options = DashboardOptions(**{"store": "embedded:nowhere", "port": 0, **more})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        run(options, print)


def test_a_taken_port_is_an_error_that_says_so() -> None:
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServerError, match="is the port taken"),
    ):
        run(DashboardOptions("embedded:nowhere", "127.0.0.1", taken.getsockname()[1]), print)
