"""Calibration curves of published models on rows held out: what `power` and `isotonic` gain or lose in log-loss.

Each log is split by time: a model learns the first half, or four fifths, is published with its curves, and predicts the
rest. Each spec is tried as it is, with 10 times and a tenth of its alpha, with more l1 and without: good models, and
models that are wrong. A difference is judged by its own standard error over the held-out rows, those of one request
taken together. Generated logs have a true model; in half of them the click rate falls to half in the middle.
"""

from __future__ import annotations

import csv
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report
from benchmarks.streams import TAIL_COLUMNS, Stream, TailStream
from benchmarks.trivago import SPECS as TRIVAGO_SPECS
from benchmarks.trivago import requests
from model_store.spec.sections import Variant
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer
from trainer.tune.candidates import Candidate, with_parameters
from trainer.tune.halving import LastPart, measure
from trainer.tune.passes import RepeatedLog

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LEARNED = (0.5, 0.8)
SEEDS = (1, 2, 3, 4)
ROWS = 60_000
KINDS = ("power", "isotonic")
NOISE = 2.0
"""A difference of more standard errors than this is one."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Held:
    """What the curves of one kind changed on held-out rows: mean log-loss without and with, and its standard error."""

    before: float
    after: float
    error: float

    @property
    def gain(self) -> float:
        return self.before - self.after


@dataclass(frozen=True)
class Trial:
    """A log and a model of it."""

    log: str
    model: str
    spec: ModelSpec
    rows: RepeatedLog


class Falling(TailStream):
    """A TailStream in whose second half every other click is missing."""

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        random, row = np.random.default_rng(self.seed + 1000), 0
        for labels, values in super().blocks():
            late = row + np.arange(labels.size) >= self.rows // 2
            row += labels.size
            yield labels & ~(late & (random.random(labels.size) < 0.5)), values


def models_of(spec: ModelSpec) -> dict[str, Candidate]:
    """Models of the same keys, by what is wrong with them."""
    learner = spec.learner
    return {
        "as it is": {},
        "10 alpha": {"alpha": 10 * learner.alpha},
        "alpha / 10": {"alpha": learner.alpha / 10},
        "l1 10": {"l1": 10.0},
        "no l1": {"l1": 0.0},
    }


def trials(folder: Path) -> Iterator[Trial]:
    """Every log with every model."""
    for name, spec, log in logs(folder):
        plain = spec.model_copy(update={"variants": {"base": first_variant(spec)}})
        for title, candidate in models_of(spec).items():
            yield Trial(name, title, with_parameters(plain, candidate), log)


def first_variant(spec: ModelSpec) -> Variant:
    """The spec's first variant, with all traffic."""
    return next(iter(spec.variants.values())).model_copy(update={"share": 1.0})


def logs(folder: Path, seeds: Sequence[int] = SEEDS) -> Iterator[tuple[str, ModelSpec, RepeatedLog]]:
    """The real logs that are there, then the generated ones."""
    avazu = click_log("avazu/clicks_2014-10-21_28.csv.gz")
    if avazu is not None:
        for name, path in (
            ("avazu", EXAMPLES / "avazu.toml"),
            ("avazu, crosses", Path(__file__).with_name("avazu.toml")),
        ):
            yield name, load_spec(path), RepeatedLog(Log([str(avazu)]))
    for policy in ("random", "bts"):
        men = click_log(f"open_bandit/{policy}_men/men.csv.gz")
        if men is not None:
            spec = load_spec(EXAMPLES / "open_bandit.toml")
            items = [SideTable.of_items(men.parent / "item_context.csv", spec.input)]
            yield f"open_bandit, {policy}", spec, RepeatedLog(Log([str(men)], tables=items))
    hotels = click_log("trivago")
    if hotels is not None:
        path = folder / "hotels.csv"
        rows = list(itertools.chain.from_iterable(requests(hotels)))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        for name, text in TRIVAGO_SPECS.items():
            yield f"trivago, {name}", parse_spec(text), RepeatedLog(Log([str(path)]))
    for kind, seed in itertools.product((TailStream, Falling), seeds):
        stream: Stream = kind(ROWS, seed=seed)
        path = folder / f"{kind.__name__}-{seed}.tsv"
        stream.write_tsv(path)
        fields = "\n".join(f"{column.name} = {{}}" for column in TAIL_COLUMNS if column.name != "session")
        text = f'[model]\nname = "generated"\n[input]\nlabel = "click"\n[fields]\n{fields}\n[learner]\nalpha = 0.1\n'
        title = "generated" if kind is TailStream else "generated, clicks fall"
        yield f"{title}, seed {seed}", parse_spec(text), RepeatedLog(Log([str(path)]))


