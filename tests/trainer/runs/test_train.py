"""Whole training runs: what they report, what they refuse, and what never changes their result."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, StoreError
from model_store.store import Store
from tests.trainer.learn.test_model_warnings import write_log
from tests.waiting import eventually
from tests.worlds import SPEC, shop_rows

ROWS = shop_rows(300, 1)
UNCLICKED, BAD = ([row | {"click": click} for row in ROWS[:20]] for click in (b"0", b"?"))


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def learn(tmp_path: Path, spec_file: Path) -> Callable[..., int]:
    """Learn rows, written as log.csv, with flags; those named are written to files of their names."""

    def learned(rows: Sequence[dict[str, bytes]], *flags: str, extra: bytes = b"", **outputs: str) -> int:
        log = write_log(tmp_path / "log.csv", rows)
        with open(log, "ab") as file:
            file.write(extra)
        written = [f"--{name}={tmp_path / file}" for name, file in outputs.items()]
        return run(["train", str(spec_file), log, *flags, *written])

    return learned


def test_the_command_saves_reports_and_lists_bad_rows(tmp_path, learn: Callable[..., int], capsys) -> None:
    rows = [*ROWS[:7], ROWS[7] | {"click": b"yes"}, *ROWS[8:]]
    assert learn(rows, extra=b"1,2\n", save="model.arrow", report="report.json", rejects="rejects.jsonl") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == {
        "rows", "rejected", "seconds", "rows_per_second", "keys", "nonzero", "version", "variants",
        "slices", "subsampled", "resumed_requests", "cut_requests", "evicted", "checkpoints", "calibration",
        "memory", "collisions", "reasons", "published", "labels", "warnings",
        "passes", "converged",
    }  # fmt: skip
    assert (report["rows"], report["rejected"], report["version"]) == (299, 2, None)
    assert list(report["variants"]) == ["base", "plain", "lean"]
    assert set(report["variants"]["base"]) == {
        "logloss", "auc", "calibration", "normalized_entropy", "mean_prediction"
    }  # fmt: skip
    assert set(report["variants"]["plain"]["difference"]) == {"logloss", "low", "high", "auc_loss_percent"}
    assert report["slices"] == {}
    # With exact keys: how likely a collision of 64 bits was.
    assert report["collisions"]["rate"] is None
    assert report["collisions"]["probability"] == pytest.approx(report["keys"] ** 2 / 2**65, rel=0.05)
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    log = str(tmp_path / "log.csv")
    assert [(reject["file"], reject["line"]) for reject in rejects] == [(log, 9), (log, 302)]
    assert rejects[0]["reason"].startswith("click: got 'yes', expected 1, 0, -1, true or false;")
    assert Artefact.read(tmp_path / "model.arrow").rows == report["nonzero"]
    assert "299 rows" in capsys.readouterr().out


def test_strict_stops_at_the_first_bad_row(tmp_path, learn: Callable[..., int], capsys) -> None:
    rows = [*ROWS[:3], ROWS[3] | {"click": b""}, *ROWS[4:20]]
    assert learn(rows, "--strict", save="m.arrow") == InputError.exit_code
    said = f"{tmp_path / 'log.csv'}:5: click: got '', expected 1, 0, -1, true or false"
    assert said in capsys.readouterr().err


def test_a_log_that_breaks_off_keeps_what_was_learned_and_publishes_nothing(
    tmp_path: Path, spec_file: Path, store_url: str, store: Store
) -> None:
    whole = gzip.compress(Path(write_log(tmp_path / "log.csv", ROWS * 20)).read_bytes())
    broken, saved, report = (tmp_path / name for name in ("broken.csv.gz", "m.arrow", "r.json"))
    broken.write_bytes(whole[: len(whole) * 3 // 4])
    command = ["train", str(spec_file), str(broken), "--store", store_url, "--activate", "--batch-bytes=9000"]
    assert run([*command, "--save", str(saved), "--report", str(report)]) == InputError.exit_code
    assert json.loads(report.read_text())["rows"] > 1000 and Artefact.read(saved).rows > 0
    assert store.model("shop").versions() == []


def test_activate_publishes_and_activates(tmp_path, learn, store_url, store):
    assert learn(ROWS, "--store", store_url, "--activate", report="r.json") == 0
    assert json.loads((tmp_path / "r.json").read_text())["version"] == store.model("shop").active() == 1
    assert learn(ROWS, "--store", store_url, "--publish") == 0 and store.model("shop").active() == 1
    assert [info.version for info in store.model("shop").versions()] == [1, 2]


@pytest.mark.slow
def test_a_model_that_cannot_be_published_is_kept(tmp_path: Path, spec_file: Path) -> None:
    url = f"embedded:{tmp_path}/s"
    log = Path(write_log(tmp_path / "log.csv", ROWS)).read_bytes()
    command = [sys.executable, "-m", "ftrie", "train", str(spec_file), "-", "--store", url, "--activate"]
    command += ["--rejects", str(tmp_path / "rejects")]
    with Store.open(url) as store:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        # It is made when the store is open and learning begins.
        eventually((tmp_path / "rejects").exists, "the file of rejects", 120)
        os.kill(store.client.info("server")["process_id"], signal.SIGKILL)
        _, said = process.communicate(log, timeout=60)
    assert process.returncode == StoreError.exit_code
    assert b"ftrie store import shop shop.unpublished.arrow" in said
    assert Artefact.read(tmp_path / "shop.unpublished.arrow").rows > 0


def test_a_model_of_no_rows_replaces_no_saved_model(tmp_path: Path, learn: Callable[..., int]) -> None:
    assert learn(ROWS, save="m.arrow") == 0
    before = (tmp_path / "m.arrow").read_bytes()
    for flags in ([], ["--strict"]):
        assert learn(BAD, *flags, save="m.arrow") == InputError.exit_code
        assert (tmp_path / "m.arrow").read_bytes() == before


# VmHWM and not getrusage, whose ru_maxrss a child takes over from the process that started it.
PEAK = """
import sys
from ftrie.cli import run
assert run(["train", sys.argv[1], sys.argv[2], "--save", sys.argv[2] + ".arrow"]) == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path, spec_file: Path, learn: Callable[..., int]) -> None:
    assert learn(ROWS) == 0  # compiling kernels takes memory too
    peaks = []
    for times in (
        2,
        8,
    ):  # the shorter one is longer than what is read ahead, of which a busy machine has more
        log = write_log(tmp_path / f"{times}.csv", shop_rows(4000, 5) * 10 * times)
        command = [sys.executable, "-c", PEAK, str(spec_file), log]
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(finished.stdout.splitlines()[-1]))
    assert peaks[1] <= 1.10 * peaks[0], peaks


