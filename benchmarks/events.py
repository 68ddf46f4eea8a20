"""Events: MB and rows a second from lines of JSON to columns, and through the merger with its threads.

Generated impressions of 10 items with 8 features each, with and without a line in each megabyte that is no event;
one in three has a click, in a source of its own. Processor time is measured, of all threads together, not the clock's.

    python -m benchmarks.events [--json]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import ROUNDS, Spread, report
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.events.columns import Wanted
from trainer.events.events import NEVER_US, Chunk, Int64s, Lag, SourcePosition
from trainer.events.parse import Parser, read_lines
from trainer.sources.merge import Merger

COLUMNS = ("what", "MB", "MB/s", "low", "high", "events/s", "M rows/s")
IMPRESSIONS, ITEMS, FEATURES = 20_000, 10, 8
STRETCH_BYTES = 1 << 20
START_S = 1_700_000_000


def main() -> None:
    wanted = Wanted.of(_spec())
    shown, clicks = _impressions(), _clicks()
    broken = [line for n, line in enumerate(shown) for line in ([b"{", line] if n % 500 == 0 else [line])]
    few = shown[: IMPRESSIONS // 20]
    rows = [
        _parsed("impressions", shown, wanted),
        _parsed("with broken lines", broken, wanted),
        _parsed("clicks", clicks, wanted),
        _measured("impressions line by line", few, lambda: _rows(read_lines(few, wanted).lengths)),
        _measured("both, merged", shown + clicks, lambda: _merged(wanted, (shown, clicks))),
    ]
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        title = f"Impressions of {ITEMS} items x {FEATURES} features, seconds of one core"
        report("events", title, COLUMNS, rows)


def _parsed(what: str, lines: Sequence[bytes], wanted: Wanted) -> tuple[Any, ...]:
    chunks, parser = list(_stretches(lines)), Parser(wanted)
    return _measured(what, lines, lambda: sum(parser.parse(s.data, s.starts).items.size for s in chunks))


def _measured(what: str, lines: Sequence[bytes], run: Callable[[], int]) -> tuple[Any, ...]:
    """run gives the number of rows it made."""
    rows, size, seconds = run(), sum(map(len, lines)), list[float]()
    for _ in range(ROUNDS):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    speed = Spread.of([size / each / 1e6 for each in seconds])
    median = Spread.of(seconds).median
    shown = (round(each) for each in (speed.median, speed.low, speed.high))
    return (what, round(size / 1e6, 1), *shown, round(len(lines) / median), round(rows / median / 1e6, 2))


def _merged(wanted: Wanted, held: Sequence[Sequence[bytes]]) -> int:
    rows = Rows()
    merger = Merger(
        [InMemory(f"s{n}", _stretches(lines)) for n, lines in enumerate(held)], wanted, rows, once=True
    )
    while not merger.ended:
        merger.poll(1.0)
    merger.close()
    return rows.count


@dataclass
class Rows:
    """Counts the rows of tables, and keeps none."""

    count: int = 0

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        self.count += len(columns["f0"])
        return 0


@dataclass
class InMemory:
    """A source that has ended: chunks of lines without a clock."""

    name: str
    chunks: Iterator[Chunk]
    lost: int = 0
    ended: bool = field(default=False, init=False)

    def read(self) -> Chunk | None:
        chunk = next(self.chunks, None)
        self.ended = chunk is None
        return chunk

    def watermark_us(self) -> int:
        return NEVER_US if self.ended else 0

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        return {"source": self.name}

    def lag(self) -> Lag:
        return Lag()

    def close(self) -> None:
        pass


def _stretches(lines: Sequence[bytes]) -> Iterator[Chunk]:
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    data = b"\n".join(lines) + b"\n"
    first = 0
    while first < len(lines):
        stop = int(np.searchsorted(starts, starts[first] + STRETCH_BYTES))
        own = starts[first : stop + 1]
        marks: Int64s = np.zeros((own.size - 1, 1), np.int64)
        yield Chunk(data[own[0] : own[-1]], own - own[0], None, marks, {})
        first = stop


def _rows(lengths: Int64s) -> int:
    return int(np.maximum(lengths, 0).sum())


def _spec() -> ModelSpec:
    fields = [f'f{n} = {{ side = "item" }}\n' for n in range(FEATURES - 2)]
    fields += [f'f{n} = {{ side = "item", kind = "number" }}\n' for n in (FEATURES - 2, FEATURES - 1)]
    others = [f"{name} = {{}}\n" for name in ("age", "city", "hour", "device")]
    return parse_spec('[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\n' + "".join(fields + others))


def _impressions() -> list[bytes]:
    random = np.random.default_rng(1)
    return [json.dumps(_impression(number, random)).encode() for number in range(IMPRESSIONS)]


def _impression(number: int, random: np.random.Generator) -> dict[str, Any]:
    values, numbers = (
        random.integers(0, 1000, (ITEMS, FEATURES)).tolist(),
        random.random((ITEMS, 2)).round(4).tolist(),
    )
    return {
        "request_id": f"request-{number:010d}",
        "ts": round(START_S + number * 0.013, 6),
        "cookie": f"c{values[0][0]}",
        "model": "m",
        "version": 42,
        "variant": "base",
        "user": {"age": str(values[0][1] % 80), "city": f"city-{values[0][2] % 100}"},
        "context": {"hour": values[0][3] % 24, "device": "phone"},
        "items": [
            {
                "id": f"item-{values[k][0]}-{k}",
                "position": k + 1,
                "ctr": numbers[k][0],
                "propensity": 0.5,
                "features": {
                    **{f"f{n}": f"v{values[k][n]}" for n in range(FEATURES - 2)},
                    f"f{FEATURES - 2}": values[k][6],
                    f"f{FEATURES - 1}": numbers[k][1],
                },
            }
            for k in range(ITEMS)
        ],
    }


def _clicks() -> list[bytes]:
    told = [
        {
            "request_id": f"request-{number:010d}",
            "ts": round(START_S + number * 0.013 + 20, 6),
            "item": "item-1-0",
        }
        for number in range(0, IMPRESSIONS, 3)
    ]
    return [json.dumps(each).encode() for each in told]


if __name__ == "__main__":
    main()
