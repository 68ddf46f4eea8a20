"""Generated click logs with a known true model: categorical columns of Zipf values, the same bytes for every peer."""

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
    """A log of `rows` rows with a label `click` and `columns` columns of eight-character values."""

    rows: int
    columns: int = 39
    seed: int = 1

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
        return CARDINALITIES[column % len(CARDINALITIES)]

    def _values(self, random: np.random.Generator, column: int, size: int) -> npt.NDArray[np.int64]:
        return np.asarray(random.zipf(ZIPF, size) % self._cardinality(column), np.int64)


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
