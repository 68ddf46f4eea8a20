"""`ftrie experiment …` as an operator types it."""

from __future__ import annotations

import pytest

from model_store.store import Store
from model_store.versions.experiments import Experiment
from tests.ftrie.conftest import Ask, Say
from tests.model_store.models import model


@pytest.fixture(autouse=True)
def ads(store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ads, with the variants base and plain, is active in the store that commands use by default."""
    monkeypatch.setenv("FTRIE_STORE", store_url)
    store.model("ads").publish_and_activate(model())


def record(store: Store) -> Experiment:
    stored = store.model("ads").experiment()
    assert stored is not None
    return stored


def test_set_says_what_is_in_force_and_how_many_cookies_move(say: Say, ask: Ask, store: Store) -> None:
    code, out, _ = say("experiment", "show", "ads")
    assert (code, "no experiment; the shares are those of the spec" in out) == (0, True)
    assert ask("experiment", "show", "ads") == {
        "model": "ads",
        "experiment": None,
        "in_force": {"base": 0.5, "plain": 0.5},
        "problem": None,
        "moves": None,
    }
    answer = ask("experiment", "set", "ads", "base=0.9", "plain=0.1")
    assert answer["in_force"] == {"base": 0.9, "plain": 0.1}
    assert answer["moves"] == pytest.approx(0.4)
    salted = ask("experiment", "set", "ads", "--salt", "autumn")
    assert salted["moves"] == pytest.approx(1 - 0.81 - 0.01)
    code, out, _ = say("experiment", "set", "ads", "plain=1", "--objective", "ctr * bid")
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:4]] == [
        ["base", "0.00000", "0.50000", "0", "no"],
        ["plain", "1.00000", "0.50000", "0", "no"],
    ]
    rest = "revision 3, running, 0 pins\nsalt: autumn\nobjective: ctr * bid\nmoves 90.0% of the cookies"
    assert rest in out
    assert (record(store).shares, record(store).salt) == ({"plain": 1.0}, "autumn")
    assert ask("experiment", "set", "ads", "--salt", "", "--objective", "")["experiment"]["salt"] == ""


def test_pins_come_and_go_and_a_cookie_may_hold_an_equals_sign(ask: Ask, store: Store) -> None:
    ask("experiment", "pin", "ads", "u1=plain", "a=b=base")
    ask("experiment", "pin", "ads", "u2=plain")
    assert record(store).pins == {"u1": "plain", "a=b": "base", "u2": "plain"}
    ask("experiment", "unpin", "ads", "u1", "never pinned")
    assert record(store).pins == {"a=b": "base", "u2": "plain"}
    ask("experiment", "unpin", "ads", "--all")
    assert record(store).pins == {}


def test_shadows_a_winner_and_back_to_the_spec(ask: Ask, store: Store) -> None:
    ask("experiment", "shadow", "ads", "plain")
    assert record(store).shadows == ("plain",)
    ended = ask("experiment", "stop", "ads", "--winner", "plain")
    assert (ended["in_force"], ended["experiment"]["state"]) == ({"base": 0.0, "plain": 1.0}, "stopped")
    again = ask("experiment", "set", "ads", "base=1")
    assert (again["in_force"], again["experiment"]["state"]) == ({"base": 1.0, "plain": 0.0}, "running")
    ask("experiment", "shadow", "ads", "--off")
    assert record(store).shadows == ()
    assert ask("experiment", "clear", "ads")["in_force"] == {"base": 0.5, "plain": 0.5}
    assert record(store).revision == 5


MISTAKES: list[tuple[str, int, str]] = [
    ("set ads base=0.9", 2, "base sum to 0.9; expected 1"),
    ("set ads base=0.5 other=0.5", 2, "no variant 'other' in the model; it has: base, plain"),
    ("set ads base=all", 2, "got 'base=all', expected VARIANT=SHARE with a number"),
    ("set ads base", 2, "got 'base', expected VARIANT=SHARE"),
    ("set ads base=0.5 plain=0.4 plain=0.5", 2, "got 'plain' twice: 0.4 and 0.5"),
    ("set ads --objective ctr*", 2, "objective: "),
    ("set ads", 2, "give shares such as base=0.9 plain=0.1, --salt or --objective"),
    ("set ads base=1 --revision 7", 5, "expected revision 7, found 0"),
    ("pin ads u1", 2, "got 'u1', expected COOKIE=VARIANT"),
    ("pin ads u1=base u1=plain", 2, "got 'u1' twice: base and plain"),
    ("pin ads u1=other", 2, "pins: no variant 'other'"),
    ("unpin ads", 2, "give either cookies or --all"),
    ("shadow ads other", 2, "shadows: no variant 'other'"),
    ("shadow ads", 2, "give either variants or --off"),
    ("stop ads --winner other", 2, "winner: no variant 'other'"),
    ("show a/b", 2, "got the model name 'a/b'"),
]


def test_a_mistake_is_told_and_nothing_changes(say: Say, store: Store) -> None:
    for words, code, message in MISTAKES:
        answered, out, err = say("experiment", *words.split())
        assert (answered, out, message in err) == (code, "", True), (words, out, err)
        assert store.model("ads").experiment() is None, words


def test_an_experiment_that_no_version_fits_is_kept_and_said_to_be_so(say: Say, store: Store) -> None:
    code, out, err = say("experiment", "set", "new", "base=1")
    assert (code, "new: revision 1, running" in out) == (0, True)
    assert "no version of new is active yet" in err  # so that names are not checked
    store.model("ads").experiments.write(Experiment(shares={"old": 1.0}))
    code, out, err = say("experiment", "show", "ads")
    assert (code, "servers refuse this experiment: shares: no variant 'old'" in err) == (0, True)
    assert "revision 1" in out
    store.client.hset(store.model("ads").keys.experiment, "shares", "?")  # a damaged record
    code, _, err = say("experiment", "show", "ads")
    assert (code, "`ftrie experiment clear ads` resets it" in err) == (5, True)
    assert say("experiment", "clear", "ads")[0] == 0
    assert say("experiment", "show", "ads")[0] == 0
