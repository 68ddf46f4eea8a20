"""What `ftrie live` shows: the traffic's windows and their rates, the screen of a running loop, its result and picture.

Its input is what the processes report: JSON lines of traffic and trainer, and the servers' /healthz.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ftrie.demo.live_crew import FROZEN, SERVERS, Crew, LiveOptions
from ftrie.demo.market import MODEL
from ftrie.report.charts import curve_chart, stacked
from ftrie.report.elements import PICTURE, VARIABLES, as_svg
from ftrie.report.series import Point, Series
from ftrie.terminal import json_output, print_json, print_table
from model_store.whole_file import write_whole

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live as RichLive

MOST_WINDOWS = 86_400
SETTLED_S = 30.0
"""The result compares the loop with the frozen model over this many seconds."""
RECENT_S = 10.0
LINE_EVERY_S = 5.0
KEPT_NOTES = 6
PICTURE_TITLE = "Clicks per shown item"
MOST_POINTS = 60
LEAST_CHUNK_S = 5.0


@dataclass(frozen=True)
class LiveResult:
    """The outcome of a run; --json prints all fields but `windows`.

    change_at: the second at which tastes changed or would have changed; restarts, exit_codes: by process;
    frozen_version: the version that the frozen model is a copy of.
    """

    seconds: float
    change_at: float
    windows: list[dict[str, Any]]
    traffic: dict[str, Any]
    before: dict[str, Any]
    last: dict[str, Any]
    trainer: dict[str, Any]
    restarts: dict[str, int]
    exit_codes: dict[str, int | None]
    frozen_version: int | None


@dataclass(frozen=True)
class Rates:
    """Sums over shown items: actual clicks, expected clicks, and expected clicks of the best order."""

    shown: int = 0
    clicks: int = 0
    expected: float = 0.0
    best: float = 0.0

    @classmethod
    def of(cls, window: dict[str, Any], model: str) -> Rates:
        """One model's in one window."""
        tally = window["models"].get(model)
        if not tally or not tally["shown"]:
            return cls()
        shown = tally["shown"]
        return cls(shown, tally["clicks"], tally["expected_ctr"] * shown, tally["best_ctr"] * shown)

    @classmethod
    def total(cls, windows: Iterable[dict[str, Any]], model: str) -> Rates:
        """One model's over several windows."""
        return sum((cls.of(window, model) for window in windows), start=cls())

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.shown + other.shown,
            self.clicks + other.clicks,
            self.expected + other.expected,
            self.best + other.best,
        )

    def as_json(self) -> dict[str, float | int | None]:
        """Counts, and rates per shown item; None if nothing was shown."""
        shown = self.shown
        return {
            "shown": shown,
            "clicks": self.clicks,
            "ctr": round(self.clicks / shown, 6) if shown else None,
            "expected_ctr": round(self.expected / shown, 6) if shown else None,
            "best_ctr": round(self.best / shown, 6) if shown else None,
        }


class Windows:
    """The traffic's windows, the newest 86,400, and its summary. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: deque[dict[str, Any]] = deque(maxlen=MOST_WINDOWS)
        self.summary: dict[str, Any] = {}

    def add(self, line: dict[str, Any]) -> None:
        """Take a line of `ftrie simulate --json`."""
        if line.get("event") == "summary":
            self.summary = line
        elif line.get("event") == "window":
            with self._lock:
                self._windows.append(line)

    def all(self) -> list[dict[str, Any]]:
        """All windows, oldest first."""
        with self._lock:
            return list(self._windows)

    def between(self, from_s: float, to_s: float) -> dict[str, Rates]:
        """The rates of the windows that end in (from_s, to_s]: of `loop` and `frozen`."""
        some = [each for each in self.all() if from_s < each["second"] <= to_s]
        return {"loop": Rates.total(some, MODEL), "frozen": Rates.total(some, FROZEN)}

    @property
    def second(self) -> float:
        """The market's second at the end of the last window; 0 before the first."""
        with self._lock:
            return float(self._windows[-1]["second"]) if self._windows else 0.0


@dataclass(frozen=True)
class Row:
    """One process on the screen. pid: None if it is not running."""

    name: str
    pid: int | None
    restarts: int
    status: str


@dataclass(frozen=True)
class Frame:
    """The screen's content. figures: name and value; line: a summary for output that cannot be redrawn."""

    title: str
    rows: Sequence[Row] = ()
    figures: Sequence[tuple[str, str]] = ()
    line: str = ""


