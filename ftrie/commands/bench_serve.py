"""`ftrie bench serve`: flags and output. The calls are in `ftrie.replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ftrie.commands.flags import TlsCaOption, TlsCertOption, TlsKeyOption, TokenOption
from ftrie.terminal import JsonOption, print_json, print_table, progress


def register(app: typer.Typer) -> None:
    """Add `serve` to `ftrie bench`."""
    app.command(
        "serve", epilog="Example: ftrie bench serve 127.0.0.1:50051 --requests requests.jsonl --rate 500"
    )(serve)


def serve(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.")],
    requests: Annotated[
        Path,
        typer.Option(
            metavar="FILE.jsonl", exists=True, dir_okay=False, help="What ftrie serve --record wrote."
        ),
    ],
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, help="Callers, each with one call at a time.")
    ] = 8,
    duration: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to call.")] = 10.0,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Calls a second; without it as many as the callers can.")
    ] = None,
    pace: Annotated[
        float | None, typer.Option(min=0.001, help="Call as recorded, so many times as fast; 1 is as it was.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Deadline of a call.")] = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Replay recorded requests against a running server; prints a table and a histogram of latencies.

    With --rate and --pace a call's time counts from when it was due, so that a stall is charged to the server.
    """
    from ftrie.bench_serve import Load, drawn, due, figures, read
    from ftrie.client.access import Access

    if rate is not None and pace is not None:
        raise typer.BadParameter("give either --rate or --pace")
    recorded = read(requests)
    if pace is not None and not recorded.timed:
        raise typer.BadParameter(f"--pace: not every line of {requests} has its time, as `at`")
    load = Load(address, Access(tls_ca, tls_cert, tls_key, token), due(recorded, rate, pace), timeout)
    with progress(f"calling {address}", None, "calls") as shown:
        outcome = load.run(concurrency, duration, shown.update)
    found = figures(outcome)
    if as_json:
        print_json(
            {"address": address, "requests": len(recorded.messages), "concurrency": concurrency, **found}
        )
    else:
        _show(found, drawn(found["histogram"]))
    if not found["answered"]:
        raise typer.Exit(6)


def _show(found: dict[str, Any], histogram: list[str]) -> None:
    names = [name for name in found if name not in ("errors", "histogram")]
    print_table(
        [name.replace("_a_second", "/s").replace("_ms", " ms") for name in names], [[found[n] for n in names]]
    )
    print("\n".join(histogram))
    for status, calls in found["errors"].items():
        print(f"{status}: {calls:,}")
