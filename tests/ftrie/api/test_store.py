"""ftrie.Store and ftrie.load, on a real embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ftrie
from model_store.errors import StoreError, VersionNotFound
from tests.ftrie.api.logs import ALL_KINDS, all_kinds_rows


@pytest.fixture(scope="module")
def model() -> ftrie.Model:
    return ftrie.train(ALL_KINDS, all_kinds_rows(400), progress=False).model


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ftrie.Store]:
    with ftrie.Store(f"embedded:{tmp_path / 's'}") as opened:
        yield opened


def test_publish_load_activate_and_roll_back(model: ftrie.Model, store: ftrie.Store) -> None:
    assert store.models() == []
    assert model.publish(store) == 1
    assert (store.models(), store.active("kinds")) == (["kinds"], None)
    with pytest.raises(VersionNotFound):
        ftrie.load("kinds", store=store)
    assert store.publish(model, activate=True) == 2
    assert store.active("kinds") == 2
    assert store.load("kinds") == ftrie.load("store://kinds:1", store=store) == model
    assert store.activate("kinds", 1) == 2
    assert store.rollback("kinds") == 2
    assert [(each.version, each.active) for each in store.versions("kinds")] == [(1, False), (2, True)]
    assert (store.resume("kinds"), store.gc("kinds", keep=1)) == (None, [])
    with pytest.raises(VersionNotFound, match="3"):
        store.load("kinds", 3)


def test_items_users_and_candidates(store: ftrie.Store, tmp_path: Path) -> None:
    assert store.put_items({"item": ["a", "b"], "price": [1.5, None], "tags": [["x", "y"], None]}) == 2
    assert store.items() == {"a": {"price": "1.5", "tags": '["x", "y"]'}}
    assert store.items(["b", "z"]) == {}
    (tmp_path / "users.csv").write_text("who,age\nu1,3\n")
    assert store.put_users(tmp_path / "users.csv", id_column="who") == 1
    assert (store.user("u1"), store.user("u2")) == ({"age": "3"}, {})
    assert store.put_candidates("home", ["b", "a"]) == 2
    assert (store.candidates("home"), store.candidates("none")) == (["b", "a"], None)
    with pytest.raises(ftrie.FtrieError, match="items: no column item or item_id or id for the id"):
        store.put_items({"price": [1.0]})
    for put in (store.put_items, store.put_users):
        with pytest.raises(ftrie.FtrieError, match="got no row and no column"):
            put([])


def test_urls(model: ftrie.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"embedded:{tmp_path / 'other'}"
    with ftrie.Store(url) as kept:
        assert model.publish(url, activate=True) == 1
        monkeypatch.setenv("FTRIE_STORE", url)
        assert ftrie.load("kinds") == model
        assert repr(kept) == f"Store({kept.url!r})"
    with pytest.raises(StoreError):
        ftrie.Store("nonsense://here")


def test_activating_past_a_guard_is_a_warning(store: ftrie.Store) -> None:
    guarded = ftrie.train(ALL_KINDS.merge(guard={}), all_kinds_rows(400), progress=False).model
    warning = "the guard of 'kinds' does not judge what is published from Python"
    with pytest.warns(ftrie.FtrieWarning, match=warning):
        assert guarded.publish(store, activate=True) == 1
