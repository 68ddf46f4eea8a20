"""Whole runs of `ftrie train`, to be stopped, gone on with and compared: logs, specs, and what a run leaves behind."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ftrie.cli import run
from tests.worlds import SPEC, shop_rows
from trainer.formats import stored_rows

TEXT_COLUMNS = [*shop_rows(1, seed=0)[0], "ts", "request"]
Rows = Sequence[dict[str, bytes]]

SPECS = {
    "ftrl": "",
    "one variant": 'variants = "one"',
    "rda": 'algorithm = "rda"\nl1 = 0.0001',
    "fobos, rows to live": 'algorithm = "fobos"\nvalues = "per_variant"\nl1 = 0.0001\nttl = 300',
    "truncated gradient, time to live": (
        'algorithm = "truncated_gradient"\nvalues = "per_variant"\nl1 = 0.001\nk = 7\ntheta = 1.0\nttl = "2h"'
    ),
    "adpredictor": 'algorithm = "adpredictor"\nvalues = "per_variant"\nforgetting = 0.01',
    "own values in 16 bits by counts": 'values = "per_variant"\nprecision = "q2.13"\nrate = "counts"',
    "bloom": 'inclusion = { kind = "bloom", count = 3, keys = 10000 }',
    "poisson": 'inclusion = { kind = "poisson", p = 0.2 }',
    "subsample": "subsample = { unclicked = 0.4 }",
    "buckets": "hash_bits = 8",
}


def write_spec(path: Path, name: str = "ftrl") -> Path:
    """The shop's spec with the learner called `name` in SPECS."""
    text = SPEC.replace("[input]", '[input]\ntimestamp = "ts"\nrequest = "request"')
    learner = SPECS[name]
    if learner.startswith("variants"):
        learner, text = "", text[: text.index("[variants]")] + text[text.index("[learner]") :]
    if "algorithm" in learner:
        text = text[: text.index("[learner]")] + "[learner]\nalpha = 0.1\n"
    path.write_text(text + learner + '\n[calibration]\nkind = "isotonic"\n')
    return path


_made: dict[int, list[dict[str, bytes]]] = {}


def rows(count: int, seed: int) -> list[dict[str, bytes]]:
    """Rows in the order of time, one to four a request, some of them bad; keys come and go.

    The first rows of a seed are the same however many are made; they are kept, as they take long to make.
    """
    if len(_made.get(seed, ())) < count:
        _made[seed] = _rows(count, seed)
    return [dict(row) for row in _made[seed][:count]]


