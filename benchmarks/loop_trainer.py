"""How fast a trainer learns a backlog of impressions and clicks from the store's streams, and where its time goes.

python -m benchmarks.loop_trainer

The trainer runs in this process, its steps timed one inside the other: a step's own time is what its parts leave.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROUNDS, Spread, report
from ftrie.demo.market import (
    AGES,
    BRANDS,
    CATEGORIES,
    CLICK,
    DEVICES,
    GENDERS,
    SPEC,
    AnsweredVisit,
    Market,
    visit,
)
from ftrie.demo.settings import MODEL, Habits
from model_store.spec.spec import load_spec
from model_store.store import Store
from trainer.events.join import Join
from trainer.events.parse import Parser
from trainer.examples.joined import JoinedExamples
from trainer.learn.model import LearningModel
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.trainer import run
from trainer.settings import Every, TrainerOptions
from trainer.sources.merge import Merger
from trainer.sources.redis import StreamSource

VISITS = 50_000
SHOWN = 6
HABITS = Habits(rate=1000.0)
SLICE_S = 0.5
"""Both streams are written by turns: what came to the store later is later in the merged order too."""


def main() -> None:
    spec = load_spec(SPEC)
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with Store.open(url) as store:
            events = _fill(store)
            rounds = [_round(spec, url, Path(folder) / f"trainer-{number}") for number in range(ROUNDS + 1)]
    examples = VISITS * SHOWN
    rows = []
    for name in rounds[0]:
        spread = Spread.of([each[name] for each in rounds[1:]])  # the first one compiles
        rows.append((name, *(round(value, 2) for value in (spread.median, spread.low, spread.high))))
    whole = Spread.of([each["all"] for each in rounds[1:]])
    title = (
        f"{events:,} events ({examples:,} examples) from Redis streams to a model: "
        f"{events / whole.median:,.0f} events/s, {examples / whole.median:,.0f} examples/s; {ROUNDS} rounds"
    )
    report("loop_trainer", title, ("step", "median s", "low s", "high s"), rows)


def _round(spec: Any, url: str, folder: Path) -> dict[str, float]:
    """Seconds of each step; reading and parsing are on threads of their own, beside the rest."""
    times: dict[str, float] = {}
    options = TrainerOptions(
        store=url, sources=("store",), checkpoint=folder, every=Every.parse("1h"), publish=False, activate=False,
        once=True, say_every_s=1e9,
    )  # fmt: skip
    with ExitStack() as stack:
        for owner, name, step in (
            (StreamSource, "read", "read from the store (beside)"),
            (Parser, "parse", "parse (beside)"),
            (Merger, "poll", "merge, and wait for what is read beside"),
            (Join, "push", "join"),
            (JoinedExamples, "of", "gather the rows, make keys of them"),
            (OnlineAccumulator, "add", "online metrics"),
            (LearningModel, "learn", "learn"),
        ):
            stack.enter_context(_timed(owner, name, step, times))
        stack.enter_context(redirect_stdout(StringIO()))
        stack.enter_context(redirect_stderr(StringIO()))
        began = time.perf_counter()
        run(spec, options, lambda status: None)
        times["all"] = time.perf_counter() - began
    return times


@contextmanager
def _timed(owner: Any, name: str, step: str, times: dict[str, float]) -> Iterator[None]:
    """While the block runs, calls of a function or method are timed; of a generator, each of its steps."""
    plain: Callable[..., Any] = getattr(owner, name)
    times[step] = 0.0

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        answer = plain(*arguments, **named)
        times[step] += time.perf_counter() - began
        return stepwise(answer) if hasattr(answer, "__next__") else answer

    def stepwise(steps: Iterator[Any]) -> Iterator[Any]:
        while True:
            began = time.perf_counter()
            try:
                one = next(steps)
            except StopIteration:
                return
            finally:
                times[step] += time.perf_counter() - began
            yield one

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def _fill(store: Store) -> int:
    """Write what servers and visitors would have written, in order of time; returns how many events."""
    market = Market(1)
    began = time.time() - VISITS / HABITS.rate
    impressions: list[tuple[float, bytes]] = []
    clicks: list[tuple[float, bytes]] = []
    for number in range(VISITS):
        one = visit(market, HABITS, number)
        seen = AnsweredVisit(market, one, np.arange(SHOWN), np.full(SHOWN, 0.1))
        impressions.append((began + one.due_s, impression_line(market, seen, began + one.due_s)))
        for each in seen.reactions():
            at = began + one.due_s + each.after_s
            if each.event == CLICK and at < time.time():
                clicks.append((at, click_line(number, each.item, at)))
    written = 0
    streams = (store.impressions(MODEL), impressions), (store.clicks(MODEL), sorted(clicks))
    for slice_number in range(round(VISITS / HABITS.rate / SLICE_S) + 1):
        from_s = began + slice_number * SLICE_S
        for stream, events in streams:
            written += stream.append([event for at, event in events if from_s <= at < from_s + SLICE_S])
    return written


def click_line(number: int, item: str, at: float) -> bytes:
    """As a server writes a click that was reported to it."""
    event = {
        "request_id": f"r{number}",
        "item": item,
        "ts": at,
        "event": CLICK,
        "event_id": f"r{number}/{item}",
    }
    return json.dumps(event).encode()


def impression_line(market: Market, seen: AnsweredVisit, at: float) -> bytes:
    """As a server logs it."""
    one = seen.visit
    items = [
        {
            "id": market.skus[item],
            "position": place + 1,
            "ctr": 0.1,
            "features": {
                "sku": market.skus[item],
                "brand": BRANDS[market.brand[item]],
                "category": CATEGORIES[market.category[item]],
                "price": str(market.price[item]),
            },
        }
        for place, item in enumerate(one.candidates[:SHOWN])
    ]
    event = {
        "request_id": f"r{one.number}",
        "ts": at,
        "cookie": market.cookies[one.user],
        "model": MODEL,
        "version": 1,
        "variant": "base",
        "user": {"age": AGES[market.age[one.user]], "gender": GENDERS[market.gender[one.user]]},
        "context": {"device": DEVICES[one.device]},
        "items": items,
    }
    return json.dumps(event).encode()


if __name__ == "__main__":
    main()
