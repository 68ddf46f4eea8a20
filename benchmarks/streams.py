"""Generated click logs with a known true model: categorical columns of Zipf values, the same bytes for every peer.

`Stream` is made for speed: 39 columns alike. `TailStream` is made like real logs, whose keys are mostly rare: its open
columns (users, pages, queries) never stop bringing new values, and most distinct keys occur once or twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

CARDINALITIES = (10, 50, 300, 2_000, 20_000, 200_000)
ZIPF = 1.2
BLOCK = 50_000


@dataclass(frozen=True)
class Stream:
    """A log of `rows` rows with a label `click` and `columns` columns of eight-character values.

    cardinalities: of the columns in turn; zipf: the exponent of their values, None where all are equally frequent.
    """

    rows: int
    columns: int = 39
    seed: int = 1
    cardinalities: tuple[int, ...] = CARDINALITIES
    zipf: float | None = ZIPF

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"c{index}" for index in range(self.columns))

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """(labels int64[rows], values int64[rows, columns]) of some rows at a time."""
        random = np.random.default_rng(self.seed)
        effects = [random.normal(0, 0.5, self._cardinality(column)) for column in range(self.columns)]
        for start in range(0, self.rows, BLOCK):
            size = min(BLOCK, self.rows - start)
            values = np.stack([self._values(random, column, size) for column in range(self.columns)], axis=1)
            score = -1.5 + sum(effects[c][values[:, c]] for c in range(0, self.columns, 3))
            labels = (random.random(size) < 1 / (1 + np.exp(-score))).astype(np.int64)
            yield labels, values

    def write_tsv(self, path: Path) -> None:
        """Write the log as TSV with a header: click, c0, c1, …"""
        options = pa.csv.WriteOptions(delimiter="\t", quoting_style="none", include_header=False)
        schema = pa.schema([("click", pa.int64()), *((name, pa.string()) for name in self.names)])
        with path.open("wb") as file, pa.csv.CSVWriter(file, schema, write_options=options) as writer:
            file.write("\t".join(schema.names).encode() + b"\n")
            for labels, values in self.blocks():
                texts = [_texts(values[:, column], column) for column in range(self.columns)]
                writer.write_batch(pa.record_batch([pa.array(labels), *texts], schema=schema))

    def _cardinality(self, column: int) -> int:
        return self.cardinalities[column % len(self.cardinalities)]

    def _values(self, random: np.random.Generator, column: int, size: int) -> npt.NDArray[np.int64]:
        values = self._cardinality(column)
        if self.zipf is None:
            return random.integers(0, values, size)
        return np.asarray(random.zipf(self.zipf, size) % values, np.int64)


@dataclass(frozen=True)
class Column:
    """A column of a TailStream: values ~ Zipf, the nearer to 1 the heavier the tail; `values` None: without end.

    effect: the standard deviation of what a value adds to the log-odds of a click.
    """

    name: str
    zipf: float
    values: int | None
    effect: float


TAIL_COLUMNS = (
    Column("hour", 1.05, 24, 0.1),
    Column("position", 1.5, 10, 0.4),
    Column("device", 1.5, 50, 0.2),
    Column("country", 1.4, 200, 0.2),
    Column("city", 1.3, 20_000, 0.15),
    Column("site", 1.3, 5_000, 0.4),
    Column("section", 1.25, 50_000, 0.3),
    Column("campaign", 1.3, 2_000, 0.4),
    Column("ad", 1.25, 30_000, 0.4),
    Column("referrer", 1.3, None, 0.2),
    Column("page", 1.25, None, 0.3),
    Column("query", 1.2, None, 0.4),
    Column("user", 1.15, None, 0.5),
    Column("session", 1.1, None, 0.0),
)


@dataclass(frozen=True)
class TailStream(Stream):
    """A log with the columns of TAIL_COLUMNS. What a value does to the log-odds follows from the value alone."""

    columns: int = len(TAIL_COLUMNS)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in TAIL_COLUMNS)

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        random = np.random.default_rng(self.seed)
        for start in range(0, self.rows, BLOCK):
            size = min(BLOCK, self.rows - start)
            values = np.stack([_drawn(random, column, size) for column in TAIL_COLUMNS], axis=1)
            score = np.full(size, -2.0)
            for index, column in enumerate(TAIL_COLUMNS):
                score += column.effect * _normal_of(values[:, index], index)
            yield (random.random(size) < 1 / (1 + np.exp(-score))).astype(np.int64), values


def _drawn(random: np.random.Generator, column: Column, size: int) -> npt.NDArray[np.int64]:
    values = random.zipf(column.zipf, size)
    return np.asarray(values if column.values is None else values % column.values, np.int64)


def _normal_of(values: npt.NDArray[np.int64], column: int) -> npt.NDArray[np.float64]:
    """A standard normal number for each value, always the same for the same value and column (Box-Muller)."""
    bits = _mixed(values.astype(np.uint64) * np.uint64(64) + np.uint64(column))
    radius = np.sqrt(-2.0 * np.log1p(-(bits >> np.uint64(32)).astype(np.float64) / 2.0**32))
    return np.asarray(
        radius * np.cos(2.0 * np.pi * (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2.0**32)
    )


def _mixed(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ bits >> np.uint64(31))


def write_vw(tsv: Path, path: Path) -> None:
    """Rewrite a TSV log as Vowpal Wabbit text: the same rows, labels -1 and 1, features `column=value`."""
    with tsv.open(encoding="utf-8") as source, path.open("w", encoding="utf-8") as target:
        names = source.readline().rstrip("\n").split("\t")[1:]
        for line in source:
            label, *values = line.rstrip("\n").split("\t")
            features = " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            target.write(f"{'1' if label == '1' else '-1'} | {features}\n")


def _texts(values: npt.NDArray[np.int64], column: int) -> pa.Array:
    distinct, codes = np.unique(values, return_inverse=True)
    texts = [f"{(int(value) * 2654435761 + column) % 2**32:08x}" for value in distinct]
    return pa.array(texts).take(pa.array(codes.reshape(-1)))
