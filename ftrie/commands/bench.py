"""`ftrie bench`: runs the benchmarks of a checkout, one process each. The measuring is in benchmarks/.

`ftrie bench NAME…` is short for `ftrie bench run NAME…`; `ftrie bench serve` loads a running server.
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

from ftrie.commands import bench_serve as bench_serve_cli
from ftrie.terminal import JsonOption, note, print_json
from model_store.errors import FtrieError

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = CHECKOUT / "benchmarks" / "results"
REMEDIES = {
    "vowpalwabbit": "pip install -e '.[bench]', or run `make bench`",
    "marisa_trie": "pip install -e '.[bench]', or run `make bench`",
    "h2load": "apt install nghttp2-client",
}
"""What a benchmark may need beside ftrie, a package or a program, and how it is installed."""

_NEEDS = re.compile(r"^NEEDS = (.+)$", re.MULTILINE)


def register(app: typer.Typer) -> None:
    """Add `ftrie bench run` and `ftrie bench serve`."""
    group = typer.Typer(cls=_Bench, help="Measure: this checkout, or a server.", rich_markup_mode=None)
    group.command("run", epilog="Example: ftrie bench run peers")(bench)
    bench_serve_cli.register(group)
    app.add_typer(group, name="bench", epilog="Example: ftrie bench trie")


class _Bench(typer.core.TyperGroup):
    """A group whose first word may be left out: what is no command of it, is a benchmark's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before what is neither a command nor a question for help."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def benchmark_names() -> list[str]:
    """The modules in benchmarks/ that run by themselves and report through benchmarks/common.py, by name."""
    sources = {path.stem: path.read_text("utf-8") for path in (CHECKOUT / "benchmarks").glob("*.py")}
    marks = ('if __name__ == "__main__"', "from benchmarks.common import")
    return sorted(name for name, source in sources.items() if all(mark in source for mark in marks))


def needs(name: str) -> tuple[str, ...]:
    """What a benchmark says that it needs beside ftrie, by its constant NEEDS."""
    found = _NEEDS.search((CHECKOUT / "benchmarks" / f"{name}.py").read_text("utf-8"))
    return () if found is None else ast.literal_eval(found[1])


def missing(name: str) -> list[str]:
    """Of what a benchmark needs, what is not installed."""
    return [
        each for each in needs(name) if shutil.which(each) is None and importlib.util.find_spec(each) is None
    ]


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Which to run; default: all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure ftrie beside its peers on the same bytes, print the tables and write benchmarks/results/*.json.

    Needs a checkout of the project. A benchmark whose packages or programs are not installed is refused; if all are
    to run, it is left out, with a note.
    """
    known = benchmark_names()
    if not known:
        raise FtrieError(
            f"expected benchmarks in {CHECKOUT}: run this in a checkout of ftrie, by `make bench`"
        )
    for name in names or known:
        if name not in known:
            raise FtrieError(f"no benchmark is called {name!r}: expected one of {', '.join(known)}")
    lacking = {name: absent for name in names or known if (absent := missing(name))}
    said = [
        f"the benchmark {name} needs {each}, which is not installed: {REMEDIES[each]}"
        for name, absent in lacking.items()
        for each in absent
    ]
    if names and said:
        raise FtrieError("; ".join(said))
    for sentence in said:
        note(f"left out: {sentence}")
    began = time.time()
    for name in names or known:
        if name not in lacking:
            _run(name, quiet=as_json)
    if as_json:
        fresh = (path for path in sorted(RESULTS.glob("*.json")) if path.stat().st_mtime >= began)
        print_json([json.loads(path.read_text("utf-8")) for path in fresh])


def _run(name: str, *, quiet: bool) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    finished = subprocess.run(
        command, cwd=CHECKOUT, check=False, stdout=subprocess.DEVNULL if quiet else None
    )
    if finished.returncode != 0:
        raise FtrieError(f"the benchmark {name} failed with exit code {finished.returncode}; see above")
