"""`ftrie experiment …` as an operator types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftrie.cli import run
from model_store.store import Store
from model_store.versions.experiments import Experiment
from tests.model_store.models import model

Said = tuple[int, str, str]


@pytest.fixture
def say(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run `ftrie experiment …` on a store where ads, with the variants base and plain, is active."""
    monkeypatch.setenv("FTRIE_STORE", store_url)
    store.model("ads").publish_and_activate(model())

    def said(*arguments: str) -> Said:
        return run(["experiment", *arguments]), *capsys.readouterr()

    return said


@pytest.fixture
def ask(say: Callable[..., Said]) -> Callable[..., Any]:
    """The same with --json: the answer."""

    def answer(*arguments: str) -> Any:
        code, out, err = say(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return answer


def record(store: Store) -> Experiment:
    stored = store.model("ads").experiment()
    assert stored is not None
    return stored


def test_without_an_experiment_the_shares_are_those_of_the_spec(
    say: Callable[..., Said], ask: Callable[..., Any]
) -> None:
    code, out, _ = say("show", "ads")
    assert code == 0
    assert "no experiment; the shares are those of the spec" in out
    assert ask("show", "ads") == {
        "model": "ads",
        "experiment": None,
        "in_force": {"base": 0.5, "plain": 0.5},
        "problem": None,
        "moves": None,
    }


def test_set_says_what_is_in_force_and_how_many_cookies_move(
    say: Callable[..., Said], ask: Callable[..., Any], store: Store
) -> None:
    answer = ask("set", "ads", "base=0.9", "plain=0.1")
    assert answer["in_force"] == {"base": 0.9, "plain": 0.1}
    assert answer["moves"] == pytest.approx(0.4)
    assert ask("set", "ads", "--salt", "autumn")["moves"] == pytest.approx(1 - 0.81 - 0.01)
    code, out, _ = say("set", "ads", "plain=1", "--objective", "ctr * bid")
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:4]] == [
        ["base", "0.00000", "0.50000", "0", "no"],
        ["plain", "1.00000", "0.50000", "0", "no"],
    ]
    assert (
        "revision 3, running, 0 pins\nsalt: autumn\nobjective: ctr * bid\nmoves 90.0% of the cookies" in out
    )
    assert (record(store).shares, record(store).salt) == ({"plain": 1.0}, "autumn")
    assert ask("set", "ads", "--salt", "", "--objective", "")["experiment"]["salt"] == ""


def test_pins_come_and_go_and_a_cookie_may_hold_an_equals_sign(ask: Callable[..., Any], store: Store) -> None:
    ask("pin", "ads", "u1=plain", "a=b=base")
    ask("pin", "ads", "u2=plain")
    assert record(store).pins == {"u1": "plain", "a=b": "base", "u2": "plain"}
    ask("unpin", "ads", "u1", "never pinned")
    assert record(store).pins == {"a=b": "base", "u2": "plain"}
    ask("unpin", "ads", "--all")
    assert record(store).pins == {}


def test_shadows_a_winner_and_back_to_the_spec(ask: Callable[..., Any], store: Store) -> None:
    ask("shadow", "ads", "plain")
    assert record(store).shadows == ("plain",)
    ended = ask("stop", "ads", "--winner", "plain")
    assert (ended["in_force"], ended["experiment"]["state"]) == ({"base": 0.0, "plain": 1.0}, "stopped")
    again = ask("set", "ads", "base=1")
    assert (again["in_force"], again["experiment"]["state"]) == ({"base": 1.0, "plain": 0.0}, "running")
    ask("shadow", "ads", "--off")
    assert record(store).shadows == ()
    assert ask("clear", "ads")["in_force"] == {"base": 0.5, "plain": 0.5}
    assert record(store).revision == 5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "ads", "base=0.9"], 2, "base sum to 0.9; expected 1"),
        (["set", "ads", "base=0.5", "other=0.5"], 2, "no variant 'other' in the model; it has: base, plain"),
        (["set", "ads", "base=all"], 2, "got 'base=all', expected VARIANT=SHARE with a number"),
        (["set", "ads", "base"], 2, "got 'base', expected VARIANT=SHARE"),
        (["set", "ads", "base=0.5", "plain=0.4", "plain=0.5"], 2, "got 'plain' twice: 0.4 and 0.5"),
        (["set", "ads", "--objective", "ctr *"], 2, "objective: "),
        (["set", "ads"], 2, "give shares such as base=0.9 plain=0.1, --salt or --objective"),
        (["set", "ads", "base=1", "--revision", "7"], 5, "expected revision 7, found 0"),
        (["pin", "ads", "u1"], 2, "got 'u1', expected COOKIE=VARIANT"),
        (["pin", "ads", "u1=base", "u1=plain"], 2, "got 'u1' twice: base and plain"),
        (["pin", "ads", "u1=other"], 2, "pins: no variant 'other'"),
        (["unpin", "ads"], 2, "give either cookies or --all"),
        (["shadow", "ads", "other"], 2, "shadows: no variant 'other'"),
        (["shadow", "ads"], 2, "give either variants or --off"),
        (["stop", "ads", "--winner", "other"], 2, "winner: no variant 'other'"),
        (["show", "a b"], 2, "got the model name 'a b'"),
    ],
)
def test_a_mistake_is_told_and_nothing_changes(
    say: Callable[..., Said], store: Store, arguments: list[str], code: int, message: str
) -> None:
    answered, out, err = say(*arguments)
    assert (answered, out) == (code, "")
    assert message in err
    assert store.model("ads").experiment() is None


def test_before_a_version_is_active_names_are_not_checked_and_it_says_so(
    say: Callable[..., Said], store: Store
) -> None:
    code, out, err = say("set", "new", "base=1")
    assert code == 0
    assert "new: revision 1, running" in out
    assert "no version of new is active yet" in err


def test_a_record_that_no_longer_fits_the_active_version_is_shown_with_what_servers_say(
    say: Callable[..., Said], store: Store
) -> None:
    store.model("ads").experiments.write(Experiment(shares={"old": 1.0}))
    code, out, err = say("show", "ads")
    assert (code, "servers refuse this experiment: shares: no variant 'old'" in err) == (0, True)
    assert "revision 1" in out


def test_a_damaged_record_is_told_with_a_remedy_that_works(say: Callable[..., Said], store: Store) -> None:
    store.client.hset(store.model("ads").keys.experiment, "shares", "?")
    code, _, err = say("show", "ads")
    assert (code, "`ftrie experiment clear ads` resets it" in err) == (5, True)
    assert say("clear", "ads")[0] == 0
    assert say("show", "ads")[0] == 0
