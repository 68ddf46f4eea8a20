"""Off-policy estimators: how often their 95 % intervals hold the truth, and Open Bandit Pipeline's figures.

python -m benchmarks.off_policy [--logs N] [--obp PYTHON]

Coverage: logs of simulated worlds whose truth is known, each estimated as `ftrie estimate --reward-model` does it, with
a new cross-fitted model each. In `clicks` and `money` a row is one of eight actions in one of six contexts; in `lists`
three actions are drawn for three positions, and a reward depends on its context, action and position; in `cascade` also
on the action above, where item-position is biased by design and left out. DM has no interval. Nothing is timed.

--obp: a Python with obp 0.4.1, which gets the same rewards, propensities, target probabilities and predictions of the
Open Bandit sample (FTRIE_TEST_DATA), and answers from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import click_log, report
from model_store.spec.spec import load_spec
from trainer.examples.open_log import Log
from trainer.learn.scorer import scoring_spec
from trainer.off_policy.estimates import RATIOS, EstimatorOptions, PolicyValue, estimate
from trainer.off_policy.logged import DECISION_ROW, LoggedRows, LogOfRows
from trainer.off_policy.policies import (
    Candidates,
    ItemChoice,
    LearningScores,
    ListOrder,
    Policies,
    PolicyWeights,
    weigh,
)
from trainer.off_policy.rewards import CrossFitted, reward_spec

Array = np.ndarray[Any, Any]

LOGS, LISTS, ACTIONS, CONTEXTS, POSITIONS = 200, 1000, 8, 6, 3
WORLDS = ("clicks", "money", "lists", "cascade")
DRAWS = 400
OBP_SPEC = Path(__file__).resolve().parents[1] / "examples" / "open_bandit.toml"


@dataclass(frozen=True)
class World:
    """logging, target: of each context and position, float64[contexts, positions, actions]; mean: of the reward.

    below: what an action adds to the mean reward of the position under it.
    """

    name: str
    logging: Array
    target: Array
    mean: Array
    below: Array

    @classmethod
    def of(cls, name: str) -> World:
        """The world of a name: the same each time."""
        random = np.random.default_rng(7)
        positions = POSITIONS if name in ("lists", "cascade") else 1
        tastes = random.normal(0.0, 1.0, (CONTEXTS, positions, ACTIONS))
        chances = [np.exp(warmth * tastes + random.normal(0.0, 0.3, tastes.shape)) for warmth in (0.2, 0.6)]
        logging, target = (each / each.sum(axis=2, keepdims=True) for each in chances)
        mean = 20.0 + 5.0 * tastes if name == "money" else 0.25 / (1.0 + np.exp(-tastes))
        below = random.uniform(0.0, 0.2, ACTIONS) if name == "cascade" else np.zeros(ACTIONS)
        return cls(name, logging, target, mean, below)

    @property
    def truth(self) -> float:
        """The target's mean reward of a list."""
        above = np.einsum("cka,a->ck", self.target, self.below)
        extra = np.concatenate([np.zeros((CONTEXTS, 1)), above[:, :-1]], axis=1)
        return float(((self.target * self.mean).sum(axis=2) + extra).sum(axis=1).mean())

    def drawn(self, seed: int) -> tuple[LoggedRows, Array]:
        """A log of LISTS lists, and the target's probabilities in each row, by action."""
        random = np.random.default_rng([seed, WORLDS.index(self.name)])
        positions = self.logging.shape[1]
        context = np.repeat(random.integers(0, CONTEXTS, LISTS), positions)
        position = np.tile(np.arange(positions), LISTS)
        logged = self.logging[context, position]
        action = (logged.cumsum(axis=1) > random.random((len(context), 1))).argmax(axis=1)
        above = np.where(position > 0, self.below[np.roll(action, 1)], 0.0)
        mean = self.mean[context, position, action] + above
        reward = (
            random.gamma(2.0, mean / 2.0) if self.name == "money" else random.random(len(mean)) < mean
        ).astype(float)
        columns = {"action": action, "context": context, "position": position}
        texts = {
            name: pa.array([f"{each}".encode() for each in column], pa.binary())
            for name, column in columns.items()
        }
        request = np.repeat(np.arange(LISTS), positions)
        rows = LoggedRows(
            columns=texts,
            label=reward,
            weight=np.ones(len(mean)),
            propensity=logged[np.arange(len(mean)), action],
            item=texts["action"],
            position=texts["position"],
            request=request,
            cluster=request,
        )
        return rows, self.target[context, position]


