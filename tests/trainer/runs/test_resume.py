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
from tests.trainer.runs.runs import SPECS, Shop, Training, rows
from trainer.checkpoint.folder import check_same_spec, checkpoints_in


def go_on(training: Training, logs: list[Path], *flags: str, **how: object) -> None:
    assert run(training.keeping(logs, *flags, **how)) == 0  # type: ignore[arg-type]


def forget_newest(training: Training, count: int) -> None:
    """As if the run had been killed before it wrote them; its rejects and metrics are longer than they say."""
    for path in checkpoints_in(training.checkpoints)[:count]:
        path.unlink()


@pytest.mark.parametrize("name", slow_except(["ftrl", "buckets"], SPECS))
def test_every_learner_goes_on_bit_by_bit(shop: Shop, name: str) -> None:
    shop.use(name)
    a, b, training = shop.log(900), shop.log(600, seed=2), shop.training()
    go_on(training, [a])
    forget_newest(training, 2)
    go_on(training, [a, b], "--threads=3", batch_bytes=14_000)
    forget_newest(training, 1)
    go_on(training, [a, b], batch_bytes=5000)
    assert training.outcome() == shop.expected([a, b])


@pytest.mark.slow
def test_standard_input_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    log, training = shop.log(900), shop.training()
    for forgotten in (2, 2, 0):
        with log.open("rb") as file:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file}))
            go_on(training, [Path("-")])
        forget_newest(training, forgotten)
    outcome, expected = training.outcome(), shop.expected([log])
    assert (outcome.model, outcome.report, outcome.metrics) == (
        expected.model,
        expected.report,
        expected.metrics,
    )


def test_a_log_that_has_grown_goes_on_and_one_that_has_not_changes_nothing(shop: Shop) -> None:
    content, training = rows(900, 1), shop.training()
    for size in (300, 600, 900):
        log = shop.own_log(content[:size])
        go_on(training, [log])
    assert training.outcome() == shop.learned("whole", [log])
    kept = {path: path.stat().st_mtime_ns for path in checkpoints_in(training.checkpoints)}
    before = training.outcome()
    go_on(training, [log])
    assert training.outcome() == before
    assert {path: path.stat().st_mtime_ns for path in checkpoints_in(training.checkpoints)} == kept


def test_a_log_that_breaks_off_goes_on_once_it_is_whole(shop: Shop) -> None:
    log, training = shop.own_log(rows(3000, 1), "a.csv.gz"), shop.training()
    expected, whole = shop.learned("whole", [log]), log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    assert run(training.keeping([log], every="1h")) == InputError.exit_code
    assert len(checkpoints_in(training.checkpoints)) == 1
    log.write_bytes(whole)
    go_on(training, [log])
    assert training.outcome() == expected


def test_a_strict_run_goes_on_before_the_batch_with_the_bad_row(shop: Shop) -> None:
    mended = [row if row["click"] != b"?" else row | {"click": b"0"} for row in rows(900, 1)]
    log, training = shop.own_log(mended), shop.training()
    expected = shop.learned("whole", [log])
    shop.own_log([*mended[:600], mended[600] | {"click": b"?"}, *mended[601:]])
    assert run(training.keeping([log], "--strict")) == InputError.exit_code
    shop.own_log(mended)
    go_on(training, [log], "--strict")
    assert training.outcome() == expected


def test_a_damaged_newest_checkpoint_falls_back_loudly(shop: Shop, capsys) -> None:
    a, b, training = shop.log(900), shop.log(600, seed=2), shop.training()
    go_on(training, [a])
    newest = checkpoints_in(training.checkpoints)[0]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    capsys.readouterr()
    go_on(training, [a, b], "--json")
    (warning,) = [json.loads(line)["warning"] for line in capsys.readouterr().err.splitlines()]
    assert str(newest) in warning and "does not match its SHA-256" in warning
    outcome, expected = training.outcome(), shop.expected([a, b])
    assert outcome.report.pop("checkpoints") == {"failed": 0, "damaged": 1}
    assert expected.report.pop("checkpoints") == {"failed": 0, "damaged": 0} and outcome == expected


def test_another_spec_is_refused_and_nothing_is_touched(shop: Shop, capsys) -> None:
    log, training = shop.log(300), shop.training()
    go_on(training, [log])
    before, text = training.outcome(), shop.spec.read_text()
    age, tags = 'age = { side = "user" }\n', 'tags = { side = "user", kind = "set", separator = "|" }\n'
    for old, new, said in (
        ("alpha = 0.3", "alpha = 0.31", "learner.alpha was 0.3, is 0.31"),
        ('brand = { side = "item" }', 'brand = { side = "user" }', 'fields.brand.side was "item", is "user"'),
        ("[fields]\n", "[fields]\nextra = {}\n", "fields.extra was null"),
        (age + tags, tags + age, "the order of fields, crosses or variants"),
    ):
        assert old in text
        shop.spec.write_text(text.replace(old, new))
        assert run(training.keeping([log])) == CheckpointError.exit_code
        assert f"was made with another spec: {said}" in capsys.readouterr().err
        assert training.outcome() == before


def test_the_fields_that_the_first_log_named_stay(shop: Shop) -> None:
    shop.spec.write_text('[model]\nname = "short"\n[input]\nlabel = "click"\n')
    content = rows(900, 1)
    a = shop.own_log(content[:500])
    b = shop.own_log([{**row, "more": b"x"} for row in content[500:]], "b.jsonl")
    expected = shop.learned("whole", [a, b], "--slice=brand")
    training = shop.training()
    go_on(training, [a], "--slice=brand")
    go_on(training, [b], "--slice=brand")
    assert training.outcome() == expected


def test_a_folder_with_checkpoints_is_not_begun_anew(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    training = shop.training()
    command = training.arguments([shop.log(300)], f"--checkpoint={training.checkpoints}")
    assert run(command) == 0 and run(command) == CheckpointError.exit_code
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err


def test_rejects_of_another_file_begin_empty_and_a_lost_file_is_an_error(shop: Shop, capsys) -> None:
    a, b, training = shop.log(300), shop.log(300, seed=2), shop.training()
    others = shop.folder / "others.jsonl"
    go_on(training, [a])
    first = (training.folder / "rejects.jsonl").read_bytes()
    go_on(training, [b], f"--rejects={others}")
    assert {json.loads(line)["file"] for line in others.open()} == {str(b)}
    assert (training.folder / "rejects.jsonl").read_bytes() == first
    others.write_bytes(b"")
    assert run(training.keeping([b], f"--rejects={others}")) == 1
    assert "it is not the file that the run began" in capsys.readouterr().err


def test_of_specs_that_have_little_in_common_only_the_first_differences_are_told(shop: Shop) -> None:
    spec = load_spec(shop.spec)
    fields = {**spec.fields, **{f"f{number}": FieldSpec() for number in range(20)}}
    with pytest.raises(CheckpointError, match=r"fields\.f7 was null, [^;]*; and 12 more\. Resume") as refused:
        check_same_spec(spec.model_copy(update={"fields": fields}), spec.to_json(), "here")
    assert "f8" not in str(refused.value)


def test_how_to_keep_checkpoints_needs_a_folder_and_an_interval_that_is_one(shop: Shop) -> None:
    command = ["train", str(shop.spec), str(shop.log(300))]
    for flags in (["--resume"], ["--every=5m"], [f"--checkpoint={shop.folder / 'c'}", "--every=1.5m"]):
        assert run([*command, *flags]) == UsageError.exit_code == 2
