"""What `benchmarks.first_model` compares, each as it comes: a process that reads train.csv and writes what it predicts.

Every peer gets what a careful person would give it: columns of text and of whole numbers are categories, fractions are
numbers, standardized by the learned rows. ftrie gets the files.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

LABEL = "label"


def main(name: str, folder: Path, out: Path) -> None:
    """Run a contestant; print its largest memory in kilobytes."""
    np.save(out, np.asarray(CONTESTANTS[name](folder), np.float64))
    status = Path("/proc/self/status").read_text()  # getrusage would count what the parent had when it forked
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))


# --- ftrie -----------------------------------------------------------------------------------------------------------


def _ftrie(folder: Path) -> list[float]:
    spec, model, found = (str(folder / name) for name in ("spec.toml", "model.arrow", "scores.csv"))
    train, test = str(folder / "train.csv"), str(folder / "test.csv")
    for command in (
        ["init", train, "-o", spec, "--force"],
        ["train", spec, train, "--save", model],
        ["evaluate", model, test, "--predictions", found],
    ):
        subprocess.run([sys.executable, "-m", "ftrie", *command], check=True, stdout=subprocess.DEVNULL)
    with Path(found).open(newline="", encoding="utf-8") as file:
        return [float(row["ctr"]) for row in csv.DictReader(file)]


def _tables(folder: Path) -> tuple[pa.Table, Any, pa.Table]:
    """The rows to learn, their labels, and those to predict: text for categories, float64 for standardized numbers."""
    learned, judged = (pyarrow.csv.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
    labels = learned[LABEL].to_numpy()
    columns: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name in learned.column_names:
        if name == LABEL:
            continue
        both = [table[name].combine_chunks() for table in (learned, judged)]
        if not pa.types.is_floating(both[0].type):
            for own, column in zip(columns, both, strict=True):
                own[name] = column.cast(pa.string()).fill_null("")
            continue
        mean = pa.compute.mean(both[0]).as_py() or 0.0
        deviation = pa.compute.stddev(both[0]).as_py() or 1.0
        for own, column in zip(columns, both, strict=True):
            numbers = column.cast(pa.float64()).fill_null(mean).to_numpy(zero_copy_only=False)
            own[name] = pa.array((numbers - mean) / deviation)
    return pa.table(columns[0]), labels, pa.table(columns[1])


# --- Vowpal Wabbit ---------------------------------------------------------------------------------------------------


def _vowpal_wabbit(*flags: str) -> Callable[[Path], list[float]]:
    def run(folder: Path) -> list[float]:
        from vowpalwabbit import Workspace

        learned, labels, judged = _tables(folder)
        made: Any = Workspace(" ".join(["--loss_function logistic --link logistic --quiet -b 22", *flags]))
        for label, text in zip(labels, _vw_lines(learned), strict=True):
            made.learn(f"{1 if label else -1} {text}")
        return [made.predict(text) for text in _vw_lines(judged)]

    return run


def _vw_lines(table: pa.Table) -> list[str]:
    """The rows as text: a namespace for each column."""
    columns = []
    for at, name in enumerate(table.column_names):
        space, column = f"|{chr(97 + at % 26)}{at} ", table[name]
        if pa.types.is_string(column.type):
            plain = [
                str(value).translate({ord(each): "_" for each in " :|\t"}) for value in column.to_pylist()
            ]
            columns.append([f"{space}{at}={value}" for value in plain])
        else:
            columns.append(
                [f"{space}{at}:{value:.6g}" if value is not None else "" for value in column.to_pylist()]
            )
    return [" ".join(row) for row in zip(*columns, strict=True)]


# --- scikit-learn, LightGBM, River, a factorization machine ----------------------------------------------------------


def _one_hot(make: Callable[[], Any]) -> Callable[[Path], Any]:
    """A model over standardized numbers and one column for each value of a category."""

    def run(folder: Path) -> Any:
        learned, labels, judged = _tables(folder)
        encode = _encoder(learned)
        return (
            make()
            .fit(encode.fit_transform(_rows(learned)), labels)
            .predict_proba(encode.transform(_rows(judged)))[:, 1]
        )

    return run


def _encoder(table: pa.Table) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder

    texts, numbers = _places(table)
    encode = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer(
        [("texts", encode, texts), ("numbers", "passthrough", numbers)], sparse_threshold=1.0
    )


def _places(table: pa.Table) -> tuple[list[int], list[int]]:
    found = [pa.types.is_string(column.type) for column in table.columns]
    return [at for at, text in enumerate(found) if text], [at for at, text in enumerate(found) if not text]


def _rows(table: pa.Table) -> Any:
    """An array of objects, as scikit-learn takes mixed columns; of floats if there are numbers alone."""
    if not _places(table)[0]:
        return np.column_stack([column.to_numpy() for column in table.columns])
    rows = np.empty((table.num_rows, table.num_columns), object)
    for at, column in enumerate(table.columns):
        rows[:, at] = column.to_pylist()
    return rows


def _codes(learned: pa.Table, judged: pa.Table) -> tuple[Any, Any]:
    """Numbers, and categories as codes; NaN for a value that was not learned."""
    both = []
    for table in (learned, judged):
        columns = []
        for name in learned.column_names:
            column = table[name].combine_chunks()
            if pa.types.is_string(column.type):
                known = learned[name].unique()
                found = pa.compute.index_in(column, value_set=known)
                columns.append(found.cast(pa.float64()).to_numpy(zero_copy_only=False))
            else:
                columns.append(column.to_numpy(zero_copy_only=False))
        both.append(np.column_stack(columns))
    return both[0], both[1]


def _trees(folder: Path) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    learned, labels, judged = _tables(folder)
    train, test = _codes(learned, judged)
    texts = [at for at in _places(learned)[0] if np.nanmax(train[:, at], initial=0) < 255]  # its limit
    return (
        HistGradientBoostingClassifier(categorical_features=texts)
        .fit(train, labels)
        .predict_proba(test)[:, 1]
    )


def _lightgbm(folder: Path) -> Any:
    from lightgbm import LGBMClassifier

    learned, labels, judged = _tables(folder)
    train, test = _codes(learned, judged)
    texts = _places(learned)[0]
    model = LGBMClassifier(verbose=-1).fit(train, labels, categorical_feature=texts or "auto")
    return model.predict_proba(test)[:, 1]


def _river(folder: Path) -> list[float]:
    from river import linear_model

    learned, labels, judged = _tables(folder)
    model = linear_model.LogisticRegression()
    for row, label in zip(map(_features, learned.to_pylist()), labels, strict=True):
        model.learn_one(row, bool(label))
    return [model.predict_proba_one(_features(row)).get(True, 0.0) for row in judged.to_pylist()]


def _features(row: dict[str, Any]) -> dict[str, float]:
    """One-hot: River's own encoder keeps a zero for each value of a column, and takes minutes."""
    return {
        f"{name}={value}" if isinstance(value, str) else name: 1.0 if isinstance(value, str) else value
        for name, value in row.items()
    }


