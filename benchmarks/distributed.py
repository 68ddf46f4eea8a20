"""`ftrie train-distributed`: the methods by rounds and bytes, speed on one and two workers, held-out log-loss, cost.

    python -m benchmarks.distributed [methods|speed|loss|cost ...] [--pictures FOLDER]

methods: the gap of the objective to the minimum after each iteration, workers and reducers in this process, so that
rounds and bytes count and the machine's speed does not. speed: two million generated rows on Ray, time to an objective
within 1e-3 of the minimum. loss: log-loss of rows held out, beside one and several passes of `ftrie train`. cost: CPU
seconds per row and per key, and bytes, of one, two and four workers, and what follows from them for a billion rows.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import click_log, report
from benchmarks.streams import Stream, TailStream
from ftrie.draw.charts import curve, point
from ftrie.draw.pages import stacked_svg, svg
from model_store.errors import counted
from model_store.files import write_whole
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from trainer.distributed.dealing import plan_shards
from trainer.distributed.methods import (
    Iteration,
    Minimiser,
    Replies,
    nbytes,
    register,
)
from trainer.distributed.problem import problems_of
from trainer.distributed.reducer import Reducer
from trainer.distributed.shard import build_shard
from trainer.distributed.worker import Worker
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.examples.side_tables import side_tables
from trainer.formats.rejects import RejectLog
from trainer.runs.evaluate import evaluate
from trainer.runs.loop import PassOptions
from trainer.runs.train import train
from trainer.runs.train_distributed import train_distributed
from trainer.settings import METHODS, DistributedOptions, MethodOptions

NEEDS = ("sklearn",)  # the minimum that the objective is compared with
ROOT = Path(__file__).resolve().parents[1]
WORKERS = (2, 4, 16)
ITERATIONS = 20
CLOSE = 1e-3
GENERATED = 30_000
SPEED_ROWS, SPEED_COLUMNS = 2_000_000, 12
COST_ROWS = 200_000
PROJECTED = (10, 30, 100, 300, 1000)
BILLION = 1_000_000_000
GENERATED_LEARNER = "[learner]\nalpha = 0.1\nl1 = 1.0\nl2 = 1.0\n"


def in_this_process(plans: Sequence[Any], reducers: int) -> _Members:
    """Workers and reducers in this process."""
    return _Members(plans, reducers)


class _Members:
    """A crew in this process that counts the CPU seconds of each step, of the slowest member and of all."""

    def __init__(self, plans: Sequence[Any], reducers: int) -> None:
        self.workers, self.reducers = len(plans), reducers
        makers = [lambda plan=plan: build_shard(plan) for plan in plans]
        self._workers = [Worker(index, reducers, make) for index, make in enumerate(makers)]
        self._reducers = [Reducer(index, len(plans)) for index in range(reducers)]
        self.seconds: dict[str, list[float]] = {}
        self.sent: dict[str, int] = {}

    def ask_workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        return self._ask("worker", self._workers, step, arguments, inbox)

    def ask_reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        return self._ask("reducer", self._reducers, step, arguments, inbox)

    def fetch(self, part: Any) -> Any:
        return part

    def replace_lost(self) -> None:
        raise AssertionError("nobody is lost here")

    def _ask(
        self, kind: str, members: Sequence[Any], step: str, arguments: Any, inbox: Replies | None
    ) -> Replies:
        summaries, parts, slowest = [], [], 0.0
        for number, member in enumerate(members):
            received = [sent[number] for sent in inbox.parts] if inbox is not None else ()
            began = time.process_time()
            summary, sent = getattr(member, step)(*arguments, inbox=received)
            slowest = max(slowest, time.process_time() - began)
            summaries.append(summary)
            parts.append(sent or [None] * (self.reducers if kind == "worker" else self.workers))
        name, size = f"{kind} {step}", sum(nbytes(part) for sent in parts for part in sent)
        self.seconds.setdefault(name, []).append(slowest)
        self.sent[name] = self.sent.get(name, 0) + size
        return Replies(summaries, parts, size)


# --- Logs ---


@dataclass(frozen=True)
class Data:
    """A log with the spec of one variant."""

    name: str
    spec: ModelSpec
    log: Log


def first_variant(spec: ModelSpec) -> ModelSpec:
    """The spec with its first variant alone."""
    return spec.model_copy(update={"variants": dict(list(spec.variants.items())[:1])})


def generated(folder: Path, stream: Stream, name: str) -> Data:
    """A generated log, each column a field."""
    path = folder / f"{name}.tsv"
    stream.write_tsv(path)
    fields = "".join(f"{column} = {{}}\n" for column in stream.names)
    text = f'[model]\nname = "generated"\n[input]\nlabel = "click"\n[fields]\n{fields}{GENERATED_LEARNER}'
    return Data(name, parse_spec(text), Log([str(path)]))


def real() -> Iterator[Data]:
    """The real logs that are there."""
    spec = first_variant(load_spec(ROOT / "examples/avazu.toml"))
    if (log := click_log("avazu/clicks_2014-10-21_28.csv.gz")) is not None:
        yield Data("avazu", spec, Log([str(log)]))
    spec = first_variant(load_spec(ROOT / "examples/open_bandit.toml"))
    for policy in ("random", "bts"):
        if (folder := click_log(f"open_bandit/{policy}_men")) is not None:
            tables = side_tables(folder / "item_context.csv", None, spec.input)
            yield Data(f"open bandit, {policy}", spec, Log([str(folder / "men.csv.gz")], tables=tables))


def minimised(data: Data, workers: int, options: MethodOptions) -> tuple[list[Iteration], _Members]:
    """The iterations of one problem in this process."""
    plans = plan_shards(data.spec, replace(data.log, batch_bytes=1 << 16), workers)
    crew = in_this_process(plans, min(workers, 4))
    register(crew)
    maker = ExampleMaker(plans[0].start.resolved)
    (problem,) = problems_of(maker.spec, maker.rules.masks, maker.feature_rules)
    iterations: list[Iteration] = []
    Minimiser(crew, problem, options, on_iteration=iterations.append).run()
    return iterations, crew


# --- Methods ---


@dataclass(frozen=True)
class Curve:
    """The gap of the objective after each iteration, relative to the minimum, and the megabytes sent until then."""

    data: str
    workers: int
    method: str
    gaps: list[float]
    megabytes: list[float]

    def first(self, gap: float) -> int | None:
        """The first iteration within this gap."""
        return next((number for number, each in enumerate(self.gaps) if each <= gap), None)


def curves(data: Data) -> Iterator[Curve]:
    """Every method with every number of workers."""
    exact = MethodOptions(iterations=300, tolerance=1e-13)
    least = min(each.objective for each in minimised(data, 1, exact)[0])
    for workers in WORKERS:
        for method in METHODS:
            options = MethodOptions(method, ITERATIONS, 1e-9)
            found, _ = minimised(data, workers, options)
            gaps = [max(each.objective / least - 1.0, 1e-9) for each in found]
            sent = np.cumsum([each.bytes for each in found]) / 1e6
            yield Curve(data.name, workers, method, gaps, sent.tolist())


def methods(pictures: Path | None) -> None:
    """Measure and report the methods."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            curve
            for data in (generated(Path(folder), TailStream(GENERATED), "generated"), *real())
            for curve in curves(data)
        ]
    table = []
    for each in found:
        within = each.first(CLOSE)
        table.append(
            [
                each.data,
                each.workers,
                each.method,
                f"{each.gaps[0]:.1e}",
                f"{each.gaps[min(5, len(each.gaps) - 1)]:.1e}",
                f"{each.gaps[-1]:.1e}",
                each.first(1e-2),
                within,
                None if within is None else round(each.megabytes[within], 2),
            ]
        )
    columns = [
        "log",
        "workers",
        "method",
        "gap at the start",
        "after 5 iterations",
        f"after {ITERATIONS} or the end",
        "iterations to 1e-2",
        "to 1e-3",
        "MB to 1e-3",
    ]
    report(
        "distributed",
        f"The objective's gap to its minimum, relative; up to {ITERATIONS} iterations",
        columns,
        table,
    )
    shown = [each for each in found if each.workers == 4 and each.data == "avazu"]
    if pictures is not None and shown:
        _draw(pictures / "distributed_avazu.svg", "avazu", shown)