def judged(name: str, seed: int) -> dict[str, tuple[float, bool, bool]]:
    """Each estimator's error on one log, and whether its normal and its bootstrap interval hold the truth."""
    world = World.of(name)
    rows, target = world.drawn(seed)
    candidates = Candidates.of(rows, "action", frozenset(), None)
    chances = target[:, [int(each) for each in candidates.ids.to_pylist()]]
    model = CrossFitted(reward_spec(rows, "action", ("context", "position")), rows, candidates)
    lists = ListOrder.of(rows) if rows.requests < len(rows) else None
    choice = Policies.given("target", chances)
    (policy,) = weigh(
        rows, rows.decisions(DECISION_ROW), candidates, choice, model.of, keep=lists is not None
    )
    if lists is not None:
        policy = replace(policy, lists=lists.weights(policy, None, model.of_lists))
    options = EstimatorOptions(bootstrap=DRAWS, seed=seed)
    (found,) = estimate(rows, [policy], options, by_position=False)
    return dict(_held(found, world))


def _held(found: PolicyValue, world: World) -> Any:
    for name, each in found.estimates.items():
        per_list = RATIOS[name][1] == "lists"
        positions = world.logging.shape[1]
        # In `lists` those of rows are right too, per row; in `cascade` only what knows the action above.
        if each.error is None or (world.name == "cascade" and name not in ("rips", "cascade_dr")):
            continue
        truth = world.truth if per_list else world.truth / positions
        inside = [
            low is not None and high is not None and low <= truth <= high
            for low, high in ((each.low, each.high), (each.bootstrap_low, each.bootstrap_high))
        ]
        yield name, ((each.value or 0.0) - truth, *inside)


def coverage(logs: int) -> None:
    """Measure the coverage of every estimator in every world."""
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for name in WORLDS:
            found = list(pool.map(partial(judged, name), range(logs), chunksize=10))
            for estimator in dict.fromkeys(each for one in found for each in one):
                columns = zip(*(one[estimator] for one in found), strict=True)
                errors, normal, bootstrap = map(np.array, columns)
                rows.append(
                    [
                        name,
                        estimator,
                        f"{errors.mean() / errors.std():+.2f}",
                        f"{errors.std():.4g}",
                        f"{100 * normal.mean():.1f} %",
                        f"{100 * bootstrap.mean():.1f} %",
                    ]
                )
    heads = [
        *("world", "estimator", "bias in deviations", "standard deviation"),
        *("95 % intervals that hold the truth", "bootstrap"),
    ]
    report(
        "off_policy", f"{logs:,} logs of {LISTS:,} rows or lists of each world, {DRAWS} draws", heads, rows
    )


