"""`ftrie train --regret` against plain sums and a minimum found coordinate by coordinate; its limits; its page."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run
from ftrie.draw.runs import html_page, read_runs, svg_page
from model_store.errors import CheckpointError, InputError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, parse_spec
from tests.trainer.oracles.trial import by_textbook
from tests.trainer.runs.runs import Training, rows, write_log, write_spec
from tests.worlds import learn, shop_rows
from trainer.examples.hashing import ExampleMaker
from trainer.learn.metrics import regret as module
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.metrics.records import Regret
from trainer.learn.metrics.regret import TOLERANCE, RegretRecorder, minimum, points
from trainer.learn.model import LearningModel

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
[fields]
age = {}
brand = {}
size = { kind = "number" }
[variants]
base = {}
same = {}
lean = { without = ["brand"] }
[learner]
values = "per_variant"
alpha = 0.3
l1 = 0.05
"""
ROWS = shop_rows(150, 4)


def model_of(spec: ModelSpec) -> LearningModel:
    return LearningModel(ExampleMaker(spec.resolve(list(ROWS[0]))), MetricsOptions(regret=True))


def recorded(log: Any = ROWS, text: str = SPEC, size: int = 37) -> RegretRecorder:
    recorder = learn(model_of(parse_spec(text)), log, size).regret
    assert recorder is not None
    return recorder


def curves(**of: Any) -> Regret:
    """The curves; the progress counts each minimum once."""
    calls: list[tuple[int, int]] = []
    found = recorded(**of).regret(lambda done, total: calls.append((done, total)))
    distinct = 2 * len(points(len(ROWS)))
    assert calls == sorted(calls) and (calls[0], calls[-1]) == ((0, distinct), (distinct, distinct))
    return found


def examples_of(variant: int, text: str = SPEC) -> list[tuple[dict[bytes, float], float, float]]:
    """Each row's x by key, its label and its importance."""
    plan = FeaturePlan.of(parse_spec(text).resolve(list(ROWS[0])))
    return [
        (
            {key: x for key, x, mask in plan.keys(row) if mask >> variant & 1},
            float(row["click"] in (b"1", b"true")),
            float(row["importance"]),
        )
        for row in ROWS
    ]


def loss_of(score: float, label: float, importance: float) -> float:
    return importance * (math.log1p(math.exp(-abs(score))) + max(score, 0.0) - label * score)


def coordinate_descent(examples: list[tuple[dict[bytes, float], float, float]]) -> float:
    """The least summed loss: Newton's method in one coordinate after the other, in plain Python."""
    weights = dict.fromkeys((key for keys, _, _ in examples for key in keys), 0.0)
    scores = [0.0] * len(examples)
    rows_of = {key: [i for i, (keys, _, _) in enumerate(examples) if key in keys] for key in weights}
    for _ in range(400):
        largest = 0.0
        for key in weights:
            slope, bend = 0.0, 1e-9
            for i in rows_of[key]:
                keys, label, importance = examples[i]
                p = 1.0 / (1.0 + math.exp(-scores[i]))
                slope += importance * (p - label) * keys[key]
                bend += importance * p * (1.0 - p) * keys[key] ** 2
            step = min(max(-slope / bend, -0.5), 0.5)
            weights[key] += step
            largest = max(largest, abs(step))
            for i in rows_of[key]:
                scores[i] += step * examples[i][0][key]
        if largest < 1e-7:
            break
    return sum(
        loss_of(score, label, omega) for score, (_, label, omega) in zip(scores, examples, strict=True)
    )


def test_the_curve_is_the_learners_own_loss_minus_the_least_of_fixed_weights() -> None:
    found = curves()
    scores, _, _ = by_textbook(parse_spec(SPEC), ROWS)
    for v, name in enumerate(("base", "same", "lean")):
        examples = examples_of(v)
        assert [each.rows for each in found.variants[name]] == points(len(ROWS)).tolist()
        own = np.cumsum(
            [loss_of(float(s[v]), y, omega) for s, (_, y, omega) in zip(scores, examples, strict=True)]
        )
        for each in found.variants[name]:
            assert each.loss == pytest.approx(own[each.rows - 1], rel=1e-9)
            assert each.regret == pytest.approx(each.loss - each.least, rel=1e-12)
            weight = sum(omega for _, _, omega in examples[: each.rows])
            assert each.mean == pytest.approx(each.regret / weight, rel=1e-12)
            assert each.gradient <= TOLERANCE * each.loss
        for each in found.variants[name][-1:-6:-2] if name != "same" else ():
            least = coordinate_descent(examples[: each.rows])
            assert each.least == pytest.approx(least, abs=5 * TOLERANCE * each.loss)
    assert found.unfinished == 0
    assert [each.least for each in found.variants["base"]] == [each.least for each in found.variants["same"]]
    assert found.variants["lean"][-1].least > found.variants["base"][-1].least


