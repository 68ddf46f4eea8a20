"""`ftrie serve`: flags and output of the server. What a server is lives in `server.supervising`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, print_json
from server.settings import (
    DEFAULT_DRAIN_S,
    DEFAULT_FEEDBACK_AGE_S,
    DEFAULT_FEEDBACK_LENGTH,
    DEFAULT_IMPRESSIONS_AGE_S,
    DEFAULT_IMPRESSIONS_KEPT,
    DEFAULT_IMPRESSIONS_LENGTH,
    DEFAULT_IMPRESSIONS_QUEUE,
    DEFAULT_IMPRESSIONS_SIZE_MIB,
    DEFAULT_STORE_BUDGET_S,
    DEFAULT_THREADS,
    DEFAULT_USER_CACHE,
    DEFAULT_USER_TTL_S,
)

if TYPE_CHECKING:
    from server.telemetry.status import SupervisorStatus

LOOPBACK = "127.0.0.1"


def register(app: typer.Typer) -> None:
    """Add `ftrie serve`."""
    app.command("serve", epilog="Example: ftrie serve ads --port 50051 --workers 2")(serve)


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="The models' names.")],
    store: StoreOption = DEFAULT_STORE,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free port.")
    ] = 50051,
    host: Annotated[
        str, typer.Option(help="Which interface; 0.0.0.0 for all: give --tls-cert and --tokens.")
    ] = LOOPBACK,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that answer, all on the same port.")
    ] = 1,
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Threads that answer calls, of each worker.")
    ] = DEFAULT_THREADS,
    drain: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to finish calls on SIGTERM.")
    ] = DEFAULT_DRAIN_S,
    store_budget: Annotated[
        int, typer.Option(min=1, metavar="MS", help="How long a request waits for the store, milliseconds.")
    ] = round(1000 * DEFAULT_STORE_BUDGET_S),
    user_store: Annotated[
        str, typer.Option(metavar="URL", help="Read users from another store, such as a replica.")
    ] = "",
    user_cache: Annotated[
        int, typer.Option(min=0, metavar="N", help="Users that each worker keeps for each model; 0 for none.")
    ] = DEFAULT_USER_CACHE,
    user_ttl: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long a kept user is not asked for again.")
    ] = DEFAULT_USER_TTL_S,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the last good models are kept, to start from when the store is away. Default: a folder of "
            "the port's in the user's cache; none with --port 0.",
        ),
    ] = None,
    alone: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long workers go on when the supervisor has died without successor.",
        ),
    ] = 60.0,
    connection_age: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="When a connection is asked to be made anew, and may fall to another worker; 0 never asks.",
        ),
    ] = 300.0,
    pin: Annotated[
        bool, typer.Option("--pin", help="Keep each worker on one core: faster, where the cores are its own.")
    ] = False,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve administration here (ftrie admin).")
    ] = None,
    admin_host: Annotated[str, typer.Option(help="Which interface for administration.")] = LOOPBACK,
    shadow_log: Annotated[
        str, typer.Option(metavar="FILE", help="Score shadow variants, and append what they had answered.")
    ] = "",
    shadow_sample: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Of the requests, by their ids.")
    ] = 1.0,
    feedback_length: Annotated[
        int, typer.Option(min=1, metavar="N", help="Clicks and conversions that a stream keeps, about.")
    ] = DEFAULT_FEEDBACK_LENGTH,
    feedback_age: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="How old one of them may become.")
    ] = DEFAULT_FEEDBACK_AGE_S,
    impressions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SINK",
            help="Log what is shown: store, redis://HOST:PORT or file:PATH; may be given several times.",
        ),
    ] = None,
    impressions_length: Annotated[
        int, typer.Option(min=1, metavar="N", help="Impressions that a stream keeps, about.")
    ] = DEFAULT_IMPRESSIONS_LENGTH,
    impressions_age: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="How old an impression in a stream may become.")
    ] = DEFAULT_IMPRESSIONS_AGE_S,
    impressions_queue: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Impressions that wait, of each worker and sink; more are lost."
        ),
    ] = DEFAULT_IMPRESSIONS_QUEUE,
    impressions_size: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="How large a file of impressions becomes.")
    ] = DEFAULT_IMPRESSIONS_SIZE_MIB,
    impressions_kept: Annotated[
        int, typer.Option(min=1, metavar="N", help="Full files of impressions that are kept.")
    ] = DEFAULT_IMPRESSIONS_KEPT,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics and /healthz here.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Which interface for /metrics.")] = LOOPBACK,
    max_concurrency: Annotated[
        int, typer.Option(min=0, help="Calls a worker takes at once; more are refused. Default: 32 a thread.")
    ] = 0,
    tls_cert: Annotated[str, typer.Option(metavar="FILE", help="Serve TLS with this certificate, PEM.")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its key, PEM.")] = "",
    tls_client_ca: Annotated[
        str, typer.Option(metavar="FILE", help="Mutual TLS: let in whom these authorities signed, PEM.")
    ] = "",
    tokens: Annotated[
        str,
        typer.Option(metavar="FILE", help="TOML with the bearer tokens of each role; read again on change."),
    ] = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    access_log: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Log this share of the answers.")
    ] = 0.0,
    traces: Annotated[
        str, typer.Option(metavar="URL", help="Send OpenTelemetry traces to this OTLP endpoint (gRPC).")
    ] = "",
    trace_share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Of the calls whose caller has not decided."),
    ] = 0.01,
    record: Annotated[
        str,
        typer.Option(metavar="FILE", help="Append requests here, for ftrie bench serve; it holds cookies."),
    ] = "",
    record_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Of the requests, drawn at random.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Serve published models over gRPC, and follow their active versions.

    Prints one line when every worker serves every model. SIGTERM or Ctrl-C ends it once its calls have ended, a second
    at once.
    """
    from server.processes.supervisor import Supervisor
    from server.settings import Settings
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
                }
            )
        else:
            served = ", ".join(f"{name} version {version}" for name, version in versions.items())
            print(f"serving {served} on {status.address}", flush=True)

    if log_level not in LEVELS:
        raise typer.BadParameter(f"--log-level: got {log_level!r}, expected one of {', '.join(LEVELS)}")
    log_to_stderr(log_level)
    settings = Settings(
        models=tuple(models),
        store=store,
        host=host,
        port=port,
        workers=workers,
        threads=threads,
        drain_s=drain,
        store_budget_s=store_budget / 1000,
        user_store=user_store,
        user_cache=user_cache,
        user_ttl_s=user_ttl,
        state=str(state or default_state(host, port) or ""),
        alone_s=alone,
        connection_age_s=connection_age if workers > 1 else 0.0,
        pin=pin,
        admin_port=admin_port,
        admin_host=admin_host,
        shadow_log=shadow_log,
        shadow_sample=shadow_sample,
        feedback_length=feedback_length,
        feedback_age_s=feedback_age,
        impressions=tuple(impressions or ()),
        impressions_length=impressions_length,
        impressions_age_s=impressions_age,
        impressions_queue=impressions_queue,
        impressions_size_mib=impressions_size,
        impressions_kept=impressions_kept,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        max_concurrency=max_concurrency,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        tokens=tokens,
        log_level=log_level,
        access_log=access_log,
        traces=traces,
        trace_share=trace_share,
        record=record,
        record_share=record_share,
    )
    Supervisor(settings, say_ready).run()


def default_state(host: str, port: int) -> Path | None:
    """A folder of the address's own in the user's cache; none for a port that nobody can come back to."""
    if not port:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ftrie" / "serve" / f"{host.strip('[]').replace(':', '_')}-{port}"