def _draw(path: Path, data: str, shown: Sequence[Curve]) -> None:
    by_round = [point(each.method, float(at), gap) for each in shown for at, gap in enumerate(each.gaps)]
    by_byte = [
        point(each.method, megabytes, gap)
        for each in shown
        for megabytes, gap in zip(each.megabytes, each.gaps, strict=True)
    ]
    colours = {each.method: number for number, each in enumerate(shown)}
    charts = [
        curve(f"{data}, 4 workers: the gap by iteration", by_round, colours, across="iterations", y_log=True),
        curve(f"{data}, 4 workers: the gap by megabytes sent", by_byte, colours, across="MB", y_log=True),
    ]
    write_whole(path, stacked_svg(charts).encode())


# --- Speed ---


def speed() -> None:
    """Two million rows on Ray, with one and with two workers."""
    if find_spec("ray") is None:
        print("distributed, speed: left out, Ray is not installed: pip install 'ftrie[distributed]'")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = generated(folder, Stream(SPEED_ROWS, SPEED_COLUMNS), "speed")
        runs = {workers: _run_on_ray(data, workers) for workers in (1, 2)}
        least = min(each["objective"] for run in runs.values() for each in run["problems"][0]["iterations"])
        table = []
        for workers, run in runs.items():
            iterations = run["problems"][0]["iterations"]
            within = next(
                i for i, each in enumerate(iterations) if each["objective"] <= least * (1.0 + CLOSE)
            )
            iterating = sum(each["seconds"] for each in iterations[: within + 1])
            reading = max(each["seconds"] for each in run["workers"])
            table.append(
                [
                    workers,
                    round(reading, 1),
                    within,
                    round(iterating, 1),
                    round(reading + iterating, 1),
                    round(max(each["shard_bytes"] for each in run["workers"]) / 1e6),
                    round(max(each["peak_bytes"] for each in run["workers"]) / 1e6),
                ]
            )
        for row in table:
            row.append(round(table[0][4] / row[4], 2))
        columns = [
            "workers",
            "reading, s",
            "iterations to 1e-3",
            "iterating, s",
            "both, s",
            "shard, MB",
            "peak of the process, MB",
            "faster by",
        ]
        title = f"Time to an objective within 1e-3 of the minimum, {SPEED_ROWS:,} rows x {SPEED_COLUMNS} columns, Ray"
        report("distributed_speed", title, columns, table)


