"""Commands that would activate a version while `ftrie trainer` has the model: refused before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.store import Store

REFUSED = "shop has a trainer: process"


def test_who_would_activate_is_refused_before_it_begins_and_who_only_publishes_is_not(
    tmp_path: Path, store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log, saved = (tmp_path / name for name in ("shop.toml", "log.csv", "save.arrow"))
    spec.write_text('[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\n')
    log.write_text("click,brand\n" + "1,a\n0,b\n" * 50)
    shop, lease = store.model("shop"), store.trainer_lease("shop", "folder")
    command = ["train", str(spec), str(log), f"--save={saved}", f"--store={store_url}"]
    lease.take()
    for flags in (["--activate"], ["--activate", "--publish-every=100"]):
        assert run([*command, *flags]) == 5 and REFUSED in capsys.readouterr().err
        assert not saved.exists()
    assert run([*command, "--publish"]) == 0
    assert run(["store", "import", "shop", str(saved), "--store", store_url]) == 5
    assert REFUSED in capsys.readouterr().err and (len(shop.versions()), shop.active()) == (1, None)
    assert run(["store", "activate", "shop", "1", "--store", store_url]) == 0  # an operator may
    assert shop.active() == 1
    lease.release()
    for version, flags in ((2, ["--activate"]), (3, ["--activate", "--publish-every=100"])):
        assert run([*command, *flags]) == 0 and shop.active() == version