def _factorization_machine(folder: Path) -> Any:
    from myfm import MyFMClassifier

    learned, labels, judged = _tables(folder)
    encode = _encoder(learned)
    train, test = encode.fit_transform(_rows(learned)), encode.transform(_rows(judged))
    model = MyFMClassifier(rank=8)
    model.fit(train, labels.astype(bool), n_iter=100)
    return model.predict_proba(test)


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def _classifier() -> Any:
    from ftrie.sklearn import FTRLClassifier

    return FTRLClassifier(random_state=0)


def _descent() -> Any:
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", random_state=0)


CONTESTANTS: dict[str, Callable[[Path], Sequence[float] | Any]] = {
    "ftrie init, train": _ftrie,
    "FTRLClassifier()": _one_hot(_classifier),
    "Vowpal Wabbit": _vowpal_wabbit(),
    "Vowpal Wabbit --ftrl": _vowpal_wabbit("--ftrl"),
    "Vowpal Wabbit --coin": _vowpal_wabbit("--coin"),
    "Vowpal Wabbit -q ::": _vowpal_wabbit("-q ::"),
    "LogisticRegression()": _one_hot(_regression),
    "SGDClassifier(log_loss)": _one_hot(_descent),
    "HistGradientBoosting()": _trees,
    "LGBMClassifier()": _lightgbm,
    "River LogisticRegression()": _river,
    "MyFMClassifier(rank=8)": _factorization_machine,
}
NEEDED = {
    **{name: ("vowpalwabbit",) for name in CONTESTANTS if name.startswith("Vowpal")},
    **dict.fromkeys(
        ("FTRLClassifier()", "LogisticRegression()", "SGDClassifier(log_loss)", "HistGradientBoosting()"),
        ("sklearn",),
    ),
    "LGBMClassifier()": ("lightgbm",),
    "River LogisticRegression()": ("river",),
    "MyFMClassifier(rank=8)": ("myfm", "sklearn"),
}
"""What each needs beside ftrie."""

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
