"""Who gets in: a machine's own user, those who know the password, and nobody by way of another site's page."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from ftrie.dashboard import DashboardOptions, access
from ftrie.dashboard.access import SIGNED_IN_S, VIEWER, Guarded, is_loopback
from ftrie.dashboard.app import run
from model_store.errors import ServerError, UsageError
from model_store.waiting import Pauses
from tests.ftrie.dashboard.conftest import dashboard

PASSWORD = "a long secret"


async def whoami(request: Request) -> PlainTextResponse:
    """The viewer's name, as pages get it."""
    return PlainTextResponse(request.scope[VIEWER])


async def echo(socket: WebSocket) -> None:
    """A web socket that greets."""
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@pytest.fixture
def reported() -> list[str]:
    """What was said of wrong passwords."""
    return []


@pytest.fixture
def locked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, reported: list[str]
) -> Iterator[TestClient]:
    """A browser of an application behind the checks: under a name of its own, or without a password on this machine."""
    app = Starlette(routes=[Route("/", whoami, methods=["GET", "POST"]), WebSocketRoute("/ws", echo)])
    opened = getattr(request, "param", "locked") == "open"
    monkeypatch.setattr(access, "WRONG_PAUSES", Pauses(0.0, 0.0))
    guarded = Guarded(app, None if opened else PASSWORD, secure=False, report=reported.append)
    with TestClient(guarded, base_url="http://127.0.0.1:8600" if opened else "http://testserver") as browser:
        yield browser


