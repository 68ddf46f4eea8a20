"""`ftrie train --init-from`: a run that begins with a published model, from a file or the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import ArtefactError, SpecError, UsageError, VersionNotFound
from model_store.store import Store
from tests.trainer.runs.runs import Training, rows, write_log, write_spec
from trainer.checkpoint.file import read_description
from trainer.checkpoint.folder import checkpoints_in


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_spec(tmp_path / "shop.toml")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "a.csv", rows(600, 1))


def begun_with(tmp_path: Path, spec: Path, log: Path, name: str, *flags: str) -> Artefact:
    training = Training(tmp_path / name, spec)
    assert run(training.arguments([log], *flags)) == 0
    return Artefact.read(training.folder / "save.arrow")


@pytest.mark.slow
def test_a_file_and_a_version_and_the_active_one_begin_the_same_model(
    tmp_path: Path, spec: Path, log: Path, store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = begun_with(tmp_path, spec, log, "first", f"--store={store_url}", "--activate")
    more = write_log(tmp_path / "b.csv", rows(400, 2))
    capsys.readouterr()
    file = begun_with(tmp_path, spec, more, "file", f"--init-from={tmp_path / 'first' / 'save.arrow'}")
    assert f"starting with {first.rows:,} of the {first.rows:,} keys" in capsys.readouterr().err
    version = begun_with(tmp_path, spec, more, "version", f"--store={store_url}", "--init-from=1")
    active = begun_with(tmp_path, spec, more, "active", f"--store={store_url}", "--init-from=active")
    nothing = begun_with(tmp_path, spec, more, "nothing")
    assert file.sha256 == version.sha256 == active.sha256 != nothing.sha256
    assert set(first.key_list()) - set(nothing.key_list())
    assert json.loads((tmp_path / "file" / "report.json").read_text())["rows"] == 396


def test_a_checkpoint_wins(tmp_path: Path, spec: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = begun_with(tmp_path, spec, log, "first")
    more, last = write_log(tmp_path / "b.csv", rows(400, 2)), write_log(tmp_path / "c.csv", rows(400, 3))
    flag = f"--init-from={tmp_path / 'first' / 'save.arrow'}"
    expected = begun_with(tmp_path, spec, tmp_path / "[bc].csv", "whole", flag)
    training = Training(tmp_path / "resumed", spec)
    assert run(training.keeping([more], flag)) == 0
    assert read_description(checkpoints_in(training.checkpoints)[0])["initial"] == first.sha256
    (tmp_path / "first" / "save.arrow").unlink()
    assert run(training.keeping([more, last], flag)) == 0
    assert "--init-from is ignored" in capsys.readouterr().err
    assert Artefact.read(training.folder / "save.arrow").sha256 == expected.sha256


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("1.5", UsageError, "expected a version of 'shop' in the store such as 7, 'active', or a file"),
        ("nowhere.arrow", ArtefactError, "nowhere.arrow"),
        ("7", VersionNotFound, "7"),
        ("active", VersionNotFound, "shop"),
    ],
)
def test_what_is_no_model_is_refused(
    spec: Path,
    log: Path,
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    value: str,
    error: type,
    said: str,
) -> None:
    code = run(["train", str(spec), str(log), f"--store={store_url}", f"--init-from={value}"])
    assert (code, said in capsys.readouterr().err) == (error.exit_code, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "other fields",
            "it was learned from the fields age, tags, brand, price, size, hour, hashes; this spec has x",
        ),
        ("rda", 'a model cannot start algorithm = "rda"'),
    ],
)
def test_a_model_that_does_not_fit_the_spec_is_refused(
    tmp_path: Path, spec: Path, log: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    begun_with(tmp_path, spec, log, "first")
    other = tmp_path / "other.toml"
    if name == "rda":
        write_spec(other, "rda")
    else:
        other.write_text('[model]\nname = "o"\n[input]\nlabel = "click"\n[fields]\nx = { column = "age" }\n')
    flag = f"--init-from={tmp_path / 'first' / 'save.arrow'}"
    assert run(["train", str(other), str(log), flag]) == SpecError.exit_code
    assert said in capsys.readouterr().err