def _rows(count: int, seed: int) -> list[dict[str, bytes]]:
    found = shop_rows(count, seed)
    for i, row in enumerate(found):
        row["ts"] = b"%d" % (1_700_000_000 + seed * 100_000 + 20 * i)
        row["request"] = b"r%d-%d" % (seed, i * 2 // 5) if i % 11 else b""
        row["brand"] = b"%s%d" % (row["brand"], i // 100)
        if i % 97 == 13:
            row["click"] = b"?"
    return found


def write_log(path: Path, content: Rows) -> Path:
    """Write rows in the format that the file's name tells."""
    name = path.name.removesuffix(".gz")
    lines = [[row[column] for column in TEXT_COLUMNS] for row in content]
    if name.endswith(".parquet"):
        columns = {column: pa.array([row[column] for row in content], pa.binary()) for column in TEXT_COLUMNS}
        pq.write_table(pa.table(columns), path, row_group_size=700)
        return path
    if name.endswith(".jsonl"):
        objects = [{column: row[column].decode() for column in TEXT_COLUMNS} for row in content]
        data = b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    else:
        names = [column.encode() for column in TEXT_COLUMNS]
        data = b"".join(b",".join(line) + b"\n" for line in [names, *lines])
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind: the model's SHA-256, the report without what a clock says, the lines it wrote."""

    model: str
    report: dict[str, Any]
    rejects: bytes
    metrics: bytes


class Training:
    """`ftrie train` of one spec in one folder, with all its outputs there."""

    def __init__(self, folder: Path, spec: Path) -> None:
        self.folder = folder
        self.spec = spec
        folder.mkdir()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def arguments(self, logs: Sequence[Path], *flags: str) -> list[str]:
        kinds = {"save": "arrow", "report": "json", "rejects": "jsonl", "metrics": "jsonl"}
        outputs = [f"--{name}={self.folder / name}.{kind}" for name, kind in kinds.items()]
        watched = ["--window=250", "--slice=age"]
        return ["train", str(self.spec), *map(str, logs), *outputs, *watched, *flags]

    def keeping(
        self, logs: Sequence[Path], *flags: str, every: str = "1", batch_bytes: int = 9000
    ) -> list[str]:
        """The command line of a run that keeps checkpoints and goes on from them."""
        kept = [
            f"--checkpoint={self.checkpoints}",
            f"--every={every}",
            "--resume",
            f"--batch-bytes={batch_bytes}",
        ]
        return self.arguments(logs, *kept, *flags)

    def outcome(self) -> Outcome:
        report = json.loads((self.folder / "report.json").read_text())
        # Neither what a clock says, nor what is counted from where a run went on.
        for name in ("seconds", "rows_per_second", "resumed_requests", "cut_requests"):
            del report[name]
        for each in report["passes"]:
            del each["seconds"]
        return Outcome(
            hashlib.sha256((self.folder / "save.arrow").read_bytes()).hexdigest(),
            report,
            (self.folder / "rejects.jsonl").read_bytes(),
            (self.folder / "metrics.jsonl").read_bytes(),
        )


def undisturbed(folder: Path, spec: Path, logs: Sequence[Path], *flags: str) -> Outcome:
    """The outcome of one run over the logs, without checkpoints."""
    training = Training(folder, spec)
    assert run(training.arguments(logs, *flags)) == 0
    return training.outcome()


class Shared:
    """Logs, and what undisturbed runs over them leave behind: made once a session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outcomes: dict[tuple[object, ...], Outcome] = {}

    def log(self, count: int, seed: int = 1, kind: str = "csv") -> Path:
        path = self.folder / f"{seed}-{count}.{kind}"
        return path if path.exists() else write_log(path, rows(count, seed))

    def outcome(self, learner: str, logs: Sequence[Path], *flags: str) -> Outcome:
        key = (learner, *logs, *flags, stored_rows.BLOCK_ROWS)
        if key not in self._outcomes:
            folder = self.folder / str(len(self._outcomes))
            spec = write_spec(self.folder / "shop.toml", learner)
            self._outcomes[key] = undisturbed(folder, spec, logs, *flags)
        return deepcopy(self._outcomes[key])


class Shop:
    """The shop's spec with a learner in a folder of a test's own, logs to learn from, and runs over them."""

    def __init__(self, folder: Path, shared: Shared) -> None:
        self.folder, self._shared = folder, shared
        self.use("ftrl")

    def use(self, learner: str) -> None:
        self.learner, self.spec = learner, write_spec(self.folder / "shop.toml", learner)

    def log(self, count: int, seed: int = 1, kind: str = "csv") -> Path:
        """A log that no test changes."""
        return self._shared.log(count, seed, kind)

    def own_log(self, content: Rows, name: str = "a.csv") -> Path:
        """A log of this test alone."""
        return write_log(self.folder / name, content)

    def expected(self, logs: Sequence[Path], *flags: str) -> Outcome:
        """What an undisturbed run over logs that no test changes leaves behind."""
        return self._shared.outcome(self.learner, logs, *flags)

    def training(self, name: str = "resumed") -> Training:
        return Training(self.folder / name, self.spec)

    def learned(self, name: str, logs: Sequence[Path], *flags: str) -> Outcome:
        """The outcome of a run of this test's own."""
        return undisturbed(self.folder / name, self.spec, logs, *flags)