def test_loopback_names() -> None:
    for host in ("localhost", "127.0.0.1", "127.8.8.8", "[::1]", "LOCALHOST.", "a.localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "10.0.0.1", "localhost.example", "", "::", "127.0.0.1.example"):
        assert not is_loopback(host), host


@pytest.mark.parametrize("locked", ["open"], indirect=True)
def test_this_machine_needs_no_password_under_its_own_name(locked: TestClient) -> None:
    assert locked.get("/").status_code == 200
    assert locked.get("/").text
    for host in ("evil.example", "[::1"):
        answer = locked.get("/", headers={"Host": host})
        assert answer.status_code == 403 and "loopback" in answer.text


@pytest.mark.parametrize("locked", ["open", "locked"], indirect=True)
def test_no_page_may_frame_it(locked: TestClient) -> None:
    for path in ("/", "/login"):
        headers = locked.get(path).headers
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("locked", ["open", "locked"], indirect=True)
def test_pages_of_other_sites_may_not_change_anything(locked: TestClient) -> None:
    headers = {"Authorization": f"Bearer {PASSWORD}"}
    for origin in ("http://[", "http://evil.example"):
        headers["Origin"] = origin
        assert locked.post("/", headers=headers).status_code == 403
    with pytest.raises(WebSocketDisconnect) as refused, locked.websocket_connect("/ws", headers=headers):
        pass
    assert refused.value.code == 1008


def test_without_the_password_there_is_nothing(locked: TestClient) -> None:
    assert locked.get("/").status_code == 401
    page = locked.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    with pytest.raises(WebSocketDisconnect), locked.websocket_connect("/ws"):
        pass
    assert locked.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert locked.get("/", headers={"Authorization": f"Bearer {PASSWORD}"}).text == "token"
    locked.cookies.set("ftrie-dashboard", "me.forged")
    assert locked.get("/").status_code == 401


def test_below_a_path_of_a_proxy_a_sign_in_stays_there(locked: TestClient) -> None:
    headers = {"X-Forwarded-Prefix": '/clicks"/', "Accept": "text/html"}
    assert locked.get("/", headers=headers, follow_redirects=False).headers["location"] == "/clicks%22/login"
    assert 'action="/clicks%22/login"' in locked.get("/login", headers=headers).text
    given = {"name": "Ada", "password": PASSWORD}
    right = locked.post("/login", data=given, headers=headers, follow_redirects=False)
    assert right.headers["location"] == "/clicks%22/"
    elsewhere = locked.get("/logout", headers=headers | {"X-Forwarded-Prefix": "//evil.example"})
    assert elsewhere.status_code == 404 and "evil" not in locked.get("/login", headers=headers).text


@pytest.mark.parametrize("name", ["Ada Lovelace", 'Łukasz; José="Ω"'])
def test_a_viewer_signs_in_by_name_and_out(locked: TestClient, name: str) -> None:
    assert 'name="password"' in locked.get("/login").text
    wrong = locked.post("/login", data={"name": "Ada", "password": "wrong"})
    assert wrong.status_code == 401 and 'role="alert"' in wrong.text
    assert locked.post("/login", data={"name": " ", "password": PASSWORD}).status_code == 401
    assert locked.post("/login", content=b"x" * 5_000).status_code == 413
    right = locked.post(
        "/login", data={"name": name.replace(" ", "  "), "password": PASSWORD}, follow_redirects=False
    )
    assert right.status_code == 303
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert locked.get("/").text == name
    with locked.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"
    copied = locked.cookies["ftrie-dashboard"]
    assert locked.get("/logout").status_code == 404
    assert locked.post("/logout", headers={"Origin": "http://evil.example"}).status_code == 403
    out = locked.post("/logout", follow_redirects=False)
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert locked.get("/").status_code == 401
    assert locked.get("/", headers={"Cookie": f"ftrie-dashboard={copied}"}).status_code == 401
    locked.post("/login", data={"name": name, "password": PASSWORD})
    assert locked.get("/").text == name


def test_cookies_of_viewers_that_signed_out_are_forgotten_once_they_are_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guarded = Guarded(Starlette(), PASSWORD, secure=False, report=print)
    with TestClient(guarded, base_url="http://testserver") as browser:
        for age_s in (0.0, SIGNED_IN_S - 1.0, SIGNED_IN_S + 1.0):
            now = time.monotonic()
            with monkeypatch.context() as later:
                later.setattr(access, "time", SimpleNamespace(monotonic=lambda now=now + age_s: now))
                browser.post("/login", data={"name": "Ada", "password": PASSWORD})
                browser.post("/logout", follow_redirects=False)
    assert len(guarded._signed_out) == 2, "the first one has expired"


def test_who_guesses_waits_and_is_reported(
    locked: TestClient, reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked.post("/login", data={"name": "Ada", "password": PASSWORD})
    monkeypatch.setattr(access, "WRONG_PAUSES", Pauses(30.0, 60.0, jitter=False))
    assert locked.post("/login", data={"name": "Ada", "password": "wrong"}).status_code == 401
    for password in ("wrong", PASSWORD):  # which of them is right must not be told
        token = locked.get("/", headers={"Authorization": f"Bearer {password}"})
        form = locked.post("/login", data={"name": "Ada", "password": password})
        assert (token.status_code, form.status_code, form.headers["Retry-After"]) == (429, 429, "30")
        assert "wait 30 s" in token.text and "wait 30 s" in form.text
    assert locked.get("/").text == "Ada", "who is signed in already stays so"
    assert reported == ["the dashboard was sent a wrong password by testclient"]


def test_others_need_a_password_and_tls_and_a_port_that_is_free(tmp_path: Path) -> None:
    short = tmp_path / "password"
    short.write_text("x\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"host": "0.0.0.0"}, "--password-file"),
        ({"host": "0.0.0.0", "password_file": short}, "--tls-cert"),
        ({"host": "127.0.0.1", "tls_cert": "a.pem"}, "--tls-key"),
        (
            {"host": "0.0.0.0", "password_file": short, "tls_cert": "a.pem", "tls_key": "b.pem"},
            "got 1 characters",
        ),
    ]
    for more, said in wrong:
        with pytest.raises(UsageError, match=said):
            run(DashboardOptions(store="embedded:nowhere", port=0, **more), print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = DashboardOptions(store="embedded:nowhere", port=taken.getsockname()[1])
        with pytest.raises(ServerError, match="has the port"):
            run(options, print)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_0_as_sigterm_does(store_url: str) -> None:
    with dashboard(store_url, ended_by=signal.SIGINT):
        pass