def _run_on_ray(data: Data, workers: int) -> dict[str, Any]:
    options = DistributedOptions(
        workers=workers, reducers=workers, method=MethodOptions(iterations=30, tolerance=1e-7)
    )
    run = train_distributed(data.spec, data.log, options, rejects=RejectLog())
    assert run.failure is None
    found: dict[str, Any] = run.report.as_dict()
    return found


# --- Held-out log-loss ---


def loss() -> None:
    """Log-loss of the last tenth of a log, which neither side has seen."""
    table = []
    with tempfile.TemporaryDirectory() as name:
        for data in (generated(Path(name), TailStream(GENERATED), "generated"), *real()):
            learned, unseen = _divided(data.log, Path(name))
            sides = {
                f"ftrie train, {passes} passes" if passes > 1 else "ftrie train": train(
                    data.spec, learned, rejects=RejectLog(), passes=PassOptions(passes, 0.0)
                ).model.artefact()
                for passes in (1, 5, 10)
            }
            for workers, share in ((1, 1.0), (4, 1.0), (4, 0.5), (4, 2.0), (4, 4.0)):
                run = train_distributed(
                    _with_penalties(data.spec, share),
                    learned,
                    DistributedOptions(workers=workers, reducers=min(workers, 2)),
                    rejects=RejectLog(),
                    crew=_opened,
                )
                how = "" if share == 1.0 else f", penalties x {share:g}"
                sides[f"train-distributed, {counted(workers, 'worker')}{how}"] = run.model.artefact()
            for side, artefact in sides.items():
                judged = evaluate(artefact, unseen, rejects=RejectLog())
                (metrics,) = judged.variants.values()
                assert metrics.logloss is not None
                table.append([data.name, side, round(metrics.logloss, 5), metrics.auc, artefact.rows])
    columns = ["log", "learned by", "log-loss of the last tenth", "AUC", "keys with a weight"]
    report("distributed_loss", "Held-out log-loss: the first nine tenths are learned", columns, table)