class Screen:
    """Shows frames and notes on stderr, nothing with --json. A context manager, which restores the terminal."""

    def __init__(self) -> None:
        self._live = None if json_output() or not sys.stderr.isatty() else _rich_live()
        self._notes: list[str] = []
        self._frame = Frame("ftrie live")
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, frame: Frame) -> None:
        """Redraw the screen; where that is impossible, print the frame's line every five seconds."""
        self._frame = frame
        if self._live is not None:
            self._redraw()
        elif not json_output() and frame.line and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            print(frame.line, file=sys.stderr, flush=True)

    def note(self, message: str) -> None:
        """Show a message."""
        if self._live is not None:
            self._notes = [*self._notes, f"{time.strftime('%H:%M:%S')}  {message}"][-KEPT_NOTES:]
            self._redraw()
        elif not json_output():
            print(message, file=sys.stderr, flush=True)

    def _redraw(self) -> None:
        assert self._live is not None
        self._live.update(_rendered(self._frame, self._notes), refresh=True)


def _rich_live() -> RichLive:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=False)


def _rendered(frame: Frame, notes: Sequence[str]) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    processes = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    processes.add_column("process", overflow="fold")
    processes.add_column("pid", justify="right", overflow="fold")
    processes.add_column("restarts", justify="right", overflow="fold")
    processes.add_column("", overflow="fold")
    for row in frame.rows:
        pid = Text("down", style="bold red") if row.pid is None else Text(str(row.pid))
        processes.add_row(Text(row.name), pid, Text(str(row.restarts)), Text(row.status))
    figures = Table.grid(padding=(0, 2))
    for name, value in frame.figures:
        figures.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(frame.title, style="bold")]
    if frame.rows:
        parts += [processes, Text(""), figures]
    return Group(*parts, *(Text(each, style="dim") for each in notes))


def frame_of(options: LiveOptions, crew: Crew, windows: Windows) -> Frame:
    """The loop at this moment."""
    last = (windows.all() or [{}])[-1]
    recent = windows.between(windows.second - RECENT_S, windows.second)
    title = f"ftrie live · {crew.second:,.0f} s"
    title += f" of {options.seconds:,.0f} s" if options.seconds is not None else " · Ctrl-C ends it"
    return Frame(
        title, _rows(crew, last), _figures(options, windows, last, recent), _line(crew, last, recent)
    )


def _rows(crew: Crew, last: dict[str, Any]) -> list[Row]:
    traffic, trainer = crew.traffic, crew.trainer
    servers = [_server_status(crew.health(number)) for number in range(SERVERS)]
    return [
        Row(crew.store.name, crew.store.pid, crew.store.restarts, "Valkey"),
        Row(trainer.name, trainer.pid, trainer.restarts, _trainer_status(trainer.last_line)),
        *(
            Row(server.name, server.pid, server.restarts, status)
            for server, status in zip(crew.servers, servers, strict=True)
        ),
        Row(traffic.name, traffic.pid, traffic.restarts, _traffic_status(last) if traffic.pid else ""),
    ]


def _server_status(health: dict[str, Any]) -> str:
    models = health.get("models") or []
    if not models:
        return "not answering"
    state = "" if health.get("ready") else "not ready · "
    return state + ", ".join(f"{each['name']} version {each['version']}" for each in models)


def _trainer_status(line: dict[str, Any]) -> str:
    if not line:
        return "starting"
    parts = [
        f"version {line['version']}",
        f"{line['events']:,} events ({line['rate']:,.0f}/s)",
        f"{line['examples']:,} examples",
        f"lag {_lag(line)}",
    ]
    if line.get("join"):
        parts.append(f"{line['join'].get('pending', 0):,} requests open")
    if line.get("dead_letters"):
        parts.append(f"{line['dead_letters']:,} dead letters")
    return " · ".join(parts)


def _traffic_status(last: dict[str, Any]) -> str:
    if not last:
        return "starting"
    parts = [f"{last['visits_a_second']:,.0f} visits/s", f"{last['feedback']['clicks']:,} clicks reported"]
    failures = {**last["failures"], **last["feedback"]["failures"]}
    parts += [f"{name} {count:,}" for name, count in failures.items()]
    if last["degraded"]:
        parts.append(f"{last['degraded']:,} degraded answers")
    return " · ".join(parts)


def _figures(
    options: LiveOptions, windows: Windows, last: dict[str, Any], recent: dict[str, Rates]
) -> list[tuple[str, str]]:
    left_s = options.change_at - windows.second
    return [
        (f"CTR of the loop, last {RECENT_S:.0f} s", _ctr(recent["loop"])),
        *([("CTR of the frozen model", _ctr(recent["frozen"]))] if options.frozen else []),
        ("best possible CTR", _percent(recent["loop"].as_json()["best_ctr"])),
        ("click to weight in serving", _freshness(last.get("freshness", {}))),
        ("tastes", "have changed" if left_s <= 0 else f"change in {left_s:.0f} s"),
    ]


