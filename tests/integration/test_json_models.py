"""Models in the JSON form: one made elsewhere is served by its whole keys, one of ours ranks as it did before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.client.client import Client
from model_store.store import Store
from tests.integration.processes import ftrie, serving
from tests.model_store.models import SPEC_TEXT

SPEC = SPEC_TEXT + "[learner]\nl1 = 0.0\n"


@pytest.mark.slow
def test_a_model_made_elsewhere_ranks_items_by_their_whole_keys(
    tmp_path: Path, store: Store, store_url: str
) -> None:
    weights = {f"P_N_T_{n}_5d3e": (-1.0) ** n / (n + 1) for n in range(50)}
    entries = [{"fid": "0", "key": key, "value": value} for key, value in weights.items()]
    file = tmp_path / "foreign.json"
    file.write_text(json.dumps({"list": entries, "type": "ps_cmi_ad"}))
    ftrie("store", "import", "foreign", file, "--store", store_url)
    keys = list(weights)
    with serving("foreign", store_url) as address, Client(address, timeout_s=20) as client:
        for name in ("raw_keys", "item_raw"):
            items = {f"i{n}": {name: [keys[n], keys[n + 20], "unheard of"]} for n in range(10)}
            answer = client.rank(items=items, context={"raw_keys": keys[45:]})
            request = sum(weights[key] for key in keys[45:])
            wanted = {f"i{n}": request + weights[keys[n]] + weights[keys[n + 20]] for n in range(10)}
            assert {item.id: item.score for item in answer.items} == pytest.approx(wanted, abs=1e-6)
            assert (answer.unknown_fields, answer.unknown_items) == ((), ())


@pytest.mark.slow
def test_a_trained_model_ranks_the_same_after_a_trip_through_json(
    tmp_path: Path, store: Store, store_url: str
) -> None:
    spec, log, file = tmp_path / "ads.toml", tmp_path / "log.csv", tmp_path / "ads.json"
    spec.write_text(SPEC)
    rows = [f"{n * n % 7 % 2},{n % 5},{n % 3}" for n in range(200)]
    log.write_text("\n".join(["click,age,brand", *rows]) + "\n")
    ftrie("train", spec, log, "--activate", "--store", store_url)
    ftrie("store", "export", "ads", file, "--store", store_url)
    ftrie("store", "import", "copy", file, "--spec", spec, "--store", store_url)
    answers = []
    for model in ("ads", "copy"):
        with serving(model, store_url) as address, Client(address, timeout_s=20) as client:
            items = {f"i{n}": {"brand": n} for n in range(4)}
            answers.append(
                [
                    [
                        (item.id, item.score)
                        for item in client.rank(items=items, user={"age": 3}, variant=v).items
                    ]
                    for v in ("base", "plain")
                ]
            )
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]
