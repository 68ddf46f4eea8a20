"""What came of `ftrie live`, as a few lines or as one JSON answer. Nothing here counts."""

from __future__ import annotations

from typing import Any

from ftrie.simulation.live.live import SETTLED_S, Whole
from ftrie.simulation.live.looking import fresh
from model_store.terminal import json_asked, print_json, print_table


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
        (when, model, *(_percent(rates[key]) for key in ("ctr", "expected_ctr", "best_ctr")))
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


def _percent(rate: float | None) -> str:
    return "—" if rate is None else f"{100 * rate:.2f} %"
