"""Runs with `--cache`: the same model, to the bit, and the same report, from the log and from the cache of its rows."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import InputError
from tests.trainer.runs.runs import Outcome, Training, rows, undisturbed, write_log, write_spec
from tests.trainer.runs.test_passes import stop_after

FROM_CACHE, FROM_LOG = "the rows are read from {}:", "the rows are read from the log and kept in {}"


def learn(folder: Path, spec: Path, logs: list[Path], *flags: str) -> Outcome:
    training = Training(folder, spec)
    assert run(training.arguments(logs, *flags)) == 0
    return training.outcome()


@pytest.mark.parametrize(
    ("learner", "name", "flags"),
    [
        ("ftrl", "log.csv", []),
        ("ftrl", "log.csv.gz", ["--passes=3"]),
        ("subsample", "log.jsonl", ["--passes=2"]),
        ("bloom", "log.parquet", []),
        ("buckets", "log.jsonl", []),
    ],
)
def test_a_model_from_the_cache_is_the_one_from_the_log(
    tmp_path: Path, learner: str, name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "shop.toml", learner)
    logs = [write_log(tmp_path / f"{number}-{name}", rows(700, number)) for number in (1, 2)]
    cache = tmp_path / "rows.cache"
    expected = undisturbed(tmp_path / "log", spec, logs, *flags)
    capsys.readouterr()
    assert learn(tmp_path / "kept", spec, logs, f"--cache={cache}", *flags) == expected
    assert FROM_LOG.format(cache) in capsys.readouterr().err
    assert learn(tmp_path / "again", spec, logs, f"--cache={cache}", *flags) == expected
    assert FROM_CACHE.format(cache) in capsys.readouterr().err


def test_a_spec_of_fewer_columns_reads_the_cache_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(300, 1))
    fewer = tmp_path / "fewer.toml"
    fewer.write_text('[model]\nname = "fewer"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nage = {}\n')
    cache = tmp_path / "rows.cache"
    expected = undisturbed(tmp_path / "log", fewer, [log])
    learn(tmp_path / "kept", spec, [log], f"--cache={cache}")
    capsys.readouterr()
    assert learn(tmp_path / "fewer", fewer, [log], f"--cache={cache}") == expected
    assert FROM_CACHE.format(cache) in capsys.readouterr().err


def test_a_log_that_has_changed_is_read_and_kept_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(300, 1))
    cache = tmp_path / "rows.cache"
    learn(tmp_path / "before", spec, [log], f"--cache={cache}")
    write_log(log, rows(300, 2))
    expected = undisturbed(tmp_path / "log", spec, [log])
    capsys.readouterr()
    assert learn(tmp_path / "kept", spec, [log], f"--cache={cache}") == expected
    assert "it was made of other files, or they have changed since" in capsys.readouterr().err
    assert learn(tmp_path / "again", spec, [log], f"--cache={cache}") == expected
    assert FROM_CACHE.format(cache) in capsys.readouterr().err


def test_a_run_that_is_stopped_keeps_no_half_cache_and_a_resumed_one_reads_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(5000, 1))
    expected, cache = undisturbed(tmp_path / "log", spec, [log]), tmp_path / "rows.cache"
    training = Training(tmp_path / "stopped", spec)
    with monkeypatch.context() as patched:
        stop_after(patched, 2, signal.SIGTERM)
        assert run(training.keeping([log], f"--cache={cache}")) == 128 + signal.SIGTERM
    assert list(tmp_path.glob("*rows.cache*")) == []
    capsys.readouterr()
    assert run(training.keeping([log], f"--cache={cache}")) == 0
    assert "the run is resumed: its rows are read from the log" in capsys.readouterr().err
    assert training.outcome() == expected


def test_a_damaged_piece_ends_the_run_after_the_rows_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(300, 1))
    cache = tmp_path / "rows.cache"
    learn(tmp_path / "kept", spec, [log], f"--cache={cache}")
    data = bytearray(cache.read_bytes())
    data[100] ^= 1
    cache.write_bytes(data)
    capsys.readouterr()
    arguments = Training(tmp_path / "damaged", spec).arguments([log], f"--cache={cache}")
    assert run(arguments) == InputError.exit_code
    assert "is damaged; delete the file, and the log is read again" in capsys.readouterr().err


def test_a_file_that_is_no_cache_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(300, 1))
    other = write_log(tmp_path / "b.csv", rows(10, 2))
    before = other.read_bytes()
    arguments = Training(tmp_path / "run", spec).arguments([log], f"--cache={other}")
    assert run(arguments) == InputError.exit_code
    assert "is no cache of rows; delete the file, or name another one" in capsys.readouterr().err
    assert other.read_bytes() == before


def test_a_cache_that_cannot_be_written_stops_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(300, 1))
    expected = undisturbed(tmp_path / "log", spec, [log])
    cache = tmp_path / "nowhere" / "rows.cache"
    assert learn(tmp_path / "kept", spec, [log], f"--cache={cache}") == expected
    assert f"the rows are not kept: {cache} cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", "events.jsonl"])
def test_inputs_that_cannot_be_kept_are_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    path = name
    if name != "-":
        path = str(tmp_path / name)
        Path(path).write_text(json.dumps({"kind": "impression"}) + "\n")
    arguments = ["train", str(spec), path, f"--cache={tmp_path / 'c'}"]
    arguments += ["--format=csv"] if name == "-" else ["--format=events"]
    assert run(arguments) == InputError.exit_code
    assert "--cache" in capsys.readouterr().err


def test_tune_finds_the_same_from_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "shop.toml"
    spec.write_text('[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nage = {}\n')
    log, cache = write_log(tmp_path / "a.csv", rows(600, 1)), tmp_path / "rows.cache"
    found, best = [], tmp_path / "best.toml"
    for flags in ([], [f"--cache={cache}"], [f"--cache={cache}"]):
        assert (
            run(
                [
                    "tune",
                    str(spec),
                    str(log),
                    "--try=alpha=0.02,0.1,0.5",
                    f"--output={best}",
                    "--force",
                    *flags,
                ]
            )
            == 0
        )
        output = capsys.readouterr()
        found.append((best.read_text(), output.out))
    assert found[0][0] == found[1][0] == found[2][0]
    assert FROM_CACHE.format(cache) in output.err
