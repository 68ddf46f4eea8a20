"""Models to judge, logs to judge them on, and what `ftrie evaluate` and `ftrie audit` must say of every row."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration, PowerCurve, VariantCurves
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train import train

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
request = "request"
[fields]
age = { side = "user" }
likes = { side = "user", kind = "set", separator = "|" }
place = {}
brand = { side = "item" }
price = { side = "item", kind = "number" }
[[crosses]]
fields = ["age", "brand"]
[[crosses]]
fields = ["likes", "price"]
[variants]
base = {}
plain = { without = ["age*brand", "likes"] }
[learner]
"""
FTRL = "alpha = 0.4\nbeta = 0.5\nl1 = 0.02\n"
LEARNERS = {
    "single": FTRL,
    "per_variant": FTRL + 'values = "per_variant"\n',
    "adpredictor": 'algorithm = "adpredictor"\nalpha = 0.4\nbeta = 0.5\nprior_ctr = 0.3\n',
}
NAMES = ["click", "importance", "request", "age", "likes", "place", "brand", "price"]
CURVES = Calibration(
    "power",
    "age",
    {
        "base": VariantCurves(PowerCurve(0.8, 1.1), {b"20": PowerCurve(0.5, 1.0)}),
        "plain": VariantCurves(None, {b"30": PowerCurve(1.2, 1.5)}),
    },
)
Rows = list[dict[str, str]]


def rows_of(count: int, seed: int) -> Rows:
    """Requests of four rows; the third and later places are clicked less."""
    random = np.random.default_rng(seed)
    return [
        {
            "click": str(int(random.random() < 0.5 / (1 + row % 4))),
            "importance": f"{random.uniform(0.2, 2.0):.2f}",
            "request": f"r{row // 4}",
            "age": str(random.choice(["", "20", "30", "4*0"])),
            "likes": "|".join(random.choice(["a", "b", "c=1"], random.integers(0, 3), replace=False)),
            "place": str(row % 4 + 1),
            "brand": str(random.choice(["nike", "puma", "b%2"])),
            "price": str(random.choice(["", "0.5", "-1", "2"])),
        }
        for row in range(count)
    ]


def write(path: Path, rows: Rows, names: Sequence[str] = NAMES) -> Path:
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(log: Path) -> Rows:
    with log.open() as file:
        return list(csv.DictReader(file))


def trained(spec: str, log: Path) -> Artefact:
    with RejectLog() as rejects:
        return train(parse_spec(spec), Log([str(log)]), rejects=rejects).model.artefact()


def of_learner(trained: Artefact, spec: str, name: str) -> Artefact:
    """The model as one of another learner, without its training: who judges it asks for weights and rates only."""
    if name == "single":
        return trained
    columns: dict[str, Any] = {"spec": parse_spec(spec + LEARNERS[name])}
    if name == "per_variant":
        used = np.column_stack([trained.used_by(bit) for bit in (0, 1)])
        for column, factors in (("weight", (1.0, 0.7)), ("rate", (1.0, 1.3))):
            whole = getattr(trained, column)[:, None]
            columns[column] = np.where(used, whole * np.float32(factors), 0).astype(np.float32)
    return replace(trained, **columns)


class Definition:
    """What a model must say of a row, from the definition alone."""

    def __init__(self, artefact: Artefact, spec: ModelSpec | None = None) -> None:
        self.artefact = artefact
        self.plan = FeaturePlan.of(spec or artefact.spec)
        keys = artefact.key_list()
        self.known = {
            bit: dict(
                zip(keys, zip(artefact.weights_of(bit), artefact.rates_of(bit), strict=True), strict=True)
            )
            for bit in range(len(artefact.spec.variants))
        }

    def of(self, row: Mapping[str, str], bit: int = 0) -> tuple[float, float]:
        keys = [(key, x) for key, x, mask in self.plan.keys(row) if mask >> bit & 1]
        found = [(*map(float, self.known[bit].get(key, self.unseen)), x) for key, x in keys]
        score = sum(w * x for w, _, x in found)
        if self.probit:
            return score, math.sqrt(sum(variance * x * x for _, variance, x in found))
        return score, sum(rate * abs(x) for _, rate, x in found)

    @property
    def unseen(self) -> tuple[float, float]:
        """The weight and the rate of a key that the model lacks."""
        learner = self.artefact.spec.learner
        return 0.0, learner.alpha if self.probit else learner.alpha / learner.beta

    @property
    def probit(self) -> bool:
        return self.artefact.spec.learner.algorithm == "adpredictor"

    def ctr(self, score: float, uncertainty: float) -> float:
        if self.probit:
            return NormalDist().cdf(score / math.hypot(self.artefact.spec.learner.beta, uncertainty))
        return 1 / (1 + math.exp(-score))


class Judge:
    """The two commands in this process, with their files in one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def model(self, artefact: Artefact, name: str = "model.arrow") -> Path:
        artefact.write(self.folder / name)
        return self.folder / name

    def log(self, rows: Rows, name: str = "log.csv", names: Sequence[str] = NAMES) -> Path:
        return write(self.folder / name, rows, names)

    def said(self, *arguments: object) -> tuple[str, str]:
        """What a command that ends well says on both streams."""
        self._capsys.readouterr()
        code = run([*map(str, arguments)])
        said = self._capsys.readouterr()
        assert code == 0, said.err
        return said.out, said.err

    def answer(self, *arguments: object) -> Any:
        return json.loads(self.said(*arguments, "--json")[0])

    def refused(self, *arguments: object) -> str:
        """What a command that fails says on stderr."""
        self._capsys.readouterr()
        assert run([*map(str, arguments)]) != 0
        return self._capsys.readouterr().err

    def judged(self, *arguments: object) -> Any:
        return self.answer("evaluate", *arguments)

    def reported(self, *arguments: object) -> Any:
        """The report of which a page says all; the page, whose charts take seconds, is not drawn."""
        with not_drawn():
            return self.judged(*arguments, "--report", self.folder / "page.html")["report"]


@contextmanager
def not_drawn() -> Iterator[None]:
    """In here `ftrie evaluate --report` makes its report, and no page of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftrie.draw.model_page.save_report", lambda *_: None)
        yield
