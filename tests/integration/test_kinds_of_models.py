"""Models with curves, in the JSON form, or with weights of their own for each variant: learned, published, served."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.api.client import Client
from model_store.store import Store
from tests.integration.processes import Oracle, ftrie, serving
from tests.model_store.models import SPEC_TEXT

CALIBRATED = """
[model]
name = "ads"
[input]
label = "click"
[fields]
device = {}
ad = { side = "item" }
[variants]
base = {}
plain = { without = ["device"] }
[learner]
l1 = 0.0
[calibration]
kind = "KIND"
by = "device"
"""
OWN = """
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


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def scores(model: str, store_url: str, variants: tuple[str, ...], **asked: Any) -> list[dict[str, float]]:
    with serving(model, store_url) as address, Client(address, timeout_s=20) as client:
        answers = [client.rank(variant=variant, **asked) for variant in variants]
    return [{item.id: item.score for item in answer.items} for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["power", "isotonic"])
def test_a_served_click_rate_is_the_calibrated_one(kind: str, tmp_path, store: Store, store_url) -> None:
    random, lines = np.random.default_rng(7), ["click,device,ad"]
    for _ in range(12_000):
        device, ad = random.choice(["phone", "desk"]), random.integers(8)
        click = random.random() < {"phone": 0.1, "desk": 0.3}[device] * (0.5 + ad / 8)
        lines.append(f"{int(click)},{device},{ad}")
    log = written(tmp_path / "log.csv", "\n".join(lines) + "\n")
    short = written(tmp_path / "short.csv", "\n".join(lines[:200]) + "\n")
    spec = written(tmp_path / "ads.toml", CALIBRATED.replace("KIND", kind))
    assert "no curve could be judged" in ftrie("train", spec, short, "--activate", "--store", store_url)
    assert store.model("ads").materialise(1).calibration is None
    report = json.loads(ftrie("train", spec, log, "--activate", "--store", store_url, "--json"))
    assert report["calibration"]["base"]["calibration_corrected"] == pytest.approx(1.0, abs=0.1)
    calibration = store.model("ads").materialise(report["version"]).calibration
    assert calibration is not None
    assert calibration.variants["base"].values.keys() == {b"phone", b"desk"}

    ads = {f"i{n}": {"ad": str(n)} for n in range(8)}
    with serving("ads", store_url) as address, Client(address, timeout_s=20) as client:
        for variant in ("base", "plain"):
            for device in ("phone", "desk", "watch"):
                answer = client.rank(items=ads, context={"device": device}, variant=variant)
                curve = calibration.curve(variant, device.encode())
                assert curve is not None
                for item in answer.items:
                    predicted = 1 / (1 + math.exp(-item.score))
                    assert item.ctr == pytest.approx(curve.apply(np.array([predicted]))[0], rel=1e-12)
                order = [item.score for item in answer.items]
                assert order == sorted(order, reverse=True)

    judged = json.loads(ftrie("evaluate", "ads", log, "--store", store_url, "--json"))
    shown = json.loads(ftrie("store", "inspect", "ads", "--store", store_url, "--json"))
    assert judged["variants"]["plain"]["logloss"] < judged["uncalibrated"]["plain"]["logloss"]
    assert (shown["format"], shown["calibration"]) == (2, json.loads(calibration.to_json()))
    assert f"{kind} calibration" in ftrie("store", "inspect", "ads", "--store", store_url)


@pytest.mark.slow
def test_a_model_in_the_json_form_ranks_by_its_whole_keys_and_one_of_ours_as_it_did_before(
    tmp_path: Path, store_url: str, store: Store
) -> None:
    weights = {f"P_N_T_{n}_5d3e": (-1.0) ** n / (n + 1) for n in range(50)}
    entries = [{"fid": "0", "key": key, "value": value} for key, value in weights.items()]
    file = written(tmp_path / "foreign.json", json.dumps({"list": entries, "type": "ps_cmi_ad"}))
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

    spec = written(tmp_path / "ads.toml", SPEC_TEXT + "[learner]\nl1 = 0.0\n")
    rows = [f"{n * n % 7 % 2},{n % 5},{n % 3}" for n in range(200)]
    log = written(tmp_path / "log.csv", "\n".join(["click,age,brand", *rows]) + "\n")
    ftrie("train", spec, log, "--activate", "--store", store_url)
    ftrie("store", "export", "ads", tmp_path / "ads.json", "--store", store_url)
    ftrie("store", "import", "copy", tmp_path / "ads.json", "--spec", spec, "--store", store_url)
    asked = {"items": {f"i{n}": {"brand": n} for n in range(4)}, "user": {"age": 3}}
    base, plain = scores("ads", store_url, ("base", "plain"), **asked)
    assert scores("copy", store_url, ("base", "plain"), **asked) == [base, plain] and base != plain


@pytest.mark.slow
def test_every_variant_is_served_by_the_weights_it_learned(tmp_path, store: Store, store_url) -> None:
    spec, variants = written(tmp_path / "own.toml", OWN), ("base", "plain", "bold")
    rows = [f"{int(n * n % 11 < 3)},{n % 5},{n % 4},b{n * 7 % 5}" for n in range(3000)]
    log = written(tmp_path / "log.csv", "\n".join(["click,age,hour,brand", *rows]) + "\n")
    ftrie("train", spec, log, "--activate", "--store", store_url)
    artefact, oracle = store.model("own").materialise(1), Oracle.of(store, "own", 1)
    assert artefact.weight.shape == (artefact.rows, 3)
    brands = {f"i{n}": {"brand": f"b{n}"} for n in range(5)}
    request = {"items": brands, "user": {"age": "3"}, "context": {"hour": "1"}}
    served = dict(zip(variants, scores("own", store_url, variants, **request), strict=True))
    for variant in variants:
        examples = {item: {"age": "3", "hour": "1", **features} for item, features in brands.items()}
        wanted = {item: oracle.score(example, variant) for item, example in examples.items()}
        assert served[variant] == pytest.approx(wanted, abs=1e-9)
    assert len({tuple(each.values()) for each in served.values()}) == 3

    alone = tmp_path / "bold.arrow"
    ftrie("store", "export", "own", alone, "--variant", "bold", "--store", store_url)
    ftrie("store", "import", "bold", alone, "--store", store_url)
    assert scores("bold", store_url, ("bold",), **request) == [pytest.approx(served["bold"], abs=1e-9)]
    told = json.loads(ftrie("store", "inspect", "own", "--store", store_url, "--json"))
    assert {name for key in told["top"] for name in key["weights"]} == set(variants)
