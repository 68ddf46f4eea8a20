"""`ftrie bench`: runs the benchmarks of a checkout, one process each, or loads a running server.

`ftrie bench NAME…` is short for `ftrie bench run NAME…`. The benchmarks are in benchmarks/, the load generator of
`ftrie bench serve` in ftrie.api.load.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ftrie.command import Commands
from ftrie.commands.flags import AccessFlags, BalanceOption
from ftrie.terminal import JsonOption, note, print_json, print_table, progress
from model_store.errors import FtrieError, installing, listed
from model_store.flags import Argument, Flag

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = CHECKOUT / "benchmarks" / "results"
REMEDIES = {
    "vowpalwabbit": "pip install -e '.[bench]', or run `make bench`",
    "marisa_trie": "pip install -e '.[bench]', or run `make bench`",
    **dict.fromkeys(("pandas", "polars", "duckdb"), installing("docs")),
    "h2load": "apt install nghttp2-client",
    "torch": f"make torch, or {installing('torch')}",
    "sklearn": installing("sklearn"),
    "python3.8": "pyenv install 3.8",
}
"""How to install the packages and programs that benchmarks need."""

# Read from the text: to import a benchmark would need what it needs.
_NEEDS = re.compile(r"^NEEDS = (.+)$", re.MULTILINE)


class _Bench(typer.core.TyperGroup):
    """A group that takes an unknown command as the name of a benchmark to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` before anything but a command or a help flag."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """List what can be run, before the example."""
        if rows := [(name, purpose(name)) for name in benchmark_names()]:
            with formatter.section("Benchmarks"):
                formatter.write_dl(rows, col_max=20)
        super().format_epilog(ctx, formatter)


def benchmark_names() -> list[str]:
    """The runnable modules in benchmarks/ that report through benchmarks/common.py, sorted."""
    sources = {path.stem: path.read_text("utf-8") for path in (CHECKOUT / "benchmarks").glob("*.py")}
    marks = ('if __name__ == "__main__"', "from benchmarks.common import")
    return sorted(name for name, source in sources.items() if all(mark in source for mark in marks))


def _known() -> list[str]:
    """The benchmarks. Raises FtrieError outside a checkout."""
    if not (known := benchmark_names()):
        raise FtrieError(f"no benchmarks in {CHECKOUT}: run this in a checkout of ftrie, with `make bench`")
    return known


def purpose(name: str) -> str:
    """What a benchmark measures: the first sentence of its docstring."""
    text = ast.get_docstring(ast.parse((CHECKOUT / "benchmarks" / f"{name}.py").read_text("utf-8"))) or ""
    sentence, stop, _ = " ".join(text.split("\n\n")[0].split()).partition(". ")
    return sentence + stop.strip()


def list_(as_json: JsonOption = False) -> None:
    """List the benchmarks, with what each measures and what it needs."""
    rows = [(name, purpose(name), needs(name)) for name in _known()]
    if as_json:
        print_json([{"name": name, "measures": what, "needs": list(need)} for name, what, need in rows])
    else:
        print_table(
            ["name", "measures", "needs"], [[name, what, ", ".join(need)] for name, what, need in rows]
        )


def needs(name: str) -> tuple[str, ...]:
    """The packages and programs that a benchmark needs, from its constant NEEDS."""
    found = _NEEDS.search((CHECKOUT / "benchmarks" / f"{name}.py").read_text("utf-8"))
    return () if found is None else ast.literal_eval(found[1])


def run(
    names: Annotated[list[str] | None, Argument("Which to run; default: all.", "NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure ftrie and its peers on the same bytes, print the tables and write benchmarks/results/*.json.

    Needs a checkout of the project. Naming a benchmark whose packages or programs are not installed is an error;
    without names such benchmarks are skipped, with a note.
    """
    known = _known()
    for name in names or known:
        if name not in known:
            raise FtrieError(f"unknown benchmark {name!r}: expected one of {listed(known, name)}")
    lacking = {
        name: absent
        for name in names or known
        if (
            absent := [
                n for n in needs(name) if shutil.which(n) is None and importlib.util.find_spec(n) is None
            ]
        )
    }
    problems = [
        f"the benchmark {name} needs {each}, which is not installed: {REMEDIES[each]}"
        for name, absent in lacking.items()
        for each in absent
    ]
    if names and problems:
        raise FtrieError("; ".join(problems))
    for problem in problems:
        note(f"skipped: {problem}")
    began = time.time()
    for name in names or known:
        if name not in lacking:
            # A process each: caches, peak memory and threads of one would change the figures of the next.
            command = [sys.executable, "-m", f"benchmarks.{name}"]
            output = subprocess.DEVNULL if as_json else None
            finished = subprocess.run(command, cwd=CHECKOUT, check=False, stdout=output)
            if finished.returncode != 0:
                raise FtrieError(
                    f"the benchmark {name} failed with exit code {finished.returncode}; see above"
                )
    if as_json:
        written = (path for path in sorted(RESULTS.glob("*.json")) if path.stat().st_mtime >= began)
        print_json([json.loads(path.read_text("utf-8")) for path in written])


def bench_serve(
    address: Annotated[
        str, Argument("The server; several: IP:PORT,IP:PORT, or one name, dns:///HOST:PORT.", "HOST:PORT")
    ],
    requests: Annotated[
        Path, Flag("Requests, as written by ftrie serve --record.", "FILE.jsonl", file="reads", exists=True)
    ],
    concurrency: Annotated[
        int, Flag("Number of callers, each with one call at a time.", min=1, max=1024)
    ] = 8,
    duration: Annotated[float, Flag("How long to call.", "SECONDS", min=0.1)] = 10.0,
    rate: Annotated[
        float | None, Flag("Calls a second; default: as many as the callers can make.", min=0.001)
    ] = None,
    pace: Annotated[
        float | None, Flag("Call at the recorded times, this many times as fast.", min=0.001)
    ] = None,
    timeout: Annotated[float, Flag("Deadline of a call.", "SECONDS", min=0.001)] = 5.0,
    balance: BalanceOption = None,
    *,
    access: AccessFlags,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded requests against a running server; prints a table and a histogram of latencies.

    With --rate and --pace a latency counts from when the call was due, so that a stall is charged to the server.
    """
    from ftrie.api.load import Load, drawn, due, figures, read

    if rate is not None and pace is not None:
        raise typer.BadParameter("give either --rate or --pace")
    recorded = read(requests)
    if pace is not None and not recorded.timed:
        raise typer.BadParameter(f"--pace: not every line of {requests} has a time (`at`)")
    load = Load(address, access.access(), due(recorded, rate, pace), timeout, balance)
    with progress(f"calling {address}", None, "calls") as calls:
        result = load.run(concurrency, duration, calls.update)
    found = figures(result)
    if as_json:
        print_json(
            {"address": address, "requests": len(recorded.messages), "concurrency": concurrency, **found}
        )
    else:
        names = [name for name in found if name not in ("errors", "histogram")]
        titles = [name.replace("_a_second", "/s").replace("_ms", " ms") for name in names]
        print_table(titles, [[found[name] for name in names]])
        print("\n".join(drawn(found["histogram"])))
        for status, calls_of_status in found["errors"].items():
            print(f"{status}: {calls_of_status:,}")
    if not found["answered"]:
        # The exit code of a server that does not answer (docs/commands.md).
        raise typer.Exit(6)


bench = Commands(
    "bench",
    "Measure: this checkout, or a server.",
    ("Try it", 4),
    cls=_Bench,
    epilog="Example: ftrie bench trie",
)
bench.command("list", epilog="Example: ftrie bench list")(list_)
bench.command("run", epilog="Example: ftrie bench run peers")(run)
bench.command(
    "serve", epilog="Example: ftrie bench serve 127.0.0.1:50051 --requests requests.jsonl --rate 500"
)(bench_serve)
