"""Conversions that come late: waiting, correcting and weighing, against the true rates, over time.

python -m benchmarks.delays [--hours 10]

A click a second, each of a random user on a random item of the market of `ftrie live`; a share of them converts, by the
market's own rates, after an exponential time of DELAY_S in the mean. Halfway the tastes change. The trainer's own loop
joins and learns the events; every STEP_S its model predicts the clicks of the next STEP_S, whose true rates are known.
`ahead`: the log-loss above that of the true rates, in thousandths; calibration: what was predicted by what is true.

"labels at once" is what no trainer can have: every conversion with its click. "duplicates" learns each click as a
negative and each conversion once more, unweighed; as "fake negative calibration" (Ktena et al., RecSys 2019) its
predictions b become b / (1 - b). Everything is a function of the seed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report
from ftrie.demo.market import AGES, DEVICES, GENDERS, SPEC, Market, item_records, shown_items
from ftrie.demo.settings import Sizes, Tastes
from model_store.spec.spec import ModelSpec, Variant, load_spec
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch
from trainer.learn.coordinates_kernels import GivenLabels
from trainer.learn.model import LearningModel
from trainer.runs.stream import DeadLetterOutbox, EventLoop
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_sources

Array = np.ndarray[Any, Any]

DELAY_S, STEP_S, HOUR_S = 3_600.0, 600, 3_600
SEED = 5


@dataclass(frozen=True)
class Way:
    """How conversions are learned.

    at_once: they come with their clicks; unweighed: examples count alike; calibrated: predictions are b / (1 - b).
    """

    title: str
    join: dict[str, str]
    at_once: bool = False
    unweighed: bool = False
    calibrated: bool = False


WAYS = (
    Way("labels at once", {"window": "10m", "late": "count"}, at_once=True),
    Way("wait 10 minutes, count", {"window": "10m", "late": "count"}),
    Way("wait 1 hour, count", {"window": "1h", "late": "count"}),
    Way("wait 4 hours, count", {"window": "4h", "late": "count"}),
    Way("wait 10 minutes, correct", {"window": "10m", "late": "correct"}),
    Way("wait 1 hour, correct", {"window": "1h", "late": "correct"}),
    Way("weigh", {"window": "10m", "late": "weigh"}),
    Way("duplicates", {"window": "10m", "late": "weigh"}, unweighed=True),
    Way(
        "duplicates, calibrated",
        {"window": "10m", "late": "weigh"},
        unweighed=True,
        calibrated=True,
    ),
)


class Clicks:
    """The clicks of the market, one a second, their true rates of conversion, and when they convert (inf: never)."""

    def __init__(self, hours: float) -> None:
        self.count = int(hours * HOUR_S)
        tastes = Tastes(change_at=self.count / 2, drift=0.0)
        self.market = market = Market(SEED, tastes, Sizes(bots=0.0, appeal=0.5))
        random = np.random.default_rng(SEED)
        self.user, self.item, self.device = (
            random.integers(size, size=self.count) for size in (market.users, market.items, len(DEVICES))
        )
        self.rate = np.concatenate(
            [
                market.attraction(
                    float(at), *(each[at : at + STEP_S] for each in (self.user, self.item, self.device))
                )
                for at in range(0, self.count, STEP_S)
            ]
        )
        self.converts = random.random(self.count) < self.rate
        self.delay_s = np.where(self.converts, random.exponential(DELAY_S, self.count), np.inf)

    def events(self, at_once: bool) -> Iterator[list[str]]:
        """The lines of each step, in order of time."""
        records = [record for _, record in item_records(self.market)]
        market = self.market
        due = (
            np.arange(self.count) + 1.0 + (np.where(self.converts, 0.0, np.inf) if at_once else self.delay_s)
        )
        order = np.argsort(due, kind="stable")
        after = np.searchsorted(due[order], np.arange(0, self.count + 1, STEP_S))
        for step, begin in enumerate(range(0, self.count, STEP_S)):
            lines = []
            for n in range(begin, begin + STEP_S):
                sku, user = market.skus[self.item[n]], self.user[n]
                shown = {
                    "request_id": f"r{n}", "ts": n, "cookie": market.cookies[user],
                    "user": {"age": AGES[market.age[user]], "gender": GENDERS[market.gender[user]]},
                    "context": {"device": DEVICES[self.device[n]]},
                    "items": [{"id": sku, "features": records[self.item[n]]}],
                }  # fmt: skip
                lines.append((float(n), json.dumps(shown)))
                lines.append((n + 0.5, json.dumps({"request_id": f"r{n}", "ts": n + 0.5, "item": sku})))
            for n in order[after[step] : after[step + 1]].tolist():
                event = {"request_id": f"r{n}", "ts": due[n], "item": market.skus[self.item[n]]}
                lines.append((float(due[n]), json.dumps(event | {"event": "conversion"})))
            yield [line for _, line in sorted(lines)]

    def batch(self, begin: int) -> RowBatch:
        """The clicks of a step as rows, which are only predicted."""
        part = slice(begin, begin + STEP_S)
        rows = self.user[part], self.item[part], self.device[part]
        columns = dict(shown_items(self.market, *rows, np.zeros(STEP_S, np.bool_)))
        return RowBatch(columns, np.arange(STEP_S), "", (), STEP_S, Position(""))


def spec_of(way: Way) -> ModelSpec:
    """The market's spec for the conversions of clicked items, joined in this way."""
    spec = load_spec(SPEC)
    given = spec.input.model_copy(update={"rows": "clicked", "timestamp": None, "request": None})
    join = type(spec.join).model_validate(
        {**way.join, "positive": "conversion", "late_within": "24h", "lateness": "0s"}
    )
    alone = {"base": Variant(share=1.0)}
    named = spec.model_copy(update={"input": given, "join": join, "variants": alone})
    return named.resolve((*spec.fields, "click", "cookie", "item"))


