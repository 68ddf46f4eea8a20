"""What the screen shows of a running loop, made of what its processes say of themselves. It starts and ends nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ftrie.demo.live_processes import SERVERS, Crew, LiveOptions
from ftrie.demo.live_windows import SETTLED_S, Rates, Whole, Windows
from ftrie.demo.market import MODEL
from ftrie.terminal import json_asked, print_json, print_table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live as RichLive


RECENT_S = 10.0


def look_at(options: LiveOptions, crew: Crew, windows: Windows) -> Look:
    """This moment."""
    last = (windows.all() or [{}])[-1]
    now = windows.between(windows.second - RECENT_S, windows.second)
    title = f"ftrie live · {crew.second:,.0f} s"
    title += f" of {options.seconds:,.0f} s" if options.seconds is not None else " · Ctrl-C ends it"
    return Look(title, _rows(crew, last), _figures(options, windows, last, now), _line(crew, last, now))


def _rows(crew: Crew, last: dict[str, Any]) -> list[Row]:
    store, traffic = crew.store, crew.traffic
    servers = [
        Row(each.name, each.pid, each.restarts, _server(crew.health(number)))
        for number, each in enumerate(crew.servers[:SERVERS])
    ]
    return [
        Row(store.name, store.pid, store.restarts, "Valkey"),
        Row(crew.trainer.name, crew.trainer.pid, crew.trainer.restarts, _trainer(crew.trainer.said)),
        *servers,
        Row(traffic.name, traffic.pid, traffic.restarts, _traffic(last) if traffic.pid else ""),
    ]


def _server(health: dict[str, Any]) -> str:
    models = health.get("models") or []
    if not models:
        return "not answering"
    state = "" if health.get("ready") else "not ready · "
    return state + ", ".join(f"{each['name']} version {each['version']}" for each in models)


def _trainer(said: dict[str, Any]) -> str:
    if not said:
        return "beginning"
    parts = [
        f"version {said['version']}",
        f"{said['events']:,} events ({said['rate']:,.0f}/s)",
        f"{said['examples']:,} examples",
        f"lag {_lag(said)}",
    ]
    if said.get("join"):
        parts.append(f"{said['join'].get('pending', 0):,} requests open")
    if said.get("dead_letters"):
        parts.append(f"{said['dead_letters']:,} dead letters")
    return " · ".join(parts)


def _lag(said: dict[str, Any]) -> str:
    lags = said.get("lags", {}).values()
    seconds = [lag["seconds"] for lag in lags if lag.get("seconds") is not None]
    events = [lag["events"] for lag in lags if lag.get("events") is not None]
    return f"{sum(events):,} events" + (f", {max(seconds):.1f} s" if seconds else "")


def _traffic(last: dict[str, Any]) -> str:
    if not last:
        return "beginning"
    parts = [f"{last['visits_a_second']:,.0f} visits/s", f"{last['feedback']['clicks']:,} clicks reported"]
    failures = {**last["failures"], **last["feedback"]["failures"]}
    parts += [f"{name} {count:,}" for name, count in failures.items()]
    if last["degraded"]:
        parts.append(f"{last['degraded']:,} degraded answers")
    return " · ".join(parts)


def _figures(
    options: LiveOptions, windows: Windows, last: dict[str, Any], now: dict[str, Rates]
) -> list[tuple[str, str]]:
    changed = windows.second >= options.change_at
    figures = [
        (f"CTR of the loop, last {RECENT_S:.0f} s", _rates(now["loop"])),
        *([("CTR of the frozen model", _rates(now["frozen"]))] if options.frozen else []),
        ("best possible CTR", _percent(now["loop"].as_json()["best_ctr"])),
        ("click to weight in serving", fresh(last.get("freshness", {}))),
        (
            "tastes",
            "have changed" if changed else f"change in {max(0.0, options.change_at - windows.second):.0f} s",
        ),
    ]
    return figures


def _line(crew: Crew, last: dict[str, Any], now: dict[str, Rates]) -> str:
    if not last:
        return ""
    version = last["versions"].get(MODEL)
    parts = [
        f"{last['second']:5.0f} s",
        f"{last['visits_a_second']:,.0f} visits/s",
        f"version {version}",
        f"CTR {_percent(now['loop'].as_json()['expected_ctr'])}",
        *([f"frozen {_percent(now['frozen'].as_json()['expected_ctr'])}"] if now["frozen"].shown else []),
        f"best {_percent(now['loop'].as_json()['best_ctr'])}",
        f"click to weight {fresh(last['freshness'])}",
        f"trainer lag {_lag(crew.trainer.said)}" if crew.trainer.said else "",
        *(f"{name} {count:,}" for name, count in last["failures"].items()),
    ]
    return " · ".join(part for part in parts if part)


def fresh(measured: dict[str, Any]) -> str:
    """Quantiles of freshness in words."""
    if not measured.get("n"):
        return "—"
    return f"p50 {measured['p50']:.2f} s, p95 {measured['p95']:.2f} s"


def _rates(rates: Rates) -> str:
    told = rates.as_json()
    if not told["shown"]:
        return "—"
    return f"{_percent(told['ctr'])} (expected {_percent(told['expected_ctr'])})"


def _percent(rate: float | int | None) -> str:
    return "—" if rate is None else f"{100 * rate:.1f} %"


LINE_EVERY_S = 5.0
KEPT_NOTES = 6


@dataclass(frozen=True)
class Row:
    """One process: its name, its number (None: it is down), restarts, and what it is at."""

    name: str
    pid: int | None
    restarts: int
    doing: str


@dataclass(frozen=True)
class Look:
    """One moment. figures: name and value; line: the same, short, for where nothing can be redrawn."""

    title: str
    rows: Sequence[Row]
    figures: Sequence[tuple[str, str]]
    line: str


class Screen:
    """Shows looks and notes. Use as a context manager: the terminal is as it was afterwards."""

    def __init__(self) -> None:
        self._live = None if json_asked() or not sys.stderr.isatty() else _live()
        self._notes: list[str] = []
        self._look: Look | None = None
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

    def show(self, look: Look) -> None:
        """Draw a moment; where nothing can be redrawn, its line every five seconds."""
        self._look = look
        if self._live is not None:
            self._live.update(_drawn(look, self._notes), refresh=True)
        elif not json_asked() and look.line and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            print(look.line, file=sys.stderr, flush=True)

    def note(self, sentence: str) -> None:
        """Say that something happened."""
        if json_asked():
            return
        if self._live is None:
            print(sentence, file=sys.stderr, flush=True)
            return
        self._notes = [*self._notes, f"{time.strftime('%H:%M:%S')}  {sentence}"][-KEPT_NOTES:]
        look = self._look or Look(sentence, (), (), "")
        self._live.update(_drawn(look, self._notes), refresh=True)


def _live() -> RichLive:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=False)


def _drawn(look: Look, notes: Sequence[str]) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    processes = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, how in (("process", "left"), ("pid", "right"), ("restarts", "right"), ("", "left")):
        processes.add_column(name, justify="right" if how == "right" else "left", overflow="fold")
    for row in look.rows:
        pid = Text("down", style="bold red") if row.pid is None else Text(str(row.pid))
        processes.add_row(Text(row.name), pid, Text(str(row.restarts)), Text(row.doing))
    figures = Table.grid(padding=(0, 2))
    for name, value in look.figures:
        figures.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(look.title, style="bold"), processes, Text(""), figures]
    return Group(*parts, *(Text(each, style="dim") for each in notes))


def tell(whole: Whole) -> None:
    """Print it."""
    if json_asked():
        print_json({name: value for name, value in vars(whole).items() if name != "windows"})
        return
    print(f"\n{whole.seconds:,.0f} s; all processes have ended.")
    _tell_rates(whole)
    if whole.traffic:
        _tell_traffic(whole.traffic)
    restarts = {name: count for name, count in whole.restarts.items() if count}
    if restarts:
        print("restarts: " + ", ".join(f"{name} {count}" for name, count in restarts.items()))


def _tell_rates(whole: Whole) -> None:
    rows = [
        (when, model, *(_percent_telling(rates[key]) for key in ("ctr", "expected_ctr", "best_ctr")))
        for when, models in (
            (f"{min(SETTLED_S, whole.change_at):.0f} s before the change", whole.before),
            ("at the end", whole.last),
        )
        for model, rates in models.items()
        if rates["shown"]
    ]
    if rows:
        print_table(("", "model", "CTR", "expected", "best possible"), rows)


def _tell_traffic(traffic: dict[str, Any]) -> None:
    feedback, failures = traffic["feedback"], traffic["failures"]
    print(f"click to weight in serving: {fresh(traffic['freshness'])}, of {traffic['freshness']['n']:,}")
    print(
        f"{feedback['clicks']:,} clicks and {feedback['conversions']:,} conversions reported; failed calls: "
        + (", ".join(f"{name} {count:,}" for name, count in failures.items()) or "none")
        + f"; lost visits {traffic['lost_visits']:,}"
    )


def _percent_telling(rate: float | None) -> str:
    return "—" if rate is None else f"{100 * rate:.2f} %"
