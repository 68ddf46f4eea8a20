"""What the screen shows of a running loop, made of what its processes say of themselves. It starts and ends nothing."""

from __future__ import annotations

from typing import Any

from ftrie.simulation.live.asked import SERVERS, Asked
from ftrie.simulation.live.crew import Crew
from ftrie.simulation.live.screen import Look, Row
from ftrie.simulation.live.seen import Rates, Windows
from ftrie.simulation.market import MODEL

RECENT_S = 10.0


def look_at(asked: Asked, crew: Crew, windows: Windows) -> Look:
    """This moment."""
    last = (windows.all() or [{}])[-1]
    now = windows.between(windows.second - RECENT_S, windows.second)
    title = f"ftrie live · {crew.second:,.0f} s"
    title += f" of {asked.seconds:,.0f} s" if asked.seconds is not None else " · Ctrl-C ends it"
    return Look(title, _rows(crew, last), _figures(asked, windows, last, now), _line(crew, last, now))


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
    asked: Asked, windows: Windows, last: dict[str, Any], now: dict[str, Rates]
) -> list[tuple[str, str]]:
    changed = windows.second >= asked.change_at
    figures = [
        (f"CTR of the loop, last {RECENT_S:.0f} s", _rates(now["loop"])),
        *([("CTR of the frozen model", _rates(now["frozen"]))] if asked.frozen else []),
        ("best possible CTR", _percent(now["loop"].as_json()["best_ctr"])),
        ("click to weight in serving", fresh(last.get("freshness", {}))),
        (
            "tastes",
            "have changed" if changed else f"change in {max(0.0, asked.change_at - windows.second):.0f} s",
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
