"""Who may see the dashboard, and change things: an ASGI application around it that checks every request first.

Without a password the dashboard is for this machine only: it listens on the loopback, and a request must name it by a
loopback address, so that a page of another site cannot reach it by a name that resolves to 127.0.0.1. With one, a
browser signs in at /login and gets a signed cookie, a program sends it as a bearer token. An address that has sent a
wrong one waits before another is looked at. Requests that may change something, and web sockets, must come from the
dashboard's own pages, which no page may frame.
"""

from __future__ import annotations

import getpass
import hmac
import html
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_store.waiting import Pauses
from server import settings

COOKIE = "ftrie-dashboard"
LOGIN, LOGOUT = "/login", "/logout"
LEAST_PASSWORD = 8
WRONG_PAUSES = Pauses(1.0, 60.0, jitter=False)
"""Between two passwords of one address, the last of which was wrong."""
MOST_ADDRESSES = 10_000
"""Of which wrong passwords are remembered, the latest ones."""
SIGNED_IN_S = 12 * 3600
MOST_NAME = 64
MOST_FORM = 4096
VIEWER = "ftrie.viewer"
"""Where a request's scope has the viewer's name, for the audit stream."""
POLICY_VIOLATION = 1008
UNFRAMED = [(b"content-security-policy", b"frame-ancestors 'none'"), (b"x-frame-options", b"DENY")]


def is_loopback(host: str) -> bool:
    """As the server's, of a name as browsers take it: in any case, and one that ends in .localhost too (RFC 6761)."""
    name = host.rstrip(".").lower()
    return name.endswith(".localhost") or settings.is_loopback(name)


def prefix_of(connection: HTTPConnection) -> str:
    """The path below which a proxy serves the dashboard, as its header X-Forwarded-Prefix says; "" without one."""
    path = connection.headers.get("x-forwarded-prefix", "")
    # A link to //host/ would lead to another site.
    return (
        quote(path, safe="/:@!$&'()*+,;=%").rstrip("/")
        if path.startswith("/") and not path.startswith("//")
        else ""
    )


