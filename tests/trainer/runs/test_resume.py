"""A run that goes on from a checkpoint ends as one that never stopped, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import CheckpointError, InputError, UsageError
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import load_spec
from tests.matrix import slow_except
from tests.trainer.runs.runs import SPECS, Training, rows, undisturbed, write_log, write_spec
from trainer.checkpoint.description import check_same_spec
from trainer.checkpoint.folder import checkpoints_in


def go_on(training: Training, logs: list[Path], *flags: str, **how: object) -> None:
    assert run(training.keeping(logs, *flags, **how)) == 0  # type: ignore[arg-type]


def forget_newest(training: Training, count: int) -> None:
    """As if the run had been killed before it wrote them; its rejects and metrics are longer than they say."""
    for path in checkpoints_in(training.checkpoints)[:count]:
        path.unlink()


@pytest.mark.parametrize("name", slow_except(["ftrl", "bloom", "buckets"], SPECS))
def test_every_learner_goes_on_bit_by_bit(tmp_path: Path, name: str) -> None:
    spec = write_spec(tmp_path / "shop.toml", name)
    a, b = write_log(tmp_path / "a.csv", rows(1500, 1)), write_log(tmp_path / "b.csv", rows(1000, 2))
    expected = undisturbed(tmp_path / "whole", spec, [a, b])
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [a])
    forget_newest(training, 2)
    go_on(training, [a, b], "--threads=3", batch_bytes=14_000)
    forget_newest(training, 1)
    go_on(training, [a, b], batch_bytes=5000)
    assert training.outcome() == expected


@pytest.mark.parametrize("kind", slow_except(["csv.gz"], ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"]))
def test_every_format_goes_on_bit_by_bit(tmp_path: Path, kind: str) -> None:
    spec = write_spec(tmp_path / "shop.toml", "subsample")
    logs = [write_log(tmp_path / f"{seed}.{kind}", rows(1200, seed)) for seed in (1, 2, 3)]
    expected = undisturbed(tmp_path / "whole", spec, logs)
    training = Training(tmp_path / "resumed", spec)
    go_on(training, logs[:1])
    forget_newest(training, 1)
    go_on(training, logs[:2])
    go_on(training, logs[2:])
    assert training.outcome() == expected


@pytest.mark.slow
def test_standard_input_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv", rows(4000, 1))
    expected = undisturbed(tmp_path / "whole", spec, [log])
    training = Training(tmp_path / "resumed", spec)
    for _ in range(2):
        with log.open("rb") as file:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file}))
            go_on(training, [Path("-")])
        forget_newest(training, 2)
    with log.open("rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file}))
        go_on(training, [Path("-")])
    outcome = training.outcome()
    assert (outcome.model, outcome.report, outcome.metrics) == (
        expected.model,
        expected.report,
        expected.metrics,
    )


def test_a_log_that_has_grown_goes_on(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    content = rows(1600, 1)
    log = write_log(tmp_path / "a.csv", content)
    expected = undisturbed(tmp_path / "whole", spec, [log])
    training = Training(tmp_path / "resumed", spec)
    for size in (500, 1000, 1600):
        write_log(log, content[:size])
        go_on(training, [log])
    assert training.outcome() == expected


def test_nothing_new_changes_nothing(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv", rows(800, 1))
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [log])
    before = training.outcome()
    kept = {path: path.stat().st_mtime_ns for path in checkpoints_in(training.checkpoints)}
    go_on(training, [log])
    assert training.outcome() == before
    assert {path: path.stat().st_mtime_ns for path in checkpoints_in(training.checkpoints)} == kept


def test_a_log_that_breaks_off_goes_on_once_it_is_whole(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv.gz", rows(3000, 1))
    expected = undisturbed(tmp_path / "whole", spec, [log])
    whole = log.read_bytes()
    training = Training(tmp_path / "resumed", spec)
    log.write_bytes(whole[: len(whole) // 2])
    assert run(training.keeping([log], every="1h")) == InputError.exit_code
    assert len(checkpoints_in(training.checkpoints)) == 1
    log.write_bytes(whole)
    go_on(training, [log])
    assert training.outcome() == expected


def test_a_strict_run_goes_on_before_the_batch_with_the_bad_row(tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    content = rows(1500, 1)
    mended = [row if row["click"] != b"?" else row | {"click": b"0"} for row in content]
    log = write_log(tmp_path / "a.csv", mended)
    expected = undisturbed(tmp_path / "whole", spec, [log])
    training = Training(tmp_path / "resumed", spec)
    broken = mended[:900] + [mended[900] | {"click": b"?"}] + mended[901:]
    write_log(log, broken)
    assert run(training.keeping([log], "--strict")) == InputError.exit_code
    write_log(log, mended)
    go_on(training, [log], "--strict")
    assert training.outcome() == expected


def test_a_damaged_newest_checkpoint_falls_back_loudly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    a, b = write_log(tmp_path / "a.csv", rows(1500, 1)), write_log(tmp_path / "b.csv", rows(500, 2))
    expected = undisturbed(tmp_path / "whole", spec, [a, b])
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [a])
    newest = checkpoints_in(training.checkpoints)[0]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    go_on(training, [a, b], "--json")
    warnings = [json.loads(line)["warning"] for line in capsys.readouterr().err.splitlines()]
    assert len(warnings) == 1 and str(newest) in warnings[0] and "does not match its SHA-256" in warnings[0]
    outcome = training.outcome()
    assert outcome.report.pop("checkpoints") == {"failed": 0, "damaged": 1}
    assert expected.report.pop("checkpoints") == {"failed": 0, "damaged": 0}
    assert outcome == expected


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("alpha = 0.3", "alpha = 0.31", "learner.alpha was 0.3, is 0.31"),
        ('brand = { side = "item" }', 'brand = { side = "user" }', 'fields.brand.side was "item", is "user"'),
        ("[fields]\n", "[fields]\nextra = {}\n", "fields.extra was null"),
        (
            'age = { side = "user" }\ntags = { side = "user", kind = "set", separator = "|" }\n',
            'tags = { side = "user", kind = "set", separator = "|" }\nage = { side = "user" }\n',
            "the order of fields, crosses or variants",
        ),
    ],
)
def test_another_spec_is_refused_and_nothing_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv", rows(800, 1))
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [log])
    before = training.outcome()
    text = spec.read_text()
    assert old in text
    spec.write_text(text.replace(old, new))
    assert run(training.keeping([log])) == CheckpointError.exit_code
    assert f"was made with another spec: {said}" in capsys.readouterr().err
    assert training.outcome() == before


def test_the_fields_that_the_first_log_named_stay(tmp_path: Path) -> None:
    spec = tmp_path / "short.toml"
    spec.write_text('[model]\nname = "short"\n[input]\nlabel = "click"\n')
    content = rows(900, 1)
    a = write_log(tmp_path / "a.csv", content[:500])
    b = write_log(tmp_path / "b.jsonl", [{**row, "more": b"x"} for row in content[500:]])
    expected = Training(tmp_path / "whole", spec)
    assert run([*expected.arguments([a, b]), "--slice=brand"]) == 0
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [a], "--slice=brand")
    go_on(training, [b], "--slice=brand")
    assert training.outcome() == expected.outcome()


def test_a_folder_with_checkpoints_is_not_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    log = write_log(tmp_path / "a.csv", rows(300, 1))
    training = Training(tmp_path / "resumed", spec)
    command = training.arguments([log], f"--checkpoint={training.checkpoints}")
    assert run(command) == 0
    assert run(command) == CheckpointError.exit_code
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err


def test_rejects_of_another_file_begin_empty_and_a_lost_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "shop.toml")
    a, b = write_log(tmp_path / "a.csv", rows(400, 1)), write_log(tmp_path / "b.csv", rows(400, 2))
    training = Training(tmp_path / "resumed", spec)
    go_on(training, [a])
    first = (training.folder / "rejects.jsonl").read_bytes()
    go_on(training, [b], f"--rejects={tmp_path / 'others.jsonl'}")
    assert {json.loads(line)["file"] for line in (tmp_path / "others.jsonl").open()} == {str(b)}
    assert (training.folder / "rejects.jsonl").read_bytes() == first
    (tmp_path / "others.jsonl").write_bytes(b"")
    assert run(training.keeping([b], f"--rejects={tmp_path / 'others.jsonl'}")) == 1
    assert "it is not the file that the run began" in capsys.readouterr().err


def test_of_specs_that_have_little_in_common_only_the_first_differences_are_told(tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path / "shop.toml"))
    fields = {**spec.fields, **{f"f{number}": FieldSpec() for number in range(20)}}
    with pytest.raises(CheckpointError, match=r"fields\.f7 was null, [^;]*; and 12 more\. Resume") as refused:
        check_same_spec(spec.model_copy(update={"fields": fields}), spec.to_json(), "here")
    assert "f8" not in str(refused.value)


@pytest.mark.parametrize("flags", [["--resume"], ["--every=5m"]])
def test_how_to_keep_checkpoints_needs_a_folder(tmp_path: Path, flags: list[str]) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(5, 1))
    assert run(["train", str(spec), str(log), *flags]) == 2


@pytest.mark.parametrize("every", ["0", "5x", "-1", "1.5m", ""])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, every: str) -> None:
    spec, log = write_spec(tmp_path / "shop.toml"), write_log(tmp_path / "a.csv", rows(5, 1))
    flags = [f"--checkpoint={tmp_path / 'c'}", f"--every={every}"]
    assert run(["train", str(spec), str(log), *flags]) == UsageError.exit_code
