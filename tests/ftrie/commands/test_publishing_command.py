"""`ftrie train --publish-every` as a user types it: whole processes, killed and resumed, against a real store."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.store import Store
from tests.ftrie.conftest import Say
from tests.matrix import slow_except
from tests.trainer.runs.children import start
from tests.trainer.runs.runs import Training, rows, write_log, write_spec


def write_logs(folder: Path, count: int = 1500) -> list[Path]:
    return [write_log(folder / f"{seed}.csv", rows(count, seed)) for seed in (1, 2)]


def report_of(training: Training) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((training.folder / "report.json").read_text())
    return report


@pytest.mark.parametrize("name", slow_except(["ftrl"], ["ftrl", "own values in 16 bits by counts"]))
def test_the_last_version_is_the_model_without_publishing_and_each_before_can_be_put_together(
    tmp_path: Path, store: Store, store_url: str, name: str
) -> None:
    logs, spec = write_logs(tmp_path), write_spec(tmp_path / "shop.toml", name)
    alone, training = Training(tmp_path / "alone", spec), Training(tmp_path / "run", spec)
    assert run(alone.arguments(logs)) == 0
    flags = ["--publish-every=100", "--snapshot-every=4", "--publish-threshold=0.05", "--keep=0"]
    arguments = training.arguments(logs, f"--store={store_url}", *flags, "--batch-bytes=4000", "--activate")
    assert run(arguments) == 0
    assert training.outcome().model == alone.outcome().model
    assert training.outcome().metrics == alone.outcome().metrics
    shop, report = store.model("shop"), report_of(training)
    listed = shop.versions()
    kinds = [info.kind for info in listed]
    assert report["version"] == shop.active() == listed[-1].version
    counts = {"snapshots": kinds.count("snapshot"), "deltas": kinds.count("delta")}
    assert report["published"] == {**counts, "failed": 0, "refused": 0, "held": 0}
    assert len(listed) > 15
    for info in listed:
        assert shop.materialise(info.version).content == info.content
    last = shop.materialise(listed[-1].version)
    assert last.to_bytes() == Artefact.read(training.folder / "save.arrow").to_bytes()


@pytest.mark.slow
def test_a_state_goes_on_whether_or_not_the_run_before_it_published(
    tmp_path: Path, store: Store, store_url: str
) -> None:
    """A q2.13 table has another slot where it is published from."""
    logs, spec = write_logs(tmp_path), write_spec(tmp_path / "shop.toml", "own values in 16 bits by counts")
    spec.write_text(spec.read_text().replace('values = "per_variant"', 'values = "single"'))
    whole = Training(tmp_path / "whole", spec)
    assert run(whole.arguments(logs)) == 0
    publishing = [f"--store={store_url}", "--publish-every=200"]
    for number, (first, second) in enumerate([(publishing, []), ([], publishing)]):
        training = Training(tmp_path / str(number), spec)
        assert run(training.keeping(logs[:1], *first)) == 0
        assert run(training.keeping(logs, *second)) == 0
        assert training.outcome().model == whole.outcome().model


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_a_snapshot(tmp_path: Path, store: Store, store_url: str) -> None:
    """kill -9 at random moments: whatever the store holds then can be put together, and the end is as without kills."""
    draw = random.Random(5)
    logs, spec = write_logs(tmp_path, 1500), write_spec(tmp_path / "shop.toml")
    whole = Training(tmp_path / "whole", spec)
    assert run(whole.arguments(logs)) == 0
    shop = store.model("shop")
    training, said = Training(tmp_path / "run", spec), tmp_path / "said"
    flags = [f"--store={store_url}", "--activate", "--publish-every=60", "--snapshot-every=3", "--keep=0"]
    arguments = training.keeping(logs, *flags, every="150", batch_bytes=4000)
    known: set[int] = set()
    kills = 0
    while True:
        process = start(arguments, said)
        wanted = len(known) + draw.randrange(1, 6)
        while process.is_alive() and store.client.zcard(shop.keys.versions) < wanted:
            process.join(draw.uniform(0.0, 0.01))
        process.kill()
        process.join()
        listed = shop.versions()
        new = [info for info in listed if info.version not in known]
        assert not new or new[0].kind == "snapshot"
        assert shop.active() in (None, *(info.version for info in listed))
        for info in new:
            assert shop.materialise(info.version).content == info.content
        known |= {info.version for info in listed}
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, said.read_text()
        kills += 1
    assert kills > 3
    assert training.outcome().model == whole.outcome().model
    last = shop.materialise(shop.active_or_fail())
    assert last.to_bytes() == Artefact.read(training.folder / "save.arrow").to_bytes()


def test_a_store_that_dies_at_the_end_costs_no_model(
    tmp_path: Path, store: Store, store_url: str, say: Say
) -> None:
    training = Training(tmp_path / "run", write_spec(tmp_path / "shop.toml"))
    store.client.set("ftrie:{shop}:versions", "not a sorted set")
    words = training.arguments(write_logs(tmp_path), f"--store={store_url}", "--publish-every=500")
    code, _, said = say(*words)
    assert (code, "no version could be published at" in said) == (5, True)
    assert Artefact.read(training.folder / "save.arrow").rows > 0
    assert report_of(training)["published"]["failed"] > 0


def test_flags_that_make_no_sense_are_named(tmp_path: Path, say: Say) -> None:
    training = Training(tmp_path / "run", write_spec(tmp_path / "shop.toml"))
    for flags, complaint in (
        ("--publish-every=sometimes", "a number of rows such as 100000, or a time such as 500ms, 30s"),
        ("--publish-every=100 --publish-threshold=inf", "--publish-threshold: expected a finite weight"),
        ("--publish-every=100 --publish-threshold=nan", "greater than or equal to 0"),
    ):
        code, _, err = say(*training.arguments(write_logs(tmp_path, 10), *flags.split()))
        assert (code == 0, complaint in " ".join(err.split())) == (False, True), err
