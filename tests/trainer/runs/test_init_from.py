"""`ftrie train --init-from`: a run that begins with a published model, from a file or the store."""

from __future__ import annotations

import json

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import ArtefactError, SpecError, UsageError, VersionNotFound
from tests.trainer.runs.runs import Shop, rows
from trainer.checkpoint.file import read_description
from trainer.checkpoint.folder import checkpoints_in


def begun_with(shop: Shop, name: str, log: object, *flags: str) -> Artefact:
    training = shop.training(name)
    assert run(training.arguments([log], *flags)) == 0  # type: ignore[list-item]
    return Artefact.read(training.folder / "save.arrow")


def test_a_file_and_a_version_and_the_active_one_begin_the_same_model(shop, store, store_url, capsys):
    in_store = f"--store={store_url}"
    first = begun_with(shop, "first", shop.log(600), in_store, "--activate")
    more = shop.log(300, seed=2)
    capsys.readouterr()
    file = begun_with(shop, "file", more, f"--init-from={shop.folder / 'first' / 'save.arrow'}")
    assert f"starting with {first.rows:,} of the {first.rows:,} keys" in capsys.readouterr().err
    version = begun_with(shop, "version", more, in_store, "--init-from=1")
    active = begun_with(shop, "active", more, in_store, "--init-from=active")
    nothing = begun_with(shop, "nothing", more)
    assert file.sha256 == version.sha256 == active.sha256 != nothing.sha256
    assert set(first.key_list()) - set(nothing.key_list())
    assert json.loads((shop.folder / "file" / "report.json").read_text())["rows"] == 297


def test_a_checkpoint_wins(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    first = begun_with(shop, "first", shop.log(600))
    more, last = (shop.own_log(rows(300, seed), f"{seed}.csv") for seed in (2, 3))
    model = shop.folder / "first" / "save.arrow"
    flag = f"--init-from={model}"
    expected = begun_with(shop, "whole", shop.folder / "[23].csv", flag)
    training = shop.training()
    assert run(training.keeping([more], flag)) == 0
    assert read_description(checkpoints_in(training.checkpoints)[0])["initial"] == first.sha256
    model.unlink()
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
def test_what_is_no_model_is_refused(shop, store_url, capsys, value, error, said):
    command = ["train", str(shop.spec), str(shop.log(300)), f"--store={store_url}", f"--init-from={value}"]
    assert (run(command), said in capsys.readouterr().err) == (error.exit_code, True)


def test_a_model_that_does_not_fit_the_spec_is_refused(shop: Shop, capsys) -> None:
    log = shop.log(300)
    begun_with(shop, "first", log)
    command = ["train", str(shop.spec), str(log), f"--init-from={shop.folder / 'first' / 'save.arrow'}"]
    shop.use("rda")
    assert run(command) == SpecError.exit_code
    assert 'a model cannot start algorithm = "rda"' in capsys.readouterr().err
    other = '[model]\nname = "o"\n[input]\nlabel = "click"\n[fields]\nx = { column = "age" }\n'
    shop.spec.write_text(other)
    assert run(command) == SpecError.exit_code
    said = "it was learned from the fields age, tags, brand, price, size, hour, hashes; this spec has x"
    assert said in capsys.readouterr().err
