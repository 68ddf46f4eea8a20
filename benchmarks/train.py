"""Training speed: ftrie beside Vowpal Wabbit `--ftrl` on the same rows, and 1 to 32 variants in one pass.

Both read a file from a warm page cache, in a process of their own, with the same alpha, beta, l1 and l2. ftrie reads
TSV; Vowpal Wabbit reads its own text format, the fastest it has for text, with 2^24 weights. Each then learns the log
again from the cache that it has made of it. Time runs from opening the file to the last row learned, without either
process's start. Two streams: one whose keys fit the processor's cache; one of 10 million keys, of which 45 % share one
of 2^24 weights with another, 14 % one of 2^26, 4 % one of 2^28: Vowpal Wabbit learns it with each, the last in 4 GB.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.streams import Stream, write_vw

ALPHA, BETA, L1, L2 = 0.1, 1.0, 1.0, 0.0
NEEDS = ("vowpalwabbit",)
VARIANTS = (1, 2, 4, 8, 16, 32)
VW = "Vowpal Wabbit --ftrl, its text"
BITS = 24
MORE_BITS = (26, 28)
"""For the stream of many keys."""
MANY = 256_000
"""Values of each column of the stream of many keys, all equally frequent: 10 million keys."""

_VW = """
import json, sys, time, vowpalwabbit
began = time.perf_counter()
workspace = vowpalwabbit.Workspace(sys.argv[1])
workspace.finish()
print(json.dumps({"seconds": time.perf_counter() - began}))
"""


@dataclass(frozen=True)
class Outcome:
    rows_per_second: float
    logloss: float


def run_ftrie(tsv: Path, spec: Path, *flags: str) -> Outcome:
    """Train with the command a user would type."""
    command = [sys.executable, "-m", "ftrie", "train", str(spec), str(tsv), "--json", *flags]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(finished.stdout)
    first = next(iter(answer["variants"].values()))
    return Outcome(answer["rows_per_second"], first["logloss"])


def run_vw(text: Path, rows: int, more: str = "", bits: int = BITS) -> Outcome:
    """Train Vowpal Wabbit's FTRL-Proximal; its progressive loss is the `average loss` that it prints."""
    flags = f"-d {text} --ftrl --ftrl_alpha {ALPHA} --ftrl_beta {BETA} --l1 {L1} --l2 {L2} -b {bits} -P {rows} {more}"
    command = [sys.executable, "-c", _VW, f"{flags} --loss_function logistic"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = json.loads(finished.stdout.splitlines()[-1])["seconds"]
    loss = re.search(r"average loss = ([\d.]+)", finished.stderr + finished.stdout)
    if loss is None:
        raise RuntimeError(f"Vowpal Wabbit printed no average loss: {finished.stderr}")
    return Outcome(rows / seconds, float(loss.group(1)))


def write_spec(path: Path, stream: Stream, variants: int) -> Path:
    """A spec with `variants` variants; each but the first leaves out one column."""
    lines = [f'v{i} = {{ share = 0, without = ["{stream.names[i]}"] }}' for i in range(1, variants)]
    path.write_text(
        '[model]\nname = "bench"\n[input]\nlabel = "click"\n'
        "[variants]\nv0 = { share = 1 }\n"
        + "\n".join(lines)
        + f"\n[learner]\nalpha = {ALPHA}\nbeta = {BETA}\nl1 = {L1}\nl2 = {L2}\n",
        encoding="utf-8",
    )
    return path


def against_vw(
    folder: Path, stream: Stream, rounds: int, name: str, about: str, more_bits: Sequence[int] = ()
) -> None:
    """The table of ftrie against Vowpal Wabbit, each from text and from its cache; VW from text with more bits too."""
    folder.mkdir()  # of its own: Vowpal Wabbit reads a cache that is there, whatever log it was made of
    tsv, text, cache = folder / "log.tsv", folder / "log.vw", folder / "log.rows"
    stream.write_tsv(tsv)
    write_vw(tsv, text)
    spec = write_spec(folder / "one.toml", stream, 1)
    kept = f"--cache_file {folder / 'log.cache'}"
    runs: dict[str, Callable[[], Outcome]] = {
        "ftrie train, TSV": lambda: run_ftrie(tsv, spec),
        "ftrie train, from --cache": lambda: run_ftrie(tsv, spec, f"--cache={cache}"),
        VW: lambda: run_vw(text, stream.rows),
        "Vowpal Wabbit --ftrl, its cache": lambda: run_vw(text, stream.rows, kept),
        **{f"{VW}, -b {bits}": partial(run_vw, text, stream.rows, bits=bits) for bits in more_bits},
    }
    outcomes = {
        title: run() for title, run in runs.items()
    }  # compiles kernels, makes caches, warms the page cache

    def measured(title: str) -> float:
        outcomes[title] = runs[title]()
        return outcomes[title].rows_per_second

    measures = alternate({title: partial(measured, title) for title in runs}, rounds)
    rows = []
    for title in runs:
        speed, against = Spread.of(measures[title]), ratio(measures, title, VW)
        rows.append([title, speed.median, speed.low, speed.high, against.median, outcomes[title].logloss])
    columns = ["trainer", "rows/s", "min", "max", "ratio to VW", "progressive log-loss"]
    sizes = ", ".join(
        f"{what} {path.stat().st_size / stream.rows:.0f}"
        for what, path in (("TSV", tsv), ("ftrie's cache", cache), ("VW's", folder / "log.cache"))
    )
    title = f"Training, {stream.rows:,} rows x {stream.columns} columns, {about}; bytes a row: {sizes}"
    report(name, title, columns, rows)


def by_variants(folder: Path, stream: Stream, rounds: int) -> None:
    """The table of 1 to 32 variants in one pass."""
    tsv = folder / "log.tsv"
    specs = {n: write_spec(folder / f"{n}.toml", stream, n) for n in VARIANTS}
    run_ftrie(tsv, specs[2])
    contestants = {
        str(n): (lambda spec=spec: 1e6 / run_ftrie(tsv, spec).rows_per_second) for n, spec in specs.items()
    }
    measures = alternate(contestants, rounds)
    rows = []
    for n in VARIANTS:
        cost, against = Spread.of(measures[str(n)]), ratio(measures, str(n), "1")
        rows.append([n, cost.median, cost.low, cost.high, against.median])
    columns = ["variants", "microseconds a row", "min", "max", "times one"]
    report(
        "variants", f"Variants in one pass, {stream.rows:,} rows x {stream.columns} columns", columns, rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("vw", "many", "variants"))
    arguments = parser.parse_args()
    stream = Stream(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.only in (None, "many"):
            many = Stream(arguments.rows, cardinalities=(MANY,), zipf=None)
            against_vw(folder / "many", many, arguments.rounds, "train_many", "10 million keys", MORE_BITS)
        if arguments.only in (None, "vw"):
            against_vw(folder / "few", stream, arguments.rounds, "train", "keys in the processor's cache")
        if arguments.only in (None, "variants"):
            stream.write_tsv(folder / "log.tsv")
            by_variants(folder, stream, arguments.rounds)


if __name__ == "__main__":
    main()
