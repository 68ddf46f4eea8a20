"""AdPredictor beside FTRL on real logs: progressive metrics at equal effort of tuning, and what `prune_kl` saves.

Both learners have five values of alpha. The one with the least progressive log-loss on the first half of the log is
judged on the second half; learning goes on through both. AdPredictor's prior_ctr stays at its default, or is the click
rate of the first half. The specs are those of examples/, each of these variants learned by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import click_log, report
from model_store.spec.spec import ModelSpec, load_spec
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer
from trainer.tune.candidates import Candidate, groups_of, with_parameters
from trainer.tune.halving import LastPart, measure
from trainer.tune.passes import RepeatedLog

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ALPHAS = {"ftrl": (0.02, 0.05, 0.1, 0.2, 0.4), "adpredictor": (0.001, 0.003, 0.01, 0.03, 0.1)}
DEFAULT_ALPHA = {"ftrl": 0.1, "adpredictor": 0.03}
PRUNED = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
LEARNED = 0.8
"""The part of the log that is learned before a model with pruned keys is judged on the rest."""


@dataclass(frozen=True)
class RealLog:
    """A log of the folder FTRIE_TEST_DATA, its spec in examples/, the variants compared, and the file of its items."""

    name: str
    path: str
    spec: str
    variants: tuple[str, ...]
    items: str | None = None

    def open(self) -> tuple[ModelSpec, RepeatedLog] | None:
        """The spec, whose variants learn alone, and the log; None where the file is missing."""
        path = click_log(self.path)
        if path is None:
            print(f"{self.name}: left out, there is no {self.path} in the folder FTRIE_TEST_DATA")
            return None
        spec = load_spec(EXAMPLES / self.spec)
        items = [SideTable.of_items(path.parent / self.items, spec.input)] if self.items else []
        return with_parameters(spec, {"values": "per_variant"}), RepeatedLog(Log([str(path)], tables=items))


MEN = "open_bandit/{}_men/men.csv.gz"
LOGS = (
    RealLog("avazu", "avazu/clicks_2014-10-21_28.csv.gz", "avazu.toml", ("plain", "base")),
    RealLog("open_bandit, random", MEN.format("random"), "open_bandit.toml", ("base",), "item_context.csv"),
    RealLog("open_bandit, bts", MEN.format("bts"), "open_bandit.toml", ("base",), "item_context.csv"),
)


def compared(spec: ModelSpec, log: RepeatedLog, variant: str) -> Iterator[list[Any]]:
    """A row for each learner, with its default alpha and with the tuned one."""
    half = measure(log, spec, LastPart()).rows // 2

    def learn(candidates: Sequence[Candidate], **part: Any) -> list[VariantMetrics]:
        groups = groups_of(spec, candidates, range(len(candidates)), variant)
        outcomes = log.learn(groups, **part).outcomes
        return [outcomes[index].metrics for index in range(len(candidates))]

    (first,) = learn([{"algorithm": "ftrl"}], rows=half)
    click_rate = _known(first.mean_prediction) / _known(first.calibration)
    contestants: dict[str, Candidate] = {
        "ftrl": {"algorithm": "ftrl"},
        "adpredictor": {"algorithm": "adpredictor"},
        "adpredictor, prior_ctr": {"algorithm": "adpredictor", "prior_ctr": round(click_rate, 4)},
    }
    for title, learner in contestants.items():
        kind = str(learner["algorithm"])
        candidates: list[Candidate] = [{**learner, "alpha": alpha} for alpha in ALPHAS[kind]]
        losses = [_known(each.logloss) for each in learn(candidates, rows=half)]
        tuned = candidates[losses.index(min(losses))]
        chosen: list[Candidate] = [{**learner, "alpha": DEFAULT_ALPHA[kind]}, tuned]
        for how, candidate, later, whole in zip(
            ("default", "tuned"), chosen, learn(chosen, compare_from=half), learn(chosen), strict=True
        ):
            judged = later.logloss, later.normalized_entropy, later.auc, later.calibration
            yield [
                title, f"{candidate['alpha']:g}, {how}", *(round(_known(each), 5) for each in judged),
                round(_known(whole.logloss), 5),
            ]  # fmt: skip


def pruned(spec: ModelSpec, log: RepeatedLog, candidate: Candidate) -> tuple[int, int, float]:
    """Keys learned, keys published, and the published model's log-loss on the log's last rows."""
    (group,) = groups_of(spec, [candidate], [0], "base")
    learned = math.floor(LEARNED * measure(log, group.spec, LastPart()).rows)
    losses: list[Any] = []
    model: LearningModel | None = None
    with log.examples(group.spec) as (opened, stream):
        model, rows = LearningModel(opened.maker), 0
        for examples in stream:
            size = int(examples.hashed.labels.size)
            if rows < learned:
                model.learn(examples.part(0, min(size, learned - rows)))
            if rows + size > learned:
                scores = Scorer(model.artefact()).score(opened.maker, examples)
                clicked, ctr = examples.hashed.labels > 0.5, scores.ctr[:, 0]
                losses.append(-np.log(np.where(clicked, ctr, 1.0 - ctr))[max(learned - rows, 0) :])
            rows += size
    return model.table.used, model.artefact().rows, float(np.concatenate(losses).mean())


def _known(number: float | None) -> float:
    assert number is not None
    return number


def main() -> None:
    rows = []
    for each in LOGS:
        opened = each.open()
        if opened is not None:
            for variant in each.variants:
                rows += [[each.name, variant, *row] for row in compared(*opened, variant)]
    if not rows:
        return
    columns = ["log", "variant", "learner", "alpha", "log-loss", "normalized entropy", "AUC", "calibration",
               "log-loss, all rows"]  # fmt: skip
    report("adpredictor", "Progressive metrics of the log's second half", columns, rows)
    opened = LOGS[0].open()
    if opened is None:
        return
    tries: list[Candidate] = [{"algorithm": "ftrl", "alpha": 0.1}]
    tries += [
        {"algorithm": "adpredictor", "alpha": alpha, "prior_ctr": 0.17, "prune_kl": prune}
        for alpha in (0.03, 0.01)
        for prune in PRUNED
    ]
    shown = []
    for candidate in tries:
        learned, published, loss = pruned(*opened, candidate)
        pruning = candidate.get("prune_kl", "—")
        shown.append(
            [candidate["algorithm"], candidate["alpha"], pruning, learned, published, round(loss, 5)]
        )
    title = f"Avazu, the first {LEARNED:.0%} learned and published, the rest predicted"
    report(
        "adpredictor_pruned",
        title,
        ["learner", "alpha", "prune_kl", "keys learned", "published", "log-loss"],
        shown,
    )


if __name__ == "__main__":
    main()
