"""`ftrie dashboard`: output. Its flags are the fields of `ftrie.dashboard.DashboardOptions`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ftrie.command import command
from ftrie.dashboard import DashboardOptions
from ftrie.terminal import JsonOption, json_output, note, print_json
from model_store.errors import UsageError, installing
from model_store.waiting import deferred

# Modules that the extra installs. If another one cannot be imported, that is a bug and raises as it is.
EXTRA = ("nicegui", "fastapi", "uvicorn", "starlette", "itsdangerous", "vl_convert")


@command("Serve", 7, "Example: ftrie dashboard --server 127.0.0.1:9464 --open")
def dashboard(options: DashboardOptions, as_json: JsonOption = False) -> None:
    """Show experiments, models, learning, features, rankings and the system in a browser, as they are now.

    Read only without --allow-changes. Ctrl-C or SIGTERM ends it. Needs the extra `dashboard`.
    """

    def ready(url: str) -> None:
        if json_output():
            print_json({"event": "ready", "url": url})
        else:
            note(f"the dashboard is at {url}; Ctrl-C ends it")

    with ended_by_signals():
        dashboard_run()(options, ready)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, SIGINT and SIGTERM end the process with exit code 0, as they end `ftrie serve`: nothing is lost."""
    stop = (signal.SIGINT, signal.SIGTERM)
    # uvicorn handles both while it serves, restores these handlers at its end, and raises the signal again for them.
    before = [
        signal.signal(each, lambda number, frame: deferred(number, frame) or sys.exit(0)) for each in stop
    ]
    try:
        yield
    finally:
        for each, handler in zip(stop, before, strict=True):
            signal.signal(each, handler)


def dashboard_run() -> Callable[[DashboardOptions, Callable[[str], None]], None]:
    """What runs a dashboard. Raises UsageError if the extra is not installed."""
    try:
        from ftrie.dashboard.app import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise UsageError(f"the dashboard needs the extra `dashboard`: {installing('dashboard')}") from error
    return run
