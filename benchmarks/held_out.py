"""Real ad impressions (the Avazu challenge): held-out log-loss beside Vowpal Wabbit, scikit-learn and boosted trees.

Every contestant gets the same columns, is chosen on all days but the last, and is judged by the last day once, without
learning from it. Ours is what `ftrie tune --crosses` proposes, learned in one pass. Vowpal Wabbit and the boosted trees
learn all but the last of these days with each setting, and the one with the least log-loss on that day learns all of
them; the C of the logistic regression is cross-validated in five folds. The intervals are of the paired differences to
ours, row by row.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report

NEEDS = ("vowpalwabbit",)
LOG = "avazu/clicks_2014-10-21_28.csv.gz"
CHOSEN_BY, JUDGED_BY = "141027", "141028"
SPEC = """
[model]
name = "avazu"
[input]
label = "click"
timestamp = "hour"
[learner]
alpha = 0.06
beta = 0.03
l1 = 0.0
[fields]
hour = { kind = "time", format = "%y%m%d%H", part = "hour" }
"""
_VW = "import sys, vowpalwabbit; vowpalwabbit.Workspace(sys.argv[1]).finish()"

Row = dict[str, str]
Rows = Sequence[Row]
Numbers = npt.NDArray[np.float64]
Learn = Callable[[Any, Rows, Rows, Path], Numbers]
"""Learns rows with a setting; returns the predicted click rates of later rows."""


# -- ftrie


def ours(learned: Rows, judged: Rows, folder: Path) -> tuple[str, Numbers]:
    """What `ftrie tune --crosses` chooses among the learned rows: its settings, and the rates of the judged rows."""
    spec, best, model, scores = (
        folder / name for name in ("a.toml", "best.toml", "model.arrow", "scores.csv")
    )
    fields = "".join(f"{name} = {{}}\n" for name in columns_of(learned) if name != "hour_of_day")
    spec.write_text(SPEC + fields, encoding="utf-8")
    for name, rows in (("learned.csv", learned), ("judged.csv", judged)):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    ftrie("tune", str(spec), str(folder / "learned.csv"), "--crosses", "--output", str(best))
    ftrie("train", str(best), str(folder / "learned.csv"), "--save", str(model))
    ftrie("evaluate", str(model), str(folder / "judged.csv"), "--predictions", str(scores))
    with scores.open(encoding="utf-8", newline="") as file:
        rates = np.array([float(row["ctr"]) for row in csv.DictReader(file)])
    chosen = tomllib.loads(best.read_text(encoding="utf-8"))
    settings = [f"{name} {chosen['learner'][name]:g}" for name in ("alpha", "beta", "l1")]
    return ", ".join([*settings, *("*".join(cross["fields"]) for cross in chosen.get("crosses", ()))]), rates


def ftrie(*arguments: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "ftrie", *arguments, "--json"], check=True, capture_output=True)


# -- the others

VW = [
    f"{learner} --l2 {l2} --passes {passes}{pairs}"
    for learner, l2, passes, pairs in itertools.product(
        (
            "-l 0.1",
            "-l 0.3",
            "--ftrl --ftrl_alpha 0.05 --ftrl_beta 0.1",
            "--ftrl --ftrl_alpha 0.1 --ftrl_beta 1",
        ),
        (0.0, 1e-4),
        (1, 3, 8),
        ("", " -q ::"),
    )
]
TREES = list(itertools.product((0.02, 0.05), (4, 8, 16), (100, 200), (1.0, 30.0)))
INVERSE_L2 = [round(0.005 * 1.3**power, 5) for power in range(24)]


def vowpal_wabbit(setting: str, learned: Rows, judged: Rows, folder: Path) -> Numbers:
    """Its default learner or FTRL-Proximal, several passes over the cached rows, all pairs of columns or none."""
    model, scores, cache = (folder / name for name in ("vw.model", "vw.scores", "vw.cache"))
    for name, rows in (("learned.vw", learned), ("judged.vw", judged)):
        write_vw(folder / name, rows)
    several = "" if " --passes 1" in setting else f"--cache_file {cache} -k --holdout_off"
    run_vw(f"-d {folder / 'learned.vw'} -b 24 -f {model} {setting} {several}")
    run_vw(f"-d {folder / 'judged.vw'} -i {model} -t -p {scores} --link logistic")
    return np.loadtxt(scores)


def run_vw(command: str) -> None:
    """Run Vowpal Wabbit in a process of its own."""
    command = f"--loss_function logistic --quiet {command}"
    subprocess.run([sys.executable, "-c", _VW, command], check=True, capture_output=True)


def write_vw(path: Path, rows: Rows) -> None:
    """Write rows as Vowpal Wabbit text, a namespace with a letter of its own for each column."""
    letters = dict(zip(columns_of(rows), "abcdefghijklmnopqrstuvwxyz", strict=False))
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            features = " ".join(f"|{letter} {name}={row[name]}" for name, letter in letters.items())
            file.write(f"{'1' if row['click'] == '1' else '-1'} {features}\n")


def logistic_regression(learned: Rows, judged: Rows, folder: Path) -> tuple[str, Numbers]:
    """scikit-learn's on one-hot columns, its C cross-validated in five folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def pipeline(c: float) -> Any:
        encoder = OneHotEncoder(handle_unknown="ignore")
        return make_pipeline(encoder, LogisticRegression(C=c, max_iter=1000))

    x, y = table(learned), labels(learned)
    folds = [cross_val_score(pipeline(c), x, y, cv=5, scoring="neg_log_loss").mean() for c in INVERSE_L2]
    best = INVERSE_L2[int(np.argmax(folds))]
    return f"C {best:g}", pipeline(best).fit(x, y).predict_proba(table(judged))[:, 1]


