"""Several passes over real ad impressions (Avazu), beside Vowpal Wabbit's: what they fit, and what they predict.

    python -m benchmarks.passes

The first nine tenths of the rows are learned, once or several times; then the final model scores them again, and the
last tenth, which it has not seen. Both sides have the columns and crosses of avazu.toml. Vowpal Wabbit's passes all
take the rows in the log's order; ours, from the second on, take blocks in a shuffled order. Nothing is timed.
"""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.avazu import JUDGED, LOG, SPEC, write_vw
from benchmarks.common import click_log, report
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.evaluate import evaluate
from trainer.runs.loop import PassOptions
from trainer.runs.train import train

NEEDS = ("vowpalwabbit",)
PASSES = (1, 5, 10)
ALPHA, BETA = 0.06, 0.03
VW_LEARNERS = ("-l 0.3", f"--ftrl --ftrl_alpha {ALPHA} --ftrl_beta {BETA}")
TOLD = ("trainer", "parameters", "passes", "log-loss of the rows learned", "of the last tenth")

_VW = "import sys, vowpalwabbit; vowpalwabbit.Workspace(sys.argv[1]).finish()"
_INCLUSION = "inclusion = "

Rows = list[dict[str, str]]


def ours(specs: dict[str, ModelSpec], parts: tuple[Path, Path]) -> Iterator[list[object]]:
    """Our rows of the table."""
    learned, unseen = (Log([str(part)]) for part in parts)
    for title, spec in specs.items():
        for passes in PASSES:
            model = train(
                spec, learned, rejects=RejectLog(), passes=PassOptions(passes, 0.0)
            ).model.artefact()
            losses = [evaluate(model, log, rejects=RejectLog()) for log in (learned, unseen)]
            yield ["ftrie", title, passes, *(_rounded(each.variants["base"].logloss) for each in losses)]


def vowpal_wabbit(spec: ModelSpec, parts: tuple[Rows, Rows], folder: Path) -> Iterator[list[object]]:
    """Vowpal Wabbit's rows of the table."""
    texts = [folder / "learned.vw", folder / "unseen.vw"]
    for text, rows in zip(texts, parts, strict=True):
        letters = write_vw(text, rows, list(spec.fields))
    crosses = " ".join(
        f"--interactions {''.join(letters[name] for name in cross.fields)}" for cross in spec.crosses
    )
    model, scores = folder / "model", folder / "scores"
    for learner in VW_LEARNERS:
        for passes in PASSES:
            several = f"--passes {passes} -c -k --holdout_off" if passes > 1 else ""
            _vw(f"-d {texts[0]} --loss_function logistic -b 24 {learner} {crosses} {several} -f {model}")
            losses = []
            for text, rows in zip(texts, parts, strict=True):
                _vw(f"-d {text} -t -i {model} -p {scores}")
                clicks = np.array([row["click"] == "1" for row in rows])
                found = np.loadtxt(scores)
                losses.append(_rounded(float(np.logaddexp(0, np.where(clicks, -found, found)).mean())))
            yield ["Vowpal Wabbit", learner, passes, *losses]


def _vw(flags: str) -> None:
    subprocess.run([sys.executable, "-c", _VW, f"--quiet {flags}"], check=True, capture_output=True)


def _rounded(loss: float | None) -> float:
    assert loss is not None
    return round(loss, 5)


def write_csv(path: Path, rows: Rows) -> Path:
    """Write rows as a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def main() -> None:
    log = click_log(LOG)
    if log is None:
        print(f"passes: left out, there is no {LOG} in the folder FTRIE_TEST_DATA")
        return
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    begin = len(rows) - int(len(rows) * JUDGED)
    parts = rows[:begin], rows[begin:]
    text = SPEC.read_text("utf-8")
    every = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_INCLUSION))
    specs = {"keys from their 2nd occurrence": load_spec(SPEC), "every key": parse_spec(every)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_csv(folder / "learned.csv", parts[0]), write_csv(folder / "unseen.csv", parts[1])
        table = [*ours(specs, files), *vowpal_wabbit(specs["every key"], parts, folder)]
    report("passes", f"Avazu, several passes over the first {begin:,} of {len(rows):,} rows", TOLD, table)


if __name__ == "__main__":
    main()
