"""From a log to calibrated answers: trained, published to a real Valkey, served, evaluated, inspected."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ftrie.client.client import Client
from model_store.store import Store
from tests.integration.processes import ftrie, serving

SPEC = """
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
RATES = {"phone": 0.1, "desk": 0.3}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """12,000 impressions; ads differ, and so do devices."""
    random = np.random.default_rng(7)
    lines = ["click,device,ad"]
    for _ in range(12_000):
        device, ad = random.choice(["phone", "desk"]), random.integers(8)
        click = random.random() < RATES[device] * (0.5 + ad / 8)
        lines.append(f"{int(click)},{device},{ad}")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["power", "isotonic"])
def test_a_served_click_rate_is_the_calibrated_one(
    kind: str, log: Path, tmp_path: Path, store: Store, store_url: str
) -> None:
    spec = tmp_path / "ads.toml"
    spec.write_text(SPEC.replace("KIND", kind))
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
                scores = [item.score for item in answer.items]
                assert scores == sorted(scores, reverse=True)

    judged = json.loads(ftrie("evaluate", "ads", log, "--store", store_url, "--json"))
    shown = json.loads(ftrie("store", "inspect", "ads", "--store", store_url, "--json"))
    assert judged["variants"]["plain"]["logloss"] < judged["uncalibrated"]["plain"]["logloss"]
    assert shown["calibration"] == json.loads(calibration.to_json())
    assert shown["format"] == 2
    assert f"{kind} calibration" in ftrie("store", "inspect", "ads", "--store", store_url)


@pytest.mark.slow
def test_a_log_too_short_for_curves_is_published_without_and_says_so(
    log: Path, tmp_path: Path, store: Store, store_url: str
) -> None:
    spec, short = tmp_path / "ads.toml", tmp_path / "short.csv"
    spec.write_text(SPEC.replace("KIND", "power"))
    short.write_text("".join(log.read_text().splitlines(keepends=True)[:200]))
    said = ftrie("train", spec, short, "--activate", "--store", store_url)
    assert "no curve could be judged" in said
    assert store.model("ads").materialise(1).calibration is None
