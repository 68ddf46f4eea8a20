"""Runs with `--cache`: the same model, to the bit, and the same report, from the log and from the cache of its rows."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import InputError
from tests.matrix import slow_except
from tests.trainer.runs.runs import Shop, rows
from tests.trainer.runs.test_passes import stop_after

FROM_CACHE, FROM_LOG = "the rows are read from {}:", "the rows are read from the log and kept in {}"
SHORT = '[model]\nname = "fewer"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nage = {}\n'


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "rows.cache"


KINDS = {"ftrl": "csv.gz", "subsample": "jsonl", "bloom": "parquet", "buckets": "csv"}


@pytest.mark.parametrize("learner", slow_except(["ftrl", "subsample"], KINDS))
def test_a_model_from_the_cache_is_the_one_from_the_log(shop, cache, learner, capsys):
    shop.use(learner)
    flags = ["--passes=2"] if learner == "ftrl" else []
    kind = KINDS[learner]
    logs = [shop.log(600, seed, kind) for seed in (1, 2)]
    expected = shop.expected(logs, *flags)
    for name, said in (("kept", FROM_LOG), ("again", FROM_CACHE)):
        capsys.readouterr()
        assert shop.learned(name, logs, f"--cache={cache}", *flags) == expected
        assert said.format(cache) in capsys.readouterr().err


def test_a_spec_of_fewer_columns_reads_the_cache_of_another_and_so_does_tune(shop, cache, capsys):
    log, best = shop.log(600), shop.folder / "best.toml"
    shop.learned("kept", [log], f"--cache={cache}")
    shop.spec.write_text(SHORT)
    expected = shop.learned("log", [log])
    capsys.readouterr()
    assert shop.learned("fewer", [log], f"--cache={cache}") == expected
    assert FROM_CACHE.format(cache) in capsys.readouterr().err
    command = ["tune", str(shop.spec), str(log), "--try=alpha=0.02,0.5", f"--output={best}", "--force"]
    found = []
    for flags in ([], [f"--cache={cache}"]):
        assert run([*command, *flags]) == 0
        found.append(best.read_text())
    assert found[0] == found[1] and FROM_CACHE.format(cache) in capsys.readouterr().err


def test_a_log_that_has_changed_is_read_and_kept_again(shop: Shop, cache: Path, capsys) -> None:
    log = shop.own_log(rows(300, 1))
    shop.learned("before", [log], f"--cache={cache}")
    shop.own_log(rows(300, 2))
    expected = shop.learned("log", [log])
    for name, said in (
        ("kept", "it was made of other files, or they have changed since"),
        ("again", FROM_CACHE.format(cache)),
    ):
        capsys.readouterr()
        assert shop.learned(name, [log], f"--cache={cache}") == expected
        assert said in capsys.readouterr().err


def test_a_run_that_is_stopped_keeps_no_half_cache_and_a_resumed_one_reads_the_log(
    shop: Shop, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, training = shop.log(900), shop.training()
    command = training.keeping([log], f"--cache={cache}")
    with monkeypatch.context() as patched:
        stop_after(patched, 2, signal.SIGTERM)
        assert run(command) == 128 + signal.SIGTERM
    assert list(shop.folder.glob("*rows.cache*")) == []
    capsys.readouterr()
    assert run(command) == 0
    assert "the run is resumed: its rows are read from the log" in capsys.readouterr().err
    assert training.outcome() == shop.expected([log])


def test_a_damaged_piece_ends_the_run_after_the_rows_before_it(shop: Shop, cache: Path, capsys) -> None:
    log = shop.log(300)
    shop.learned("kept", [log], f"--cache={cache}")
    data = bytearray(cache.read_bytes())
    data[100] ^= 1
    cache.write_bytes(data)
    assert run(shop.training().arguments([log], f"--cache={cache}")) == InputError.exit_code
    assert "is damaged; delete the file, and the log is read again" in capsys.readouterr().err


def test_a_file_that_is_no_cache_is_not_replaced_and_one_that_cannot_be_written_stops_no_run(shop, capsys):
    log, other = shop.log(300), shop.own_log(rows(10, 2))
    before = other.read_bytes()
    assert run(shop.training().arguments([log], f"--cache={other}")) == InputError.exit_code
    assert "is no cache of rows; delete the file, or name another one" in capsys.readouterr().err
    assert other.read_bytes() == before
    nowhere = shop.folder / "nowhere" / "rows.cache"
    assert shop.learned("kept", [log], f"--cache={nowhere}") == shop.expected([log])
    assert f"the rows are not kept: {nowhere} cannot be written: No such file" in capsys.readouterr().err


def test_inputs_that_cannot_be_kept_are_refused(shop: Shop, cache: Path, capsys) -> None:
    events = shop.folder / "events.jsonl"
    events.write_text(json.dumps({"kind": "impression"}) + "\n")
    for name, format in (("-", "csv"), (str(events), "events")):
        command = ["train", str(shop.spec), name, f"--cache={cache}", f"--format={format}"]
        assert run(command) == InputError.exit_code and "--cache" in capsys.readouterr().err