def test_outputs_that_cannot_be_written_are_known_before_anything_is_learned(tmp_path, learn, capsys):
    for name, path in (("save", tmp_path / "none" / "m.arrow"), ("report", tmp_path)):
        assert learn(ROWS, **{name: str(path)}) == 1
        error = capsys.readouterr().err
        assert f"cannot write {path}" in error and "learning" not in error
    assert learn(ROWS, save="m.json") == 2  # a name of another format


def test_a_log_of_which_no_row_is_good_or_drawn_is_never_published(
    tmp_path: Path, spec_file: Path, learn: Callable[..., int], store: Store, store_url: str, capsys: Any
) -> None:
    assert learn(BAD, "--store", store_url, "--activate") == 3
    assert "no row could be learned from (20 rejected: " in capsys.readouterr().err
    spec_file.write_text(SPEC + "subsample = { unclicked = 1e-9 }\n")
    assert learn(UNCLICKED, "--store", store_url, "--activate") == 3
    assert "(0 rejected, 20 not drawn by learner.subsample)" in capsys.readouterr().err
    assert store.model("shop").versions() == []


def test_an_input_is_never_written_over(tmp_path, spec_file: Path, capsys) -> None:
    log = Path(write_log(tmp_path / "log.csv", ROWS))
    before = log.read_bytes()
    for flag in ("--save", "--report", "--rejects"):
        for path in (log, spec_file):
            assert run(["train", str(spec_file), str(tmp_path / "*.csv"), flag, str(path)]) == 2
            assert f"{path} is an input of this run" in capsys.readouterr().err
    assert log.read_bytes() == before


def test_the_collision_rate_is_in_the_summary_the_report_the_metrics_and_the_page(
    tmp_path: Path, spec_file: Path, learn: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    spec_file.write_text(SPEC + "hash_bits = 8\n")
    metrics, page = tmp_path / "metrics.jsonl", tmp_path / "page.html"
    assert learn(ROWS, report="report.json", metrics="metrics.jsonl") == 0
    printed = capsys.readouterr()
    found = json.loads((tmp_path / "report.json").read_text())["collisions"]
    assert found["setting"] == "hash_bits = 8" and 0.0 < found["rate"] < 1.0
    assert found["rate"] == (found["keys"] - found["used"]) / found["keys"]
    said = f"{found['used']:,} of {found['buckets']:,} buckets used"
    assert said in printed.out
    assert f"collision rate {found['rate']:.3%}, expected {found['expected']:.3%}" in printed.out
    assert f"set hash_bits = {found['enough_bits']}" in printed.err
    assert json.loads(metrics.read_text().splitlines()[-1])["collisions"] == found
    assert run(["report", str(metrics), "-o", str(page)]) == 0 and said in page.read_text("utf-8")