def beside_obp(python: str, folder: Path) -> list[list[Any]]:
    """The estimates of a softmax of a learning model on one part of the Open Bandit sample, and obp's."""
    spec = load_spec(OBP_SPEC)
    log = LogOfRows(Log([str(folder / "men.csv.gz")]), None, None, DECISION_ROW)
    rows, _, (resolved,) = log.read(spec, [scoring_spec(spec)])
    # The k-th rows of the three positions as the k-th list, since the sample does not say which rows were a page.
    place = np.asarray(rows.position.to_numpy(zero_copy_only=False), str).astype(int) - 1
    nth = np.empty(len(rows), np.int64)
    for each in range(POSITIONS):
        nth[place == each] = np.arange(int((place == each).sum()))
    kept = np.flatnonzero(nth < np.bincount(place).min())
    kept = kept[np.lexsort((place[kept], nth[kept]))]
    rows, place = _taken(rows, kept, nth[kept]), place[kept]
    candidates = Candidates.of(rows, "item_id", frozenset({"item_id"}), None)
    decisions = rows.decisions(DECISION_ROW)
    scores = LearningScores(resolved, variant="base")
    model = CrossFitted(resolved, rows, candidates)
    choice = Policies.by_scores(scores, [ItemChoice("softmax", 1.0)], rows, decisions, candidates)
    (policy,) = weigh(rows, decisions, candidates, choice, model.of, keep=True)
    lists = ListOrder.of(rows).weights(policy, None, None)
    options = EstimatorOptions(bootstrap=0)
    (ours,) = estimate(rows, [replace(policy, lists=lists)], options, by_position=False)
    theirs = _of_obp(python, rows, policy, model, candidates, place)
    return [
        [folder.name, name, value, theirs[name], abs(value - theirs[name])]
        for name in theirs
        if (value := ours.estimates[name].value) is not None
    ]


def _taken(rows: LoggedRows, kept: Array, request: Array) -> LoggedRows:
    columns = {name: column.take(pa.array(kept)) for name, column in rows.columns.items()}
    own = {name: getattr(rows, name)[kept] for name in ("label", "weight", "propensity")}
    texts = {name: getattr(rows, name).take(pa.array(kept)) for name in ("item", "position")}
    return LoggedRows(columns=columns, request=request, cluster=request, **own, **texts)


def _of_obp(
    python: str,
    rows: LoggedRows,
    policy: PolicyWeights,
    model: CrossFitted,
    candidates: Candidates,
    place: Array,
) -> dict[str, float]:
    every = np.arange(len(rows))
    # obp takes those of all positions, and reads each row's own.
    chances, predicted = (
        np.repeat(each[:, :, None], POSITIONS, axis=2) for each in (policy.chances, model.of(every))
    )
    target = chances[every, candidates.index, place]
    by_list = [each.reshape(-1, POSITIONS) for each in (rows.propensity, target)]
    cascade = [each.cumprod(axis=1).reshape(-1) for each in by_list]
    with TemporaryDirectory(prefix="ftrie-obp-") as folder:
        path = Path(folder) / "given.npz"
        np.savez(
            path,
            reward=rows.label,
            action=candidates.index,
            position=place,
            pscore=rows.propensity,
            action_dist=chances,
            predicted=predicted,
            limit=np.sqrt(len(rows)),
            slate_id=rows.request,
            list_reward=rows.label,
            list_position=place,
            logged=rows.propensity,
            target=target,
            logged_cascade=cascade[0],
            target_cascade=cascade[1],
        )
        script = Path(__file__).with_name("rivals") / "obp_estimates.py"
        done = subprocess.run(
            [python, "-I", str(script), str(path)], check=True, capture_output=True, text=True
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Run both parts, the second where --obp is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=LOGS)
    parser.add_argument("--obp", metavar="PYTHON")
    given = parser.parse_args(words)
    data = click_log("open_bandit")
    if given.obp is not None and data is not None:
        rows = [row for part in ("random_men", "bts_men") for row in beside_obp(given.obp, data / part)]
        columns = ["log", "estimator", "ftrie", "obp 0.4.1", "difference"]
        shown = [[*row[:2], *(f"{each:.12f}" for each in row[2:4]), f"{row[4]:.1e}"] for row in rows]
        report("off_policy_peers", "a softmax of a learning model; the same inputs to both", columns, shown)
    if given.logs:
        coverage(given.logs)


if __name__ == "__main__":
    main()
