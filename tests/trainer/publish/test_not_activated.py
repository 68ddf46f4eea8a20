"""A version that went out before the store failed is published: it is counted so, named, and activated later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.errors import NotActivated
from model_store.redis.embedded import SOCKET
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.trainer.publish.shop import rows
from tests.worlds import learn, model_of
from trainer.events.join import EventCounts
from trainer.learn.model import LearningModel
from trainer.publish.publisher import PublishCounts, Publisher, PublishOptions, PublishPacer
from trainer.settings import Every

SPEC = '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = { side = "item" }\n'
WRITER = "no-activation"


@pytest.fixture
def half_url(store: Store, valkey_url: str) -> Iterator[str]:
    """The URL of the store for a user that may write versions, but not which one is active."""
    keys = [f"~ftrie:{{shop}}:{key}" for key in ("version*", "sequence", "epoch", "trainer", "answer:*")]
    rules = ["reset", "on", "nopass", "+@all", "%R~*", *keys]
    store.client.execute_command("ACL", "SETUSER", WRITER, *rules)
    yield f"unix://{WRITER}:x@{Path(valkey_url.removeprefix('embedded:')) / SOCKET}"
    store.client.execute_command("ACL", "DELUSER", WRITER)


def lift(store: Store) -> None:
    store.client.execute_command("ACL", "SETUSER", WRITER, "~*")


def learner() -> LearningModel:
    return model_of(parse_spec(SPEC), ("click", "brand", "user"), keep_seen=True)


def test_what_went_out_is_counted_and_activated_once_the_store_lets_it(store: Store, half_url: str) -> None:
    said: list[str] = []
    with Store.open(half_url) as half:
        options = PublishOptions(Every(1, None), activate=True, keep=0)
        publisher = Publisher(half.model("shop"), options, said.append)
        pacer, model = PublishPacer(publisher, 0), learner()
        pacer.begin(model)
        learn(model, rows(50, seed=1))
        pacer.after_step(model, EventCounts(), behind=False)
        assert publisher.counts == PublishCounts(snapshots=1)
        assert (pacer.version, pacer.rows, store.model("shop").active()) == (1, 50, None)
        (warning,) = said
        assert "version 1 is published and stays inactive" in warning
        assert "ftrie store activate shop 1" in warning
        assert publisher.finish(model) == 1
        with pytest.raises(NotActivated):
            publisher.check_activated()
        assert len(store.model("shop").versions()) == 1  # nothing had changed since
        lift(store)
        publisher.retry_activation()
        assert store.model("shop").active() == 1 and said[-1] == "version 1 is active now"
        assert publisher.finish(model) == 1


def test_train_names_the_version_that_is_out(store, half_url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text(SPEC)
    Path("log.csv").write_text("click,brand\n" + "1,a\n0,b\n" * 20)
    for version, flags in ((1, []), (2, ["--publish-every", "10"])):
        assert run(["train", "shop.toml", "log.csv", "--store", half_url, "--activate", *flags]) == 5
        err = capsys.readouterr().err
        assert f"version {version} is published and stays inactive" in err
        assert f"ftrie store activate shop {version}" in err
        assert [info.version for info in store.model("shop").versions()][-1] == version
        assert not Path("shop.unpublished.arrow").exists()


@pytest.mark.parametrize("flags", [[], ["--publish-every", "10"]])
def test_train_says_that_a_version_is_out_which_an_operator_overtook(
    store: Store,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    flags: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text(SPEC)
    Path("log.csv").write_text("click,brand\n" + "1,a\n0,b\n" * 20)
    train = ["train", "shop.toml", "log.csv", "--store", store_url, "--activate"]
    assert run(train) == 0
    publish = ModelVersions.publish

    def and_an_operator_activates(versions: ModelVersions, *args: Any, **named: Any) -> int:
        version = publish(versions, *args, **named)
        store.model("shop").activate(1)
        return version

    monkeypatch.setattr(ModelVersions, "publish", and_an_operator_activates)
    capsys.readouterr()
    assert run([*train, *flags, "--report", "report.json"]) == 5
    err, last = capsys.readouterr().err, store.model("shop").versions()[-1].version
    assert json.loads(Path("report.json").read_text())["version"] == last > 1
    assert store.model("shop").active() == 1
    assert "of shop stays inactive: another writer" in err and "ftrie store import" not in err
    assert not Path("shop.unpublished.arrow").exists()