def _with_penalties(spec: ModelSpec, share: float) -> ModelSpec:
    """The spec with l1 and l2 multiplied: a minimum needs others than a learner that sees each row once."""
    own = spec.learner
    learner = own.model_copy(update={"l1": share * own.l1, "l2": share * own.l2})
    return spec.model_copy(update={"learner": learner})


class _opened:  # a crew opener, as `open_crew` is
    def __init__(self, plans: Sequence[Any], reducers: int, **_: Any) -> None:
        self._crew = in_this_process(plans, reducers)

    def __enter__(self) -> _Members:
        return self._crew

    def __exit__(self, *_: object) -> None:
        pass


def _divided(log: Log, folder: Path) -> tuple[Log, Log]:
    """The first nine tenths of a text log, and the rest."""
    import gzip

    source = Path(str(log.inputs[0]))
    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    header, *lines = data.splitlines(keepends=True)
    end = len(lines) * 9 // 10
    suffix = Path(source.name.removesuffix(".gz")).suffix
    logs = []
    for part, some in (("learned", lines[:end]), ("unseen", lines[end:])):
        path = folder / f"{part}{suffix}"
        path.write_bytes(header + b"".join(some))
        logs.append(replace(log, inputs=[str(path)]))
    return logs[0], logs[1]


# --- Cost ---


@dataclass(frozen=True)
class Cost:
    """What an iteration costs a worker: CPU seconds, in all for its reducers, and bytes both ways."""

    workers: int
    rows: int
    entries: int
    keys: int
    reading_s: float
    worker_s: float
    reducers_s: float
    sent: float
    nonzero: int

    @classmethod
    def of(cls, data: Data, workers: int) -> Cost:
        """Measured in this process: the slowest worker, and a worker's share of the reducers and of the bytes."""
        iterations, crew = minimised(data, workers, MethodOptions(iterations=6, tolerance=0.0))
        summary = crew.ask_workers("build").summaries[0]
        made = len(iterations) - 1
        by_worker, by_reducers = (
            sum(sum(found) for step, found in crew.seconds.items() if _is_iteration(kind, step)) / made
            for kind in ("worker", "reducer")
        )
        return cls(
            workers=workers,
            rows=summary.rows,
            entries=summary.nonzeros,
            keys=summary.keys,
            reading_s=crew.seconds["worker build"][0],
            worker_s=by_worker,
            reducers_s=by_reducers * crew.reducers / workers,
            sent=sum(each.bytes for each in iterations[1:]) / made / workers,
            nonzero=iterations[-1].nonzero,
        )

    def row(self) -> list[Any]:
        """A row of the table."""
        return [
            self.workers,
            self.rows,
            self.keys,
            self.nonzero,
            round(self.reading_s / self.rows * 1e6, 2),
            round(self.worker_s / self.entries * 1e9, 1),
            round(self.reducers_s / self.keys * 1e9, 1),
            round(self.sent / 1e6, 2),
            round(self.sent / self.keys, 2),
        ]


