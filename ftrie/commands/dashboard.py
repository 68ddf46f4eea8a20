"""`ftrie dashboard`: the flags. ftrie.dashboard.app serves the pages."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ftrie.command import command
from ftrie.terminal import JsonOption, json_output, note, print_json
from model_store.errors import UsageError, installing
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption
from model_store.waiting import deferred

if TYPE_CHECKING:
    from ftrie.dashboard.app import DashboardOptions

HOST = "127.0.0.1"
EXTRA = ("nicegui", "fastapi", "uvicorn", "starlette", "itsdangerous", "vl_convert")


@command("Serve", 7, "Example: ftrie dashboard --server 127.0.0.1:9464 --open")
def dashboard(
    model: Annotated[
        str | None, Argument("The model shown first; default: the first by name.", "MODEL")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[
        str, Flag("Listen here; others than this machine need --password-file and TLS.", "ADDRESS")
    ] = HOST,
    port: Annotated[int, Flag("0 chooses a free one.", "N", min=0, max=65535)] = 8600,
    server: Annotated[
        list[str] | None,
        Flag("A server's --metrics-port, for the page of the system; repeatable.", "HOST:PORT"),
    ] = None,
    trainer: Annotated[
        list[str] | None, Flag("A trainer's --metrics-port, likewise; repeatable.", "HOST:PORT")
    ] = None,
    log: Annotated[
        list[str] | None,
        Flag("A labelled log for slices; default: the latest impressions; repeatable.", "FILE", file="reads"),
    ] = None,
    effect: Annotated[
        float, Flag("The relative change of the CTR to detect.", "X", min=1e-6, max=10.0)
    ] = 0.05,
    allow_changes: Annotated[
        bool, Flag("Let viewers change shares, pin, promote, activate and roll back.")
    ] = False,
    password_file: Annotated[
        Path | None,
        Flag("Viewers sign in with the password in this file's first line.", "FILE", file="reads"),
    ] = None,
    tls_cert: Annotated[str, Flag("Serve TLS with this certificate, PEM.", "FILE", file="reads")] = "",
    tls_key: Annotated[str, Flag("Its key, PEM.", "FILE", file="reads")] = "",
    open_browser: Annotated[bool, Flag("Open it in a browser.", names="--open")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show experiments, models, learning, features, rankings and the system in a browser, as they are now.

    Read only without --allow-changes. Ctrl-C or SIGTERM ends it. Needs the extra `dashboard`.
    """

    def ready(url: str) -> None:
        if json_output():
            print_json({"event": "ready", "url": url})
        else:
            note(f"the dashboard is at {url}; Ctrl-C ends it")

    with ended_by_signals():
        options, run = options_and_run()
        run(
            options(
                store=store,
                host=host,
                port=port,
                model=model,
                servers=tuple(server or ()),
                trainers=tuple(trainer or ()),
                logs=tuple(log or ()),
                allow_changes=allow_changes,
                effect=effect,
                password=None if password_file is None else _password(password_file),
                tls_cert=tls_cert,
                tls_key=tls_key,
                open_browser=open_browser,
            ),
            ready,
        )


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, SIGINT and SIGTERM end the process with exit code 0, as they end `ftrie serve`: nothing is lost."""
    stop = (signal.SIGINT, signal.SIGTERM)
    before = [
        signal.signal(each, lambda number, frame: deferred(number, frame) or sys.exit(0)) for each in stop
    ]
    try:
        yield
    finally:
        for each, handler in zip(stop, before, strict=True):
            signal.signal(each, handler)


def options_and_run() -> tuple[
    type[DashboardOptions], Callable[[DashboardOptions, Callable[[str], None]], None]
]:
    """What starts a dashboard. Raises UsageError if the extra is not installed."""
    try:
        from ftrie.dashboard.app import DashboardOptions, run
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise UsageError(f"the dashboard needs the extra `dashboard`: {installing('dashboard')}") from error
    return DashboardOptions, run


def _password(path: Path) -> str:
    lines = path.read_text("utf-8").splitlines()
    if not lines or not lines[0].strip():
        raise UsageError(f"--password-file {path}: its first line is empty; write the password there")
    return lines[0].strip()
