"""Adds the items' features to the Open Bandit log, for `ftrie train examples/open_bandit.toml`.

    python examples/open_bandit_join.py FOLDER joined.parquet

FOLDER holds men.csv.gz (or all, women) and item_context.csv, as the Open Bandit data come.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

LOG_COLUMNS = (
    "timestamp",
    "item_id",
    "position",
    "click",
    "user_feature_0",
    "user_feature_1",
    "user_feature_2",
    "user_feature_3",
)
ITEM_FEATURES = ("item_feature_0", "item_feature_1", "item_feature_2", "item_feature_3")


def join(folder: Path) -> pa.Table:
    """The log of `folder` in its order, each row with the features of its item."""
    log = csv.read_csv(next(folder.glob("*.csv.gz"))).select(LOG_COLUMNS)
    items = csv.read_csv(folder / "item_context.csv")
    row_of = {item_id: row for row, item_id in enumerate(items["item_id"].to_pylist())}
    of_log = items.select(ITEM_FEATURES).take([row_of[item_id] for item_id in log["item_id"].to_pylist()])
    for name in ITEM_FEATURES:
        log = log.append_column(name, of_log[name])
    return log


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/open_bandit_join.py FOLDER OUT.parquet")
    parquet.write_table(join(Path(sys.argv[1])), sys.argv[2])
