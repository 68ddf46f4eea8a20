"""Who may see the dashboard, and change things: an ASGI application around it that checks every request first.

Without a password the dashboard is for this machine only: it listens on the loopback, and a request must name it by a
loopback address, so that a page of another site cannot reach it by a name that resolves to 127.0.0.1. With one, a
browser signs in at /login and gets a signed cookie, a program sends it as a bearer token. Requests that may change
something, and web sockets, must come from the dashboard's own pages.
"""

from __future__ import annotations

import getpass
import hmac
import html
import ipaddress
import secrets
from urllib.parse import parse_qs, urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "ftrie-dashboard"
LOGIN = "/login"
SIGNED_IN_S = 12 * 3600
MOST_NAME = 64
MOST_FORM = 4096
VIEWER = "ftrie.viewer"
"""Where a request's scope has the viewer's name, for the audit stream."""
POLICY_VIOLATION = 1008


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guarded:
    """The application behind the checks. password: None for viewers on this machine only."""

    def __init__(self, app: ASGIApp, password: str | None, *, secure: bool) -> None:
        """secure: whether it is served over TLS; the cookie is then sent over TLS only."""
        self._app, self._password, self._secure = app, password, secure
        self._signer = TimestampSigner(secrets.token_hex(32), salt=COOKIE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: refuse it, sign the viewer in, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        refusal = self._refusal(connection)
        if refusal:
            await _refuse(scope, receive, send, PlainTextResponse(refusal + "\n", 403))
        elif self._password is not None and scope["path"] == LOGIN:
            await (await self._login(Request(scope, receive)))(scope, receive, send)
        elif (viewer := self._viewer(connection)) is None:
            await _refuse(scope, receive, send, _unknown(connection))
        else:
            scope[VIEWER] = viewer
            await self._app(scope, receive, send)

    def _refusal(self, connection: HTTPConnection) -> str:
        """Why a request is not answered at all; empty if it may be."""
        host = connection.headers.get("host", "")
        if self._password is None and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return f"got a request for host {host!r}; without a password only loopback addresses are served"
        harmless = connection.scope["type"] == "http" and connection.scope["method"] in ("GET", "HEAD")
        origin = connection.headers.get("origin")
        if not harmless and origin is not None and urlsplit(origin).netloc != host:
            return f"got a request from a page of {origin}; only the dashboard's own pages may send it"
        return ""

    def _viewer(self, connection: HTTPConnection) -> str | None:
        """The name of who sends this, None if they are not signed in."""
        if self._password is None:
            return _user_of_this_process()
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_right(token):
            return "token"
        try:
            signed = connection.cookies.get(COOKIE, "")
            return self._signer.unsign(signed, max_age=SIGNED_IN_S).decode()
        except BadSignature:
            return None

    def _is_right(self, password: str) -> bool:
        assert self._password is not None
        return hmac.compare_digest(password.strip().encode(), self._password.encode())

    async def _login(self, request: Request) -> Response:
        """The form, or the cookie for a right password."""
        if request.method != "POST":
            return HTMLResponse(_form(""))
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_FORM:
                return PlainTextResponse("the form is too long\n", 413)
        given = parse_qs(body.decode("utf-8", "replace"))
        name = " ".join(given.get("name", [""])[0].split())[:MOST_NAME]
        if not name or not self._is_right(given.get("password", [""])[0]):
            return HTMLResponse(_form("The password is wrong, or the name is missing."), 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            self._signer.sign(name).decode(),
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return answer


def _user_of_this_process() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _unknown(connection: HTTPConnection) -> Response:
    if "text/html" in connection.headers.get("accept", ""):
        return RedirectResponse(LOGIN, 303)
    return PlainTextResponse(
        "sign in at /login, or send the password as a bearer token\n", 401, {"WWW-Authenticate": "Bearer"}
    )


async def _refuse(scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
    else:
        await answer(scope, receive, send)


def _form(problem: str) -> str:
    alert = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in · ftrie</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 15vh auto; max-width: 20rem; padding: 0 1rem }}
label, input, button {{ display: block; width: 100%; box-sizing: border-box; font: inherit }}
input, button {{ margin: .25rem 0 1rem; padding: .5rem }}
</style></head>
<body><main><h1>ftrie dashboard</h1>{alert}
<form method="post" action="{LOGIN}">
<label for="name">Your name, for the record of changes</label>
<input id="name" name="name" maxlength="{MOST_NAME}" autocomplete="username" required>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button>Sign in</button>
</form></main></body></html>
"""
