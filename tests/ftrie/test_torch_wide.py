"""`examples/torch_wide.py`: a model trained in PyTorch, published, and served with the same scores."""

from __future__ import annotations

import csv
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ftrie.api.client import Client
from model_store.store import Store
from tests.integration.processes import ROOT, ftrie, serving

if find_spec("torch") is None:  # it is imported by processes of their own
    pytest.skip("needs PyTorch: make torch, or pip install 'ftrie[torch]'", allow_module_level=True)

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
item = "brand"
[fields]
brand = { side = "item" }
age = { side = "user" }
size = { side = "item", kind = "number" }
[[crosses]]
fields = ["brand", "age"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["brand*age"] }
[learner]
alpha = 0.3
l1 = 0.2
l2 = 0.4
"""


def example(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/torch_wide.py", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # tests run in parallel
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def printed_scores(output: str) -> list[tuple[float, float]]:
    """The scores of the first rows: PyTorch's, and those of the published model."""
    cells = [line.split() for line in output.splitlines()]
    shown = [line for line in cells if len(line) == 3 and line[0] in tuple("12345")]
    return [(float(line[1]), float(line[2])) for line in shown]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    lines = ["click,importance,brand,age,size"]
    for _ in range(600):
        age = random.integers(5)
        click = int(random.random() < 0.2 + 0.1 * age)
        weight, brand = random.uniform(0.5, 2), random.integers(8)
        lines.append(f"{click},{weight:.3f},b{brand},a{age},{random.normal():.3f}")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "spec.toml").write_text(SPEC)
    return path


def test_row_by_row_it_publishes_the_model_of_ftrie_train(log: Path, store: Store, store_url: str) -> None:
    spec = log.with_name("spec.toml")
    done = example(log, "--spec", spec, "--store", store_url, "--variant", "plain", "--batch", "1")
    assert done.returncode == 0, done.stderr
    assert "shop version 1 is active" in done.stdout
    spec.write_text(SPEC[: SPEC.index("[[crosses]]")] + SPEC[SPEC.index("[learner]") :])  # of it alone
    ftrie("train", spec, log, "--store", store_url, "--publish")
    ours, theirs = (store.model("shop").materialise(version) for version in (1, 2))
    assert list(ours.spec.variants) == ["plain"]
    assert [ours.key(row) for row in range(ours.rows)] == [theirs.key(row) for row in range(theirs.rows)]
    assert ours.weight == pytest.approx(theirs.weight, abs=1e-6)
    assert ours.rate == pytest.approx(theirs.rate, rel=1e-5)
    assert ours.rows > 10


def test_a_server_answers_the_scores_of_pytorch(log: Path, store_url: str) -> None:
    done = example(log, "--spec", log.with_name("spec.toml"), "--store", store_url, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    shown = printed_scores(done.stdout)
    assert len(shown) == 5
    with log.open() as file:
        rows = list(csv.DictReader(file))
    with serving("shop", store_url) as address, Client(address, timeout_s=20) as client:
        for row, (ours, published) in zip(rows, shown, strict=False):
            item = {"brand": row["brand"], "size": float(row["size"])}
            answer = client.rank("shop", items={"it": item}, user={"age": row["age"]})
            assert answer.items[0].score == pytest.approx(ours, abs=2e-5)
            assert answer.items[0].score == pytest.approx(published, abs=2e-5)


def test_bad_input_is_an_error_without_a_traceback(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log.parent)
    ogd = SPEC.replace("alpha", 'algorithm = "ogd"\nalpha').replace("l1 = 0.2\nl2 = 0.4\n", "")
    Path("ogd.toml").write_text(ogd)
    Path("empty.csv").write_text(log.read_text().splitlines()[0] + "\n")
    main = runpy.run_path(str(ROOT / "examples" / "torch_wide.py"))["main"]
    for words, code, message in (
        ("missing.csv", 3, "missing.csv"),
        ("log.csv --spec missing.toml", 2, "missing.toml"),
        ("log.csv --variant none", 2, "--variant: no variant 'none'; the spec has: base, plain"),
        ("log.csv --spec ogd.toml", 2, 'the spec has algorithm = "ogd"; FTRLProximal needs "ftrl"'),
        (f"log.csv --spec {ROOT}/examples/avazu.toml", 2, "no column"),
        ("log.csv --store nonsense", 5, "nonsense"),
        ("empty.csv", 3, "no row to learn from in "),
        ("log.csv --batch 0", 2, "--batch and --epochs must be 1 or more"),
    ):
        try:
            ended = main(["--spec", "spec.toml", *words.split()])
        except SystemExit as wrong_usage:
            ended = wrong_usage.code
        assert (ended, message in capsys.readouterr().err) == (code, True), words
