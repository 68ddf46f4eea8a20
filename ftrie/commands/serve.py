"""`ftrie serve`: output of the server. Its flags are the fields of `server.settings.Settings`."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ftrie.command import command
from ftrie.terminal import JsonOption, print_json
from model_store.errors import ServerError, listed
from server.settings import Settings

if TYPE_CHECKING:
    from server.telemetry.status import SupervisorStatus

FEWEST_FILES = 64
"""A supervisor has 24 open, a worker 35; and compiling kernels opens some."""
CONNECTION_AGE_S = 300.0
"""By default, where there is another worker to move to."""


@command("Serve", 1, "Example: ftrie serve ads --port 50051 --workers 2")
def serve(settings: Settings, as_json: JsonOption = False) -> None:
    """Serve published models over gRPC, and follow their active versions.

    Prints one line when every worker serves every model that has a version. SIGTERM or Ctrl-C ends it once its calls
    have ended, a second at once.
    """
    from server.serve.supervisor import Supervisor
    from server.telemetry.log import LEVELS, log_to_stderr

    def say_ready(status: SupervisorStatus) -> None:
        versions = {model.name: model.version for model in status.models}
        if as_json:
            name, version = next(iter(versions.items()))
            print_json(
                {
                    "model": name,
                    "version": version,
                    "models": versions,
                    "address": status.address,
                    "workers": len(status.workers),
                    "not_served": status.not_served,
                }
            )
        else:
            missing = status.not_served
            served = ", ".join(
                f"{name} version {version}" for name, version in versions.items() if name not in missing
            )
            lacks = "".join(f"; NOT SERVED: {name} ({why})" for name, why in missing.items())
            # At once: scripts wait for this line through a pipe, which would be buffered.
            print(f"serving {served} on {status.address}{lacks}", flush=True)

    level, age_s = settings.log_level, settings.connection_age_s
    if level not in LEVELS:
        raise typer.BadParameter(f"--log-level: got {level!r}, expected one of {listed(LEVELS, level)}")
    log_to_stderr(level)
    if age_s is None:
        # A connection belongs to the worker that accepted it: without an end, long-lived ones stay unevenly divided.
        age_s = CONNECTION_AGE_S if settings.workers > 1 else 0.0
    state = settings.state or str(default_state(settings.host, settings.port) or "")
    # Each connection is a descriptor, and shells allow 1,024 of them where the system would allow many more. Workers
    # inherit the limit.
    with suppress(ValueError, OSError):  # a system whose own limit is below the one that it names
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if 0 <= (most := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < FEWEST_FILES:
        raise ServerError(f"got ulimit -n {most}; a server needs {FEWEST_FILES} and one for each connection")
    Supervisor(replace(settings, state=state, connection_age_s=age_s), say_ready).run()


def default_state(host: str, port: int) -> Path | None:
    """A folder for this address in the user's cache; None for a port that differs with each start."""
    if not port:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ftrie" / "serve" / f"{host.strip('[]').replace(':', '_')}-{port}"
