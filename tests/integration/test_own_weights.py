"""Variants with their own weights, as a user runs them: learned in one pass, published, served, one taken out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving

SPEC = """
[model]
name = "own"
[input]
label = "click"
[fields]
age = { side = "user" }
hour = {}
brand = { side = "item" }
[[crosses]]
fields = ["age", "brand"]
[variants]
base = { share = 0.5 }
plain = { share = 0.3, without = ["age*brand"] }
bold = { share = 0.2, alpha = 0.5, l1 = 0.1 }
[learner]
values = "per_variant"
"""
VARIANTS = ("base", "plain", "bold")
BRANDS = {f"i{n}": {"brand": f"b{n}"} for n in range(5)}


@pytest.mark.slow
def test_every_variant_is_served_by_the_weights_it_learned(
    tmp_path: Path, store: Store, store_url: str
) -> None:
    spec, log = tmp_path / "own.toml", tmp_path / "log.csv"
    spec.write_text(SPEC)
    rows = [f"{int(n * n % 11 < 3)},{n % 5},{n % 4},b{n * 7 % 5}" for n in range(3000)]
    log.write_text("\n".join(["click,age,hour,brand", *rows]) + "\n")
    ftrie("train", spec, log, "--activate", "--store", store_url)
    artefact, oracle = store.model("own").materialise(1), Oracle.of(store, "own", 1)
    assert artefact.weight.shape == (artefact.rows, 3)

    request = {"user": {"age": "3"}, "context": {"hour": "1"}}
    served = {}
    with serving("own", store_url) as address, Client(address, timeout_s=20) as client:
        for variant in VARIANTS:
            answer = client.rank(items=BRANDS, variant=variant, **request)  # type: ignore[arg-type]
            served[variant] = {item.id: item.score for item in answer.items}
    for variant in VARIANTS:
        examples = {item: {"age": "3", "hour": "1", **features} for item, features in BRANDS.items()}
        wanted = {item: oracle.score(example, variant) for item, example in examples.items()}
        assert served[variant] == pytest.approx(wanted, abs=1e-9)
    assert len({tuple(scores.values()) for scores in served.values()}) == 3

    alone = tmp_path / "bold.arrow"
    ftrie("store", "export", "own", alone, "--variant", "bold", "--store", store_url)
    ftrie("store", "import", "bold", alone, "--store", store_url)
    with serving("bold", store_url) as address, Client(address, timeout_s=20) as client:
        answer = client.rank(items=BRANDS, **request)  # type: ignore[arg-type]
    assert answer.variant == "bold"
    assert {item.id: item.score for item in answer.items} == pytest.approx(served["bold"], abs=1e-9)
    told = json.loads(ftrie("store", "inspect", "own", "--store", store_url, "--json"))
    assert {name for key in told["top"] for name in key["weights"]} == set(VARIANTS)
