"""Whole training runs: what they report, what they refuse, and what never changes their result."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, SpecError, StoreError
from model_store.spec.spec import load_spec
from model_store.store import Store
from tests.trainer.click_logs import SPEC, shop_rows
from trainer.examples.open_log import Log
from trainer.logs.rejects import RejectLog
from trainer.runs.train import train

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def write_csv(path: Path, rows, extra: bytes = b"") -> Path:
    names = list(rows[0])
    lines = [",".join(names).encode(), *(b",".join(row[name] for name in names) for row in rows)]
    path.write_bytes(b"\n".join(lines) + b"\n" + extra)
    return path


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(SPEC)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_command_saves_reports_and_lists_bad_rows(tmp_path, spec_file, capsys):
    rows = shop_rows(300, 1)
    rows[7] |= {"click": b"yes"}
    log = write_csv(tmp_path / "log.csv", rows, extra=b"1,2\n")
    outputs = {name: tmp_path / name for name in ("model.arrow", "report.json", "rejects.jsonl")}
    code = run(
        [
            *["train", str(spec_file), str(log), "--save", str(outputs["model.arrow"])],
            *["--report", str(outputs["report.json"]), "--rejects", str(outputs["rejects.jsonl"])],
        ]
    )
    assert code == 0
    report = json.loads(outputs["report.json"].read_text())
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
    rejects = [json.loads(line) for line in outputs["rejects.jsonl"].read_text().splitlines()]
    assert [(reject["file"], reject["line"]) for reject in rejects] == [(str(log), 9), (str(log), 302)]
    assert rejects[0]["reason"].startswith("click: got 'yes', expected 1, 0, -1, true or false;")
    assert Artefact.read(outputs["model.arrow"]).rows == report["nonzero"]
    assert "299 rows" in capsys.readouterr().out


def test_the_artefact_does_not_depend_on_threads_nor_on_the_run(tmp_path, avazu_log):
    hashes = set()
    for number, threads in enumerate(("1", "1", "2", "5")):
        saved = tmp_path / f"{number}.arrow"
        assert (
            run(
                [
                    "train",
                    str(EXAMPLES / "avazu.toml"),
                    str(avazu_log),
                    "--threads",
                    threads,
                    "--save",
                    str(saved),
                ]
            )
            == 0
        )
        hashes.add(sha256(saved))
    assert len(hashes) == 1


def test_a_pipe_gives_the_same_model_as_the_file(tmp_path, avazu_log):
    spec = load_spec(EXAMPLES / "avazu.toml")
    whole = train(spec, Log([str(avazu_log)]), rejects=RejectLog())
    saved = tmp_path / "piped.arrow"
    command = [
        sys.executable,
        "-m",
        "ftrie",
        "train",
        str(EXAMPLES / "avazu.toml"),
        "-",
        "--save",
        str(saved),
    ]
    subprocess.run(command, input=gzip.decompress(avazu_log.read_bytes()), check=True, capture_output=True)
    assert sha256(saved) == whole.model.artefact().sha256


def test_strict_stops_at_the_first_bad_row(tmp_path, spec_file, capsys):
    rows = shop_rows(20, 2)
    rows[3] |= {"click": b""}
    log = write_csv(tmp_path / "log.csv", rows)
    assert (
        run(["train", str(spec_file), str(log), "--strict", "--save", str(tmp_path / "m.arrow")])
        == InputError.exit_code
    )
    assert f"{log}:5: click: got '', expected 1, 0, -1, true or false" in capsys.readouterr().err


def test_a_missing_column_lists_those_there_are(tmp_path, spec_file, capsys):
    log = tmp_path / "log.csv"
    log.write_text("click,importance,age\n1,1,20\n")
    assert run(["train", str(spec_file), str(log)]) == SpecError.exit_code
    assert (
        "fields.tags: no column 'tags' in the log; it has: click, importance, age" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_log_that_breaks_off_keeps_what_was_learned_and_publishes_nothing(
    tmp_path, spec_file, store_url, store
):
    whole = gzip.compress(write_csv(tmp_path / "log.csv", shop_rows(60_000, 3)).read_bytes())
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(whole[: len(whole) * 3 // 4])
    saved, report = tmp_path / "m.arrow", tmp_path / "r.json"
    code = run(
        [
            *["train", str(spec_file), str(broken), "--store", store_url, "--activate"],
            *["--save", str(saved), "--report", str(report)],
        ]
    )
    assert code == InputError.exit_code
    assert json.loads(report.read_text())["rows"] > 10_000
    assert Artefact.read(saved).rows > 0
    assert store.model("shop").versions() == []


def test_activate_publishes_and_activates(tmp_path, spec_file, store_url, store):
    log = write_csv(tmp_path / "log.csv", shop_rows(200, 4))
    report = tmp_path / "r.json"
    code = run(
        ["train", str(spec_file), str(log), "--store", store_url, "--activate", "--report", str(report)]
    )
    assert code == 0
    assert json.loads(report.read_text())["version"] == store.model("shop").active() == 1
    assert run(["train", str(spec_file), str(log), "--store", store_url, "--publish"]) == 0
    assert store.model("shop").active() == 1
    assert [info.version for info in store.model("shop").versions()] == [1, 2]


@pytest.mark.slow
def test_a_model_that_cannot_be_published_is_kept(tmp_path, spec_file):
    url = f"embedded:{tmp_path}/s"
    log = write_csv(tmp_path / "log.csv", shop_rows(200, 4)).read_bytes()
    command = [sys.executable, "-m", "ftrie", "train", str(spec_file), "-", "--store", url, "--activate"]
    command += ["--rejects", str(tmp_path / "rejects")]
    with Store.open(url) as store:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (tmp_path / "rejects").exists():  # it is made when the store is open and learning begins
            assert process.poll() is None
        os.kill(store.client.info("server")["process_id"], signal.SIGKILL)
        _, said = process.communicate(log, timeout=60)
    assert process.returncode == StoreError.exit_code
    assert b"ftrie store import shop shop.unpublished.arrow" in said
    assert Artefact.read(tmp_path / "shop.unpublished.arrow").rows > 0


def test_a_model_of_no_rows_replaces_no_saved_model(tmp_path, spec_file):
    rows = shop_rows(50, 4)
    saved = tmp_path / "m.arrow"
    good = write_csv(tmp_path / "good.csv", rows)
    assert run(["train", str(spec_file), str(good), "--save", str(saved)]) == 0
    before = sha256(saved)
    bad = write_csv(tmp_path / "bad.csv", [row | {"click": b"?"} for row in rows])
    for flags in ([], ["--strict"]):
        assert run(["train", str(spec_file), str(bad), "--save", str(saved), *flags]) == InputError.exit_code
        assert sha256(saved) == before


def test_a_model_is_not_saved_under_a_name_of_another_format(tmp_path, spec_file):
    log = write_csv(tmp_path / "log.csv", shop_rows(10, 4))
    assert run(["train", str(spec_file), str(log), "--save", str(tmp_path / "m.json")]) == 2


# VmHWM and not getrusage, whose ru_maxrss a child takes over from the process that started it.
PEAK = """
import sys
from ftrie.cli import run
assert run(["train", sys.argv[1], sys.argv[2], "--save", sys.argv[2] + ".arrow"]) == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path, spec_file):
    rows = shop_rows(40_000, 5)
    peaks = []
    for times in (1, 1, 10):  # the first run may compile kernels, which takes memory too
        log = write_csv(tmp_path / f"{times}.csv", rows * times)
        finished = subprocess.run(
            [sys.executable, "-c", PEAK, str(spec_file), str(log)], check=True, capture_output=True, text=True
        )
        peaks.append(int(finished.stdout.splitlines()[-1]))
    assert peaks[2] <= 1.10 * peaks[1], peaks