class _Slowed(Exception):
    """A password that was not looked at. wait_s: until one is."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"the last password was wrong; wait {math.ceil(wait_s)} s")
        self.headers = {"Retry-After": str(math.ceil(wait_s))}


class Guarded:
    """The application behind the checks. password: None for viewers on this machine only."""

    def __init__(
        self, app: ASGIApp, password: str | None, *, secure: bool, report: Callable[[str], None]
    ) -> None:
        """secure: whether it is served over TLS; the cookie is then sent over TLS only. report: of wrong passwords."""
        self._app, self._password, self._secure, self._report = app, password, secure, report
        # A secret of this process: nothing is stored, and a restart signs everybody out.
        self._signer = TimestampSigner(secrets.token_hex(32), salt=COOKIE)
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: wrong passwords in a row, and until when no other is looked at."""
        self._signed_out: dict[str, float] = {}
        """Cookies that were valid, and until when they would be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: refuse it, sign the viewer in or out, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *UNFRAMED]
            await send(message)

        connection = HTTPConnection(scope)
        refusal = self._refusal(connection)
        try:
            if refusal:
                await _refuse(scope, receive, unframed, PlainTextResponse(refusal + "\n", 403))
            elif self._password is not None and scope["path"] == LOGIN:
                await (await self._login(Request(scope, receive)))(scope, receive, unframed)
            elif (viewer := self._viewer(connection)) is None:
                await _refuse(scope, receive, unframed, _unknown(connection))
            elif self._password is not None and scope["path"] == LOGOUT and scope.get("method") == "POST":
                await self._logout(connection)(scope, receive, unframed)
            else:
                scope[VIEWER] = viewer
                await self._app(scope, receive, unframed)
        except _Slowed as slowed:
            await _refuse(scope, receive, unframed, PlainTextResponse(f"{slowed}\n", 429, slowed.headers))

    def _refusal(self, connection: HTTPConnection) -> str:
        """Why a request is not answered at all; empty if it may be."""
        host = connection.headers.get("host", "")
        # Against DNS rebinding: a page of another site may point its own name at 127.0.0.1, but that name is in Host.
        if self._password is None and not is_loopback(_named(f"//{host}").hostname or ""):
            return f"got a request for host {host!r}; without a password only loopback addresses are served"
        harmless = connection.scope["type"] == "http" and connection.scope["method"] in ("GET", "HEAD")
        origin = connection.headers.get("origin")
        # Browsers send Origin with every such request; programs send none, and no page can lead them.
        if not harmless and origin is not None and _named(origin).netloc != host:
            return f"got a request from a page of {origin}; only the dashboard's own pages may send it"
        return ""

    def _viewer(self, connection: HTTPConnection) -> str | None:
        """The name of who sends this, None if they are not signed in."""
        if self._password is None:
            return _user_of_this_process()
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_right(token, connection):
            return "token"
        signed = connection.cookies.get(COOKIE, "")
        if signed in self._signed_out:
            return None
        try:
            value = self._signer.unsign(signed, max_age=SIGNED_IN_S).decode()
        except BadSignature:
            return None
        return unquote(value.partition(":")[2])

    def _is_right(self, password: str, connection: HTTPConnection) -> bool:
        """Whether it is the password. Raises _Slowed too soon after another one of this address that was not."""
        assert self._password is not None
        address = connection.client.host if connection.client is not None else ""
        failures, until = self._wrong.get(address, (0, 0.0))
        # The right password waits as well: the pause would not slow a guesser otherwise.
        if (left_s := until - time.monotonic()) > 0.0:
            raise _Slowed(left_s)
        # In constant time, so that its duration tells nothing. In bytes, since texts must be ASCII there.
        if hmac.compare_digest(password.strip().encode(), self._password.encode()):
            self._wrong.pop(address, None)
            return True
        self._wrong[address] = failures + 1, time.monotonic() + WRONG_PAUSES.after(failures + 1)
        self._wrong.move_to_end(address)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)
        self._report(f"the dashboard was sent a wrong password by {address or 'an unknown address'}")
        return False

    async def _login(self, request: Request) -> Response:
        """The form, or the cookie for a right password."""
        if request.method != "POST":
            return HTMLResponse(_form(request, ""))
        body = b""
        async for chunk in request.stream():
            # Counted as it arrives, since the sender is not signed in.
            body += chunk
            if len(body) > MOST_FORM:
                return PlainTextResponse("the form is too long\n", 413)
        given = parse_qs(body.decode("utf-8", "replace"))
        # On one line and not too long, since it becomes part of the audit.
        name = " ".join(given.get("name", [""])[0].split())[:MOST_NAME]
        try:
            if not name or not self._is_right(given.get("password", [""])[0], request):
                return HTMLResponse(_form(request, "The password is wrong, or the name is missing."), 401)
        except _Slowed as slowed:
            return HTMLResponse(_form(request, f"Not looked at: {slowed}."), 429, slowed.headers)
        # 303 makes the browser follow by GET.
        answer = RedirectResponse(f"{prefix_of(request)}/", 303)
        answer.set_cookie(
            COOKIE,
            # Each sign-in has a value of its own, which a sign-out ends; a header has no letters outside Latin-1.
            self._signer.sign(f"{secrets.token_hex(8)}:{quote(name, safe='')}").decode(),
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return answer

    def _logout(self, connection: HTTPConnection) -> Response:
        """Ends the viewer's cookie, wherever it was copied to."""
        now = time.monotonic()
        self._signed_out = {cookie: until for cookie, until in self._signed_out.items() if until > now}
        if COOKIE in connection.cookies:
            # By its signature it may be valid so long; afterwards it need not be remembered.
            self._signed_out[connection.cookies[COOKIE]] = now + SIGNED_IN_S
        answer = RedirectResponse(prefix_of(connection) + LOGIN, 303)
        answer.delete_cookie(COOKIE)
        return answer


def _named(url: str) -> SplitResult:
    """What a URL of a request's header names; nothing if it cannot be read."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _user_of_this_process() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return "unknown"


def _unknown(connection: HTTPConnection) -> Response:
    if "text/html" in connection.headers.get("accept", ""):
        return RedirectResponse(prefix_of(connection) + LOGIN, 303)
    return PlainTextResponse(
        "sign in at /login, or send the password as a bearer token\n", 401, {"WWW-Authenticate": "Bearer"}
    )


async def _refuse(scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
    if scope["type"] == "websocket":
        # ASGI: the connect message is received before it can be answered.
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
    else:
        await answer(scope, receive, send)


def _form(request: Request, problem: str) -> str:
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
<form method="post" action="{html.escape(prefix_of(request) + LOGIN)}">
<label for="name">Your name, for the record of changes</label>
<input id="name" name="name" maxlength="{MOST_NAME}" autocomplete="username" required>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button>Sign in</button>
</form></main></body></html>
"""
