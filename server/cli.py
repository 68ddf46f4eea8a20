"""`ftrie serve`: flags and output of the server. What a server is lives in `server.lifecycle`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from model_store.terminal import DEFAULT_STORE, JsonOption, StoreOption, print_json

if TYPE_CHECKING:
    from server.serving import Serving


def register(app: typer.Typer) -> None:
    """Add `ftrie serve`."""
    app.command("serve", epilog="Example: ftrie serve ads --port 50051")(serve)


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    store: StoreOption = DEFAULT_STORE,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free port.")
    ] = 50051,
    host: Annotated[
        str, typer.Option(help="Which interface; 0.0.0.0 for all, without protection.")
    ] = "127.0.0.1",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads that answer calls.")] = 8,
    drain: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to finish calls on SIGTERM.")
    ] = 10.0,
    store_budget: Annotated[
        int, typer.Option(min=1, metavar="MS", help="How long a request waits for the store, milliseconds.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Serve a published model over gRPC, and follow its active version.

    Prints one line when it is ready. SIGTERM or Ctrl-C ends it once its calls have ended, a second at once.
    """
    from server.lifecycle import Server, Settings
    from server.log import log_to_stderr

    def say_ready(serving: Serving, address: str) -> None:
        if as_json:
            print_json({"model": serving.name, "version": serving.version, "address": address})
        else:
            print(f"serving {serving.name} version {serving.version} on {address}", flush=True)

    log_to_stderr()
    settings = Settings(model, store, host, port, threads, drain, store_budget / 1000)
    Server(settings, say_ready).run()
