"""The dashboard in the browser: pages that show the system as it runs. Here: its settings, which need no extra."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from model_store.errors import UsageError
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption
from server.settings import LOOPBACK


@dataclass(frozen=True)
class DashboardOptions:
    """How a dashboard runs: the flags of `ftrie dashboard`. servers, trainers: HOST:PORT of metrics pages."""

    model: Annotated[str | None, Argument("The model shown first; default: the first by name.", "MODEL")] = (
        None
    )
    store: StoreOption = DEFAULT_STORE
    host: Annotated[
        str, Flag("Listen here; others than this machine need --password-file and TLS.", "ADDRESS")
    ] = LOOPBACK
    port: Annotated[int, Flag("0 chooses a free one.", "N", min=0, max=65535)] = 8600
    servers: Annotated[
        tuple[str, ...],
        Flag(
            "A server's --metrics-port, for the page of the system; repeatable.",
            "HOST:PORT",
            names="--server",
        ),
    ] = ()
    trainers: Annotated[
        tuple[str, ...],
        Flag("A trainer's --metrics-port, likewise; repeatable.", "HOST:PORT", names="--trainer"),
    ] = ()
    logs: Annotated[
        tuple[str, ...],
        Flag(
            "A labelled log for slices; default: the latest impressions; repeatable.",
            "FILE",
            file="reads",
            names="--log",
        ),
    ] = ()
    effect: Annotated[float, Flag("The relative change of the CTR to detect.", "X", min=1e-6, max=10.0)] = (
        0.05
    )
    allow_changes: Annotated[
        bool, Flag("Let viewers change shares, pin, promote, activate and roll back.")
    ] = False
    password_file: Annotated[
        Path | None,
        Flag("Viewers sign in with the password in this file's first line.", "FILE", file="reads"),
    ] = None
    tls_cert: Annotated[str, Flag("Serve TLS with this certificate, PEM.", "FILE", file="reads")] = ""
    tls_key: Annotated[str, Flag("Its key, PEM.", "FILE", file="reads")] = ""
    open_browser: Annotated[bool, Flag("Open it in a browser.", names="--open")] = False

    @cached_property
    def password(self) -> str | None:
        """The first line of the file; None for viewers on this machine only. Raises UsageError, OSError."""
        if self.password_file is None:
            return None
        lines = self.password_file.read_text("utf-8").splitlines()
        if not lines or not lines[0].strip():
            raise UsageError(
                f"--password-file {self.password_file}: its first line is empty; write the password there"
            )
        return lines[0].strip()