def cost(pictures: Path | None) -> None:
    """Measure one, two and four workers; compute what a billion rows would need."""
    with tempfile.TemporaryDirectory() as name:
        data = generated(Path(name), TailStream(COST_ROWS), "generated")
        found = [Cost.of(data, workers) for workers in (1, 2, 4)]
    columns = [
        "workers",
        "rows of one",
        "its keys",
        "non-zeros",
        "reading, us/row",
        "iteration, ns/key of a row",
        "its reducers, ns/key",
        "MB sent and received",
        "bytes/key",
    ]
    title = f"CPU and bytes of an iteration of a worker, {COST_ROWS:,} generated rows x 14 columns, in one process"
    report("distributed_cost", title, columns, [each.row() for each in found])
    table = [_projected(found, workers) for workers in PROJECTED]
    columns = [
        "workers",
        "reducers",
        "keys of a worker, M",
        "memory of a worker, GB",
        "reading, s",
        "iteration: computing, s",
        "reducing, s",
        "network at 1 Gbit/s, s",
        "at 10 Gbit/s, s",
        "parts in a step",
    ]
    title = f"Computed from these: {BILLION:,} rows of the same kind"
    report("distributed_scaling", title, columns, table)
    if pictures is not None:
        lines = {"computing": 5, "reducing": 6, "network, 1 Gbit/s": 7, "network, 10 Gbit/s": 8}
        rows = [point(name, float(row[0]), row[at]) for name, at in lines.items() for row in table if row[at]]
        title, colours = (
            "A billion rows: seconds of an iteration",
            {name: at for at, name in enumerate(lines)},
        )
        chart = curve(title, rows, colours, across="workers", x_axis="log", y_log=True)
        write_whole(pictures / "scaling.svg", svg(chart).encode())


def _projected(found: Sequence[Cost], workers: int) -> list[Any]:
    """One row: keys grow with a worker's rows by the measured power, bytes and CPU with its keys and rows."""
    one, last = found[0], found[-1]
    power = math.log(one.keys / last.keys) / math.log(one.rows / last.rows)
    rows, reducers = BILLION / workers, max(4, workers // 8)
    keys = one.keys * (rows / one.rows) ** power
    sent = keys * last.sent / last.keys
    busiest = max(sent, workers * sent / reducers) * 8.0
    memory = rows * one.entries / one.rows * 8.0 + keys * 100.0
    return [
        workers,
        reducers,
        round(keys / 1e6, 1),
        round(memory / 1e9, 1),
        round(rows * one.reading_s / one.rows),
        round(rows * one.worker_s / one.rows, 1),
        round(workers * keys / reducers * last.reducers_s / last.keys, 1),
        round(busiest / 1e9, 1),
        round(busiest / 1e10, 1),
        workers * reducers,
    ]


def _is_iteration(kind: str, step: str) -> bool:
    parts = (
        "gradient",
        "head",
        "others",
        "propose",
        "losses",
        "accept",
        "screen",
        "sum_heads",
        "combine",
        "penalties",
    )
    return step in {f"{kind} {part}" for part in parts}


def scikit_learn_objective(spec: ModelSpec, log: Log) -> float:
    """The objective, as `problem.py` has it, at scikit-learn's minimum by saga, for a spec of one variant."""
    import sklearn
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    (plan,) = plan_shards(spec, log, 1)
    shard = build_shard(plan)
    rows, keys = shard.rows, shard.keys.hashes.size
    x = rows.x if rows.x.size else np.ones(rows.ids.size)
    matrix = csr_matrix((x, rows.ids, rows.starts), shape=(rows.labels.size, keys))
    matrix.sum_duplicates()
    l1, l2 = spec.learner.l1, spec.learner.l2
    both: dict[str, Any] = {"l1_ratio": l1 / (l1 + l2)}
    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
        both["penalty"] = "elasticnet"  # later versions take it from the ratio
    model = LogisticRegression(
        C=1.0 / (l1 + l2), solver="saga", fit_intercept=False, max_iter=3000, tol=1e-6, **both
    )
    omega = rows.weights if rows.weights.size else np.ones(rows.labels.size)
    model.fit(matrix, rows.labels > 0.5, sample_weight=omega)
    w = model.coef_[0]
    scores = matrix @ w
    value = omega @ (np.logaddexp(0.0, scores) - rows.labels * scores)
    return float(value + l1 * np.abs(w).sum() + 0.5 * l2 * (w @ w)) / float(omega.sum())


PARTS = {"speed": speed, "loss": loss}
DRAWN = {"methods": methods, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="methods, speed, loss, cost; default: all")
    parser.add_argument("--pictures", type=Path, help="write the curves of the methods as SVG to this folder")
    arguments = parser.parse_args()
    for part in arguments.parts or [*DRAWN, *PARTS]:
        if part in DRAWN:
            DRAWN[part](arguments.pictures)
        else:
            PARTS[part]()


if __name__ == "__main__":
    main()
