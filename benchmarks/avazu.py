"""Real ad impressions (the Avazu challenge): held-out log-loss beside Vowpal Wabbit, scikit-learn and boosted trees.

Every contestant learns the same columns and tries POINTS settings. Each setting learns all days but the last two and is
judged by the second last; the best one learns all days but the last, and is judged by the last day, once, without
learning from it. Ours are variants of three runs, with one, three and eight passes. The intervals are of the paired
differences to ours, row by row.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report

NEEDS = ("vowpalwabbit", "sklearn")
LOG = "avazu/clicks_2014-10-21_28.csv.gz"
SPEC = Path(__file__).with_name("avazu.toml")
CHOSEN_BY, JUDGED_BY = "141027", "141028"
PASSES = (1, 3, 8)
POINTS = 24
_VW = "import sys, vowpalwabbit; vowpalwabbit.Workspace(sys.argv[1]).finish()"

Row = dict[str, str]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Rows to learn from, and later rows to judge by."""

    learned: Sequence[Row]
    judged: Sequence[Row]


@dataclass(frozen=True)
class Contestant:
    """Predicted click rates of the judged rows, for each of the settings asked for."""

    name: str
    settings: Sequence[str]
    rates: Callable[[Part, Sequence[int], Path], list[Numbers]]


# -- ftrie

OURS = [
    f"alpha = {alpha}, beta = {beta}, l2 = {l2}"
    for alpha, beta, l2 in [
        *((0.05, 0.1, 3.0), (0.1, 0.1, 3.0), (0.05, 0.1, 10.0), (0.1, 0.1, 10.0)),
        *((0.05, 1.0, 3.0), (0.1, 1.0, 3.0), (0.05, 1.0, 20.0), (0.1, 1.0, 20.0)),
    ]
]