def predicted(way: Way, clicks: Clicks) -> list[Array]:
    """What the model predicts of the clicks of each step but the first, from the events before it."""
    spec, found = spec_of(way), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftrie-delays-")))
        log = folder / "events.jsonl"
        log.touch()
        segments = Segments(folder / "segments", 1 << 28)
        merger = Merger(open_sources([str(log)], spec, None), Wanted.of(spec), segments)
        stack.callback(merger.close)
        model = LearningModel(ExampleMaker(spec))
        join = Join(spec.join, spec.input.rows)
        loop = EventLoop(merger, join, segments, model, DeadLetterOutbox(None))
        if way.unweighed:
            model.coordinates._of = model.coordinates._of._replace(labels=GivenLabels())
        written = 0
        for step, lines in enumerate(clicks.events(way.at_once)):
            if step:
                examples = model.maker.make(clicks.batch(step * STEP_S))
                rates = model.coordinates.predict(examples.hashed).probabilities[:, 0]
                found.append(np.clip(rates / (1.0 - rates), 1e-6, 1.0 - 1e-6) if way.calibrated else rates)
            with log.open("a") as out:
                out.write("".join(f"{line}\n" for line in lines))
            written += len(lines)
            while loop.counts.events < written:
                loop.step(0.05)
        assert not loop.counts.bad_events
    return found


def measure(hours: float) -> None:
    """Run every way and report."""
    clicks, rows = Clicks(hours), list[list[Any]]()
    half = hours / 2
    periods = {
        "1st hour": (0.0, 1.0),
        "before the change": (half - 2.0, half),
        "hour after": (half, half + 1.0),
        "last 2 hours": (hours - 2.0, hours),
    }
    for way in WAYS:
        steps, row = predicted(way, clicks), [way.title]
        for begin, end in periods.values():
            first, last = max(1, int(begin * HOUR_S / STEP_S)), int(end * HOUR_S / STEP_S)
            p = np.concatenate(steps[first - 1 : last - 1])
            rate = clicks.rate[first * STEP_S : last * STEP_S]
            row += [round(1000.0 * float((loss(rate, p) - loss(rate, rate)).mean()), 2)]
            row += [round(float(p.sum() / rate.sum()), 3)]
        rows.append(row)
    columns = [f"{name}: {what}" for name in periods for what in ("ahead", "calibration")]
    title = (
        f"Log-loss above that of the true rates, in thousandths, and calibration; {clicks.count:,} clicks, "
        f"{clicks.converts.mean():.1%} convert, after {DELAY_S / HOUR_S:g} hour in the mean"
    )
    report("delays", title, ["learned", *columns], rows)


def loss(rate: Array, p: Array) -> Array:
    """The expected log-loss of predictions where the true rates are known."""
    return -(rate * np.log(p) + (1.0 - rate) * np.log1p(-p))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=10.0)
    measure(parser.parse_args().hours)
