"""What a trainer counts of its model's answers by variant: in its status, after a restart, and as metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftrie.cli import run
from tests.trainer.runs.test_warnings import a_status
from trainer.runs.status import StatusCollector, VariantOutcome

SPEC = """
[model]
name = "m"
[input]
label = "click"
[fields]
site = {}
[variants]
base = { share = 0.5 }
plain = { share = 0.5 }
"""
START_S = 1_700_000_000


def impression(number: int, variant: str | None, *ctrs: float | None) -> dict[str, Any]:
    items = [{"id": str(place), "ctr": ctr, "features": {"site": "x"}} for place, ctr in enumerate(ctrs)]
    named = {} if variant is None else {"version": 1, "variant": variant}
    return {"request_id": f"r{number}", "ts": START_S + number, **named, "items": items}


def feedback(number: int, event: str = "click") -> dict[str, Any]:
    return {"request_id": f"r{number}", "ts": START_S + number + 1, "item": "0", "event": event}


FIRST = [
    impression(0, "base", 0.5, 0.25), feedback(0),
    impression(10, "base", 0.25), impression(20, "plain", 0.5, None),
    impression(30, "unheard of", 0.5), feedback(30), feedback(30, "conversion"),
    impression(40, None, 0.5),
]  # fmt: skip
THEN = [impression(5000, "plain", 0.25), feedback(5000), impression(5010, "base", 0.5, 0.5)]


@pytest.fixture
def outcomes(tmp_path, store_url, capsys) -> Callable[..., dict[str, VariantOutcome]]:
    """Learn a source with `ftrie trainer --once`; what the last line of status says of outcomes."""
    (tmp_path / "m.toml").write_text(SPEC)

    def learned(source: str, state: str = "state") -> dict[str, VariantOutcome]:
        flags = ["--from", source, "--store", store_url, "--checkpoint", str(tmp_path / state), "--force"]
        assert run(["trainer", str(tmp_path / "m.toml"), *flags, "--once", "--json"]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        return {name: VariantOutcome(**each) for name, each in last["outcomes"].items()}

    return learned


def test_outcomes_are_counted_by_variant_and_go_on_after_a_restart(tmp_path, outcomes):
    log, rows = tmp_path / "events.jsonl", tmp_path / "a.csv"
    log.write_text("".join(json.dumps(event) + "\n" for event in FIRST))
    assert outcomes(str(log)) == {
        "base": VariantOutcome(2, 3, 1, 0, ctr=1 / 3, calibration=1.0),
        "plain": VariantOutcome(1, 2, 0, 0, ctr=0.0, calibration=None),
        "": VariantOutcome(2, 2, 1, 1, ctr=0.5, calibration=1.0),
    }
    with log.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in THEN)
    assert outcomes(str(log)) == {
        "base": VariantOutcome(3, 5, 1, 0, ctr=0.2, calibration=2.0),
        "plain": VariantOutcome(2, 3, 1, 0, ctr=1 / 3, calibration=None),  # an item without ctr
        "": VariantOutcome(2, 2, 1, 1, ctr=0.5, calibration=1.0),
    }
    rows.write_text("click,site\n1,x\n0,y\n")
    assert outcomes(f"rows={rows}", "rows") == {}  # labelled rows have none


def test_the_metrics_have_a_series_for_each_variant_and_tell_of_models_that_diverge_or_are_withheld() -> None:
    collector = StatusCollector()
    collector.show(
        a_status(
            normalized_entropy=6.8,
            withheld="too many",
            outcomes={
                "base": VariantOutcome(4, 8, 2, 1, ctr=0.25, calibration=1.5),
                "plain": VariantOutcome(0, 0, 0, 0, ctr=None, calibration=None),
            },
        )
    )
    found = {
        (sample.name.removeprefix("ftrie_trainer_"), sample.labels["variant"]): sample.value
        for family in collector.collect()
        for sample in family.samples
        if "variant" in sample.labels
    }
    counts = ("requests_total", "impressions_total", "clicks_total", "conversions_total")
    assert found == {
        **{(name, "base"): value for name, value in zip(counts, (4, 8, 2, 1), strict=True)},
        **{(name, "plain"): 0 for name in counts},
        ("ctr", "base"): 0.25,
        ("calibration", "base"): 1.5,
    }
    samples = {sample.name: sample.value for family in collector.collect() for sample in family.samples}
    assert samples["ftrie_trainer_normalized_entropy"] == 6.8
    assert samples["ftrie_trainer_withheld"] == 1
