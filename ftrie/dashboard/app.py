"""The dashboard's process: one feed, one web server, and the pages.

`run` returns when it is told to stop. Everything that the browser loads comes from this process: NiceGUI's own files
are in its wheel, the drawing code in vl-convert's.
"""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from nicegui import ui

from ftrie.dashboard import DashboardOptions
from ftrie.dashboard.access import LEAST_PASSWORD, VIEWER, Guarded, is_loopback
from ftrie.dashboard.chart import serve_library
from ftrie.dashboard.feed import Feed
from ftrie.dashboard.pages import experiments, features, learning, models, system, try_it
from ftrie.dashboard.pages.layout import DEFAULT_HOURS, HOURS, Page, View, frame
from ftrie.dashboard.shared import Shared
from ftrie.terminal import warn
from model_store.errors import ServerError, UsageError
from model_store.files import port_taken

STYLE = Path(__file__).with_name("style.css")
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath "
    "d='M8 1v5M8 6 3 11M8 6l5 5M3 11v4M13 11v4' stroke='%232b7bba' stroke-width='2' fill='none'/%3E%3C/svg%3E"
)
FIRST_READ_S = 3.0
MESSAGES_KEPT = 20
"""Updates that are kept for a viewer whose connection is interrupted: some seconds of them, each up to 0.3 MB."""
PAGES = (experiments.PAGE, models.PAGE, learning.PAGE, features.PAGE, try_it.PAGE, system.PAGE)
"""In the order of the navigation."""


def run(options: DashboardOptions, on_ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM. on_ready is called with its URL.

    Raises UsageError for an address that others can reach without password and TLS, ServerError for a taken port.
    """
    _check(options)
    # The port first: if it is taken, no thread and no bundle has been made.
    listener = _listening(options.host, options.port)
    feed = Feed(options.store, options.servers, options.trainers)
    app = FastAPI(openapi_url=None)
    serve_library(app)
    ui.add_css(STYLE.read_text("utf-8"), shared=True)
    shared = Shared()
    for page in PAGES:
        _add_page(page, feed, options, shared)
    secure = bool(options.tls_cert)
    ui.run_with(
        app,
        title="ftrie",
        favicon=ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        message_history_length=MESSAGES_KEPT,
    )
    guarded = Guarded(app, options.password, secure=secure, report=warn)
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            ssl_certfile=options.tls_cert or None,
            ssl_keyfile=options.tls_key or None,
            # Pages hold connections as long as they are open: without a limit uvicorn waits for all of them.
            timeout_graceful_shutdown=2,
        )
    )
    host, port = listener.getsockname()[:2]
    url = f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"
    feed.start()
    try:
        # So that the first page has its models; a store that is away keeps no dashboard from starting.
        feed.refreshed(FIRST_READ_S)
        on_ready(url)
        if options.open_browser:
            webbrowser.open(url)
        server.run(sockets=[listener])
    finally:
        feed.stop()


def _add_page(page: Page, feed: Feed, options: DashboardOptions, shared: Shared) -> None:
    @ui.page(page.path)
    async def show(request: Request, model: str = "", hours: int = DEFAULT_HOURS) -> None:
        names = feed.names
        wanted = model or options.model or ""
        view = View(
            feed=feed,
            page=page,
            pages=PAGES,
            model=wanted if wanted in names else "" if wanted or not names else names[0],
            missing=wanted if wanted not in names else "",
            hours=hours if hours in HOURS else DEFAULT_HOURS,
            viewer=request.scope.get(VIEWER, ""),
            allow_changes=options.allow_changes,
            may_sign_out=options.password is not None,
            logs=options.logs,
            effect=options.effect,
            shared=shared,
        )
        await frame(view)


def _check(options: DashboardOptions) -> None:
    if not is_loopback(options.host) and (options.password is None or not options.tls_cert):
        raise UsageError(
            f"--host {options.host}: others can reach this address: give --password-file, --tls-cert and --tls-key, or "
            "listen on 127.0.0.1, behind a proxy that asks for a password"
        )
    if options.password is not None and len(options.password) < LEAST_PASSWORD:
        found = f"got {len(options.password)} characters in its first line"
        raise UsageError(f"--password-file: {found}, expected at least {LEAST_PASSWORD}")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError("--tls-cert and --tls-key: give both or neither")


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # No shared port: a second dashboard must fail here, not take half of the first one's viewers.
        return socket.create_server(found[0][4][:2], family=found[0][0], reuse_port=False)
    except OSError as error:
        raise ServerError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): {port_taken(port, error)}; --port 0 chooses "
            "a free one"
        ) from error
