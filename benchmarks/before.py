"""Training speed of this checkout beside an older commit of it, on the same rows in the same run.

The older commit is put into a folder of its own, and both run `ftrie train` with this interpreter and its libraries, a
process each, from a warm page cache. The first run of each compiles its kernels and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.streams import Stream
from benchmarks.train import write_spec

CHECKOUT = Path(__file__).resolve().parents[1]
FIRST_VERSION = "345528a"
VARIANTS = (1, 8)


def unpack(commit: str, folder: Path) -> bool:
    """Put the files of a commit into a folder; False if this clone does not have it."""
    archive = folder / "commit.tar"
    command = ["git", "-C", str(CHECKOUT), "archive", "--output", str(archive), commit]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        return False
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return True


def rows_per_second(checkout: Path, spec: Path, log: Path) -> float:
    """Train by the command of a checkout."""
    environment = os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'proto'}"}
    command = [sys.executable, "-m", "ftrie", "train", str(spec), str(log), "--json"]
    finished = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=checkout, env=environment
    )
    return float(json.loads(finished.stdout)["rows_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default=FIRST_VERSION)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    stream = Stream(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = folder / "old"
        old.mkdir()
        if not unpack(arguments.commit, old):
            print(f"before: left out, this clone does not have the commit {arguments.commit}")
            return
        log = folder / "log.tsv"
        stream.write_tsv(log)
        table = []
        for variants in VARIANTS:
            spec = write_spec(folder / f"{variants}.toml", stream, variants)
            checkouts = {arguments.commit: old, "now": CHECKOUT}
            for checkout in checkouts.values():
                rows_per_second(checkout, spec, log)
            contestants = {
                title: (lambda checkout=checkout, spec=spec: rows_per_second(checkout, spec, log))
                for title, checkout in checkouts.items()
            }
            measures = alternate(contestants, arguments.rounds)
            for title in checkouts:
                speed, against = Spread.of(measures[title]), ratio(measures, title, arguments.commit)
                table.append([title, variants, speed.median, speed.low, speed.high, against.median])
    columns = ["commit", "variants", "rows/s", "min", "max", "ratio"]
    report(
        "before", f"Training before and now, {stream.rows:,} rows x {stream.columns} columns", columns, table
    )


if __name__ == "__main__":
    main()
