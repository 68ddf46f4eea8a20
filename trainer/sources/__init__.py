"""Reads click logs: CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm and libffm, as a stream of column batches.

Start at `reader.py`. Bytes flow `streams` → `feed` (whole lines) → `delimited`, `json_lines` or `sparse` → `RowBatch`;
Parquet has its own file; `positions` says where reading stands. Nothing here knows what a label or a feature
is, nor checks that text is UTF-8 in CSV and TSV.
"""

from trainer.sources.batch import RowBatch
from trainer.sources.positions import Position, ReadFile
from trainer.sources.reader import LogReader

__all__ = ["LogReader", "Position", "ReadFile", "RowBatch"]
