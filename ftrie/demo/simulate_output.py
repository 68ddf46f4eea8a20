"""How traffic is told: a line for each window and a table at the end, or JSON lines. Nothing here counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrie.demo.figures import Tally
from ftrie.demo.traffic import Window
from ftrie.terminal import json_asked, print_json, print_table


def tell_window(window: Window, model: str) -> None:
    """One line."""
    if json_asked():
        print_json({"event": "window", **window.as_json()})
    else:
        print(line(window, model), flush=True)


def tell_whole(window: Window, model: str, addresses: int) -> None:
    """What it all came to."""
    if json_asked():
        print_json({"event": "summary", "servers": addresses, **window.as_json()})
        return
    figures, sent = window.figures, window.sent
    print(f"\n{figures.visits:,} visits in {window.seconds:.0f} s of {addresses} servers.")
    columns = (
        "model",
        "visits",
        "shown",
        "clicks",
        "CTR",
        "expected",
        "best",
        "log-loss",
        "truth",
        "version",
    )
    print_table(columns, [_row(name, window, tally) for name, tally in sorted(figures.models.items())])
    print(
        f"feedback: {sent.clicks:,} clicks and {sent.conversions:,} conversions acknowledged, "
        f"{sent.duplicates:,} of them twice, {sent.rejected:,} rejected, {sent.unsent:,} not taken, "
        f"{sent.to_come:,} still to come"
    )
    print(f"click to weight: {_fresh(window.fresh)}")
    print(
        f"failed calls: {_counts(figures.failures)}; feedback: {_counts(sent.failures)}; "
        f"lost visits {figures.lost:,}; degraded answers {figures.degraded:,}"
    )


def line(window: Window, model: str) -> str:
    """A window on one line: what differs from a quiet run is said only where it does."""
    figures = window.figures
    tally = figures.models.get(model, Tally())
    rates = tally.rates()
    parts = [
        f"{window.second:6.0f} s",
        f"{figures.visits / window.seconds:4.0f} visits/s" if window.seconds else "",
        f"CTR {_percent(rates['ctr'])} (expected {_percent(rates['expected_ctr'])}, "
        f"best {_percent(rates['best_ctr'])})",
        *(
            f"{name} {_percent(other.rates()['expected_ctr'])}"
            for name, other in sorted(figures.models.items())
            if name != model
        ),
        f"log-loss {_decimal(rates['logloss'])} (truth {_decimal(rates['truth_logloss'])})",
        f"version {figures.versions.get(model, '—')}",
        f"click to weight {_fresh(window.fresh)}" if window.fresh["n"] else "",
        f"degraded {figures.degraded:,}" if figures.degraded else "",
        f"failed {_counts(figures.failures)}" if figures.failures else "",
        f"lost {figures.lost:,}" if figures.lost else "",
    ]
    return " · ".join(part for part in parts if part)


def _row(name: str, window: Window, tally: Tally) -> tuple[Any, ...]:
    rates = tally.rates()
    shown = (_percent(rates[key]) for key in ("ctr", "expected_ctr", "best_ctr"))
    losses = (rates["logloss"], rates["truth_logloss"])
    return name, tally.visits, tally.shown, tally.clicks, *shown, *losses, window.figures.versions.get(name)


def _percent(rate: float | None) -> str:
    return "—" if rate is None else f"{100 * rate:.2f} %"


def _decimal(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _fresh(fresh: Mapping[str, float | int | None]) -> str:
    if not fresh["n"]:
        return "not measured"
    return f"p50 {fresh['p50']:.2f} s, p95 {fresh['p95']:.2f} s, max {fresh['max']:.2f} s of {fresh['n']:,}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