def boosted_trees(
    setting: tuple[float, int, int, float], learned: Rows, judged: Rows, folder: Path
) -> Numbers:
    """scikit-learn's histogram gradient boosting; the 253 most frequent values of a column are categories."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=254, min_frequency=2
    )
    rate, leaves, rounds, l2 = setting
    model = HistGradientBoostingClassifier(
        learning_rate=rate,
        max_leaf_nodes=leaves,
        max_iter=rounds,
        l2_regularization=l2,
        categorical_features=list(range(len(columns_of(learned)))),
        early_stopping=False,
        random_state=1,
    )
    model.fit(encoder.fit_transform(table(learned)), labels(learned))
    rates: Numbers = model.predict_proba(encoder.transform(table(judged)))[:, 1]
    return rates


def chosen(
    settings: Sequence[Any], learn: Learn, learned: Rows, judged: Rows, folder: Path
) -> tuple[str, Numbers]:
    """The setting that is best on the last of the learned days, and its rates of the judged rows."""
    before = [row for row in learned if row["hour"] < CHOSEN_BY]
    last = [row for row in learned if row["hour"] >= CHOSEN_BY]
    loss = [losses(learn(setting, before, last, folder), last).mean() for setting in settings]
    best = settings[int(np.argmin(loss))]
    shown = best if isinstance(best, str) else "rate {:g}, {} leaves, {} rounds, l2 {:g}".format(*best)
    return shown, learn(best, learned, judged, folder)


# -- judging


def table(rows: Rows) -> list[list[str]]:
    """The values of the columns, row by row."""
    return [[row[name] for name in columns_of(rows)] for row in rows]


def columns_of(rows: Rows) -> list[str]:
    """All columns but the label, the row's number and the date."""
    return [name for name in rows[0] if name not in ("id", "click", "hour")]


def labels(rows: Rows) -> Numbers:
    """1.0 for a click."""
    return np.array([float(row["click"]) for row in rows])


def losses(rates: Numbers, rows: Rows) -> Numbers:
    """The log-loss of each row."""
    clipped = np.clip(rates, 1e-12, 1 - 1e-12)
    return -np.where(labels(rows) == 1, np.log(clipped), np.log1p(-clipped))


def auc(rates: Numbers, rows: Rows) -> float:
    """The chance that a click is predicted above a row without one."""
    clicked = labels(rows) == 1
    wins = (rates[clicked][:, None] > rates[~clicked]) + 0.5 * (rates[clicked][:, None] == rates[~clicked])
    return float(wins.mean())


def main() -> None:
    log = click_log(LOG)
    if log is None:
        print(f"held_out: left out, there is no {LOG} in the folder FTRIE_TEST_DATA")
        return
    warnings.filterwarnings("ignore")
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        rows = [row | {"hour_of_day": row["hour"][6:]} for row in csv.DictReader(file)]
    learned = [row for row in rows if row["hour"] < JUDGED_BY]
    judged = [row for row in rows if row["hour"] >= JUDGED_BY]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "ftrie": ours(learned, judged, folder),
            "Vowpal Wabbit": chosen(VW, vowpal_wabbit, learned, judged, folder),
        }
        if find_spec("sklearn") is None:
            print("scikit-learn is not installed: its logistic regression and boosted trees are left out")
        else:
            found["scikit-learn, logistic regression"] = logistic_regression(learned, judged, folder)
            found["scikit-learn, boosted trees"] = chosen(TREES, boosted_trees, learned, judged, folder)
    own = losses(found["ftrie"][1], judged)
    lines: list[list[object]] = []
    for name, (setting, rates) in found.items():
        difference = losses(rates, judged) - own
        spread = 1.96 * float(difference.std(ddof=1)) / len(judged) ** 0.5
        beside = "—" if name == "ftrie" else f"{difference.mean():+.5f} ± {spread:.5f}"
        loss = round(float(losses(rates, judged).mean()), 5)
        lines.append([name, setting, loss, beside, round(auc(rates, judged), 4)])
    columns = ["trainer", "chosen on the days before", "log-loss", "log-loss minus ours", "AUC"]
    report("held_out", f"Avazu, the {len(judged):,} rows of the last day, judged once", columns, lines)


if __name__ == "__main__":
    main()