def held_out(trial: Trial, kind: str, learned: float) -> Held:
    """Learn the first part of the log, and judge the published model on the rest."""
    document = trial.spec.model_dump(mode="json", exclude_unset=True) | {"calibration": {"kind": kind}}
    spec = ModelSpec.model_validate(document)
    first, row = math.floor(learned * measure(trial.rows, spec, LastPart()).rows), 0
    model: LearningModel | None = None
    scorer: Scorer | None = None
    losses: list[Numbers] = []
    requests: list[npt.NDArray[np.uint64]] = []
    with trial.rows.examples(spec) as (opened, stream):
        for examples in stream:
            model = model or LearningModel(opened.maker)
            size = int(examples.hashed.labels.size)
            if row < first:
                model.learn(examples.part(0, min(size, first - row)))
            if row + size > first:
                scorer = scorer or Scorer(model.artefact())
                scores = scorer.score(opened.maker, examples)
                clicked = examples.hashed.labels > 0.5
                both = np.hstack([scores.predicted, scores.ctr])
                chosen = np.where(clicked[:, None], both, 1.0 - both)
                losses.append(-np.log(np.maximum(chosen, 1e-15))[max(first - row, 0) :])
                requests.append(examples.requests[max(first - row, 0) :])
            row += size
    loss = np.concatenate(losses)
    gains = loss[:, 0] - loss[:, 1]
    of_request = np.concatenate(requests)
    if of_request.size:
        _, number = np.unique(of_request, return_inverse=True)
        sums = np.bincount(number, gains - gains.mean())
    else:
        sums = gains - gains.mean()
    before, after = loss.mean(axis=0).tolist()
    return Held(before, after, float(np.sqrt(np.square(sums).sum()) / gains.size))


def verdict(held: Held) -> str:
    """Whether the curve gained or lost more than noise."""
    if abs(held.gain) <= NOISE * held.error or not held.gain:
        return "same"
    return "better" if held.gain > 0.0 else "worse"


def summary(trials: Sequence[tuple[str, str, float, Sequence[Held]]]) -> Iterator[list[object]]:
    """A row for each kind of log and model: (log, model, log-loss without curves, the outcome of each kind)."""
    groups: dict[tuple[str, str], list[tuple[str, str, float, Sequence[Held]]]] = {}
    for each in trials:
        groups.setdefault((each[0].partition(", seed")[0], each[1]), []).append(each)
    for key, outcomes in groups.items():
        row: list[object] = [*key, round(sum(each[2] for each in outcomes) / len(outcomes), 5)]
        for index in range(len(KINDS)):
            judged = [each[3][index] for each in outcomes]
            verdicts = [verdict(each) for each in judged]
            row.append(round(sum(each.gain for each in judged) / len(judged), 5))
            row.append(" / ".join(str(verdicts.count(word)) for word in ("better", "same", "worse")))
        yield row


def main() -> None:
    found: list[tuple[str, str, float, Sequence[Held]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials(Path(folder)):
            for learned in LEARNED:
                held = [held_out(trial, kind, learned) for kind in KINDS]
                found.append((trial.log, trial.model, held[0].before, held))
                print(
                    trial.log,
                    trial.model,
                    f"{learned:.0%}",
                    *(f"{each.gain:.6f}" for each in held),
                    flush=True,
                )
    columns = ["log", "model", "log-loss"]
    columns += [f"{kind}, {what}" for kind in KINDS for what in ("gain", "better / same / worse")]
    report(
        "calibration", "Held-out rows: what published curves gain in log-loss", columns, list(summary(found))
    )


if __name__ == "__main__":
    main()
