"""What `ftrie replay` prints: a few lines and tables, or the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from model_store.terminal import note, print_json, print_table
from model_store.whole_file import write_whole
from trainer.replaying.asked import Done
from trainer.replaying.estimates import Estimate, Z
from trainer.replaying.estimating import Estimates
from trainer.replaying.off_policy import PolicyValue
from trainer.replaying.replayed import Replayed

_A_TIME = "through_us"
_MOST_PLACES, _MOST_REASONS = 12, 5


def show(done: Done, report: Path | None, as_json: bool) -> None:
    """Print what was done, and write it to `report`. Raises OutputError."""
    answer = done.as_dict()
    if report is not None:
        write_whole(report, (json.dumps(answer, indent=2, allow_nan=False) + "\n").encode())
    if as_json:
        print_json(answer)
        return
    _show_replay(done)
    if done.estimates is not None:
        _show_estimates(done.estimates)


def _show_replay(done: Done) -> None:
    replayed = done.replayed
    rate = replayed.examples / replayed.seconds if replayed.seconds else 0.0
    faster = f"; {replayed.speed:,.0f} × real time ({_span(replayed)})" if replayed.speed else ""
    print(
        f"{done.name}: {replayed.examples:,} examples in {replayed.seconds:.1f} s ({rate:,.0f}/s), "
        f"{replayed.rejected:,} rejected{faster}"
    )
    for name, counts in (("events", replayed.counts), ("join", replayed.join)):
        told = [
            f"{count:,} {what.replace('_', ' ')}"
            for what, count in counts.items()
            if count and what != _A_TIME
        ]
        if told:
            print(f"{name}: {', '.join(told)}")
    if replayed.reasons:
        reasons = list(replayed.reasons.items())[:_MOST_REASONS]
        print(f"rejected for: {', '.join(f'{reason} ({count:,})' for reason, count in reasons)}")
    version = f", version {done.version}" if done.version is not None else ""
    print(f"model: {replayed.model.table.used:,} keys, SHA-256 {done.sha256}{version}")
    print_table(
        ["variant", "log-loss", "AUC", "calibration", "normalized entropy"],
        [
            [name, m.logloss, m.auc, m.calibration, m.normalized_entropy]
            for name, m in replayed.model.metrics.summary().items()
        ],
    )


def _span(replayed: Replayed) -> str:
    seconds = replayed.span_s or 0.0
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit} of log"
    return f"{seconds:,.1f} s of log"


def _show_estimates(found: Estimates) -> None:
    what = "one item a row" if found.decision == "row" else f"lists of {found.size:.1f} items on average"
    print(
        f"\nclick rate per item shown, 95 % intervals; {found.rows:,} rows of {found.requests:,} requests, {what}"
        + (f", {found.candidates:,} candidates" if found.candidates else "")
        + f"; weights clipped at {found.limit:,.4g}"
    )
    print_table(
        ["policy", "SNIPS", "normal", "bootstrap", "IPS", "clipped", "to logged"],
        [_estimates_of(policy) for policy in found.policies],
    )
    _show_support(found)
    _show_by_position(found)
    for text in found.notes:
        note(text)
    for policy in found.policies:
        for text in policy.warnings:
            note(f"{policy.name}: {text}")


def _show_support(found: Estimates) -> None:
    print()
    print_table(
        [
            "policy",
            "matched",
            "effective rows",
            "effective clicks",
            "mean weight",
            "largest",
            "over the clip",
        ],
        [_support_of(policy) for policy in found.policies],
    )


def _show_by_position(found: Estimates) -> None:
    places = list(dict.fromkeys(place for policy in found.policies for place in policy.positions))
    if 1 < len(places) <= _MOST_PLACES:
        print()
        print_table(
            ["SNIPS by position", *places],
            [
                [p.name, *(_with_error(p.positions[place]["snips"]) for place in places)]
                for p in found.policies
            ],
        )


def _estimates_of(policy: PolicyValue) -> list[object]:
    snips, ips, clipped = (policy.estimates[name] for name in ("snips", "ips", "clipped"))
    return [
        policy.name,
        snips.value,
        _interval(snips.low, snips.high),
        _interval(snips.bootstrap_low, snips.bootstrap_high),
        _with_error(ips),
        _with_error(clipped),
        _with_error(policy.difference, sign="+"),
    ]


def _support_of(policy: PolicyValue) -> list[object]:
    support = policy.support
    return [
        policy.name,
        f"{support.matched:.1%}",
        round(support.ess),
        round(support.clicks, 1),
        support.mean,
        support.largest,
        f"{support.clipped:.1%}",
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "—" if low is None or high is None else f"{low:.5f} … {high:.5f}"


def _with_error(estimate: Estimate, sign: str = "") -> str:
    if estimate.value is None:
        return "—"
    error = f" ± {Z * estimate.error:.5f}" if estimate.error is not None else ""
    return f"{estimate.value:{sign}.5f}{error}"