def test_outputs_that_cannot_be_written_are_known_before_anything_is_learned(tmp_path, spec_file, capsys):
    log = write_csv(tmp_path / "log.csv", shop_rows(20, 1))
    for flag, path in (("--save", tmp_path / "none" / "m.arrow"), ("--report", tmp_path)):
        assert run(["train", str(spec_file), str(log), flag, str(path)]) == 1
        error = capsys.readouterr().err
        assert f"cannot write {path}" in error
        assert "learning" not in error


def test_a_log_without_a_good_row_is_never_published(tmp_path, spec_file, capsys):
    rows = [row | {"click": b"?"} for row in shop_rows(3, 1)]
    store = f"embedded:{tmp_path / 'store'}"
    log = write_csv(tmp_path / "log.csv", rows)
    assert run(["train", str(spec_file), str(log), "--store", store, "--activate"]) == 3
    assert "no row could be learned from (3 rejected)" in capsys.readouterr().err
    assert run(["store", "versions", "shop", "--store", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_log_of_which_no_row_is_drawn_says_so(tmp_path, spec_file, capsys):
    spec_file.write_text(spec_file.read_text() + "subsample = { unclicked = 1e-9 }\n")
    log = write_csv(tmp_path / "log.csv", [row | {"click": b"0"} for row in shop_rows(3, 1)])
    assert run(["train", str(spec_file), str(log), "--save", str(tmp_path / "m.arrow")]) == 3
    assert "(0 rejected, 3 not drawn by learner.subsample)" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--save", "--report", "--rejects"])
def test_an_input_is_never_written_over(tmp_path, spec_file, capsys, flag):
    log = write_csv(tmp_path / "log.csv", shop_rows(5, 1))
    before = log.read_bytes()
    for path in (log, spec_file):
        assert run(["train", str(spec_file), str(tmp_path / "*.csv"), flag, str(path)]) == 2
        assert f"{path} is an input of this run" in capsys.readouterr().err
    assert log.read_bytes() == before


def test_the_collision_rate_is_in_the_summary_the_report_the_metrics_and_the_page(
    tmp_path, spec_file, capsys
):
    spec = tmp_path / "hashed.toml"
    spec.write_text(spec_file.read_text("utf-8") + "hash_bits = 8\n", "utf-8")
    log = write_csv(tmp_path / "log.csv", shop_rows(300, 1))
    report, metrics, page = (tmp_path / name for name in ("report.json", "metrics.jsonl", "page.html"))
    assert run(["train", str(spec), str(log), "--report", str(report), "--metrics", str(metrics)]) == 0
    printed = capsys.readouterr()
    found = json.loads(report.read_text())["collisions"]
    assert found["hash_bits"] == 8
    assert 0.0 < found["rate"] < 1.0
    assert found["rate"] == (found["keys"] - found["used"]) / found["keys"]
    said = f"{found['used']:,} of {found['buckets']:,} buckets used"
    assert said in printed.out
    assert f"collision rate {found['rate']:.3%}, expected {found['expected']:.3%}" in printed.out
    assert f"set hash_bits = {found['enough_bits']}" in printed.err
    assert json.loads(metrics.read_text().splitlines()[-1])["collisions"] == found
    assert run(["report", str(metrics), "-o", str(page)]) == 0
    assert said in page.read_text("utf-8")


def test_a_run_with_exact_keys_reports_how_likely_a_64_bit_collision_was(tmp_path, spec_file):
    log, report = write_csv(tmp_path / "log.csv", shop_rows(300, 1)), tmp_path / "report.json"
    assert run(["train", str(spec_file), str(log), "--report", str(report)]) == 0
    written = json.loads(report.read_text())
    assert written["collisions"]["rate"] is None
    assert written["collisions"]["probability"] == pytest.approx(written["keys"] ** 2 / 2**65, rel=0.05)