def ours(part: Part, wanted: Sequence[int], folder: Path) -> list[Numbers]:
    """The rates of a setting that was chosen."""
    (index,) = wanted
    model, scores = learn(part, [index], index // len(OURS), folder), folder / "scores.csv"
    ftrie("evaluate", str(model), str(folder / "judged.csv"), "--predictions", str(scores))
    with scores.open(encoding="utf-8", newline="") as file:
        return [np.array([float(row["ctr"]) for row in csv.DictReader(file)])]


def our_losses(part: Part, folder: Path) -> list[float]:
    """The log-loss of every setting: eight variants of one run, for each number of passes."""
    found: list[float] = []
    for number in range(len(PASSES)):
        mine = [number * len(OURS) + index for index in range(len(OURS))]
        model = learn(part, mine, number, folder)
        variants = ftrie("evaluate", str(model), str(folder / "judged.csv"))["variants"]
        found += [variants[f"v{index}"]["logloss"] for index in mine]
    return found


def learn(part: Part, wanted: Sequence[int], number: int, folder: Path) -> Path:
    """Learn these settings as variants of one run of PASSES[number]; the model's file."""
    write_csv(folder / "learned.csv", part.learned)
    write_csv(folder / "judged.csv", part.judged)
    variants = "".join(f"v{index} = {{ {OURS[index % len(OURS)]} }}\n" for index in wanted)
    text = SPEC.read_text(encoding="utf-8") + f'values = "per_variant"\n[variants]\n{variants}'
    spec, model = folder / "spec.toml", folder / "model.arrow"
    spec.write_text(text, encoding="utf-8")
    flags = ("--passes", str(PASSES[number]), "--save", str(model))
    ftrie("train", str(spec), str(folder / "learned.csv"), *flags)
    return model


def ftrie(*arguments: str) -> Any:
    """Run a command; its JSON."""
    command = [sys.executable, "-m", "ftrie", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


# -- the others

VW = [
    f"{learner} --l2 {l2} --passes {passes}"
    for learner, l2, passes in itertools.product(
        ("-l 0.1", "-l 0.3", "--ftrl --ftrl_alpha 0.05 --ftrl_beta 0.1", "--ftrl --ftrl_alpha 0.1 --ftrl_beta 1"),
        (0.0, 1e-4),
        PASSES,
    )
]


def vowpal_wabbit(part: Part, wanted: Sequence[int], folder: Path) -> list[Numbers]:
    """Its default learner and FTRL-Proximal, with one, three and eight passes over the cached rows."""
    columns = columns_of(part)
    for name, rows in (("learned.vw", part.learned), ("judged.vw", part.judged)):
        write_vw(folder / name, rows, columns)
    found = []
    for index in wanted:
        model, scores, cache = (folder / name for name in ("vw.model", "vw.scores", "vw.cache"))
        several = f"--cache_file {cache} -k --holdout_off" if not VW[index].endswith("passes 1") else ""
        run_vw(f"-d {folder / 'learned.vw'} -b 24 -f {model} {VW[index]} {several}")
        run_vw(f"-d {folder / 'judged.vw'} -i {model} -t -p {scores} --link logistic")
        found.append(np.loadtxt(scores))
    return found


def run_vw(command: str) -> None:
    """Run Vowpal Wabbit in a process of its own."""
    command = f"--loss_function logistic --quiet {command}"
    subprocess.run([sys.executable, "-c", _VW, command], check=True, capture_output=True)


def write_vw(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows as Vowpal Wabbit text, a namespace a column."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            features = " ".join(f"|{name} {row[name]}" for name in columns)
            file.write(f"{'1' if row['click'] == '1' else '-1'} {features}\n")


INVERSE_L2 = [round(0.005 * 1.3**power, 5) for power in range(POINTS)]


def logistic_regression(part: Part, wanted: Sequence[int], folder: Path) -> list[Numbers]:
    """scikit-learn's on one-hot columns; C by five-fold cross-validation over the learned rows, so the part is given."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(handle_unknown="ignore")
    learned = encoder.fit_transform(table(part.learned, columns_of(part)))
    judged = encoder.transform(table(part.judged, columns_of(part)))
    return [
        LogisticRegression(C=INVERSE_L2[index], max_iter=1000)
        .fit(learned, labels(part.learned))
        .predict_proba(judged)[:, 1]
        for index in wanted
    ]


TREES = list(itertools.product((0.02, 0.05), (4, 8, 16), (100, 200), (1.0, 30.0)))


def boosted_trees(part: Part, wanted: Sequence[int], folder: Path) -> list[Numbers]:
    """scikit-learn's histogram gradient boosting; the 254 most frequent values of a column are categories."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import OrdinalEncoder

    columns = columns_of(part)
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=254, min_frequency=2
    )
    learned = encoder.fit_transform(table(part.learned, columns))
    judged = encoder.transform(table(part.judged, columns))
    found = []
    for index in wanted:
        rate, leaves, rounds, l2 = TREES[index]
        model = HistGradientBoostingClassifier(
            learning_rate=rate,
            max_leaf_nodes=leaves,
            max_iter=rounds,
            l2_regularization=l2,
            categorical_features=list(range(len(columns))),
            early_stopping=False,
            random_state=1,
        )
        found.append(model.fit(learned, labels(part.learned)).predict_proba(judged)[:, 1])
    return found


CONTESTANTS = (
    Contestant("ftrie", [f"{text}, {p} passes" for p in PASSES for text in OURS], ours),
    Contestant("Vowpal Wabbit", VW, vowpal_wabbit),
    Contestant("scikit-learn LogisticRegression", [f"C = {c}" for c in INVERSE_L2], logistic_regression),
    Contestant(
        "scikit-learn HistGradientBoosting",
        [f"rate {r}, {n} leaves, {i} rounds, l2 {p:g}" for r, n, i, p in TREES],
        boosted_trees,
    ),
)


# -- judging


def table(rows: Sequence[Row], columns: Sequence[str]) -> list[list[str]]:
    """The values of the columns, row by row."""
    return [[row[name] for name in columns] for row in rows]


def columns_of(part: Part) -> list[str]:
    """All columns but the label, the row's number and the date."""
    return [name for name in part.learned[0] if name not in ("id", "click", "hour")]


def labels(rows: Sequence[Row]) -> Numbers:
    """1.0 for a click."""
    return np.array([float(row["click"]) for row in rows])


def losses(rates: Numbers, rows: Sequence[Row]) -> Numbers:
    """The log-loss of each row."""
    clipped = np.clip(rates, 1e-12, 1 - 1e-12)
    return -np.where(labels(rows) == 1, np.log(clipped), np.log1p(-clipped))


def auc(rates: Numbers, rows: Sequence[Row]) -> float:
    """The chance that a click is predicted above a row without one."""
    clicked = labels(rows) == 1
    wins = (rates[clicked][:, None] > rates[~clicked]) + 0.5 * (rates[clicked][:, None] == rates[~clicked])
    return float(wins.mean())


def read(log: Path) -> list[Row]:
    """The rows, with their hour of day and weekday as columns."""
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["hour_of_day"] = row["hour"][6:]
    return rows


def main() -> None:
    log = click_log(LOG)
    if log is None:
        print(f"avazu: left out, there is no {LOG} in the folder FTRIE_TEST_DATA")
        return
    warnings.filterwarnings("ignore")
    rows = read(log)
    before = [row for row in rows if row["hour"] < CHOSEN_BY]
    chosen_by = [row for row in rows if CHOSEN_BY <= row["hour"] < JUDGED_BY]
    final = Part(before + chosen_by, [row for row in rows if row["hour"] >= JUDGED_BY])
    found: list[tuple[str, str, float, Numbers]] = []
    with tempfile.TemporaryDirectory() as name:
        for each in CONTESTANTS:
            assert len(each.settings) == POINTS
            first = Part(before, chosen_by)
            if each.rates is ours:
                loss = our_losses(first, Path(name))
            else:
                tried = each.rates(first, range(POINTS), Path(name))
                loss = [float(losses(rates, chosen_by).mean()) for rates in tried]
            best = int(np.argmin(loss))
            (rates,) = each.rates(final, [best], Path(name))
            found.append((each.name, each.settings[best], loss[best], rates))
    own = losses(found[0][3], final.judged)
    table_rows: list[list[object]] = []
    for name, setting, loss_chosen, rates in found:
        each_loss = losses(rates, final.judged)
        difference = each_loss - own
        spread = 1.96 * float(difference.std(ddof=1)) / len(difference) ** 0.5
        shown = "—" if name == "ftrie" else f"{difference.mean():+.5f} ± {spread:.5f}"
        cells = (round(loss_chosen, 5), round(float(each_loss.mean()), 5), shown, round(auc(rates, final.judged), 4))
        table_rows.append([name, setting, *cells])
    columns = ["trainer", "chosen of 24", "log-loss, 27th", "log-loss, 28th", "beside ours", "AUC, 28th"]
    report("avazu", f"Avazu, {len(final.judged):,} rows of the last day, judged once", columns, table_rows)


if __name__ == "__main__":
    main()