def problem(text: str = SPEC) -> tuple[Any, np.ndarray]:
    """All examples of a log as the solver takes them, and the features of its first variant."""
    recorder = recorded(text=text)
    return module._joined(recorder._parts), recorder._uses[0]


def test_a_minimum_is_as_close_as_asked() -> None:
    examples, uses = problem()
    keys = int(examples.hashes.max()) + 1
    least = coordinate_descent(examples_of(0))
    for enough in (1.0, 1e-2, 1e-6):
        found = minimum(examples, uses, len(ROWS), np.zeros(keys), enough)
        assert found.gradient <= enough and least - 1e-9 <= found.loss <= least + 10 * enough
    again = minimum(examples, uses, len(ROWS), found.weights, 1e-6)
    assert (again.steps, again.loss) == (0, pytest.approx(found.loss))


def test_where_a_key_separates_the_clicks_the_least_loss_comes_near_0() -> None:
    log = [row | {"age": b"old" if row["click"] in (b"1", b"true") else b"young"} for row in ROWS]
    for each in curves(log=log).variants["base"]:
        assert 0.0 < each.least < 5 * TOLERANCE * each.loss
        assert each.gradient <= TOLERANCE * each.loss


def test_batches_change_no_figure_and_an_empty_log_has_no_points() -> None:
    assert curves(size=1) == curves(size=1000)
    nothing = RegretRecorder(parse_spec(SPEC), np.full(4, 7, np.uint32)).regret(lambda done, total: None)
    assert nothing.variants == {"base": [], "same": [], "lean": []}


def test_a_log_beyond_the_bound_and_a_learner_with_another_link_are_refused(monkeypatch) -> None:
    text = SPEC[: SPEC.index("[variants]")] + '[learner]\nalgorithm = "adpredictor"\n'
    with pytest.raises(InputError, match='algorithm = "adpredictor" is not one'):
        model_of(parse_spec(text))
    monkeypatch.setattr(module, "MOST_KEYS", 400)
    with pytest.raises(InputError, match=r"up to 400 keys of examples .* first rows, or leave --regret out"):
        recorded()


def test_a_run_writes_its_curve_and_the_page_draws_it(tmp_path, capsys) -> None:
    log = write_log(tmp_path / "log.csv", rows(200, 3))
    training = Training(tmp_path / "run", write_spec(tmp_path / "shop.toml"))
    assert run(training.arguments([log], "--regret")) == 0
    assert "base regret" in (said := capsys.readouterr().out) and "without a penalty" in said
    lines = [json.loads(line) for line in (training.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[-2:]] == ["regret", "end"]
    report = json.loads((training.folder / "report.json").read_text())
    assert report["regret"] == {name: value for name, value in lines[-2].items() if name != "kind"}
    last = report["regret"]["variants"]["base"][-1]
    assert last["rows"] == report["rows"]
    runs = read_runs([training.folder / "metrics.jsonl"])
    for page in (html_page(runs), svg_page(runs)):
        assert "Mean regret" in page and f"{last['mean']:.5g}" in page
    plain = Training(tmp_path / "plain", training.spec)
    assert run(plain.arguments([log])) == 0
    assert "regret" not in json.loads((plain.folder / "report.json").read_text())
    assert "Mean regret" not in html_page(read_runs([plain.folder / "metrics.jsonl"]))
    assert run(training.keeping([log])) == 0
    capsys.readouterr()
    assert run(training.keeping([log], "--regret")) == CheckpointError.exit_code
    assert "--regret needs every example of the run" in capsys.readouterr().err
