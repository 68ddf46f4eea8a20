"""Feature hashing: log-loss on real impressions at 2^b buckets, beside exact keys and Vowpal Wabbit; memory and time.

The log-loss is progressive, over all rows of Avazu, with the columns, crosses and FTRL parameters of avazu.toml, but
every key admitted. Vowpal Wabbit `--ftrl` has the same features, parameters and bits. Memory and time are of a
generated log with a long tail of keys; rounds alternate, and time is CPU time, reading and hashing included.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.avazu import LOG, SPEC, vw_scores, write_vw
from benchmarks.common import Spread, alternate, click_log, ratio, report
from benchmarks.streams import TailStream
from model_store.spec.learner_section import Inclusion
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train import Report, train

NEEDS = ("vowpalwabbit",)
BITS = (10, 12, 14, 16, 18, 20, 22, 24)
COST_BITS = (None, 16, 20, 24)
EXACT = "exact keys"


def learned(spec: ModelSpec, log: Path, bits: int | None) -> Report:
    """The report of one run over the log."""
    learner = spec.learner.model_copy(update={"hash_bits": bits, "inclusion": Inclusion()})
    with RejectLog() as rejects:
        return train(spec.model_copy(update={"learner": learner}), Log([str(log)]), rejects=rejects).report


def losses(log: Path, folder: Path) -> list[list[object]]:
    """The rows of the table: exact keys, and every number of bits."""
    spec, rows = load_spec(SPEC), []
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        clicks = list(csv.DictReader(file))
    labels = np.array([row["click"] == "1" for row in clicks])
    letters = write_vw(folder / "log.vw", clicks, list(spec.fields))
    crossed = " ".join(
        f"--interactions {''.join(letters[name] for name in cross.fields)}" for cross in spec.crosses
    )
    rates = f"--ftrl --ftrl_alpha {spec.learner.alpha} --ftrl_beta {spec.learner.beta}"
    for bits in (None, *BITS):
        found = learned(spec, log, bits)
        metrics, collisions = found.variants["base"], found.collisions
        assert metrics.logloss is not None
        assert metrics.auc is not None
        assert collisions is not None
        others = None
        if bits is not None:
            scores = vw_scores(folder / "log.vw", f"{rates} {crossed}", folder / "scores", bits)
            others = round(float(np.logaddexp(0, np.where(labels, -scores, scores)).mean()), 5)
        rate = None if collisions.rate is None else f"{collisions.rate:.2%}"
        expected = None if collisions.expected is None else f"{collisions.expected:.2%}"
        row = [_title(bits), found.keys, collisions.used, rate, expected]
        rows.append([*row, round(metrics.logloss, 5), round(metrics.auc, 5), others])
    return rows


def costs(log: Path, rounds: int) -> list[list[object]]:
    """The rows of the table: memory, and the run's CPU time over that of exact keys."""
    spec = parse_spec('[model]\nname = "bench"\n[input]\nlabel = "click"\n')
    reports: dict[int | None, Report] = {}

    def run(bits: int | None) -> float:
        began = time.process_time()
        reports[bits] = learned(spec, log, bits)
        return time.process_time() - began

    for bits in COST_BITS:
        run(bits)  # compiles
    seconds = alternate({_title(bits): partial(run, bits) for bits in COST_BITS}, rounds)
    rows = []
    for bits, found in reports.items():
        assert found.memory is not None
        slower = ratio(seconds, _title(bits), EXACT)
        took = Spread.of(seconds[_title(bits)]).median
        memory = [f"{size / 1e6:.1f}" for size in (found.memory.table, found.memory.keys)]
        rows.append(
            [
                _title(bits),
                found.keys,
                *memory,
                round(found.rows / took),
                f"{slower.median:.2f}",
                f"{slower.low:.2f}",
            ]
        )
        rows[-1].append(f"{slower.high:.2f}")
    return rows


def _title(bits: int | None) -> str:
    return EXACT if bits is None else f"hash_bits = {bits}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    log = click_log(LOG)
    with tempfile.TemporaryDirectory() as folder:
        if log is None:
            print(f"hashing: the log-loss is left out, there is no {LOG} in the folder FTRIE_TEST_DATA")
        else:
            columns = ["keys", "distinct", "buckets used", "collision rate", "expected", "log-loss", "AUC"]
            title = "Avazu, 16,160 rows, progressive log-loss at 2^b buckets"
            report("hashing", title, [*columns, "log-loss, Vowpal Wabbit -b"], losses(log, Path(folder)))
        stream, generated = TailStream(arguments.rows), Path(folder) / "log.tsv"
        stream.write_tsv(generated)
        columns = [
            "keys",
            "distinct",
            "table MB",
            "keys MB",
            "rows per CPU second",
            "CPU time over exact",
            "low",
            "high",
        ]
        title = f"Memory and time of hashing, {arguments.rows:,} rows"
        report("hashing_cost", title, columns, costs(generated, arguments.rounds))


if __name__ == "__main__":
    main()
