"""`ftrie bench`: runs the benchmarks of a checkout, one process each. The measuring is in benchmarks/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from model_store.errors import FtrieError

CHECKOUT = Path(__file__).resolve().parents[1]


def register(app: typer.Typer) -> None:
    """Add `ftrie bench`."""
    app.command("bench", epilog="Example: ftrie bench trie")(bench)


def benchmark_names() -> list[str]:
    """The modules in benchmarks/ that run by themselves and report through benchmarks/common.py, by name."""
    sources = {path.stem: path.read_text("utf-8") for path in (CHECKOUT / "benchmarks").glob("*.py")}
    marks = ('if __name__ == "__main__"', "from benchmarks.common import")
    return sorted(name for name, source in sources.items() if all(mark in source for mark in marks))


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Which to run; default: all.")
    ] = None,
) -> None:
    """Measure ftrie beside its peers on the same bytes, print the tables and write benchmarks/results/*.json.

    Needs a checkout of the project, installed with the extra `bench`.
    """
    known = benchmark_names()
    if not known:
        raise FtrieError(
            f"expected benchmarks in {CHECKOUT}: run this in a checkout of ftrie, by `make bench`"
        )
    for name in names or known:
        if name not in known:
            raise FtrieError(f"no benchmark is called {name!r}: expected one of {', '.join(known)}")
    for name in names or known:
        _run(name)


def _run(name: str) -> None:
    finished = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=CHECKOUT, check=False)
    if finished.returncode != 0:
        raise FtrieError(f"the benchmark {name} failed with exit code {finished.returncode}; see above")