def _line(crew: Crew, last: dict[str, Any], recent: dict[str, Rates]) -> str:
    if not last:
        return ""
    loop, frozen, trainer = recent["loop"].as_json(), recent["frozen"].as_json(), crew.trainer.last_line
    parts = [
        f"{last['second']:5.0f} s",
        f"{last['visits_a_second']:,.0f} visits/s",
        f"version {last['versions'].get(MODEL)}",
        f"CTR {_percent(loop['expected_ctr'])}",
        *([f"frozen {_percent(frozen['expected_ctr'])}"] if frozen["shown"] else []),
        f"best {_percent(loop['best_ctr'])}",
        f"click to weight {_freshness(last['freshness'])}",
        *([f"trainer lag {_lag(trainer)}"] if trainer else []),
        *(f"{name} {count:,}" for name, count in last["failures"].items()),
    ]
    return " · ".join(parts)


def print_result(result: LiveResult) -> None:
    """Print a run's result, with --json as one object."""
    if json_output():
        print_json({name: value for name, value in vars(result).items() if name != "windows"})
        return
    print(f"\n{result.seconds:,.0f} s; all processes have ended.")
    _print_rates(result)
    if result.traffic:
        _print_traffic(result.traffic)
    restarts = [f"{name} {count}" for name, count in result.restarts.items() if count]
    if restarts:
        print(f"restarts: {', '.join(restarts)}")


def _print_rates(result: LiveResult) -> None:
    rows = [
        (when, model, *(_percent(rates[key], 2) for key in ("ctr", "expected_ctr", "best_ctr")))
        for when, models in (
            (f"{min(SETTLED_S, result.change_at):.0f} s before the change", result.before),
            ("at the end", result.last),
        )
        for model, rates in models.items()
        if rates["shown"]
    ]
    if rows:
        print_table(("", "model", "CTR", "expected", "best possible"), rows)


def _print_traffic(traffic: dict[str, Any]) -> None:
    feedback, failures, freshness = traffic["feedback"], traffic["failures"], traffic["freshness"]
    print(f"click to weight in serving: {_freshness(freshness)}, of {freshness['n']:,}")
    print(
        f"{feedback['clicks']:,} clicks and {feedback['conversions']:,} conversions reported; failed calls: "
        + (", ".join(f"{name} {count:,}" for name, count in failures.items()) or "none")
        + f"; lost visits {traffic['lost_visits']:,}"
    )


def _lag(line: dict[str, Any]) -> str:
    lags = line.get("lags", {}).values()
    seconds = [lag["seconds"] for lag in lags if lag.get("seconds") is not None]
    events = [lag["events"] for lag in lags if lag.get("events") is not None]
    return f"{sum(events):,} events" + (f", {max(seconds):.1f} s" if seconds else "")


def _freshness(quantiles: dict[str, Any]) -> str:
    if not quantiles.get("n"):
        return "—"
    return f"p50 {quantiles['p50']:.2f} s, p95 {quantiles['p95']:.2f} s"


def _ctr(rates: Rates) -> str:
    values = rates.as_json()
    if not rates.shown:
        return "—"
    return f"{_percent(values['ctr'])} (expected {_percent(values['expected_ctr'])})"


def _percent(rate: float | None, decimals: int = 1) -> str:
    return "—" if rate is None else f"{100 * rate:.{decimals}f} %"


def write_picture(windows: Sequence[dict[str, Any]], change_at: float, path: Path) -> None:
    """Write the picture as SVG. Raises OutputError."""
    write_whole(path, picture(windows, change_at).encode())


def picture(windows: Sequence[dict[str, Any]], change_at: float) -> str:
    """Expected click rates over time, by the true chances, hence free of the noise of clicks; as SVG."""
    chunks = _chunks(windows)
    series = [
        Series("best possible", 2, _points(chunks, MODEL, "best")),
        Series("the loop", 0, _points(chunks, MODEL, "expected")),
        Series("frozen before the change", 1, _points(chunks, FROZEN, "expected")),
    ]
    drawn = [each for each in series if each.points]
    last = float(windows[-1]["second"])
    mark = (change_at, "tastes change") if change_at < last else None
    chart = curve_chart(PICTURE_TITLE, drawn, across="seconds", mark=mark, says_beginning=True)
    return as_svg(stacked([chart], VARIABLES + PICTURE))


def _chunks(windows: Sequence[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    """Neighbouring windows grouped into at most about MOST_POINTS chunks, each with its middle second."""
    first = windows[0]["second"] - windows[0]["seconds"]
    width = max(LEAST_CHUNK_S, (windows[-1]["second"] - first) / MOST_POINTS)
    chunks: dict[int, list[dict[str, Any]]] = {}
    for each in windows:
        number = math.floor((each["second"] - each["seconds"] / 2 - first) / width)
        chunks.setdefault(number, []).append(each)
    return [(first + (number + 0.5) * width, some) for number, some in sorted(chunks.items())]


def _points(
    chunks: Sequence[tuple[float, list[dict[str, Any]]]], model: str, clicks: str
) -> tuple[Point, ...]:
    totals = [(at, Rates.total(some, model)) for at, some in chunks]
    return tuple(Point(at, getattr(rates, clicks) / rates.shown) for at, rates in totals if rates.shown)
